//! The disks behind a mount: versions, which are created in the cache folder when they are first opened and stay
//! there, and writable clones, which stay until they are removed.
//!
//! ```text
//! FOLDER/versions/IMAGE/NUMBER/   one mirror's folder; all together are limited, the least recently used go first
//! FOLDER/aside/                   disks that stood in the place of another version (`aside`)
//! FOLDER/clones/NAME/             one mirror's folder
//! FOLDER/clones/NAME/fork         the image that the next commit makes, if that is not the base's
//! ```
//!
//! A disk is opened once for all its users, and closed when the last one has left.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use base::{Error, ErrorKind, Result};
use fuser::BackingId;
use image::Manifest;
use parking_lot::Mutex;
use store::{ImageName, Reference};

use super::aside;
use super::bytes::ByteDisk;
use super::event::{Event, Log};
use super::origin::Origin;
use super::sharing::Sharing;
use crate::lock::hold;
use crate::{Commit, Mirror, MirrorOptions, Served, Source};

/// Maximum number of cached manifests. They need no refresh, since versions never change.
const MANIFESTS_MAX: usize = 1024;

/// Where and how the disks of a mount are kept.
#[derive(Debug, Clone)]
pub struct DiskSettings {
    /// The cache folder.
    pub folder: PathBuf,
    /// Maximum number of bytes that closed versions take there, all together.
    pub bytes_max: u64,
    /// Options of each disk.
    pub mirror: MirrorOptions,
    /// Whether the kernel may read complete versions directly from their local file (FUSE passthrough).
    pub passthrough: bool,
}

/// Where the disks of a mount come from.
pub struct Content {
    /// The images.
    pub origin: Origin,
    /// Their content, from places that are asked in this order.
    pub sources: Vec<Source>,
    /// Who else reads versions, if they are shared.
    pub sharing: Option<Sharing>,
}

/// The name of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum DiskName {
    /// A version of an image, read-only.
    Version(ImageName, u64),
    /// A writable clone.
    Clone(ImageName),
}

impl std::fmt::Display for DiskName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(image, number) => write!(f, "{image}@{number}"),
            Self::Clone(name) => write!(f, "{name}"),
        }
    }
}

/// An open disk.
#[derive(Clone)]
pub(super) struct OpenDisk {
    /// The disk.
    pub mirror: Arc<Mirror>,
    /// Byte access to it.
    pub bytes: Arc<ByteDisk>,
    /// If the kernel reads the local file directly: its handle for that file. All users of one disk must use the
    /// same way at the same time; the kernel demands it.
    pub backing: Option<Arc<BackingId>>,
}

#[derive(Default)]
struct Slot {
    /// Held while the disk is opened or closed.
    open: Mutex<Option<OpenDisk>>,
    /// Increased only under the lock, decreased without it: the last user is counted off at once, and the disk is
    /// closed later.
    users: AtomicU64,
}

/// Counters since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountCounters {
    /// Disks that were opened. Only the first user of a disk counts.
    pub opened: u64,
    /// How many of these by passthrough.
    pub passthrough: u64,
    /// Reads that the mount answered, without those that the kernel did by passthrough.
    pub reads: u64,
    /// Writes that the mount answered.
    pub writes: u64,
    /// Versions that were dropped from the cache folder.
    pub dropped: u64,
}

/// See the module.
pub(super) struct Disks {
    settings: DiskSettings,
    pub origin: Origin,
    sources: Vec<Source>,
    sharing: Option<Sharing>,
    slots: Mutex<HashMap<DiskName, Arc<Slot>>>,
    manifests: Mutex<HashMap<(ImageName, u64), Arc<Manifest>>>,
    opened: AtomicU64,
    passthrough: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    dropped: AtomicU64,
    pub log: Log,
    /// Keeps the lock file locked.
    _lock: File,
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::from_io(format!("{what} `{}`", path.display()), error)
}

