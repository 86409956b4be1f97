//! What a device remembers in its database `device.redb`: its objects, their checksums and attributes, its part of the
//! index, the map.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, ErrorKind, Result, hex};
use proto::cluster::{Map, ObjectId};
use redb::{
    Database, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    TableDefinition, TableError, Value, WriteTransaction,
};

use crate::token::random;

/// An object: length, fence, whether it is sealed, when it was created and modified (nanoseconds since 1970).
type Row = (u64, u32, bool, u64, u64);
const OBJECTS: TableDefinition<[u8; 12], Row> = TableDefinition::new("objects-1");
/// Checksums of pieces: by object and first byte, the length and the sum.
const PIECES: TableDefinition<([u8; 12], u64), (u32, u64)> = TableDefinition::new("pieces-1");
/// By object, page and number.
const ATTRIBUTES: TableDefinition<([u8; 12], u32, u32), &[u8]> = TableDefinition::new("attributes-1");
/// Content that is about to be written over older content, by object and first byte: done again after a crash.
const REDO: TableDefinition<([u8; 12], u64), &[u8]> = TableDefinition::new("redo-1");
/// Entries, by group and name.
pub(super) const INDEX: TableDefinition<(u32, &str), &[u8]> = TableDefinition::new("index-1");
const FACTS: TableDefinition<&str, &[u8]> = TableDefinition::new("facts-1");
const IDENTITY: &str = "identity";
const MAP: &str = "map";
/// How many transactions were made: an older copy has fewer than what others were told.
const COMMITS: &str = "commits";

/// What the database knows of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectRow {
    pub(super) length: u64,
    pub(super) fence: u32,
    pub(super) sealed: bool,
    pub(super) created: u64,
    pub(super) modified: u64,
}

/// The checksum of a contiguous piece of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SummedPiece {
    pub(super) from: u64,
    pub(super) bytes: u32,
    pub(super) sum: u64,
}

impl SummedPiece {
    pub(super) fn end(&self) -> u64 {
        self.from + u64::from(self.bytes)
    }
}

/// An entry that takes the place of another one, and of no other.
#[derive(Debug)]
pub(super) struct Replacement {
    pub(super) group: u32,
    pub(super) name: String,
    /// Empty for a name that was never there.
    pub(super) old: Vec<u8>,
    pub(super) new: Vec<u8>,
}

/// One change; a transaction holds many.
#[derive(Debug)]
pub(super) enum Change {
    /// The object is as `row` says; `gone` pieces (by first byte) are replaced by `pieces`.
    Object { id: ObjectId, row: ObjectRow, gone: Vec<u64>, pieces: Vec<SummedPiece> },
    /// The object is removed, with all that belongs to it.
    Remove { id: ObjectId },
    /// An attribute is set, or removed.
    Attribute { id: ObjectId, page: u32, number: u32, value: Option<Vec<u8>> },
    /// Content to be written in place after this change is durable.
    Redo { id: ObjectId, at: u64, content: Vec<u8> },
    /// It was written.
    Redone { id: ObjectId, at: u64 },
    /// Entries of the index; each wins over an older version.
    Entries(Vec<(u32, String, Vec<u8>)>),
    /// Entries that take the place of one that is as supposed.
    Replace(Vec<Replacement>),
    /// Names that are forgotten.
    Forget(Vec<(u32, String)>),
    /// The map that the device follows from now on.
    Map(Vec<u8>),
}

/// The database.
#[derive(Debug)]
pub(super) struct Tables {
    database: Database,
    commits: AtomicU64,
}

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::from_source(ErrorKind::Io, "use the device's database", error.into())
}

