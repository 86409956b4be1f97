//! Errors of this crate.

/// What went wrong, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system refused or failed.
    Io,
    /// A precondition failed before anything was started: an option that is not allowed, an address in use.
    Refused,
    /// The server's own files are not what it wrote.
    Corrupt,
}

/// An error of this crate.
pub type Error = base::Fault<ErrorKind>;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
