//! Errors of this crate.

use serde::{Deserialize, Serialize};

/// What went wrong, for control flow. The words of the control protocol (`formats/attached.md`) are these in snake
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// A precondition failed before anything was started: an option that is not allowed, an address in use.
    Refused,
    /// Files are not what was written: the server's own, a disk's journal, objects of a repository.
    Corrupt,
    /// There is no such disk, image or version.
    NotFound,
    /// Words that mean nothing here.
    Invalid,
    /// No process runs the disk that was asked.
    #[serde(skip)]
    NotRunning,
    /// A server or a guest agent does not answer.
    Unreachable,
    /// The operating system refused or failed, or whatever a newer program calls by a name of its own.
    #[serde(other)]
    Io,
}

/// An error of this crate.
pub type Error = base::Fault<ErrorKind>;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What an error of the disk called `name` is here.
pub(crate) fn of_disk(name: &str) -> impl Fn(mirror::Error) -> Error {
    use mirror::ErrorKind as Kind;
    move |error| {
        let kind = match error.kind() {
            Kind::NotFound => ErrorKind::NotFound,
            Kind::Exists | Kind::Refused => ErrorKind::Refused,
            Kind::Corrupt => ErrorKind::Corrupt,
            Kind::Invalid => ErrorKind::Invalid,
            Kind::Unreachable => ErrorKind::Unreachable,
            Kind::Io | Kind::Full | Kind::Unsupported => ErrorKind::Io,
        };
        Error::from_source(kind, format!("disk `{name}`"), error)
    }
}
