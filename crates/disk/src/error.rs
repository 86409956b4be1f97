//! Errors of this crate.

/// What went wrong, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system refused or failed.
    Io,
    /// No such file or device.
    NotFound,
    /// Bytes on the disk that no valid table or filesystem holds.
    Malformed,
    /// A valid thing that this reader does not understand.
    Unsupported,
    /// A precondition failed before anything was written: too small, mounted, in use, wrong sector size.
    Refused,
    /// No room left on the target.
    Full,
}

/// An error of this crate.
pub type Error = base::Fault<ErrorKind>;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
