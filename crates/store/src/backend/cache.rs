//! A cache on this machine for objects read over a network: limited in bytes, shared by all processes, and optional.
//!
//! An object is stored under its digest in one of [`SHELVES`] folders; each folder (a shelf) may hold its share of
//! the bytes. A file is written under a temporary name and renamed, so a reader finds a complete object or none.
//! Nothing is flushed: a reader detects damage by the digest and removes the file. The least recently used files are
//! evicted first: a read updates the file's modification time. There are no locks: if one process evicts a file that
//! another is about to read or rename, the other only has to fetch the object again.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::limits::OBJECT_BYTES_MAX;
use base::{Error, ErrorKind, Result};
use image::{ObjectKind, ObjectRef, Verified};
use parking_lot::Mutex;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::record;

/// Folders, one for each first hexadecimal digit of the digest. Eviction scans one of them at a time.
const SHELVES: usize = 16;
/// Smallest size of a cache in bytes: each shelf can then hold the largest object.
pub const CACHE_BYTES_MIN: u64 = (SHELVES as u64) * (20 << 20);
/// A full shelf is emptied by 1/`SHARE` of its limit. It is scanned again after this process has put that much there,
/// since other processes also put files. So each process can exceed the limit by this share.
const SHARE: u64 = 8;

const _: () = assert!(CACHE_BYTES_MIN / SHELVES as u64 >= OBJECT_BYTES_MAX as u64);

/// Folder and size of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSetting {
    /// The folder; created if it does not exist, readable by its owner only.
    pub folder: PathBuf,
    /// Most bytes in the cache, at least [`CACHE_BYTES_MIN`].
    pub bytes_max: u64,
}

/// An open cache. The module's documentation describes its files.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    shelf_bytes_max: u64,
    shelves: [Mutex<Shelf>; SHELVES],
}

/// What this process knows about a shelf.
#[derive(Debug, Default)]
struct Shelf {
    /// Bytes on the shelf at the last scan; `None` if it was never scanned.
    seen: Option<u64>,
    /// Bytes that this process has put there since.
    put: u64,
}

/// A file on a shelf: time of last use, length in bytes, name.
type Entry = (SystemTime, u64, OsString);

impl Cache {
    /// Opens the cache of `setting`. `Invalid` if its limit is below [`CACHE_BYTES_MIN`]; an I/O error if a folder
    /// can't be created.
    pub fn open(setting: &CacheSetting) -> Result<Self> {
        if setting.bytes_max < CACHE_BYTES_MIN {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "a cache of {} bytes is too small: give it {CACHE_BYTES_MIN} or none",
                    setting.bytes_max
                ),
            ));
        }
        let cache = Self {
            folder: setting.folder.clone(),
            shelf_bytes_max: setting.bytes_max / SHELVES as u64,
            shelves: Default::default(),
        };
        for shelf in 0..SHELVES {
            let folder = cache.folder_of(shelf);
            // Cached objects may be as secret as the disks that they came from.
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|error| Error::from_io(format!("make the cache `{}`", folder.display()), error))?;
        }
        Ok(cache)
    }

    /// The bytes of `object` from the cache, or else those that `fetch` returns, which are then cached.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub fn get_or<E>(
        &self,
        object: &ObjectRef,
        fetch: impl FnOnce() -> std::result::Result<Verified, E>,
    ) -> std::result::Result<Verified, E> {
        if let Some(found) = self.get(object) {
            return Ok(found);
        }
        let fetched = fetch()?;
        self.put(object, fetched.bytes());
        Ok(fetched)
    }

    /// The bytes of `object` if they are cached and have the right digest.
    #[must_use]
    pub fn get(&self, object: &ObjectRef) -> Option<Verified> {
        let path = self.path_of(object);
        // Opening a FIFO must not block.
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let mut file = File::options().read(true).custom_flags(nonblock).open(&path).ok()?;
        let mut bytes = Vec::with_capacity(object.len as usize);
        // One byte more than expected, so that a file that is too long is noticed.
        let read = (&mut file).take(u64::from(object.len) + 1).read_to_end(&mut bytes);
        let Some(found) = read.ok().and_then(|_| object.verified(bytes.into()).ok()) else {
            // Remove the damaged file. Another process may have done so already, which is fine.
            let _ = std::fs::remove_file(&path);
            return None;
        };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        // If the time can't be set, the file only looks older than it is.
        let _ = rustix::fs::futimens(&file, &Timestamps { last_access: keep, last_modification: now });
        Some(found)
    }

    /// Whether an object is cached, as far as its length tells.
    #[must_use]
    pub fn holds(&self, object: &ObjectRef) -> bool {
        let found = std::fs::symlink_metadata(self.path_of(object));
        found.is_ok_and(|found| found.is_file() && found.len() == u64::from(object.len))
    }

    /// Caches `bytes`, which were verified against the digest of `object`. A failure is not an error: the cache is
    /// optional.
    pub(crate) fn put(&self, object: &ObjectRef, bytes: &[u8]) {
        let length = bytes.len() as u64;
        if length > self.shelf_bytes_max || self.make_room(shelf_of(object), length).is_err() {
            return;
        }
        let Ok(nonce) = record::nonce() else { return };
        let new = self.folder_of(shelf_of(object)).join(format!("new-{nonce}"));
        let write = || -> std::io::Result<()> {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            std::fs::rename(&new, self.path_of(object))
        };
        if write().is_err() {
            let _ = std::fs::remove_file(&new);
        }
    }

    /// The folder of the cache.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The bytes in the cache now, found by scanning all shelves.
    pub(crate) fn bytes(&self) -> u64 {
        let shelves = (0..SHELVES).filter_map(|shelf| self.look_through(shelf).ok());
        shelves.flatten().map(|(_, bytes, _)| bytes).sum()
    }

    /// Evicts files if `bytes` more would exceed the limit of the shelf, as far as this process knows.
    fn make_room(&self, shelf: usize, bytes: u64) -> std::io::Result<()> {
        let mut known = self.shelves[shelf].lock();
        known.put += bytes;
        let is_news = known.put > self.shelf_bytes_max / SHARE;
        if !is_news && known.seen.is_some_and(|seen| seen + known.put <= self.shelf_bytes_max) {
            return Ok(());
        }
        let mut entries = self.look_through(shelf)?;
        let mut there: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        if there + bytes > self.shelf_bytes_max {
            entries.sort_unstable();
            for (_, length, name) in entries {
                // Free more than this put needs, so that not every put has to scan the shelf.
                if there + bytes <= self.shelf_bytes_max - self.shelf_bytes_max / SHARE {
                    break;
                }
                // Another process may have evicted it already.
                let _ = std::fs::remove_file(self.folder_of(shelf).join(name));
                there -= length;
            }
        }
        *known = Shelf { seen: Some(there), put: bytes };
        Ok(())
    }

    /// Every file on a shelf, including partial files of killed processes.
    fn look_through(&self, shelf: usize) -> std::io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.folder_of(shelf))? {
            let entry = entry?;
            // Another process removed it after the listing.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_file() {
                entries.push((found.modified()?, found.len(), entry.file_name()));
            }
        }
        Ok(entries)
    }

    fn folder_of(&self, shelf: usize) -> PathBuf {
        self.folder.join(format!("objects/{shelf:x}"))
    }

    fn path_of(&self, object: &ObjectRef) -> PathBuf {
        let kind = match object.kind {
            ObjectKind::Chunk => "chunk",
            ObjectKind::Node => "node",
        };
        Path::join(&self.folder_of(shelf_of(object)), format!("{}-{kind}", object.digest))
    }
}

