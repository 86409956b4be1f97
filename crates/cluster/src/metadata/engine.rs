//! Where the metadata service keeps what must survive: values under keys, changed all or none under conditions. redb on
//! one machine; `etcd` does the same for several instances. tests/engine.rs tries both.

use std::ops::Bound;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::database::Opening;

/// Values with the revision in which they were written.
const VALUES: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("values-1");
const REVISION: TableDefinition<(), u64> = TableDefinition::new("revision-1");

/// A value, and the revision of the engine in which it was written: never the same twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The value.
    pub value: Vec<u8>,
    /// Its revision, from 1.
    pub revision: u64,
}

/// What must hold, for a change to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// There is no such key.
    Absent(String),
    /// The key's value is still the one of this revision.
    Revision(String, u64),
}

/// A part of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Puts a value.
    Put(String, Vec<u8>),
    /// Removes a key, if it is there.
    Remove(String),
}

/// Most conditions and changes of one commit, together.
pub const CHANGES_MAX: usize = 100;

/// Keeps values under keys. Reads see all changes that returned before they began.
pub trait Engine: std::fmt::Debug + Send + Sync {
    /// Where the instance serves that has this engine, if there may be several.
    fn leader(&self) -> Option<String> {
        None
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// `Io`; `Revoked` if another instance leads.
    fn get(&self, key: &str) -> Result<Option<Stored>>;

    /// Up to `limit` values whose keys begin with `prefix` and are behind `after`, in order.
    ///
    /// # Errors
    /// `Io`; `Revoked` if another instance leads.
    fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<(String, Stored)>>;

    /// Makes all changes, durably, if all conditions hold; returns whether they did.
    ///
    /// # Errors
    /// `Io`: whether the change was made is then unknown. `Revoked` if another instance leads: this engine changes
    /// nothing from then on. `Full`, and `Invalid` for more than [`CHANGES_MAX`]: nothing was changed.
    fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool>;
}

/// Most values in one step of [`for_each`].
const STEP: usize = 1000;

/// Calls `each` with all values whose keys begin with `prefix`, in order.
///
/// # Errors
/// Those of the engine and of `each`, which end the walk.
pub(super) fn for_each(
    engine: &dyn Engine,
    prefix: &str,
    mut each: impl FnMut(&str, &Stored) -> Result<()>,
) -> Result<()> {
    let mut after = String::new();
    loop {
        let found = engine.list(prefix, &after, STEP)?;
        for (key, stored) in &found {
            each(key, stored)?;
        }
        let Some((last, _)) = found.into_iter().last() else { return Ok(()) };
        after = last;
    }
}

/// An engine in one file, for one process.
#[derive(Debug)]
pub struct Embedded(Database);

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::from_source(ErrorKind::Io, "use the database of the metadata service", error.into())
}

impl Embedded {
    /// The engine in the file `path`.
    ///
    /// # Errors
    /// `Refused` if it is missing and none is to be made, or if another process uses it; `Corrupt` if it is damaged,
    /// `Io`.
    pub fn open(path: &Path, opening: Opening) -> Result<Self> {
        if opening == Opening::Existing && !crate::database::is_there(path) {
            let text = format!(
                "the cluster's token is there, but its database `{}` is not: is its disk mounted, or is there a copy? \
                 --new makes another, empty cluster",
                path.display()
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let database = crate::database::open(path, "the metadata service")?;
        let write = database.begin_write().map_err(failed)?;
        write.open_table(VALUES).map_err(failed)?;
        write.open_table(REVISION).map_err(failed)?;
        write.commit().map_err(failed)?;
        Ok(Self(database))
    }
}

impl Engine for Embedded {
    fn get(&self, key: &str) -> Result<Option<Stored>> {
        let table = self.0.begin_read().map_err(failed)?.open_table(VALUES).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|found| stored(found.value())))
    }

    fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<(String, Stored)>> {
        let table = self.0.begin_read().map_err(failed)?.open_table(VALUES).map_err(failed)?;
        let from = if after >= prefix && !after.is_empty() {
            Bound::Excluded(after)
        } else {
            Bound::Included(prefix)
        };
        let mut found = Vec::new();
        for row in table.range::<&str>((from, Bound::Unbounded)).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            if found.len() == limit || !key.value().starts_with(prefix) {
                break;
            }
            found.push((key.value().to_owned(), stored(value.value())));
        }
        Ok(found)
    }

    fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool> {
        if conditions.len() + writes.len() > CHANGES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too many changes at once"));
        }
        let write = self.0.begin_write().map_err(failed)?;
        {
            let mut values = write.open_table(VALUES).map_err(failed)?;
            for condition in conditions {
                let (key, wanted) = match condition {
                    Condition::Absent(key) => (key, None),
                    Condition::Revision(key, revision) => (key, Some(*revision)),
                };
                let found = values.get(key.as_str()).map_err(failed)?.map(|found| found.value().0);
                if found != wanted {
                    return Ok(false);
                }
            }
            let mut counter = write.open_table(REVISION).map_err(failed)?;
            let revision = counter.get(()).map_err(failed)?.map_or(0, |found| found.value()) + 1;
            counter.insert((), revision).map_err(failed)?;
            for change in writes {
                match change {
                    Write::Put(key, value) => {
                        values.insert(key.as_str(), (revision, value.as_slice())).map_err(failed)?;
                    }
                    Write::Remove(key) => {
                        values.remove(key.as_str()).map_err(failed)?;
                    }
                }
            }
        }
        write.commit().map_err(failed)?;
        Ok(true)
    }
}

fn stored((revision, value): (u64, &[u8])) -> Stored {
    Stored { value: value.to_vec(), revision }
}
