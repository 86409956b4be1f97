//! Images that a host keeps as logical volumes, so that its machines get snapshots of them at once.
//!
//! ```text
//! FOLDER/volumes/GROUP/KEY.json  what is in the volume GROUP/diskcast-KEY; its time of change is that of the last use
//!        locks/GROUP-KEY         as for images
//! ```
//!
//! LVM removes a volume together with its snapshots, which are disks of machines: one that has any stays.

use std::fs::File;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use disk::logical_volume::LogicalVolume;
use disk::{ReadAt as _, open_source};

use super::there::{There, remove};
use super::{About, ImageCache, KeptImage, is_locked, modified, names, touch};
use crate::private_file::io_error;

/// What names of our volumes begin with.
const NAME: &str = "diskcast-";
/// Bytes that are compared at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// How an image is found.
pub enum FoundVolume {
    /// It is here.
    Here(KeptVolume),
    /// It is not, and the caller is the one to fetch it.
    Missing(FillingVolume),
    /// Another program fetches or removes it.
    Busy,
}

/// An image that stays while this exists.
pub struct KeptVolume {
    volume: LogicalVolume,
    _lock: File,
}

/// A volume that is being filled by this program alone. It may hold a part of an earlier attempt, or be missing.
pub struct FillingVolume {
    volume: LogicalVolume,
    record: PathBuf,
    lock: File,
}

impl ImageCache {
    /// Looks for an image in a volume group. What is found stays as long as the answer exists.
    pub fn find_volume(&self, key: &str, group: &str) -> Result<FoundVolume> {
        let volume = LogicalVolume { group: group.to_owned(), name: format!("{NAME}{key}") };
        let record = self.record_of(group, key);
        let lock = self.lock(&format!("{group}-{key}"))?;
        let failed = |error| io_error("lock", &record, error);
        if is_locked(lock.try_lock_shared()).map_err(failed)? {
            if About::read(&record, &volume.path())?.is_some() {
                touch(&record)?;
                return Ok(FoundVolume::Here(KeptVolume { volume, _lock: lock }));
            }
            lock.unlock().map_err(failed)?;
        }
        if !is_locked(lock.try_lock()).map_err(failed)? || About::read(&record, &volume.path())?.is_some() {
            return Ok(FoundVolume::Busy);
        }
        // Of a volume that somebody removed. The next one is not complete before its own record is there.
        if record.exists() {
            remove(&record)?;
            let folder = record.parent().expect("it has a folder");
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| io_error("make durable", folder, error))?;
        }
        Ok(FoundVolume::Missing(FillingVolume { volume, record, lock }))
    }

    fn record_of(&self, group: &str, key: &str) -> PathBuf {
        self.folder.join("volumes").join(group).join(format!("{key}.json"))
    }

    /// Removes the volume of `group` that was used least recently, to make room there: none that is in use, or has
    /// snapshots. Returns what it held.
    pub fn drop_volume(&self, group: &str) -> Result<Option<String>> {
        let mut all = self.volumes_of(group)?;
        all.sort_by_key(|(_, image)| image.used);
        for (volume, image) in all {
            let record = self.record_of(group, &image.key);
            let lock = self.lock(&format!("{group}-{}", image.key))?;
            let is_ours = is_locked(lock.try_lock()).map_err(|error| io_error("lock", &record, error))?;
            if is_ours && volume.snapshots()? == 0 {
                // First what says that it is complete.
                std::fs::remove_file(&record).map_err(|error| io_error("remove", &record, error))?;
                volume.remove()?;
                return Ok(Some(image.about.reference));
            }
        }
        Ok(None)
    }

    /// All images in volumes.
    pub(super) fn volumes(&self) -> Result<Vec<KeptImage>> {
        let mut all = Vec::new();
        for group in names(&self.folder.join("volumes"))? {
            all.extend(self.volumes_of(&group)?.into_iter().map(|(_, image)| image));
        }
        Ok(all)
    }

    fn volumes_of(&self, group: &str) -> Result<Vec<(LogicalVolume, KeptImage)>> {
        let folder = self.folder.join("volumes").join(group);
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for name in names(&folder)? {
            let Some(key) = name.strip_suffix(".json") else { continue };
            let volume = LogicalVolume { group: group.to_owned(), name: format!("{NAME}{key}") };
            let record = self.record_of(group, key);
            let Some(about) = About::read(&record, &volume.path())? else { continue };
            let lock = self.lock(&format!("{group}-{key}"))?;
            let is_free = is_locked(lock.try_lock()).map_err(|error| io_error("lock", &record, error))?;
            let in_use = !is_free || volume.snapshots()? > 0;
            let own_bytes = if in_use { 0 } else { about.size_bytes };
            let used = modified(&record)?;
            let path = Some(volume.path());
            all.push((
                volume,
                KeptImage { key: key.to_owned(), about, own_bytes, used, in_use, volume: path },
            ));
        }
        Ok(all)
    }
}

impl KeptVolume {
    /// Makes the volume `target` a snapshot of it, which can be written. `Refused` if something is there that may not
    /// be, or if the group has no room ([`base::Subject::VolumeGroup`]); `Io`.
    pub fn snapshot(&self, target: &LogicalVolume, there: There) -> Result<()> {
        let (base, path) = (self.volume.path(), target.path());
        if path.exists() {
            // An earlier attempt may have made it, and nobody has written to it.
            let is_same = there != There::Nothing
                && target.origin()?.as_deref() == Some(&*self.volume.name)
                && is_same(&base, &path)?;
            let text = format!("`{}` exists: a snapshot is a new logical volume", path.display());
            return if is_same { Ok(()) } else { Err(Error::new(ErrorKind::Refused, text)) };
        }
        target.check_snapshot(&base, 0)?;
        target.snapshot(&base)
    }
}

impl FillingVolume {
    /// The device to fetch it into, which is to be made if it is missing.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.volume.path()
    }

    /// The image is complete and durable.
    pub fn complete(self, about: &About) -> Result<KeptVolume> {
        let folder = self.record.parent().expect("it has a folder");
        std::fs::create_dir_all(folder).map_err(|error| io_error("make", folder, error))?;
        about.keep(&self.record)?;
        // Others may use it from here on.
        self.lock.lock_shared().map_err(|error| io_error("lock", &self.record, error))?;
        Ok(KeptVolume { volume: self.volume, _lock: self.lock })
    }
}

/// Whether both devices hold the same.
fn is_same(one: &Path, other: &Path) -> Result<bool> {
    let (one, other) = (open_source(one)?, open_source(other)?);
    let size = one.geometry().size_bytes;
    if other.geometry().size_bytes != size {
        return Ok(false);
    }
    let (mut block, mut beside) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let mut at = 0;
    while at < size {
        let len = usize::try_from(size - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        one.read_exact_at(&mut block[..len], at)?;
        other.read_exact_at(&mut beside[..len], at)?;
        if block[..len] != beside[..len] {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
