//! Images that a host keeps, as raw files, so that its machines get copies of them at once: a file that shares their
//! blocks, or an overlay over them. Programs that use the folder share its locks; none of them has to run all the time.
//!
//! ```text
//! FOLDER/images/KEY/disk.raw   a version, read-only; KEY is the first half of the name of its content
//!                  /disk.part  the same before it was complete
//!                  /about.json what it is; its time of change is that of the last use
//!        locks/KEY             shared: it is used; exclusive: it is filled or removed
//!        overlays/DIGEST.json  an overlay: its image, its file, and the name of the image beside it
//! ```
//!
//! An overlay names its base by a second name (hard link) of `disk.raw` in its own folder, if that is possible. So a
//! folder of a machine can be moved as a whole, and what an overlay needs stays there whatever becomes of the cache.

mod clean;
mod mounted;
mod overlay;
#[cfg(test)]
mod tests;
mod there;
mod volume;

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base::{Digest, Error, Result};
use disk::Geometry;
use serde::{Deserialize, Serialize};

pub use self::clean::Bounds;
use self::clean::{Candidate, leaving};
pub use self::mounted::MountedVersion;
use self::overlay::Overlay;
pub use self::there::There;
pub use self::volume::{FillingVolume, FoundVolume, KeptVolume};
use crate::clock;
use crate::private_file::io_error;

/// What an image in a file is, beside it.
const RECORD: &str = "about.json";

/// Images that are kept in a folder.
#[derive(Debug, Clone)]
pub struct ImageCache {
    folder: PathBuf,
}

/// What an image is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The version by which it came: `image@number`. Others may have the same content.
    pub reference: String,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Bytes of a sector.
    pub sector_bytes: u32,
}

/// A kept image, in the eyes of who looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptImage {
    /// Its key.
    pub key: String,
    /// What it is.
    #[serde(flatten)]
    pub about: About,
    /// Bytes that removing it would free: not those that it shares with copies.
    pub own_bytes: u64,
    /// When it was used last, in seconds since 1970.
    pub used: u64,
    /// Whether something needs it.
    pub in_use: bool,
    /// The logical volume that it lies in, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<PathBuf>,
}

/// How an image is found.
pub enum Found {
    /// It is here.
    Here(Base),
    /// It is not, and the caller is the one to fetch it.
    Missing(Filling),
    /// Another program fetches or removes it.
    Busy,
}

/// An image that stays while this exists.
pub struct Base {
    path: PathBuf,
    about: About,
    _lock: File,
}

/// An image that is being fetched by this program alone.
pub struct Filling {
    folder: PathBuf,
    lock: File,
}

