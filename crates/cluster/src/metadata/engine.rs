//! Where the metadata service keeps what must survive: values under keys, changed all or none under conditions. redb on
//! one machine; etcd offers the same, so that several instances can share it.

use std::ops::Bound;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

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

/// Keeps values under keys. Reads see all changes that returned before they began.
pub trait Engine: std::fmt::Debug + Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// `Io` and `Unreachable`.
    fn get(&self, key: &str) -> Result<Option<Stored>>;

    /// Up to `limit` values whose keys begin with `prefix` and are behind `after`, in order.
    ///
    /// # Errors
    /// `Io` and `Unreachable`.
    fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<(String, Stored)>>;

    /// Makes all changes, durably, if all conditions hold; returns whether they did.
    ///
    /// # Errors
    /// `Io` and `Unreachable`: whether the change was made is then unknown.
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
    /// The engine in the file `path`, made if it is missing.
    ///
    /// # Errors
    /// `Refused` if another process uses it, `Corrupt` if it is damaged, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What every engine does. Keys are below `base`, so that engines that keep more than this test can be tried.
    fn conforms(engine: &dyn Engine, base: &str) {
        let key = |name: &str| format!("{base}{name}");
        let put = |name: &str, value: &str| Write::Put(key(name), value.as_bytes().to_vec());
        let value = |name: &str| engine.get(&key(name)).unwrap().map(|found| found.value);

        assert_eq!(engine.get(&key("a")).unwrap(), None);
        assert!(engine.commit(&[Condition::Absent(key("a"))], &[put("a", "1"), put("b", "2")]).unwrap());
        let first = engine.get(&key("a")).unwrap().unwrap();
        assert_eq!(first.value, b"1");

        // A condition that does not hold changes nothing at all.
        assert!(!engine.commit(&[Condition::Absent(key("a"))], &[put("a", "3"), put("c", "3")]).unwrap());
        let stale = Condition::Revision(key("a"), first.revision + 1000);
        assert!(!engine.commit(&[stale], &[put("a", "3")]).unwrap());
        assert_eq!((value("a"), value("c")), (Some(b"1".to_vec()), None));

        // The same value written again has another revision: what was read before is stale.
        let now = Condition::Revision(key("a"), first.revision);
        assert!(engine.commit(std::slice::from_ref(&now), &[put("a", "1")]).unwrap());
        assert!(!engine.commit(&[now], &[put("a", "4")]).unwrap());

        assert!(engine.commit(&[], &[Write::Remove(key("b")), Write::Remove(key("never there"))]).unwrap());
        assert_eq!(value("b"), None);

        let names = ["list/1", "list/2", "list/3", "lisu"];
        assert!(engine.commit(&[], &names.map(|name| put(name, name))).unwrap());
        let listed = |after: &str, limit| {
            let found = engine.list(&key("list/"), after, limit).unwrap();
            found.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(listed("", 10), ["list/1", "list/2", "list/3"].map(key));
        assert_eq!(listed("", 2), ["list/1", "list/2"].map(key));
        assert_eq!(listed(&key("list/2"), 10), [key("list/3")]);
    }

    /// Of many that create the same key at the same time, one succeeds; of many that count, none loses a step.
    fn has_one_winner(engine: &dyn Engine, base: &str) {
        for round in 0..10 {
            let key = format!("{base}race-{round}");
            let winners: usize = std::thread::scope(|scope| {
                let tries: Vec<_> = (0..8u8)
                    .map(|who| {
                        let key = key.clone();
                        scope.spawn(move || {
                            let put = [Write::Put(key.clone(), vec![who])];
                            usize::from(engine.commit(&[Condition::Absent(key)], &put).unwrap())
                        })
                    })
                    .collect();
                tries.into_iter().map(|one| one.join().unwrap()).sum()
            });
            assert_eq!(winners, 1);
        }
        let key = format!("{base}counter");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10).for_each(|_| count(engine, &key)));
            }
        });
        assert_eq!(engine.get(&key).unwrap().unwrap().value, b"80");
    }

    fn count(engine: &dyn Engine, key: &str) {
        loop {
            let found = engine.get(key).unwrap();
            let number = found
                .as_ref()
                .map_or(0, |found| std::str::from_utf8(&found.value).unwrap().parse::<u32>().unwrap());
            let condition = match &found {
                Some(found) => Condition::Revision(key.to_owned(), found.revision),
                None => Condition::Absent(key.to_owned()),
            };
            let next = (number + 1).to_string().into_bytes();
            if engine.commit(&[condition], &[Write::Put(key.to_owned(), next)]).unwrap() {
                return;
            }
        }
    }

    #[test]
    fn the_embedded_engine_conforms_and_keeps_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metadata.redb");
        let engine = Embedded::open(&path).unwrap();
        conforms(&engine, "");
        has_one_winner(&engine, "");
        assert_eq!(Embedded::open(&path).unwrap_err().kind(), ErrorKind::Refused, "one process at a time");
        drop(engine);
        let again = Embedded::open(&path).unwrap();
        assert_eq!(again.get("counter").unwrap().unwrap().value, b"80");
        conforms(&again, "again/");
    }
}
