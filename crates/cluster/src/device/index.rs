//! The part of the index that the device holds: entries by group and name, slot by slot.
//! formats/cluster.md, section 3.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use proto::cluster::{BatchItem, DeviceId, Entry, Map, SLOTS, slot_of};
use redb::ReadableTable as _;

use super::commit::Commits;
use super::tables::{Change, INDEX, Replacement, Tables};

/// Names that one change forgets.
const FORGET_BATCH: usize = 4096;
/// Most entries in one answer.
pub(super) const LIST_MAX: usize = 8192;

/// The entries of the device.
#[derive(Debug)]
pub(super) struct Index {
    tables: Arc<Tables>,
    commits: Arc<Commits>,
    /// Which slots may have entries here.
    used: Mutex<Vec<bool>>,
    /// Inserts hold it to read; the change to another map holds it to write.
    gate: RwLock<()>,
}

/// Which entries a listing wants.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) group: u32,
    pub(super) slots: HashSet<usize>,
    pub(super) prefix: String,
    pub(super) after: String,
    pub(super) limit: usize,
    pub(super) tombstones: bool,
}

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::from_source(ErrorKind::Io, "read the index", error.into())
}

impl Index {
    pub(super) fn open(tables: Arc<Tables>, commits: Arc<Commits>) -> Result<Self> {
        let mut used = vec![false; SLOTS];
        let read = tables.read()?;
        for row in read.open_table(INDEX).map_err(failed)?.iter().map_err(failed)? {
            let (key, _) = row.map_err(failed)?;
            used[slot_of(key.value().1)] = true;
        }
        drop(read);
        Ok(Self { tables, commits, used: Mutex::new(used), gate: RwLock::new(()) })
    }

    /// Keeps the map from changing while it is held.
    pub(super) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// Inserts entries, durably. The caller has checked that they are entries.
    pub(super) fn insert(&self, items: Vec<BatchItem>) -> Result<()> {
        {
            let mut used = self.used.lock();
            items.iter().for_each(|item| used[slot_of(&item.name)] = true);
        }
        let entries = items.into_iter().map(|item| (item.group, item.name, item.entry)).collect();
        self.commits.now(vec![Change::Entries(entries)])
    }

    /// The largest stamp of entries here that are newer than the ones in `items` of the same names, or as new and
    /// others, if there are any.
    pub(super) fn newer(&self, items: &[BatchItem]) -> Result<Option<u64>> {
        let read = self.tables.read()?;
        let table = read.open_table(INDEX).map_err(failed)?;
        let mut newest = None;
        for item in items {
            let Some(held) = table.get((item.group, item.name.as_str())).map_err(failed)? else { continue };
            let version = Entry::version_of(held.value());
            if held.value() != item.entry && version >= Entry::version_of(&item.entry) {
                newest = newest.max(version.map(|version| version.stamp));
            }
        }
        Ok(newest)
    }

    /// Puts new entries in the place of those that are as supposed, durably. The caller has checked that they are
    /// entries.
    pub(super) fn replace(&self, entries: Vec<Replacement>) -> Result<()> {
        {
            let mut used = self.used.lock();
            entries.iter().for_each(|entry| used[slot_of(&entry.name)] = true);
        }
        self.commits.now(vec![Change::Replace(entries)])
    }