impl ImageCache {
    /// The images in `folder`, which is made if it is missing.
    pub fn open(folder: &Path) -> Result<Self> {
        for part in ["images", "locks", "overlays", "volumes"] {
            // Programs of machines read the images, whoever they run as.
            let path = folder.join(part);
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&path);
            made.map_err(|error| io_error("make", &path, error))?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// The key of the content named `root`.
    #[must_use]
    pub fn key(root: Digest) -> String {
        root.to_hex()[..32].to_owned()
    }

    fn place(&self, key: &str) -> PathBuf {
        self.folder.join("images").join(key)
    }

    /// Looks for an image. What is found stays as long as the answer exists.
    pub fn find(&self, key: &str) -> Result<Found> {
        let (place, lock) = (self.place(key), self.lock(key)?);
        let failed = |error| io_error("lock", &place, error);
        // Who has it for itself may have removed it meanwhile, so it is looked for under the lock.
        if is_locked(lock.try_lock_shared()).map_err(failed)? {
            if let Some(about) = about(&place)? {
                touch(&place.join(RECORD))?;
                return Ok(Found::Here(Base { path: place.join("disk.raw"), about, _lock: lock }));
            }
            lock.unlock().map_err(failed)?;
        }
        if !is_locked(lock.try_lock()).map_err(failed)? {
            return Ok(Found::Busy);
        }
        if about(&place)?.is_some() {
            // It was completed between the two looks.
            return Ok(Found::Busy);
        }
        std::fs::create_dir_all(&place).map_err(|error| io_error("make", &place, error))?;
        Ok(Found::Missing(Filling { folder: place, lock }))
    }

    fn lock(&self, key: &str) -> Result<File> {
        let path = self.folder.join("locks").join(key);
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        opened.map_err(|error| io_error("open", &path, error))
    }

    /// All images, those that were used last first.
    pub fn list(&self) -> Result<Vec<KeptImage>> {
        let mut images = self.files()?;
        images.extend(self.volumes()?);
        images.sort_by_key(|image| std::cmp::Reverse(image.used));
        Ok(images)
    }

    /// Those in files.
    fn files(&self) -> Result<Vec<KeptImage>> {
        let overlays = Overlay::all(&self.folder)?;
        let mut images = Vec::new();
        for key in names(&self.folder.join("images"))? {
            let place = self.place(&key);
            let Some(about) = about(&place)? else { continue };
            let lock = self.lock(&key)?;
            let is_busy = !is_locked(lock.try_lock()).map_err(|error| io_error("lock", &place, error))?;
            let needed = overlays.iter().any(|overlay| overlay.key == key && overlay.needs_image());
            let path = place.join("disk.raw");
            let own_bytes = own_bytes(&path).map_err(|error| io_error("measure", &path, error))?;
            let used = modified(&place.join(RECORD))?;
            images.push(KeptImage { key, about, own_bytes, used, in_use: is_busy || needed, volume: None });
        }
        Ok(images)
    }

    /// Removes what is not used any more: names beside overlays that are gone, parts of images whose fetch ended, and
    /// the images that were used least recently, until `bounds` hold. Returns their names.
    pub fn clean(&self, bounds: Bounds) -> Result<Vec<String>> {
        for overlay in Overlay::all(&self.folder)? {
            overlay.forget_if_gone(&self.folder)?;
        }
        self.remove_parts()?;
        let images = self.files()?;
        let free = free_bytes(&self.folder)?;
        let candidates: Vec<Candidate> = images
            .iter()
            .map(|image| Candidate { bytes: image.own_bytes, used: image.used, in_use: image.in_use })
            .collect();
        let mut removed = Vec::new();
        for number in leaving(&candidates, bounds, free) {
            if self.remove(&images[number].key)? {
                removed.push(images[number].about.reference.clone());
            }
        }
        Ok(removed)
    }

    /// Removes one image, unless somebody began to use it. Returns whether it is gone.
    fn remove(&self, key: &str) -> Result<bool> {
        let (place, lock) = (self.place(key), self.lock(key)?);
        if !is_locked(lock.try_lock()).map_err(|error| io_error("lock", &place, error))? {
            return Ok(false);
        }
        if Overlay::all(&self.folder)?.iter().any(|overlay| overlay.key == key && overlay.needs_image()) {
            return Ok(false);
        }
        // First what says that it is complete.
        let gone = |path: PathBuf| match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error("remove", &path, error))
            }
            _ => Ok(()),
        };
        gone(place.join(RECORD))?;
        std::fs::remove_dir_all(&place).map_err(|error| io_error("remove", &place, error))?;
        Ok(true)
    }

    /// Removes what was fetched in part by programs that are gone. What an overlay needs is no such part, also if its
    /// record is missing: machines would lose their disks.
    fn remove_parts(&self) -> Result<()> {
        let overlays = Overlay::all(&self.folder)?;
        for key in names(&self.folder.join("images"))? {
            let place = self.place(&key);
            let lock = self.lock(&key)?;
            let is_ours = is_locked(lock.try_lock()).map_err(|error| io_error("lock", &place, error))?;
            let old = clock::unix_seconds().saturating_sub(PART_SECONDS);
            let needed = overlays.iter().any(|overlay| overlay.key == key && overlay.needs_image());
            if is_ours && !needed && about(&place)?.is_none() && modified(&place)? < old {
                std::fs::remove_dir_all(&place).map_err(|error| io_error("remove", &place, error))?;
            }
        }
        Ok(())
    }
}

/// A part of an image is kept for so long: its fetch may be tried again.
const PART_SECONDS: u64 = 86_400;

impl Base {
    /// The raw file. It must not be changed.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `target` a file that shares its blocks, and is at least `size_bytes` long. `Refused` if they can't, or if
    /// something is there that may not be, with nothing left behind; `Io`.
    pub fn share(&self, target: &Path, size_bytes: Option<u64>, there: There) -> Result<()> {
        let size = self.about.size_bytes.max(size_bytes.unwrap_or(0));
        if there.is_made(target, || there::is_same(&self.path, target, size))? {
            return Ok(());
        }
        let is_new = there.begin(target)?;
        let shared = disk::second_copy::share_blocks(&self.path, target);
        if shared.is_err() && is_new {
            there::remove(target)?;
        }
        shared?;
        let file = OpenOptions::new().write(true).open(target);
        let file = file.map_err(|error| io_error("open", target, error))?;
        file.set_len(size).map_err(|error| io_error("extend", target, error))?;
        file.sync_all().map_err(|error| io_error("make durable", target, error))
    }