impl Disks {
    /// Uses the cache folder of `settings`, and creates it if it does not exist. `Exists` if another mount has it.
    pub(super) fn new(settings: DiskSettings, content: Content, log: Log) -> Result<Self> {
        let Content { origin, sources, sharing } = content;
        for folder in ["versions", "clones"].map(|name| settings.folder.join(name)) {
            std::fs::create_dir_all(&folder).map_err(|error| failed("create folder", &folder, error))?;
        }
        let path = settings.folder.join("lock");
        let lock = File::create(&path).map_err(|error| failed("create", &path, error))?;
        hold(&lock).map_err(|error| match error {
            TryLockError::WouldBlock => {
                let text = format!("another mount has `{}`", settings.folder.display());
                Error::new(ErrorKind::Exists, text)
            }
            TryLockError::Error(error) => failed("lock", &path, error),
        })?;
        Ok(Self {
            settings,
            origin,
            sources,
            sharing,
            slots: Mutex::default(),
            manifests: Mutex::default(),
            opened: AtomicU64::new(0),
            passthrough: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            log,
            _lock: lock,
        })
    }

    /// The counters since the mount.
    pub(super) fn counters(&self) -> MountCounters {
        let [opened, passthrough, reads, writes, dropped] =
            [&self.opened, &self.passthrough, &self.reads, &self.writes, &self.dropped]
                .map(|counter| counter.load(Ordering::Relaxed));
        MountCounters { opened, passthrough, reads, writes, dropped }
    }

    /// The cache folder.
    pub(super) fn folder(&self) -> &Path {
        &self.settings.folder
    }

    fn folder_of(&self, name: &DiskName) -> PathBuf {
        match name {
            DiskName::Version(image, number) => {
                self.settings.folder.join("versions").join(image.as_str()).join(number.to_string())
            }
            DiskName::Clone(name) => self.settings.folder.join("clones").join(name.as_str()),
        }
    }

    /// The manifest of a version.
    pub(super) fn manifest(&self, image: &ImageName, number: u64) -> Result<Arc<Manifest>> {
        let key = (image.clone(), number);
        if let Some(found) = self.manifests.lock().get(&key) {
            return Ok(Arc::clone(found));
        }
        let found = Arc::new(self.origin.resolve(&Reference::Version(image.clone(), number))?);
        let mut manifests = self.manifests.lock();
        if manifests.len() >= MANIFESTS_MAX {
            manifests.clear();
        }
        manifests.insert(key, Arc::clone(&found));
        Ok(found)
    }

