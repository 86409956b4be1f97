//! Writes objects to a folder: many objects are made durable by one flush.
//!
//! A file that was renamed or linked to its name without a flush can be empty after a power cut, and later captures
//! would rely on the object with this name. So an object gets its name only after its bytes are on the disk: it is
//! written to a file without a name (`O_TMPFILE`), one `syncfs` flushes a batch of such files, and then they are
//! linked. A process that dies leaves nothing behind. A flush costs a journal commit; one flush per batch instead of
//! one per object stores 90 KB objects 2 to 3 times as fast (`versions.folder_put` of `make codec`).
//!
//! `syncfs` reports lost writes since Linux 5.8; open(2), linkat(2), syncfs(2).

use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use base::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::backend::claim::{self, FOLDERS_MAX, beside};
use crate::backend::files;
use crate::backend::reserve::Reserve;

/// Depth of the deepest folders that hold records.
const DEPTH_MAX: u32 = 4;

/// Most bytes and files that wait for one flush. While one batch is flushed the next one fills, so twice as many
/// files may be open, still below the usual limit of 1024.
const BATCH_BYTES: u64 = 16 << 20;
const BATCH_FILES: usize = 256;

/// The folder of a repository.
#[derive(Debug)]
pub(crate) struct Folder {
    shared: Arc<Shared>,
    /// The thread that flushes a full batch. The thread that fills the next batch waits for it, which limits open
    /// files.
    flusher: Mutex<Option<JoinHandle<Result<()>>>>,
    reserve: Reserve,
}

/// State shared by callers and the flusher thread.
#[derive(Debug)]
struct Shared {
    root: PathBuf,
    /// Opened once at the start: `syncfs` reports lost writes since the handle was opened.
    handle: File,
    /// Whether the filesystem supports files without names.
    takes_unnamed: bool,
    intake: Mutex<Intake>,
    /// Held while a batch is flushed and linked. Taken before `intake`.
    flushing: Mutex<()>,
}

/// A temporary file next to the record that it was to become. Its writer is still running, or has died.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    /// Inode and modification time: another file may get the same name later.
    file: (u64, i64, i64),
}

