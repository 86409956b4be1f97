//! The one error type of all crates: a kind for control flow, a context for people, and the source.
//!
//! A kind survives the way up: a crate adds context with [`Error::within`] and keeps the kind. `Display` prints only
//! the context, so code that walks the chain of sources prints each of them once.

use std::fmt;
use std::io;

/// What went wrong, sorted by what a caller would do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system, a disk or a store failed. The same call may succeed later.
    Io,
    /// There is no such file, device, image, version, tag, object or session.
    NotFound,
    /// It exists already, or another process uses it.
    Exists,
    /// An argument can never be valid: a name, a range, a text.
    Invalid,
    /// A disk, or a file outside the repository, has no valid format.
    Malformed,
    /// Stored or received bytes contradict their digest, length or format.
    Corrupt,
    /// An install or a tree was finished while objects were missing.
    Incomplete,
    /// Data that was read back differs from what was written.
    Verification,
    /// Valid, but unknown to this program, the other side or the medium: a newer format, a missing feature.
    Unsupported,
    /// A precondition, a rule or a permission refused, before anything was changed.
    Refused,
    /// No space, or no quota, is left on the target or in the store.
    Full,
    /// A prune revoked the lease of this writer or prune. Its work since the lease began is lost, and it starts again.
    Revoked,
    /// The other side did not answer within the time allowed, or the connection broke, after all retries.
    Unreachable,
    /// The server's certificate is not the one that the join token names.
    Untrusted,
    /// The token is missing, or does not grant the request.
    Denied,
    /// The caller asked to stop.
    Stopped,
    /// No process runs the requested disk.
    NotRunning,
}

impl From<io::ErrorKind> for ErrorKind {
    fn from(kind: io::ErrorKind) -> Self {
        use io::ErrorKind as K;
        match kind {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => Self::Full,
            K::NotFound => Self::NotFound,
            K::AlreadyExists => Self::Exists,
            K::PermissionDenied | K::ReadOnlyFilesystem | K::ResourceBusy => Self::Refused,
            _ => Self::Io,
        }
    }
}

/// What was tried on which object, the kind of error, and its cause.
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of an operation that may fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that arose here. `context` is in lower case and names operation, object and offset: ``read superblock
    /// of `/dev/sdb2` at offset 1024``.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// The same, with its cause.
    #[must_use]
    pub fn from_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, context: context.into(), source: Some(source.into()) }
    }

    /// An error of the operating system, with the kind that fits.
    #[must_use]
    pub fn from_io(context: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        Self::from_source(source.kind().into(), context, source)
    }

    /// Bytes contradict their digest, length or format.
    pub fn corrupt(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, context)
    }

    /// Adds `context` above this error and keeps its kind.
    #[must_use]
    pub fn within(self, context: impl Into<String>) -> Self {
        Self::from_source(self.kind, context, self)
    }

    /// A copy of the error, for a second place that reports it: its whole chain as text.
    #[must_use]
    pub fn restated(&self) -> Self {
        Self::new(self.kind, chain(self))
    }

    /// The kind of error, for control flow.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The whole chain on one line, each error once: `context: cause: cause`. Some foreign errors print their source
/// themselves; it is not repeated.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_prints_each_link_once() {
        let beneath = io::Error::other("disk on fire");
        let error = Error::from_source(ErrorKind::Refused, "read superblock of `sda`", beneath);
        assert_eq!(error.to_string(), "read superblock of `sda`");
        assert_eq!(chain(&error), "read superblock of `sda`: disk on fire");
        let wordy = error.within("mount: read superblock of `sda`");
        assert_eq!(chain(&wordy), "mount: read superblock of `sda`: disk on fire");
        assert_eq!((wordy.kind(), wordy.restated().kind()), (ErrorKind::Refused, ErrorKind::Refused));
        assert_eq!(wordy.restated().to_string(), chain(&wordy));
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors_of_the_system() {
        for (number, kind) in
            [(28, ErrorKind::Full), (122, ErrorKind::Full), (5, ErrorKind::Io), (30, ErrorKind::Refused)]
        {
            assert_eq!(Error::from_io("put", io::Error::from_raw_os_error(number)).kind(), kind, "{number}");
        }
    }
}