fn shelf_of(object: &ObjectRef) -> usize {
    usize::from(object.digest.0[0] >> 4)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn small(folder: &Path) -> Cache {
        let cache =
            Cache::open(&CacheSetting { folder: folder.to_owned(), bytes_max: CACHE_BYTES_MIN }).unwrap();
        // Small enough to fill: 64 objects per shelf.
        Cache { shelf_bytes_max: 64 << 10, ..cache }
    }

    fn object(seed: u64) -> (ObjectRef, Bytes) {
        let mut bytes = vec![0; 1 << 10];
        base::Chance::from_seed(seed).fill(&mut bytes);
        (ObjectRef::of(ObjectKind::Chunk, &bytes), bytes.into())
    }

    fn got(cache: &Cache, object: &ObjectRef) -> Option<Bytes> {
        cache.get(object).map(|found| found.bytes().clone())
    }

    fn most(cache: &Cache) -> u64 {
        cache.shelf_bytes_max * SHELVES as u64
    }

    #[test]
    fn what_was_used_last_stays_and_the_bound_holds() {
        let folder = tempfile::tempdir().unwrap();
        let cache = small(folder.path());
        let favourite = object(0);
        for seed in 0..5000 {
            let (object, bytes) = object(seed);
            cache.put(&object, &bytes);
            // File times have a coarse resolution, so use the object repeatedly.
            if seed % 16 == 0 {
                assert_eq!(got(&cache, &favourite.0).as_ref(), Some(&favourite.1), "after {seed}");
            }
            assert!(seed % 500 != 0 || cache.bytes() <= most(&cache));
        }
        assert!(cache.bytes() > most(&cache) / 2, "it keeps what it may");
        assert_eq!(got(&cache, &object(1).0), None, "it went long ago");
        // Another handle finds the same.
        assert_eq!(got(&small(folder.path()), &favourite.0), Some(favourite.1));
    }

    #[test]
    fn damaged_files_are_dropped_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let cache = small(folder.path());
        let (object, bytes) = object(1);
        let path = cache.path_of(&object);
        let flipped = {
            let mut bytes = bytes.to_vec();
            bytes[500] ^= 1;
            bytes
        };
        for spoilt in [&flipped[..], &bytes[..1000], &[], &[&bytes[..], b"x"].concat()] {
            cache.put(&object, &bytes);
            std::fs::write(&path, spoilt).unwrap();
            assert_eq!(got(&cache, &object), None);
            assert!(!path.exists());
        }
        cache.put(&object, &bytes);
        assert_eq!(got(&cache, &object), Some(bytes));
    }

    #[test]
    fn leftovers_and_strangers_count_and_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = small(folder.path());
        for shelf in 0..SHELVES {
            std::fs::write(cache.folder_of(shelf).join("new-of-a-killed-process"), vec![0; 60 << 10])
                .unwrap();
        }
        (0..1000).for_each(|seed| {
            let (object, bytes) = object(seed);
            cache.put(&object, &bytes);
        });
        assert!(cache.bytes() <= most(&cache));
        let left =
            (0..SHELVES).filter(|&shelf| cache.folder_of(shelf).join("new-of-a-killed-process").exists());
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_and_a_size_too_small_are_errors() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let setting = CacheSetting { folder: file.path().to_owned(), bytes_max: CACHE_BYTES_MIN };
        assert!(Cache::open(&setting).is_err());
        let small = CacheSetting { folder: "/nowhere".into(), bytes_max: CACHE_BYTES_MIN - 1 };
        assert_eq!(Cache::open(&small).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