    /// The bytes of content in each segment, by the entries of `slots` and all groups.
    pub(super) fn usage(&self, slots: &HashSet<usize>) -> Result<BTreeMap<u64, u64>> {
        let read = self.tables.read()?;
        let mut usage = BTreeMap::new();
        for row in read.open_table(INDEX).map_err(failed)?.iter().map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            if !slots.contains(&slot_of(key.value().1)) {
                continue;
            }
            for piece in Entry::decode(value.value()).map(|entry| entry.pieces).unwrap_or_default() {
                *usage.entry(piece.segment).or_default() += u64::from(piece.length);
            }
        }
        Ok(usage)
    }

    /// The entries of names: those in `items`, filled in.
    pub(super) fn get(&self, items: &mut [BatchItem]) -> Result<()> {
        let read = self.tables.read()?;
        let table = read.open_table(INDEX).map_err(failed)?;
        for item in items {
            let found = table.get((item.group, item.name.as_str())).map_err(failed)?;
            item.entry = found.map(|entry| entry.value().to_vec()).unwrap_or_default();
        }
        Ok(())
    }

    /// Entries in order of their names, and whether there are more.
    pub(super) fn list(&self, wanted: &Wanted) -> Result<(Vec<BatchItem>, bool)> {
        let read = self.tables.read()?;
        let table = read.open_table(INDEX).map_err(failed)?;
        let limit = wanted.limit.clamp(1, LIST_MAX);
        let from = if wanted.after >= wanted.prefix && !wanted.after.is_empty() {
            Bound::Excluded((wanted.group, wanted.after.as_str()))
        } else {
            Bound::Included((wanted.group, wanted.prefix.as_str()))
        };
        let mut items = Vec::new();
        for row in table.range::<(u32, &str)>((from, Bound::Unbounded)).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            let (group, name) = key.value();
            if group != wanted.group || !name.starts_with(&wanted.prefix) {
                break;
            }
            let entry = value.value();
            let deleted = Entry::decode(entry).is_ok_and(|entry| entry.bytes.is_none());
            if !wanted.slots.contains(&slot_of(name)) || (deleted && !wanted.tombstones) {
                continue;
            }
            if items.len() == limit {
                return Ok((items, true));
            }
            items.push(BatchItem { group, name: name.to_owned(), entry: entry.to_vec() });
        }
        Ok((items, false))
    }

    /// All groups that have names here.
    pub(super) fn groups(&self) -> Result<Vec<u32>> {
        let read = self.tables.read()?;
        let table = read.open_table(INDEX).map_err(failed)?;
        let mut groups = Vec::new();
        let mut next = 0;
        while let Some(row) = table.range::<(u32, &str)>((next, "")..).map_err(failed)?.next() {
            let group = row.map_err(failed)?.0.value().0;
            groups.push(group);
            let Some(behind) = group.checked_add(1) else { break };
            next = behind;
        }
        Ok(groups)
    }

    /// Follows `map` from now on, as `device`: forgets slots that it does not hold, or did not hold all the time,
    /// makes the map durable, and calls `follow`. No insert runs meanwhile.
    pub(super) fn adopt(
        &self,
        device: DeviceId,
        old: Option<&Map>,
        map: &Map,
        follow: impl FnOnce(),
    ) -> Result<()> {
        let _alone = self.gate.write();
        let since = |map: &Map, slot| {
            let own = map.holders(slot).iter().find(|holder| holder.device == device);
            own.map(|holder| holder.since)
        };
        let gone: HashSet<usize> = {
            let used = self.used.lock();
            let held_all_the_time = |slot: usize| {
                let held = since(map, slot);
                held.is_some() && held == old.and_then(|old| since(old, slot))
            };
            (0..SLOTS).filter(|&slot| used[slot] && !held_all_the_time(slot)).collect()
        };
        self.forget(&gone)?;
        let text = serde_json::to_vec(map).expect("a map is plain data");
        self.commits.now(vec![Change::Map(text)])?;
        follow();
        Ok(())
    }

    fn forget(&self, slots: &HashSet<usize>) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let mut names = Vec::new();
        {
            let read = self.tables.read()?;
            for row in read.open_table(INDEX).map_err(failed)?.iter().map_err(failed)? {
                let (key, _) = row.map_err(failed)?;
                let (group, name) = key.value();
                if slots.contains(&slot_of(name)) {
                    names.push((group, name.to_owned()));
                }
            }
        }
        while !names.is_empty() {
            let rest = names.split_off(names.len().min(FORGET_BATCH));
            self.commits.now(vec![Change::Forget(std::mem::replace(&mut names, rest))])?;
        }
        let mut used = self.used.lock();
        slots.iter().for_each(|&slot| used[slot] = false);
        Ok(())
    }
}
