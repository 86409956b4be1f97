//! Errors of this crate.

/// What went wrong, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system, the local file or a store failed.
    Io,
    /// No such image, version or local state.
    NotFound,
    /// It exists already, or another process uses it.
    Exists,
    /// Bytes that are not what their digest or format says.
    Corrupt,
    /// A range or a word that cannot be: behind the disk's end, not in whole sectors.
    Invalid,
    /// A precondition refuses it: the disk is read-only or closed, the image has a newer version.
    Refused,
    /// No room is left on the local file system or in the store.
    Full,
    /// A newer format, or something that the medium lacks.
    Unsupported,
    /// No source had it within the time allowed.
    Unreachable,
}

/// An error of this crate.
pub type Error = base::Fault<ErrorKind>;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of `disk` beneath `context`.
pub(crate) fn from_disk(error: disk::Error, context: impl Into<String>) -> Error {
    let kind = match error.kind() {
        disk::ErrorKind::Io => ErrorKind::Io,
        disk::ErrorKind::NotFound => ErrorKind::NotFound,
        disk::ErrorKind::Malformed => ErrorKind::Corrupt,
        disk::ErrorKind::Unsupported => ErrorKind::Unsupported,
        disk::ErrorKind::Refused => ErrorKind::Refused,
        disk::ErrorKind::Full => ErrorKind::Full,
    };
    Error::from_source(kind, context, error)
}

/// The error of `store` beneath `context`.
pub(crate) fn from_store(error: store::Error, context: impl Into<String>) -> Error {
    let kind = match error.kind() {
        store::ErrorKind::NotFound => ErrorKind::NotFound,
        store::ErrorKind::Exists => ErrorKind::Exists,
        store::ErrorKind::Refused => ErrorKind::Refused,
        store::ErrorKind::Corrupt => ErrorKind::Corrupt,
        store::ErrorKind::Full => ErrorKind::Full,
        store::ErrorKind::Invalid => ErrorKind::Invalid,
        store::ErrorKind::Unsupported => ErrorKind::Unsupported,
        store::ErrorKind::Io | store::ErrorKind::Revoked => ErrorKind::Io,
    };
    Error::from_source(kind, context, error)
}