impl Tables {
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let database = crate::database::open(&super::folder::database(folder), "the device")?;
        let tables = Self { database, commits: AtomicU64::new(0) };
        tables.prepare()?;
        Ok(tables)
    }

    /// Makes the tables and the identity, so that readers find them.
    fn prepare(&self) -> Result<()> {
        let write = self.database.begin_write().map_err(failed)?;
        write.open_table(OBJECTS).map_err(failed)?;
        write.open_table(PIECES).map_err(failed)?;
        write.open_table(ATTRIBUTES).map_err(failed)?;
        write.open_table(REDO).map_err(failed)?;
        write.open_table(INDEX).map_err(failed)?;
        {
            let mut facts = write.open_table(FACTS).map_err(failed)?;
            if facts.get(IDENTITY).map_err(failed)?.is_none() {
                let identity = hex::encode(&random::<16>()?);
                facts.insert(IDENTITY, identity.as_bytes()).map_err(failed)?;
            }
        }
        self.commit(write)
    }

    /// Commits, durably, and counts it.
    fn commit(&self, write: WriteTransaction) -> Result<()> {
        let commits = {
            let mut facts = write.open_table(FACTS).map_err(failed)?;
            let bytes = facts.get(COMMITS).map_err(failed)?.and_then(|found| found.value().try_into().ok());
            let commits = bytes.map_or(0, u64::from_le_bytes) + 1;
            facts.insert(COMMITS, commits.to_le_bytes().as_slice()).map_err(failed)?;
            commits
        };
        write.commit().map_err(failed)?;
        self.commits.store(commits, Ordering::Relaxed);
        Ok(())
    }

    /// How many commits the device ever made, each start counted as one, too.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self) -> Result<ReadTransaction> {
        self.database.begin_read().map_err(failed)
    }

    fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        definition: TableDefinition<K, V>,
    ) -> Result<ReadOnlyTable<K, V>> {
        self.read()?.open_table(definition).map_err(|error: TableError| failed(error))
    }

    /// The device's identity: chosen at random when the folder was made.
    pub(super) fn identity(&self) -> Result<String> {
        let facts = self.table(FACTS)?;
        let found = facts.get(IDENTITY).map_err(failed)?;
        let text = found.and_then(|found| String::from_utf8(found.value().to_vec()).ok());
        text.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the device's identity can't be read"))
    }

    /// The map that the device followed last.
    pub(super) fn map(&self) -> Result<Option<Map>> {
        let facts = self.table(FACTS)?;
        let Some(found) = facts.get(MAP).map_err(failed)? else { return Ok(None) };
        let read = serde_json::from_slice(found.value());
        read.map(Some).map_err(|error| {
            Error::from_source(ErrorKind::Corrupt, "read the map that the device keeps", error)
        })
    }

    pub(super) fn object(&self, id: ObjectId) -> Result<Option<ObjectRow>> {
        Ok(self.table(OBJECTS)?.get(id.to_bytes()).map_err(failed)?.map(|row| ObjectRow::of(row.value())))
    }

    /// Up to `limit` objects of a group with numbers above `after`.
    pub(super) fn objects(&self, group: u32, after: u64, limit: usize) -> Result<Vec<(ObjectId, ObjectRow)>> {
        let table = self.table(OBJECTS)?;
        let from = ObjectId { group, number: after }.to_bytes();
        let to = ObjectId { group, number: u64::MAX }.to_bytes();
        let found = table.range(from..=to).map_err(failed)?;
        let past = found.filter(|row| row.as_ref().map_or(true, |(id, _)| id.value() != from));
        past.take(limit)
            .map(|row| row.map(|(id, row)| (ObjectId::from_bytes(id.value()), ObjectRow::of(row.value()))))
            .collect::<std::result::Result<_, _>>()
            .map_err(failed)
    }

    /// Calls `each` for every object.
    pub(super) fn all_objects(&self, mut each: impl FnMut(ObjectId, ObjectRow)) -> Result<()> {
        for row in self.table(OBJECTS)?.iter().map_err(failed)? {
            let (id, row) = row.map_err(failed)?;
            each(ObjectId::from_bytes(id.value()), ObjectRow::of(row.value()));
        }
        Ok(())
    }

    /// An object and its checksums, by first byte, as of one moment.
    pub(super) fn whole_object(&self, id: ObjectId) -> Result<Option<(ObjectRow, Vec<SummedPiece>)>> {
        let read = self.read()?;
        let bytes = id.to_bytes();
        let row = read.open_table(OBJECTS).map_err(failed)?.get(bytes).map_err(failed)?;
        let Some(row) = row.map(|row| ObjectRow::of(row.value())) else { return Ok(None) };
        let table = read.open_table(PIECES).map_err(failed)?;
        let found = table.range((bytes, 0)..=(bytes, u64::MAX)).map_err(failed)?;
        let piece =
            |row: std::result::Result<(redb::AccessGuard<'_, _>, redb::AccessGuard<'_, (u32, u64)>), _>| {
                row.map(|(key, value): (redb::AccessGuard<'_, ([u8; 12], u64)>, _)| {
                    let (bytes, sum) = value.value();
                    SummedPiece { from: key.value().1, bytes, sum }
                })
            };
        let pieces: std::result::Result<Vec<_>, redb::StorageError> = found.map(piece).collect();
        Ok(Some((row, pieces.map_err(failed)?)))
    }

    /// The attributes of an object, by page and number.
    pub(super) fn attributes(&self, id: ObjectId) -> Result<Vec<(u32, u32, Vec<u8>)>> {
        let table = self.table(ATTRIBUTES)?;
        let bytes = id.to_bytes();
        let found = table.range((bytes, 0, 0)..=(bytes, u32::MAX, u32::MAX)).map_err(failed)?;
        found
            .map(|row| {
                row.map(|(key, value)| {
                    let (_, page, number) = key.value();
                    (page, number, value.value().to_vec())
                })
            })
            .collect::<std::result::Result<_, _>>()
            .map_err(failed)
    }

    /// One attribute.
    pub(super) fn attribute(&self, id: ObjectId, page: u32, number: u32) -> Result<Option<Vec<u8>>> {
        let found = self
            .table(ATTRIBUTES)?
            .get((id.to_bytes(), page, number))
            .map_err(failed)?
            .map(|value| value.value().to_vec());
        Ok(found)
    }

    /// Content that a crash may have left half written.
    pub(super) fn redo(&self) -> Result<Vec<(ObjectId, u64, Vec<u8>)>> {
        let table = self.table(REDO)?;
        table
            .iter()
            .map_err(failed)?
            .map(|row| {
                row.map(|(key, content)| {
                    let (id, at) = key.value();
                    (ObjectId::from_bytes(id), at, content.value().to_vec())
                })
            })
            .collect::<std::result::Result<_, _>>()
            .map_err(failed)
    }

    /// Makes all of `changes` durable, or none.
    pub(super) fn apply(&self, changes: Vec<Change>) -> Result<()> {
        let write = self.database.begin_write().map_err(failed)?;
        for change in changes {
            apply(&write, change).map_err(failed)?;
        }
        self.commit(write)
    }
}

