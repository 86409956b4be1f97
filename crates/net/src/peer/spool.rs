//! The encoded objects that a member holds for others: in memory first, then in a file, up to a limit; and those that
//! this machine has elsewhere.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;
use proto::peer::Availability;
use rustix::buffer::spare_capacity;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::io::{Errno, pread};

/// A store has at most so many files, and one more: each is open.
const FILES_MAX: u64 = 16;
/// An object is put into a new file if the last one would grow beyond this, or beyond its part of the store's limit.
const FILE_BYTES_MIN: u64 = 64 << 20;
/// Threads that close files at the end.
const CLOSERS: usize = 4;

/// How much a spool may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolLimits {
    /// In memory, in bytes.
    pub memory_bytes: u64,
    /// In a file, in bytes.
    pub file_bytes: u64,
    /// The folder of the file, which has no name there and is gone when the process ends.
    pub folder: PathBuf,
}

impl SpoolLimits {
    /// In memory at most a quarter of what the machine has available, and at most 1 GiB; nothing in a file.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::of_memory(4, 1 << 30)
    }

    /// For an attached disk: a machine has many of them, for a long time. In memory at most a sixteenth of what is
    /// available, and at most 256 MiB; nothing in a file.
    #[must_use]
    pub fn of_attached_disk() -> Self {
        Self::of_memory(16, 256 << 20)
    }

    /// At most `1 / part` of the available memory, and at most `most` bytes.
    fn of_memory(part: u64, most: u64) -> Self {
        let memory_bytes = (available_memory().unwrap_or(256 << 20) / part).min(most);
        Self { memory_bytes, file_bytes: 0, folder: PathBuf::from("/var/tmp") }
    }
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

enum Place {
    Nowhere,
    /// It is being written.
    Coming,
    Held {
        store: usize,
        file: usize,
        offset: u64,
        len: usize,
    },
    /// On the shelf.
    Shelf,
}

/// Objects that this machine has elsewhere, by their numbers.
type Shelf = dyn Fn(u64) -> Option<Bytes> + Send + Sync;

/// The objects. Only verified ones may be put into it.
pub struct Spool {
    limits: SpoolLimits,
    state: RwLock<State>,
    shelf: OnceLock<Box<Shelf>>,
    /// Grows with each change.
    changes: AtomicU64,
}

struct State {
    places: Vec<Place>,
    held: Availability,
    /// In memory, and on a disk.
    stores: [Store; 2],
}

/// Files that grow one after another. In memory, too: what is written to a file in memory costs no page faults and is
/// not cleared first, and the buffers in which objects arrive stay warm, since nobody keeps them.
struct Store {
    open: fn(&SpoolLimits) -> std::io::Result<File>,
    /// Shared, so that they are written and read without the lock.
    files: Vec<Arc<File>>,
    /// Bytes in the last file, and in all.
    last_bytes: u64,
    bytes: u64,
    limit: u64,
    /// Nothing more is put there.
    failed: bool,
}

impl Spool {
    /// An empty spool for the objects of a version.
    #[must_use]
    pub fn new(objects: u32, limits: SpoolLimits) -> Self {
        let places = (0..objects).map(|_| Place::Nowhere).collect();
        let held = Availability::none(objects);
        let store =
            |open, limit| Store { open, files: Vec::new(), last_bytes: 0, bytes: 0, limit, failed: false };
        let stores = [store(file_in_memory, limits.memory_bytes), store(file_on_disk, limits.file_bytes)];
        let state = RwLock::new(State { places, held, stores });
        Self { limits, state, shelf: OnceLock::new(), changes: AtomicU64::new(0) }
    }

    /// Keeps a verified object, if there is room. Returns whether it is held now.
    pub fn put(&self, object: u64, bytes: &[u8]) -> bool {
        let Ok(index) = usize::try_from(object) else { return false };
        while let Some((store, number, file, offset)) = self.reserve(index, bytes.len()) {
            let written = file.write_all_at(bytes, offset);
            let state = &mut *self.state.write();
            if written.is_ok() {
                state.places[index] = Place::Held { store, file: number, offset, len: bytes.len() };
                state.held.set(object, true);
                self.changes.fetch_add(1, Ordering::Release);
                return true;
            }
            state.places[index] = Place::Nowhere;
            state.stores[store].failed = true;
        }
        self.state.read().places.get(index).is_some_and(|place| !matches!(place, Place::Nowhere))
    }