    fn slot(&self, name: &DiskName) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry(name.clone()).or_default())
    }

    /// Removes a slot without users from the table.
    fn tidy(&self, name: &DiskName, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        // Two references: the map's and the caller's. A new one is only made through the map, which is locked here.
        if Arc::strong_count(slot) == 2 && slot.open.lock().is_none() {
            slots.remove(name);
        }
    }

    /// Opens the disk for one more user. `back` registers a file with the kernel for passthrough.
    pub(super) fn open(
        &self,
        name: &DiskName,
        back: &dyn Fn(&File) -> io::Result<BackingId>,
    ) -> Result<OpenDisk> {
        let slot = self.slot(name);
        let opened = {
            let mut slot_open = slot.open.lock();
            let opened = match &*slot_open {
                Some(open) => Ok(open.clone()),
                None => self.open_first(name, back),
            };
            if let Ok(open) = &opened {
                *slot_open = Some(open.clone());
                slot.users.fetch_add(1, Ordering::AcqRel);
            }
            opened
        };
        if opened.is_err() {
            self.tidy(name, &slot);
        }
        opened
    }

    fn open_first(&self, name: &DiskName, back: &dyn Fn(&File) -> io::Result<BackingId>) -> Result<OpenDisk> {
        let folder = self.folder_of(name);
        let mirror = Arc::new(match name {
            DiskName::Version(image, number) => self.open_version(&folder, image, *number)?,
            DiskName::Clone(_) => Mirror::open(&folder, self.sources.clone(), &self.settings.mirror)?,
        });
        // Only versions: writes of a clone must be recorded, so they must come here.
        let may_back = self.settings.passthrough && matches!(name, DiskName::Version(..));
        let backing = if may_back && mirror.is_complete() {
            // If the process has no right to passthrough, or the kernel is too old, reads come here.
            File::open(folder.join("data")).and_then(|file| back(&file)).ok().map(Arc::new)
        } else {
            None
        };
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.passthrough.fetch_add(u64::from(backing.is_some()), Ordering::Relaxed);
        (self.log)(&Event::Opened { disk: name.to_string(), passthrough: backing.is_some() });
        let bytes = Arc::new(ByteDisk::new(Arc::clone(&mirror) as Arc<dyn Served>));
        Ok(OpenDisk { mirror, bytes, backing })
    }

    /// Opens the version's disk in the cache folder, and shares what it gets.
    fn open_version(&self, folder: &Path, image: &ImageName, number: u64) -> Result<Mirror> {
        let manifest = self.manifest(image, number)?;
        let (sources, shared) = match &self.sharing {
            Some(sharing) => {
                let (sources, shared) = sharing.begin(&self.sources);
                (sources, Some(shared))
            }
            None => (self.sources.clone(), None),
        };
        let mirror = match Mirror::open(folder, sources.clone(), &self.settings.mirror) {
            Ok(mirror) if mirror.base().root == manifest.root => mirror,
            // The disk is of another repository, or damaged.
            Ok(other) => {
                drop(other);
                self.make_version(folder, (image, number), &manifest, sources)?
            }
            Err(error) if matches!(error.kind(), ErrorKind::Malformed | ErrorKind::NotFound) => {
                self.make_version(folder, (image, number), &manifest, sources)?
            }
            Err(error) => return Err(error),
        };
        if let Some(shared) = shared {
            shared.join(&mirror)?;
        }
        Ok(mirror)
    }

    /// Makes the version's disk in the cache folder. What stands in its place is set aside: perhaps it can't be had
    /// again.
    fn make_version(
        &self,
        folder: &Path,
        (image, number): (&ImageName, u64),
        manifest: &Manifest,
        sources: Vec<Source>,
    ) -> Result<Mirror> {
        if folder.join("journal").exists() {
            aside::set_aside(&self.settings.folder, folder, &format!("{image}@{number}"))?;
        }
        Mirror::create(folder, manifest, sources, &self.settings.mirror)
    }

    /// Counts one user less. [`Self::close_if_unused`] closes the disk, which takes longer.
    pub(super) fn leave(&self, name: &DiskName) {
        self.slot(name).users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Closes the disk if it has no users.
    pub(super) fn close_if_unused(&self, name: &DiskName) {
        let slot = self.slot(name);
        let closed = self.close_unused(name, &slot, &mut slot.open.lock());
        self.tidy(name, &slot);
        if closed && matches!(name, DiskName::Version(..)) {
            self.bound();
        }
    }

    fn close_unused(&self, name: &DiskName, slot: &Slot, slot_open: &mut Option<OpenDisk>) -> bool {
        let open = if slot.users.load(Ordering::Acquire) == 0 { slot_open.take() } else { None };
        open.map(|open| self.close(name, &open)).is_some()
    }

    fn close(&self, name: &DiskName, open: &OpenDisk) {
        match open.mirror.close() {
            Ok(()) => (self.log)(&Event::Closed { disk: name.to_string() }),
            Err(error) => self.complain(&name.to_string(), &error),
        }
    }

    /// Logs a failure.
    pub(super) fn complain(&self, name: &str, error: &Error) {
        (self.log)(&Event::Failed { name: name.to_owned(), error: base::chain(error) });
    }

    /// Closes all disks, also those in use, because the mount ends.
    pub(super) fn close_all(&self) {
        let all: Vec<_> =
            self.slots.lock().iter().map(|(name, slot)| (name.clone(), Arc::clone(slot))).collect();
        for (name, slot) in all {
            let open = slot.open.lock().clone();
            if let Some(open) = open {
                self.close(&name, &open);
            }
        }
    }

    /// The open disks, with their numbers of users.
    pub(super) fn in_use(&self) -> Vec<(DiskName, OpenDisk, u64)> {
        let all: Vec<_> =
            self.slots.lock().iter().map(|(name, slot)| (name.clone(), Arc::clone(slot))).collect();
        let each = all.into_iter().filter_map(|(name, slot)| {
            let open = slot.open.try_lock()?.clone()?;
            Some((name, open, slot.users.load(Ordering::Acquire)))
        });
        each.collect()
    }

    /// Deletes unused versions from the cache folder, the least recently used first, until the others fit into
    /// `bytes_max`.
    fn bound(&self) {
        let mut closed = self.versions_here();
        let asides = aside::all(&self.settings.folder);
        let mut total: u64 = closed.iter().map(|(_, bytes, _)| bytes).sum();
        total += asides.iter().map(|(_, bytes)| bytes).sum::<u64>();
        for (path, bytes) in asides {
            if total <= self.settings.bytes_max {
                return;
            }
            match std::fs::remove_dir_all(&path) {
                Ok(()) => total -= bytes,
                Err(error) => self.complain("aside", &failed("remove", &path, error)),
            }
        }
        closed.sort_by_key(|(_, _, used)| *used);
        for (name, bytes, _) in closed {
            if total <= self.settings.bytes_max {
                return;
            }
            let slot = self.slot(&name);
            if let Some(open) = slot.open.try_lock()
                && open.is_none()
            {
                match std::fs::remove_dir_all(self.folder_of(&name)) {
                    Ok(()) => {
                        total -= bytes;
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        self.complain(&name.to_string(), &failed("remove", &self.folder_of(&name), error));
                    }
                }
            }
            self.tidy(&name, &slot);
        }
    }

    /// The versions in the cache folder, their size in bytes, and when they were last used.
    fn versions_here(&self) -> Vec<(DiskName, u64, SystemTime)> {
        let images = names_in(&self.settings.folder.join("versions"));
        let versions = images.into_iter().filter_map(|image| Some((image.parse::<ImageName>().ok()?, image)));
        let versions = versions.flat_map(|(image, folder)| {
            let numbers = names_in(&self.settings.folder.join("versions").join(folder)).into_iter();
            numbers
                .filter_map(move |number| Some(DiskName::Version(image.clone(), number.parse::<u64>().ok()?)))
        });
        let each = versions.filter_map(|name| {
            let folder = self.folder_of(&name);
            let data = std::fs::metadata(folder.join("data")).ok()?;
            let used = std::fs::metadata(folder.join("journal")).and_then(|journal| journal.modified());
            Some((name, data.blocks() * 512, used.unwrap_or(SystemTime::UNIX_EPOCH)))
        });
        each.collect()
    }
}