impl Unfinished {
    /// The file at `path`, if its name is that of a temporary file of `object_store`: `<record>#<number>`.
    fn at(path: PathBuf) -> Option<Self> {
        let (_, number) = path.file_name()?.to_str()?.rsplit_once('#')?;
        number.parse::<u64>().ok()?;
        let found = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self { path, file: (found.ino(), found.mtime(), found.mtime_nsec()) })
    }

    /// Deletes the file if it still exists and has not changed.
    fn delete(self) -> std::io::Result<()> {
        if Self::at(self.path.clone()).is_none_or(|now| now.file != self.file) {
            return Ok(());
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Objects that were put and wait for a flush.
#[derive(Debug, Default)]
struct Intake {
    waiting: Vec<Unnamed>,
    bytes: u64,
    /// Names of all objects that wait or are being flushed.
    names: HashSet<PathBuf>,
    /// A flush failed: any earlier write may be lost, and it is not known which.
    lost: bool,
}

#[derive(Debug)]
struct Unnamed {
    file: File,
    name: PathBuf,
    bytes: u64,
}

impl Folder {
    /// Opens the existing folder `root`. `Invalid` if its path is not UTF-8, which `object_store` takes for granted.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let failed = |error| Error::from_io(format!("open folder `{}`", root.display()), error);
        let handle = File::open(root).map_err(failed)?;
        let root = root.canonicalize().map_err(failed)?;
        if root.to_str().is_none() {
            let text =
                format!("the path of folder `{}` is not UTF-8: a repository can't lie there", root.display());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let takes_unnamed = Path::new("/proc/self/fd").exists() && unnamed(&root).is_ok();
        let (intake, flushing, reserve) = (Mutex::default(), Mutex::default(), Reserve::of(&root));
        let shared = Arc::new(Shared { root, handle, takes_unnamed, intake, flushing });
        Ok(Self { shared, flusher: Mutex::default(), reserve })
    }

    /// The absolute path of the folder.
    pub(crate) fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Creates the record `bytes`, durably, if nothing has its name; if something does, `Exists`.
    pub(crate) fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        loop {
            match claim::create(self.root(), name, bytes) {
                Err(error) if error.kind() == ErrorKind::Full && self.reserve.give() => {}
                created => return created,
            }
        }
    }

    /// The space that is kept for a full disk.
    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// Whether [`Self::put`] works here. If not (NFS, exFAT), `object_store` writes and flushes each object alone.
    pub(crate) fn takes_unnamed(&self) -> bool {
        self.shared.takes_unnamed
    }

    /// Writes the object `bytes`. It gets its name and is durable after the next [`Self::flush`].
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if self.shared.take_in(name, bytes)? { self.flush_batch() } else { Ok(()) }
    }

    /// Calls `each` with the name of every file in the folder `name` of this one. A missing folder counts as empty.
    pub(crate) fn each_name(&self, name: &str, each: &mut dyn FnMut(&str)) -> Result<()> {
        let failed = |error| Error::from_io(format!("list `{name}`"), error);
        let entries = match std::fs::read_dir(self.shared.root.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if !entry.file_type().map_err(failed)?.is_dir() {
                entry.file_name().to_str().iter().for_each(|name| each(name));
            }
        }
        Ok(())
    }

    /// The temporary files of writers, dead or still running.
    pub(crate) fn unfinished(&self) -> Result<Vec<Unfinished>> {
        let mut found = Vec::new();
        let walked = gather_unfinished(&self.shared.root, DEPTH_MAX, &mut found);
        walked.map_err(|error| Error::from_io("look for temporary files", error))?;
        Ok(found)
    }

    /// Deletes those of `files` that have not changed since they were listed.
    pub(crate) fn delete_unfinished(&self, files: Vec<Unfinished>) -> Result<()> {
        let deleted = files.into_iter().try_for_each(Unfinished::delete);
        deleted.map_err(|error| Error::from_io("delete a temporary file", error))
    }

    /// Whether an object of this name was put and still waits for its flush.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.shared.intake().names.contains(&self.shared.root.join(name))
    }

    /// Makes everything put before durable, under its name. This includes names that other processes linked in this
    /// folder.
    pub(crate) fn flush(&self) -> Result<()> {
        self.name_waiting()?;
        self.shared.flush()
    }

    /// Flushes all waiting objects and gives them their names.
    pub(crate) fn name_waiting(&self) -> Result<()> {
        join(&mut self.flusher())?;
        self.shared.name_batch()
    }

    /// Starts to flush a full batch as soon as the previous batch is done. Returns an error if that one failed.
    fn flush_batch(&self) -> Result<()> {
        let mut flusher = self.flusher();
        join(&mut flusher)?;
        // The flusher that just ended may have taken these objects too.
        if self.shared.intake().is_full() {
            let shared = Arc::clone(&self.shared);
            let spawned =
                std::thread::Builder::new().name("flush".to_owned()).spawn(move || shared.name_batch());
            *flusher = Some(spawned.map_err(|error| Error::from_io("start a thread that flushes", error))?);
        }
        Ok(())
    }

    fn flusher(&self) -> MutexGuard<'_, Option<JoinHandle<Result<()>>>> {
        self.flusher.lock()
    }
}

impl Drop for Folder {
    /// Waits for the flusher thread, which still uses the folder.
    fn drop(&mut self) {
        // An error can be ignored: no caller was told that these objects are durable.
        let _ = join(&mut self.flusher());
    }
}

