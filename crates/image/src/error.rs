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
/// The kind under which an error of `disk` goes on.
pub(crate) fn kind_of_disk(error: &disk::Error) -> ErrorKind {
    match error.kind() {
        disk::ErrorKind::Io => ErrorKind::Io,
        disk::ErrorKind::NotFound => ErrorKind::NotFound,
        disk::ErrorKind::Malformed => ErrorKind::Corrupt,
        disk::ErrorKind::Unsupported => ErrorKind::Unsupported,
        disk::ErrorKind::Refused => ErrorKind::Refused,
        disk::ErrorKind::Full => ErrorKind::Full,
    }
}

/// The error of `disk` beneath `context`.
pub(crate) fn from_disk(error: disk::Error, context: impl Into<String>) -> Error {
    Error::from_source(kind_of_disk(&error), context, error)
}

/// The same error once more, for a second place that has to report it: its whole chain as text.
pub(crate) fn restate(error: &Error) -> Error {
    Error::new(error.kind(), base::fault::chain(error))
}