/// The names in a folder; none if it cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Writable clones.
impl Disks {
    /// The names of all clones, sorted.
    pub(super) fn clones(&self) -> Vec<ImageName> {
        let folder = self.settings.folder.join("clones");
        let names = names_in(&folder).into_iter().filter(|name| folder.join(name).join("journal").exists());
        let mut names: Vec<ImageName> = names.filter_map(|name| name.parse().ok()).collect();
        names.sort();
        names
    }

    /// The size of a clone's local file, its allocated bytes, and when it was last written. `NotFound` if there is
    /// no such clone.
    pub(super) fn clone_file(&self, name: &ImageName) -> Result<(u64, u64, SystemTime)> {
        let folder = self.folder_of(&DiskName::Clone(name.clone()));
        let missing = |error| failed("look for clone in", &folder, error);
        std::fs::metadata(folder.join("journal")).map_err(missing)?;
        let data = std::fs::metadata(folder.join("data")).map_err(missing)?;
        Ok((data.len(), data.blocks() * 512, data.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
    }

    /// Makes clone `name` of a version. Nothing is fetched. `Exists` if there is a clone of that name.
    pub(super) fn create_clone(&self, name: &ImageName, from: &Reference) -> Result<Manifest> {
        let manifest = self.origin.resolve(from)?;
        let disk = DiskName::Clone(name.clone());
        let slot = self.slot(&disk);
        let made = {
            let _open = slot.open.lock();
            let folder = self.folder_of(&disk);
            let made = Mirror::create(&folder, &manifest, self.sources.clone(), &self.settings.mirror);
            made.and_then(|mirror| mirror.close())
        };
        self.tidy(&disk, &slot);
        made.map(|()| manifest)
    }

    /// Makes the next commit of clone `name` create the image `image`. `Exists` if that image already exists.
    pub(super) fn fork(&self, name: &ImageName, image: &ImageName) -> Result<()> {
        self.clone_file(name)?;
        match self.origin.versions(image) {
            Ok(_) => {
                return Err(Error::new(ErrorKind::Exists, format!("there is an image `{image}` already")));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let folder = self.folder_of(&DiskName::Clone(name.clone()));
        let (path, new) = (folder.join("fork"), folder.join("fork.new"));
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            io::Write::write_all(&mut file, image.as_str().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&folder)?.sync_all()
        };
        write().map_err(|error| failed("write", &path, error))
    }

    /// Commits the changes of clone `name` to `image`; if that is `None`, to the image that it was forked to, or
    /// else to the image of its base. Returns the base, and the commit; `None` if nothing was written.
    pub(super) fn commit(
        &self,
        name: &ImageName,
        image: Option<&ImageName>,
    ) -> Result<(Manifest, Option<Commit>)> {
        let disk = DiskName::Clone(name.clone());
        let open = self.open(&disk, &|_| Err(io::ErrorKind::Unsupported.into()))?;
        let done = self.commit_open(&disk, &open.mirror, image);
        self.leave(&disk);
        self.close_if_unused(&disk);
        done
    }

    fn commit_open(
        &self,
        disk: &DiskName,
        mirror: &Mirror,
        image: Option<&ImageName>,
    ) -> Result<(Manifest, Option<Commit>)> {
        let path = self.folder_of(disk).join("fork");
        let forked = std::fs::read_to_string(&path).ok();
        let named = forked.unwrap_or_else(|| mirror.base().image);
        let named: ImageName =
            named.parse().map_err(|error: Error| error.within("find out what to commit to"))?;
        let done = self.origin.commit(mirror, image.unwrap_or(&named))?;
        if done.is_some() {
            // The base is now a version of the committed image. If the file stayed and named another image, the next
            // commit would go there and be refused.
            let _ = std::fs::remove_file(&path);
        }
        Ok((mirror.base(), done))
    }

    /// Renames clone `name` to `new`. `Exists` if there is a clone of that name, `Refused` while the clone is in
    /// use.
    pub(super) fn rename_clone(&self, name: &ImageName, new: &ImageName) -> Result<()> {
        self.clone_file(name)?;
        let (from, to) = (DiskName::Clone(name.clone()), DiskName::Clone(new.clone()));
        if from == to {
            return Ok(());
        }
        let slots = [self.slot(&from), self.slot(&to)];
        let renamed = {
            // Lock in the order of the names, so that two opposite renames cannot deadlock.
            let (first, second) = if name < new { (0, 1) } else { (1, 0) };
            let (mut one, mut other) = (slots[first].open.lock(), slots[second].open.lock());
            let open = if first == 0 { &mut *one } else { &mut *other };
            self.close_unused(&from, &slots[0], open);
            match (&open, self.clone_file(new)) {
                (Some(_), _) => Err(Error::new(ErrorKind::Refused, format!("clone `{name}` is in use"))),
                (None, Ok(_)) => {
                    Err(Error::new(ErrorKind::Exists, format!("there is a clone `{new}` already")))
                }
                (None, Err(_)) => {
                    let (from, to) = (self.folder_of(&from), self.folder_of(&to));
                    let renamed = std::fs::rename(&from, &to)
                        .and_then(|()| File::open(self.settings.folder.join("clones"))?.sync_all());
                    renamed.map_err(|error| failed("rename", &from, error))
                }
            }
        };
        self.tidy(&from, &slots[0]);
        self.tidy(&to, &slots[1]);
        renamed
    }

    /// Removes clone `name` with all its changes that were not committed. `Refused` while it is in use.
    pub(super) fn remove_clone(&self, name: &ImageName) -> Result<()> {
        self.clone_file(name)?;
        let disk = DiskName::Clone(name.clone());
        let slot = self.slot(&disk);
        let removed = {
            let mut open = slot.open.lock();
            self.close_unused(&disk, &slot, &mut open);
            if open.is_some() {
                Err(Error::new(ErrorKind::Refused, format!("clone `{name}` is in use")))
            } else {
                let folder = self.folder_of(&disk);
                // The journal goes first: without it the folder is no disk, even if the process dies here.
                std::fs::remove_file(folder.join("journal"))
                    .and_then(|()| File::open(&folder)?.sync_all())
                    .and_then(|()| std::fs::remove_dir_all(&folder))
                    .map_err(|error| failed("remove", &folder, error))
            }
        };
        self.tidy(&disk, &slot);
        removed
    }
}