    /// Makes `target` a QCOW2 that has what differs from it, and is at least `size_bytes` long. `Refused` if something
    /// is there that may not be; `Io`.
    pub fn overlay(
        &self,
        kept: &ImageCache,
        target: &Path,
        size_bytes: Option<u64>,
        there: There,
    ) -> Result<()> {
        let sector = self.about.sector_bytes;
        let geometry = Geometry {
            size_bytes: self.about.size_bytes.max(size_bytes.unwrap_or(0)),
            logical_sector_bytes: sector,
            physical_sector_bytes: sector,
        };
        let key =
            self.path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        Overlay::make(&kept.folder, (&key, &self.path), (target, there), geometry)
    }
}

impl Filling {
    /// The file to fetch it into. It may hold a part of an earlier attempt.
    #[must_use]
    pub fn part(&self) -> PathBuf {
        self.folder.join("disk.part")
    }

    /// The image is complete and durable.
    pub fn complete(self, about: &About) -> Result<Base> {
        let (part, path) = (self.part(), self.folder.join("disk.raw"));
        let readable = std::fs::set_permissions(&part, Permissions::from_mode(0o444));
        readable.map_err(|error| io_error("protect", &part, error))?;
        std::fs::rename(&part, &path).map_err(|error| io_error("name", &path, error))?;
        about.keep(&self.folder.join(RECORD))?;
        // Others may use it from here on.
        self.lock.lock_shared().map_err(|error| io_error("lock", &path, error))?;
        Ok(Base { path, about: about.clone(), _lock: self.lock })
    }
}

fn is_locked(tried: std::result::Result<(), TryLockError>) -> std::io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// What the image at `place` is; `None` if it is not complete.
fn about(place: &Path) -> Result<Option<About>> {
    About::read(&place.join(RECORD), &place.join("disk.raw"))
}

impl About {
    /// What `record` says of what is at `content`; `None` if that is not complete, or gone.
    fn read(record: &Path, content: &Path) -> Result<Option<Self>> {
        match std::fs::read(record) {
            Ok(text) if content.exists() => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| Error::corrupt(format!("`{}`: {error}", record.display()))),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", record, error)),
        }
    }

    /// Says so in `record`, in a folder that is there: from then on the image is complete.
    fn keep(&self, record: &Path) -> Result<()> {
        let (text, draft) =
            (serde_json::to_vec(self).expect("it is plain data"), record.with_extension("draft"));
        let folder = record.parent().expect("it has a folder");
        let written = std::fs::write(&draft, text).and_then(|()| File::open(&draft)?.sync_all());
        let written = written.and_then(|()| std::fs::rename(&draft, record));
        let durable = written.and_then(|()| File::open(folder)?.sync_all());
        durable.map_err(|error| io_error("write", record, error))
    }
}

/// Says that the image of `record` is used now.
fn touch(record: &Path) -> Result<()> {
    let file =
        OpenOptions::new().append(true).open(record).map_err(|error| io_error("open", record, error))?;
    file.set_modified(clock::now()).map_err(|error| io_error("touch", record, error))
}

fn modified(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path).map_err(|error| io_error("look at", path, error))?;
    Ok(u64::try_from(found.mtime()).unwrap_or(0))
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(|error| io_error("list", folder, error))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().map_err(|error| io_error("list", folder, error))
}

/// Bytes of the blocks that only this file has.
fn own_bytes(path: &Path) -> std::io::Result<u64> {
    let found = std::fs::metadata(path)?;
    if found.nlink() > 1 {
        // A name beside an overlay keeps them.
        return Ok(0);
    }
    let shared = fiemap::FiemapExtentFlags::SHARED;
    let extents = fiemap::fiemap(path)?.collect::<std::io::Result<Vec<_>>>();
    let own = extents.map(|extents| {
        let own = extents.iter().filter(|extent| !extent.fe_flags.contains(shared));
        own.map(|extent| extent.fe_length).sum()
    });
    // Not every filesystem tells.
    Ok(own.unwrap_or(found.blocks() * 512))
}

fn free_bytes(folder: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(folder).map_err(|error| io_error("look at", folder, error.into()))?;
    Ok(found.f_bavail * found.f_frsize)
}
