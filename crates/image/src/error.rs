//! Errors of this crate.

/// What went wrong, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system, a disk or a store failed.
    Io,
    /// No such object.
    NotFound,
    /// Bytes that are not what their digest, length or format says.
    Corrupt,
    /// A valid thing of a format version, feature, codec or cipher that this program does not know.
    Unsupported,
    /// A precondition failed before anything was written: too small, wrong sector size, bad options.
    Refused,
    /// No room left on the target or in the store.
    Full,
    /// An install was finished while objects were missing.
    Incomplete,
    /// What the target holds is not what was written to it.
    Verification,
}

/// An error of this crate.
pub type Error = base::Fault<ErrorKind>;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A fault that arose from bytes which are not what they should be.
pub(crate) fn corrupt(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, context)
}
