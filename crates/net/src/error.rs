//! The error of this crate.

use base::Fault;

/// What went wrong on the network, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A socket or file operation failed.
    Io,
    /// The server did not answer within the time allowed, or the connection broke, after all retries.
    Unreachable,
    /// The server's certificate is not the one that the join token names.
    Untrusted,
    /// The token lacks, or does not grant, what was asked.
    Denied,
    /// No such image, version, object or session.
    NotFound,
    /// It exists already.
    Exists,
    /// A precondition refuses it.
    Refused,
    /// Bytes that do not match their digest, or an answer that cannot be parsed.
    Corrupt,
    /// A text or a number given by the caller is not valid.
    Invalid,
    /// The other side speaks a newer protocol or format.
    Unsupported,
    /// The server or the destination has no space left.
    Full,
    /// What was written and read back is not what was to be written.
    Verification,
    /// The caller asked to stop.
    Stopped,
}

/// An error of this crate.
pub type Error = Fault<ErrorKind>;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of `image` as one of this crate.
pub(crate) fn from_image(error: image::Error, context: impl Into<String>) -> Error {
    let kind = match error.kind() {
        image::ErrorKind::Io => ErrorKind::Io,
        image::ErrorKind::NotFound => ErrorKind::NotFound,
        image::ErrorKind::Corrupt => ErrorKind::Corrupt,
        image::ErrorKind::Unsupported => ErrorKind::Unsupported,
        image::ErrorKind::Refused => ErrorKind::Refused,
        image::ErrorKind::Full => ErrorKind::Full,
        image::ErrorKind::Incomplete => ErrorKind::Unreachable,
        image::ErrorKind::Verification => ErrorKind::Verification,
    };
    Error::from_source(kind, context, error)
}
