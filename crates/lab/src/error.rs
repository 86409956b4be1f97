//! Errors of this crate.

/// What went wrong, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not root, or a tool of the lab is not installed.
    Unavailable,
    /// A tool ran and failed, or said something unexpected.
    Tool,
    /// The operating system refused or failed.
    Io,
    /// What was waited for did not come in time.
    TimedOut,
    /// An argument lies outside its range.
    Invalid,
}

/// An error of this crate.
pub type Error = base::Fault<ErrorKind>;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
