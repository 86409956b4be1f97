//! All objects of a device: their files, what space they take, and which of them are in use.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use proto::cluster::ObjectId;

use super::commit::{Commits, Pending, Ticket};
use super::file::ObjectFile;
use super::folder::make_folder;
use super::object::{Object, missing};
use super::orphans::Orphans;
use super::tables::{Change, ObjectRow, Tables};
use crate::problem::{Answer, Problem, Word};
use crate::wire::{FULL_BYTES, LAYOUT_ATTRIBUTE, ListedObject, ListedObjects, QUOTA_ATTRIBUTE};

/// Objects that are kept open when nobody uses them.
const OPEN_MAX: usize = 256;
/// Bytes that may be acknowledged as volatile before a flush is forced: write-behind.
const DIRTY_BYTES_MAX: u64 = 32 << 20;
/// Most objects in one answer.
const LIST_MAX: usize = 1000;

/// Most bytes of recent appends that are kept in memory.
const RECENT_BYTES_MAX: u64 = 128 << 20;

/// All objects.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    tables: Arc<Tables>,
    commits: Arc<Commits>,
    open: Mutex<HashMap<ObjectId, Arc<Object>>>,
    /// Bytes of the objects of each group.
    usage: Mutex<HashMap<u32, u64>>,
    count: AtomicU64,
    dirty: AtomicU64,
    recent: Mutex<RecentAppends>,
    recent_bytes_max: u64,
    pub(super) orphans: Orphans,
}

/// What was appended lately, in that order: where it begins, and its length.
#[derive(Debug, Default)]
struct RecentAppends {
    order: VecDeque<((ObjectId, u64), u64)>,
    bytes: u64,
}

