//! The error type of all crates: a kind for control flow, a context for people, and the error that caused it.
//!
//! A caller that passes an error on adds its own context with [`Error::within`], which keeps the kind. `Display` prints
//! only the context, so code that walks the chain of sources prints each link once.

use std::fmt;
use std::io;

/// What went wrong. Two errors have different kinds if a caller handles them differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system, a disk or a store failed. The same call may succeed later.
    Io,
    /// The file, device, image, version, tag, object or session does not exist.
    NotFound,
    /// The thing to be created already exists, or another process uses it.
    Exists,
    /// An argument (a name, a range, a text) is never valid, whatever the state of the system.
    Invalid,
    /// A disk, or a file outside the repository, contains bytes that do not follow its format.
    Malformed,
    /// Stored or received bytes do not match their digest, length or format.
    Corrupt,
    /// A caller tried to finish an install or a tree while objects were missing.
    Incomplete,
    /// The bytes read back from a target differ from the bytes that should be there.
    Verification,
    /// Valid, but this program, the other side or the medium does not support it: a newer format, a missing feature.
    Unsupported,
    /// A precondition, a rule or a missing permission forbids the operation. Nothing was changed.
    Refused,
    /// The target or the store has no space or no quota left.
    Full,
    /// A prune revoked the lease of this writer or prune, or the outcome of a change under the lease is not known. Work
    /// done under the lease is lost: the caller starts again.
    Revoked,
    /// After all retries, the other side did not answer in time, or the connection broke.
    Unreachable,
    /// The server's certificate is not the one that the join token specifies.
    Untrusted,
    /// The request has no valid token, or its token does not grant the operation.
    Denied,
    /// The caller or the user stopped the operation.
    Stopped,
    /// No process serves the attached disk that was named.
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

/// What an error is about, where a caller does something else about it than its kind tells, or has more to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A cluster of disks or one of its parts, and not a server of images.
    Cluster,
    /// A target with less space than the image needs.
    Target,
    /// A volume group with less space than the volume needs.
    VolumeGroup,
    /// A signature by an older program, which names no repository.
    OldSignature,
    /// A signature that a copy would lose.
    LostSignature,
}

/// An error: its kind, what was tried on which object, and the error that caused it.
pub struct Error {
    kind: ErrorKind,
    subject: Option<Subject>,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Subject {
    const WORDS: [(Self, &str); 5] = [
        (Self::Cluster, "cluster"),
        (Self::Target, "target"),
        (Self::VolumeGroup, "volume_group"),
        (Self::OldSignature, "old_signature"),
        (Self::LostSignature, "lost_signature"),
    ];

    /// Its word in records for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(subject, _)| *subject == self).map_or("", |(_, word)| word)
    }

    /// The subject with this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, own)| *own == word).map(|(subject, _)| *subject)
    }
}

impl Error {
    /// Creates an error without a source. `context` is lower case and names the operation, the object and the offset:
    /// ``read superblock of `/dev/sdb2` at offset 1024``.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, subject: None, context: context.into(), source: None }
    }

    /// Creates an error that `source` caused.
    #[must_use]
    pub fn from_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, subject: None, context: context.into(), source: Some(source.into()) }
    }

    /// Creates an error from an error of the operating system, and derives its kind.
    #[must_use]
    pub fn from_io(context: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        Self::from_source(source.kind().into(), context, source)
    }

    /// Creates an error of the kind [`ErrorKind::Corrupt`].
    pub fn corrupt(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, context)
    }

    /// Wraps this error in one with a further `context`. The kind stays the same.
    #[must_use]
    pub fn within(self, context: impl Into<String>) -> Self {
        Self { subject: self.subject, ..Self::from_source(self.kind, context, self) }
    }

    /// Says what the error is about.
    #[must_use]
    pub fn about(self, subject: Subject) -> Self {
        Self { subject: Some(subject), ..self }
    }

    /// A copy for a second place that reports this error. Its context is the whole chain as text; it has no source.
    #[must_use]
    pub fn restated(&self) -> Self {
        Self { subject: self.subject(), ..Self::new(self.kind, chain(self)) }
    }

    /// The kind of the error, for control flow.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What it is about, or the first of its causes that says so, whatever lies between them.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = next {
            if let Some(subject) = error.downcast_ref::<Self>().and_then(|own| own.subject) {
                return Some(subject);
            }
            next = error.source();
        }
        None
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

/// The whole chain on one line: `context: cause: cause`. Each link appears once, even if a foreign error includes its
/// source in its own text.
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
    fn what_an_error_is_about_survives_the_way_up() {
        let error = Error::new(ErrorKind::Refused, "it has 1 GiB").about(Subject::Target);
        let between = io::Error::other(error.within("look at `sda`"));
        let error = Error::from_source(ErrorKind::Io, "open", between).within("install");
        assert_eq!(
            (error.subject(), error.restated().subject()),
            (Some(Subject::Target), Some(Subject::Target))
        );
        assert_eq!(Error::new(ErrorKind::Refused, "the target is too small").subject(), None);
        for (subject, word) in Subject::WORDS {
            assert_eq!((subject.word(), Subject::of_word(word)), (word, Some(subject)));
        }
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
