//! What can go wrong in a repository, sorted by what a caller would do about it.

use base::Fault;

/// The kinds of error of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such repository, image, version, tag or object.
    NotFound,
    /// There is one already.
    Exists,
    /// The store failed; the same call may succeed later.
    Io,
    /// Stored bytes are not what was stored: somebody or something changed them.
    Corrupt,
    /// No space, or no quota, left in the store.
    Full,
    /// A name, reference or location that cannot be one.
    Invalid,
    /// A newer format, or a store that lacks what a repository needs.
    Unsupported,
    /// Forbidden by a rule of the repository or by the store's permissions.
    Refused,
}

/// An error of this crate.
pub type Error = Fault<ErrorKind>;
/// The result of what a repository does.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of an object store while it did `context`, as an error of ours.
pub(crate) fn from_store(context: impl Into<String>, error: object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match &error {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => ErrorKind::Exists,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::Refused,
        E::NotSupported { .. } | E::NotImplemented { .. } => ErrorKind::Unsupported,
        E::InvalidPath { .. } => ErrorKind::Invalid,
        other => kind_beneath(other),
    };
    Error::from_source(kind, context, error)
}

/// An error of the operating system while it did `context`, as an error of ours.
pub(crate) fn from_io(context: impl Into<String>, error: impl Into<std::io::Error>) -> Error {
    let error = error.into();
    Error::from_source(kind_of_io(&error), context, error)
}

/// Looks for an error of the operating system along the chain of sources.
fn kind_beneath(error: &object_store::Error) -> ErrorKind {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return kind_of_io(io);
        }
        next = cause.source();
    }
    ErrorKind::Io
}

fn kind_of_io(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as K;
    match error.kind() {
        K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::Full,
        K::NotFound => ErrorKind::NotFound,
        K::AlreadyExists => ErrorKind::Exists,
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorKind::Refused,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_faults_below_any_wrapping() {
        for (io, kind) in [
            (std::io::Error::from(std::io::ErrorKind::StorageFull), ErrorKind::Full),
            (std::io::Error::from_raw_os_error(122), ErrorKind::Full),
            (std::io::Error::from_raw_os_error(5), ErrorKind::Io),
            (std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem), ErrorKind::Refused),
        ] {
            let wrapped = object_store::Error::Generic { store: "test", source: Box::new(io) };
            assert_eq!(from_store("put", wrapped).kind(), kind);
        }
    }
}