fn join(flusher: &mut Option<JoinHandle<Result<()>>>) -> Result<()> {
    let Some(flusher) = flusher.take() else { return Ok(()) };
    flusher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Shared {
    /// Writes the object to a file without a name. Returns whether its batch is full.
    fn take_in(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let failed = |error: std::io::Error| Error::from_io(format!("write `{name}`"), error);
        let mut file = unnamed(&self.root).map_err(|error| failed(error.into()))?;
        file.write_all(bytes).map_err(failed)?;
        let name = self.root.join(name);
        let mut intake = self.intake();
        intake.names.insert(name.clone());
        intake.take_in(Unnamed { file, name, bytes: bytes.len() as u64 });
        Ok(intake.is_full())
    }

    /// Flushes all waiting files and links them to their names.
    fn name_batch(&self) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        let batch = {
            let mut intake = self.intake();
            if intake.lost {
                return Err(Error::new(
                    ErrorKind::Io,
                    "an earlier flush failed, objects may be lost: open the repository again",
                ));
            }
            if intake.waiting.is_empty() {
                return Ok(());
            }
            intake.bytes = 0;
            std::mem::take(&mut intake.waiting)
        };
        self.flush()?;
        self.link(batch)
    }

    fn flush(&self) -> Result<()> {
        rustix::fs::syncfs(&self.handle).map_err(|error| {
            // The kernel reports a lost write only once: from now on, no earlier put can be trusted.
            self.intake().lost = true;
            Error::from_io(format!("flush folder `{}`", self.root.display()), error)
        })
    }

    /// Links flushed files to their names. A file that can't be linked goes back to the queue; its bytes are safe.
    fn link(&self, batch: Vec<Unnamed>) -> Result<()> {
        let mut outcome = Ok(());
        for object in batch {
            let linked = match outcome {
                Ok(()) => object.link(),
                Err(_) => Err(Errno::AGAIN),
            };
            let mut intake = self.intake();
            match linked {
                Ok(()) => {
                    intake.names.remove(&object.name);
                }
                Err(error) => {
                    if outcome.is_ok() {
                        outcome = Err(Error::from_io(format!("link `{}`", object.name.display()), error));
                    }
                    intake.take_in(object);
                }
            }
        }
        outcome
    }

    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock()
    }
}

impl Intake {
    fn take_in(&mut self, object: Unnamed) {
        self.bytes += object.bytes;
        self.waiting.push(object);
    }

    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.waiting.len() >= BATCH_FILES
    }
}

impl Unnamed {
    /// Links the file to its name. A file that is already there is replaced atomically, so readers always find one:
    /// it is the same object from another writer, or it is damaged.
    fn link(&self) -> rustix::io::Result<()> {
        let mut linked = self.link_to(&self.name);
        // A prune may remove the folder just after it was created, because it is empty.
        for _ in 0..FOLDERS_MAX {
            if linked != Err(Errno::NOENT) {
                break;
            }
            let folder = self.name.parent().expect("an object lies in a folder");
            std::fs::create_dir_all(folder).map_err(|error| errno(&error))?;
            linked = self.link_to(&self.name);
        }
        linked.or_else(|error| self.take_over(error))
    }

    fn take_over(&self, error: Errno) -> rustix::io::Result<()> {
        if error != Errno::EXIST {
            return Err(error);
        }
        let aside = beside(&self.name)?;
        self.link_to(&aside)?;
        let renamed = match rustix::fs::rename(&aside, &self.name) {
            // A folder, which no program of ours made, is renamed and kept.
            Err(Errno::ISDIR) => files::make_way(&self.name)
                .map_err(|error| errno(&error))
                .and_then(|()| rustix::fs::rename(&aside, &self.name)),
            renamed => renamed,
        };
        if renamed.is_err() {
            // The temporary file is not needed; if this fails, a prune deletes it.
            let _ = rustix::fs::unlink(&aside);
        }
        renamed
    }

    fn link_to(&self, name: &Path) -> rustix::io::Result<()> {
        let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(CWD, unnamed, CWD, name, AtFlags::SYMLINK_FOLLOW)
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Opens a new file without a name in `folder`.
fn unnamed(folder: &Path) -> rustix::io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    rustix::fs::open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode).map(File::from)
}

fn gather_unfinished(folder: &Path, depth: u32, found: &mut Vec<Unfinished>) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            found.extend(Unfinished::at(entry.path()));
        } else if depth > 0 {
            gather_unfinished(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}
