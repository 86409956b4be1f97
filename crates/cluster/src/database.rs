//! Opens the embedded databases of devices and of the metadata service.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageError};

/// What to do where there is no database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Refuse: its disk may not be mounted, or somebody may have removed it.
    Existing,
    /// Make one.
    OrNew,
}

/// Whether there is a database at `path`. An empty file is none: redb would make a new one in it.
pub(crate) fn is_there(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.len() > 0)
}

/// The database in the file `path`, made for its owner alone if it is missing; `whose` names it in errors.
///
/// # Errors
/// `Refused` if another process uses it, `Corrupt` if it is damaged, `Io`.
pub(crate) fn open(path: &Path, whose: &str) -> Result<Database> {
    let what = || format!("open the database of {whose} `{}`", path.display());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|error| Error::from_io(what(), error))?;
    let opened = FileBackend::new(file).and_then(|file| Database::builder().create_with_backend(file));
    opened.map_err(|error| {
        let kind = match &error {
            DatabaseError::DatabaseAlreadyOpen => ErrorKind::Refused,
            DatabaseError::Storage(StorageError::Corrupted(_)) => ErrorKind::Corrupt,
            _ => ErrorKind::Io,
        };
        Error::from_source(kind, what(), error)
    })
}