impl Store {
    /// The objects in `folder`, which is a device's, or becomes one.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let tables = Arc::new(Tables::open(folder)?);
        make_folder(&folder.join("objects"))?;
        let orphans = Orphans::gather(folder, &tables)?;
        let commits = Arc::new(Commits::new(Arc::clone(&tables)));
        let store = Self {
            folder: folder.to_owned(),
            tables,
            commits,
            open: Mutex::default(),
            usage: Mutex::default(),
            count: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            recent: Mutex::default(),
            recent_bytes_max: recent_bytes_max(),
            orphans,
        };
        store.count_all()?;
        store.finish_writes()?;
        Ok(store)
    }

    pub(super) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    pub(super) fn commits(&self) -> &Arc<Commits> {
        &self.commits
    }

    /// The number of objects.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of all objects.
    pub(super) fn used(&self) -> u64 {
        self.usage.lock().values().sum()
    }

    /// Bytes of the objects of a group.
    pub(super) fn used_by(&self, group: u32) -> u64 {
        self.usage.lock().get(&group).copied().unwrap_or(0)
    }

    /// Size and free bytes of the disk.
    pub(super) fn space(&self) -> Result<(u64, u64)> {
        let found = rustix::fs::statvfs(&self.folder);
        let found =
            found.map_err(|error| Error::from_io("look for free space", std::io::Error::from(error)))?;
        Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    }

    fn count_all(&self) -> Result<()> {
        let mut usage = self.usage.lock();
        self.tables.all_objects(|id, row| {
            *usage.entry(id.group).or_default() += row.length;
            self.count.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Writes again what a crash may have left half written.
    fn finish_writes(&self) -> Result<()> {
        for (id, at, content) in self.tables.redo()? {
            let outcome = self.get(id).and_then(|object| object.redo(&self.commits, at, &content));
            outcome.map_err(|problem| Error::new(problem.word.kind(), problem.detail))?;
        }
        Ok(())
    }

    fn path(&self, id: ObjectId) -> PathBuf {
        let part = format!("{:02x}", id.number & 0xff);
        self.folder.join("objects").join(format!("{:08x}", id.group)).join(part).join(id.to_string())
    }

    /// Creates an empty object.
    pub(super) fn create(&self, id: ObjectId, layout: Vec<u8>) -> Answer<()> {
        self.has_room(id.group, 0)?;
        self.make(id, layout)
    }

    fn make(&self, id: ObjectId, layout: Vec<u8>) -> Answer<()> {
        let path = self.path(id);
        let folder = path.parent().expect("it is in a folder");
        make_folder(folder.parent().expect("it is in the group's folder"))?;
        make_folder(folder)?;
        let mut open = self.open.lock();
        if open.contains_key(&id) || self.tables.object(id)?.is_some() {
            return Err(Problem::new(Word::Exists, format!("there is an object {id} already")));
        }
        let failed = |error| Error::from_io(format!("create object {id}"), error);
        let object = Object::create(id, ObjectFile::create(&path, folder).map_err(failed)?, layout);
        self.make_room(&mut open);
        open.insert(id, Arc::new(object));
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The object `id`.
    pub(super) fn get(&self, id: ObjectId) -> Answer<Arc<Object>> {
        let mut open = self.open.lock();
        if let Some(object) = open.get(&id) {
            return Ok(Arc::clone(object));
        }
        let (row, pieces) = self.tables.whole_object(id)?.ok_or_else(|| missing(id))?;
        let file = match ObjectFile::open(&self.path(id), !row.sealed) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let detail = format!("the file of object {id} is missing: read it from the other components");
                return Err(Problem::new(Word::Damaged, detail));
            }
            Err(error) => return Err(Error::from_io(format!("open object {id}"), error).into()),
        };
        let object = Arc::new(Object::open(id, file, row, pieces));
        self.make_room(&mut open);
        open.insert(id, Arc::clone(&object));
        Ok(object)
    }

    /// Closes objects that nobody uses, if there are too many.
    fn make_room(&self, open: &mut HashMap<ObjectId, Arc<Object>>) {
        if open.len() >= OPEN_MAX {
            open.retain(|_, object| Arc::strong_count(object) > 1 || !object.is_saved());
        }
    }

    /// Appends; durable before this returns if the caller wants that.
    pub(super) fn append(
        &self,
        id: ObjectId,
        at: u64,
        content: &Bytes,
        fence: u32,
        durable: bool,
    ) -> Answer<()> {
        self.has_room(id.group, content.len() as u64)?;
        let grown = self.get(id)?.append(at, content, fence)?;
        if grown > 0 {
            self.remember((id, at), grown);
        }
        self.resized(id.group, grown, 0);
        let dirty = self.dirty.fetch_add(grown, Ordering::Relaxed) + grown;
        if durable {
            self.flush(id)?;
        } else if dirty > DIRTY_BYTES_MAX {
            self.flush_all()?;
        }
        Ok(())
    }

    /// What was appended there is in memory; the oldest makes room.
    fn remember(&self, place: (ObjectId, u64), bytes: u64) {
        let mut recent = self.recent.lock();
        recent.bytes += bytes;
        recent.order.push_back((place, bytes));
        while recent.bytes > self.recent_bytes_max
            && let Some(((id, at), bytes)) = recent.order.pop_front()
        {
            recent.bytes -= bytes;
            if let Some(object) = self.open.lock().get(&id) {
                object.forget(at);
            }
        }
    }

    /// Writes over what is there.
    pub(super) fn write(&self, id: ObjectId, at: u64, content: &[u8], fence: u32) -> Answer<()> {
        self.has_room(id.group, content.len() as u64)?;
        // Held until the database knows: else another look could find an older object.
        let object = self.get(id)?;
        let (ticket, grown) = object.write(&self.commits, at, content, fence)?;
        self.resized(id.group, grown, 0);
        Ok(self.commits.wait(ticket)?)
    }

    pub(super) fn flush(&self, id: ObjectId) -> Answer<()> {
        let object = self.get(id)?;
        let bytes = object.dirty_bytes();
        let ticket = object.flush(&self.commits)?;
        self.commits.wait(ticket)?;
        self.cleaned(bytes);
        Ok(())
    }

    /// So many bytes are durable now, or gone.
    fn cleaned(&self, bytes: u64) {
        let less = |dirty: u64| Some(dirty.saturating_sub(bytes));
        let _ = self.dirty.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn flush_all(&self) -> Answer<()> {
        let dirty: Vec<_> = {
            let open = self.open.lock();
            open.iter().filter(|(_, object)| object.dirty_bytes() > 0).map(|(&id, _)| id).collect()
        };
        dirty.into_iter().try_for_each(|id| self.flush(id))
    }

    pub(super) fn truncate(&self, id: ObjectId, bytes: u64, fence: u32) -> Answer<()> {
        let object = self.get(id)?;
        let (ticket, cut) = object.truncate(&self.commits, bytes, fence)?;
        self.resized(id.group, 0, cut);
        Ok(self.commits.wait(ticket)?)
    }

    /// Shortens an object to `bytes`, and seals it.
    pub(super) fn seal(&self, id: ObjectId, bytes: u64, fence: u32) -> Answer<()> {
        self.seal_by(id, |object| object.seal(&self.commits, bytes, fence))
    }

    /// Seals an object at `bytes`, or where it ends before.
    pub(super) fn seal_at_most(&self, id: ObjectId, bytes: u64) -> Answer<()> {
        self.seal_by(id, |object| object.seal_at_most(&self.commits, bytes))
    }

    fn seal_by(&self, id: ObjectId, seal: impl FnOnce(&Object) -> Answer<(Ticket, u64)>) -> Answer<()> {
        let object = self.get(id)?;
        self.cleaned(object.dirty_bytes());
        let (ticket, cut) = seal(&object)?;
        self.resized(id.group, 0, cut);
        self.commits.wait(ticket)?;
        // Only now: before, a crash could have left an object that is longer than its file.
        object.trim();
        Ok(())
    }

    /// Raises the fence of an object; returns its durable length.
    ///
    /// One that is missing is made, empty: who was to create it finds the fence.
    pub(super) fn fence(&self, id: ObjectId, fence: u32) -> Answer<u64> {
        let object = match self.get(id) {
            Err(problem) if problem.word == Word::Missing => match self.make(id, Vec::new()) {
                Err(problem) if problem.word != Word::Exists => return Err(problem),
                _ => self.get(id)?,
            },
            found => found?,
        };
        let ticket = object.fence(&self.commits, fence)?;
        self.commits.wait(ticket)?;
        Ok(object.row().length)
    }

    pub(super) fn remove(&self, id: ObjectId) -> Answer<()> {
        let (ticket, length) = match self.get(id) {
            Ok(object) => {
                self.cleaned(object.dirty_bytes());
                (object.remove(&self.commits)?, object.row().length)
            }
            // Its file is missing; what the database knows goes all the same.
            Err(problem) if problem.word == Word::Damaged => {
                let change = Pending { change: Change::Remove { id }, file: None };
                let length = self.tables.object(id)?.map_or(0, |row| row.length);
                (self.commits.enqueue(vec![change]), length)
            }
            Err(problem) => return Err(problem),
        };
        self.commits.wait(ticket)?;
        // Nobody creates it anew before its file is gone.
        let mut open = self.open.lock();
        open.remove(&id);
        self.resized(id.group, 0, length);
        self.count.fetch_sub(1, Ordering::Relaxed);
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from_io(format!("remove object {id}"), error).into())
            }
            _ => Ok(()),
        }
    }

    /// Objects of a group with numbers above `after`.
    pub(super) fn list(&self, group: u32, after: u64, limit: usize) -> Answer<ListedObjects> {
        let limit = limit.clamp(1, LIST_MAX);
        let mut found: HashMap<ObjectId, ObjectRow> =
            self.tables.objects(group, after, limit + 1)?.into_iter().collect();
        for (&id, object) in self.open.lock().iter() {
            // An object in use may be new, or longer than the database knows.
            if id.group == group && id.number > after {
                found.insert(id, object.row());
            }
        }
        let mut objects: Vec<_> = found.into_iter().filter(|(id, _)| id.number > 0).collect();
        objects.sort_unstable_by_key(|(id, _)| *id);
        let more = objects.len() > limit;
        objects.truncate(limit);
        let listed = |(id, row): (ObjectId, ObjectRow)| ListedObject {
            id: id.to_string(),
            length: row.length,
            sealed: row.sealed,
        };
        Ok(ListedObjects { objects: objects.into_iter().map(listed).collect(), more })
    }

    /// The layout that the creator gave.
    pub(super) fn layout(&self, id: ObjectId) -> Answer<Option<Vec<u8>>> {
        if let Some(layout) = self.get(id)?.unsaved_layout() {
            return Ok(Some(layout));
        }
        let (page, number) = LAYOUT_ATTRIBUTE;
        Ok(self.tables.attribute(id, page, number)?)
    }

    /// Refuses what would not fit the disk or the group's quota.
    fn has_room(&self, group: u32, bytes: u64) -> Answer<()> {
        if let Some(why) = self.commits.broken() {
            return Err(Problem::new(Word::Failed, format!("the device's disk failed: {why}")));
        }
        let (_, free) = self.space()?;
        if free < FULL_BYTES + bytes {
            let detail =
                format!("the device's disk is full: {free} bytes are free, {FULL_BYTES} are kept free");
            return Err(Problem::new(Word::Full, detail));
        }
        let (page, number) = QUOTA_ATTRIBUTE;
        let quota = self.tables.attribute(ObjectId::of_group(group), page, number)?;
        let quota = quota.and_then(|text| String::from_utf8(text).ok()?.parse::<u64>().ok());
        let used = self.used_by(group);
        match quota {
            Some(quota) if used + bytes > quota => {
                let detail = format!("group {group} may use {quota} bytes of this device, and uses {used}");
                Err(Problem::new(Word::Quota, detail))
            }
            _ => Ok(()),
        }
    }

    /// Refuses entries when the disk is nearly full: the database must always be able to grow.
    pub(super) fn has_room_for_entries(&self) -> Answer<()> {
        let (_, free) = self.space()?;
        if free < FULL_BYTES / 2 {
            return Err(Problem::new(
                Word::Full,
                format!("the device's disk is full: {free} bytes are free"),
            ));
        }
        Ok(())
    }

    fn resized(&self, group: u32, grown: u64, cut: u64) {
        let mut usage = self.usage.lock();
        let used = usage.entry(group).or_default();
        *used = (*used + grown).saturating_sub(cut);
    }
}

/// How much memory recent appends may take: little where there is little.
fn recent_bytes_max() -> u64 {
    let system = rustix::system::sysinfo();
    let memory = system.totalram.saturating_mul(system.mem_unit.into());
    (memory / 64).min(RECENT_BYTES_MAX)
}