    /// Room for an object that is nowhere: the numbers of a store and a file of it, the file and an offset.
    fn reserve(&self, index: usize, len: usize) -> Option<(usize, usize, Arc<File>, u64)> {
        let state = &mut *self.state.write();
        let place = state.places.get_mut(index).filter(|place| matches!(place, Place::Nowhere))?;
        let found = state.stores.iter_mut().enumerate().find_map(|(number, store)| {
            let (file, offset) = store.reserve(len as u64, &self.limits)?;
            Some((number, store.files.len() - 1, file, offset))
        })?;
        *place = Place::Coming;
        Some(found)
    }

    /// What [`Self::offer`] offers comes from `shelf` when it is asked for, verified. Only the first shelf counts.
    pub fn back(&self, shelf: impl Fn(u64) -> Option<Bytes> + Send + Sync + 'static) {
        let _ = self.shelf.set(Box::new(shelf));
    }

    /// The shelf has an object. It may be gone when it is asked for.
    pub fn offer(&self, object: u64) {
        let Ok(index) = usize::try_from(object) else { return };
        let state = &mut *self.state.write();
        if let Some(place @ Place::Nowhere) = state.places.get_mut(index) {
            *place = Place::Shelf;
            state.held.set(object, true);
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Nothing is on the shelf any more.
    pub(crate) fn clear_shelf(&self) {
        let state = &mut *self.state.write();
        for (number, place) in state.places.iter_mut().enumerate() {
            if matches!(place, Place::Shelf) {
                *place = Place::Nowhere;
                state.held.set(number as u64, false);
            }
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// An object from the shelf; it is held no more if it is gone.
    fn get_from_shelf(&self, object: u64) -> Option<Bytes> {
        let found = self.shelf.get().and_then(|shelf| shelf(object));
        if found.is_none() {
            let state = &mut *self.state.write();
            if let Some(place @ Place::Shelf) = state.places.get_mut(usize::try_from(object).ok()?) {
                *place = Place::Nowhere;
                state.held.set(object, false);
                self.changes.fetch_add(1, Ordering::Release);
            }
        }
        found
    }

    /// An object that it holds.
    #[must_use]
    pub fn get(&self, object: u64) -> Option<Bytes> {
        let state = self.state.read();
        match state.places.get(usize::try_from(object).ok()?)? {
            Place::Nowhere | Place::Coming => None,
            Place::Shelf => {
                drop(state);
                self.get_from_shelf(object)
            }
            &Place::Held { store, file, offset, len } => {
                let file = Arc::clone(&state.stores[store].files[file]);
                drop(state);
                read(&file, offset, len)
            }
        }
    }

    /// What it holds.
    #[must_use]
    pub fn held(&self) -> Availability {
        self.state.read().held.clone()
    }

    /// Which objects of a batch it holds.
    #[must_use]
    pub fn mask(&self, batch: u32) -> u32 {
        self.state.read().held.mask(batch)
    }

    /// A number that changes when it holds more, or less.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

impl Store {
    fn reserve(&mut self, len: u64, limits: &SpoolLimits) -> Option<(Arc<File>, u64)> {
        if self.failed || self.bytes + len > self.limit {
            return None;
        }
        if self.files.is_empty() || self.last_bytes + len > FILE_BYTES_MIN.max(self.limit / FILES_MAX) {
            let file = (self.open)(limits);
            self.failed = file.is_err();
            self.files.push(Arc::new(file.ok()?));
            self.last_bytes = 0;
        }
        let file = Arc::clone(self.files.last()?);
        let offset = self.last_bytes;
        self.last_bytes += len;
        self.bytes += len;
        Some((file, offset))
    }
}

impl Drop for State {
    /// The kernel takes 0.13 s to free 1 GiB of a file, so each of a few threads closes some files.
    fn drop(&mut self) {
        let mut files: Vec<_> = self.stores.iter_mut().flat_map(|store| store.files.drain(..)).collect();
        let each = files.len().div_ceil(CLOSERS);
        std::thread::scope(|scope| {
            while files.len() > each {
                let part = files.split_off(files.len() - each);
                // Without a thread they are closed here.
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(part));
            }
            drop(files);
        });
    }
}

/// `len` bytes of a file; `None` if it cannot be read.
fn read(file: &File, offset: u64, len: usize) -> Option<Bytes> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let from = offset + bytes.len() as u64;
        match pread(file, spare_capacity(&mut bytes), from) {
            Ok(0) => return None,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(len);
    Some(bytes.into())
}

fn file_in_memory(_: &SpoolLimits) -> std::io::Result<File> {
    Ok(memfd_create("diskcast objects for others", MemfdFlags::CLOEXEC)?.into())
}

/// A file without a name.
fn file_on_disk(limits: &SpoolLimits) -> std::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(open(&limits.folder, flags, Mode::RUSR | Mode::WUSR)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: u8) -> Bytes {
        Bytes::from(vec![number; 100])
    }

    #[test]
    fn objects_go_to_memory_then_to_the_file_then_nowhere() {
        let limits = SpoolLimits { memory_bytes: 250, file_bytes: 250, folder: std::env::temp_dir() };
        let spool = Spool::new(8, limits);
        assert_eq!((0..7).filter(|&number| spool.put(number.into(), &object(number))).count(), 4);
        assert!(!spool.put(99, &object(9)) && spool.put(3, &object(3)));
        assert_eq!(spool.held().runs(0..8).collect::<Vec<_>>(), vec![0..4]);
        for number in 0..4u8 {
            assert_eq!(spool.get(number.into()), Some(object(number)));
        }
        assert!(spool.get(4).is_none() && spool.get(99).is_none());
        assert_eq!((spool.changes(), spool.mask(0)), (4, 0b1111));
    }

    #[test]
    fn what_is_on_the_shelf_is_held_until_it_is_gone() {
        let limits = SpoolLimits { memory_bytes: 1000, file_bytes: 0, folder: std::env::temp_dir() };
        let spool = Spool::new(8, limits);
        spool.offer(3);
        spool.back(|number| (number == 1).then(|| object(1)));
        spool.put(0, &object(0));
        [0, 1, 2, 99].into_iter().for_each(|number| spool.offer(number));
        assert_eq!(spool.mask(0), 0b1111);
        assert_eq!(
            [0, 1, 2, 3].map(|number| spool.get(number)),
            [Some(object(0)), Some(object(1)), None, None]
        );
        assert_eq!((spool.mask(0), spool.changes()), (0b11, 6));
        assert!(spool.put(2, &object(2)));
        assert_eq!(spool.get(2), Some(object(2)));
        spool.clear_shelf();
        assert_eq!((spool.get(1), spool.mask(0)), (None, 0b101));
    }

    #[test]
    fn a_store_has_few_files_however_large_it_is() {
        for (limit, files) in [(1 << 40, 17), (1 << 30, 17), (100 << 20, 2)] {
            let limits = SpoolLimits { memory_bytes: limit, file_bytes: 0, folder: std::env::temp_dir() };
            let store = &mut Spool::new(1, limits.clone()).state.into_inner().stores[0];
            while store.reserve(1_000_000, &limits).is_some() {}
            assert!(
                store.files.len() <= files && store.bytes > limit - 1_000_000,
                "{limit}: {}",
                store.files.len()
            );
        }
    }

    #[test]
    fn a_folder_that_takes_no_file_costs_only_the_objects() {
        let limits = SpoolLimits { memory_bytes: 100, file_bytes: 1000, folder: "/proc".into() };
        let spool = Spool::new(8, limits);
        (0..3).for_each(|number| _ = spool.put(number.into(), &object(number)));
        assert_eq!(spool.held().count(), 1);
    }

    #[test]
    fn a_store_that_cannot_be_written_is_left_for_the_next() {
        let limits = SpoolLimits { memory_bytes: 1000, file_bytes: 200, folder: std::env::temp_dir() };
        let spool = Spool::new(8, limits);
        spool.state.write().stores[0].open = |_| File::open("/dev/null");
        (0..3).for_each(|number| _ = spool.put(number.into(), &object(number)));
        assert_eq!(spool.mask(0), 0b11);
        assert_eq!([0, 1, 2].map(|number| spool.get(number)), [Some(object(0)), Some(object(1)), None]);
    }
}