fn apply(write: &WriteTransaction, change: Change) -> std::result::Result<(), redb::Error> {
    match change {
        Change::Object { id, row, gone, pieces } => {
            let id = id.to_bytes();
            write.open_table(OBJECTS)?.insert(id, row.to_row())?;
            let mut table = write.open_table(PIECES)?;
            for from in gone {
                table.remove((id, from))?;
            }
            for piece in pieces {
                table.insert((id, piece.from), (piece.bytes, piece.sum))?;
            }
        }
        Change::Remove { id } => {
            let id = id.to_bytes();
            write.open_table(OBJECTS)?.remove(id)?;
            write.open_table(PIECES)?.retain_in((id, 0)..=(id, u64::MAX), |_, _| false)?;
            let attributes = (id, 0, 0)..=(id, u32::MAX, u32::MAX);
            write.open_table(ATTRIBUTES)?.retain_in(attributes, |_, _| false)?;
            write.open_table(REDO)?.retain_in((id, 0)..=(id, u64::MAX), |_, _| false)?;
        }
        Change::Attribute { id, page, number, value } => {
            let mut table = write.open_table(ATTRIBUTES)?;
            match value {
                Some(value) => table.insert((id.to_bytes(), page, number), value.as_slice())?,
                None => table.remove((id.to_bytes(), page, number))?,
            };
        }
        Change::Redo { id, at, content } => {
            write.open_table(REDO)?.insert((id.to_bytes(), at), content.as_slice())?;
        }
        Change::Redone { id, at } => {
            write.open_table(REDO)?.remove((id.to_bytes(), at))?;
        }
        Change::Entries(entries) => {
            let mut table = write.open_table(INDEX)?;
            for (group, name, entry) in entries {
                let version = |entry: &[u8]| proto::cluster::Entry::version_of(entry);
                let key = (group, name.as_str());
                let older = table.get(key)?.is_some_and(|held| version(held.value()) >= version(&entry));
                if !older {
                    table.insert(key, entry.as_slice())?;
                }
            }
        }
        Change::Replace(entries) => {
            let mut table = write.open_table(INDEX)?;
            for Replacement { group, name, old, new } in entries {
                let key = (group, name.as_str());
                let is_same = table.get(key)?.map_or(old.is_empty(), |held| held.value() == old);
                if is_same {
                    table.insert(key, new.as_slice())?;
                }
            }
        }
        Change::Forget(names) => {
            let mut table = write.open_table(INDEX)?;
            for (group, name) in names {
                table.remove((group, name.as_str()))?;
            }
        }
        Change::Map(map) => {
            write.open_table(FACTS)?.insert(MAP, map.as_slice())?;
        }
    }
    Ok(())
}

impl ObjectRow {
    fn of((length, fence, sealed, created, modified): Row) -> Self {
        Self { length, fence, sealed, created, modified }
    }

    fn to_row(self) -> Row {
        (self.length, self.fence, self.sealed, self.created, self.modified)
    }
}
