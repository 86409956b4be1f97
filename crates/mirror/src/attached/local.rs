//! The folder of a disk: its bytes, its journal, and the lock that keeps other processes out; see
//! `formats/mirror.md`.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use disk::{ReadAt, Target, TargetOptions, WriteAt, open_target};
use image::{Layout, Manifest};
use parking_lot::{Mutex, MutexGuard};

use crate::lock::hold;
use crate::machine::{Cut, Held, Record, Sectors};
use crate::state::{self, BootId, InDoubt, Lineage, Recovered};

/// Maximum length of a journal that is read: many times the length at which it is rewritten.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;
const SECTOR_BYTES: u64 = base::limits::SECTOR_BYTES;

/// See the module.
pub(super) struct Local {
    folder: PathBuf,
    data: Target,
    journal: Mutex<Journal>,
    side: Mutex<Option<File>>,
    /// Serializes the writing of chunks: see [`Local::fill_turn`].
    filling: Mutex<()>,
    boot: BootId,
    /// Keeps the lock file locked.
    _lock: File,
}

struct Journal {
    file: File,
    end: u64,
}

/// The versions that a disk is based on: a decoded [`Lineage`].
#[derive(Debug, Clone)]
pub(super) struct Of {
    pub base: Manifest,
    pub landed: Option<Manifest>,
    pub in_doubt: Option<InDoubt>,
}

impl Of {
    fn read(folder: &Path, lineage: &Lineage) -> Result<Self> {
        let read = |bytes: &Vec<u8>| Manifest::decode(bytes).map_err(|error| corrupt(folder, error));
        let landed = lineage.landed.as_ref().map(read).transpose()?;
        Ok(Self { base: read(&lineage.base)?, landed, in_doubt: lineage.in_doubt.clone() })
    }

    fn lineage(&self, folder: &Path) -> Result<Lineage> {
        let write = |manifest: &Manifest| {
            let bytes = manifest.encode(None).map_err(|error| corrupt(folder, error))?;
            Ok(bytes.to_vec())
        };
        let landed = self.landed.as_ref().map(write).transpose()?;
        Ok(Lineage { base: write(&self.base)?, landed, in_doubt: self.in_doubt.clone() })
    }
}

/// A disk that was opened or created.
pub(super) struct Opened {
    pub local: Local,
    pub of: Of,
    pub layout: Layout,
    pub cut: Cut,
    pub held: Held,
    pub journal_end: u64,
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from_io(format!("{what} `{}`", path.display()), error)
}

fn corrupt(folder: &Path, error: Error) -> Error {
    let text = format!("read the version that the disk in `{}` began as", folder.display());
    Error::from_source(ErrorKind::Malformed, text, error)
}

/// The offset and the length of `range` in bytes.
pub(super) fn bytes_of(range: &Sectors) -> (u64, u64) {
    (range.start * SECTOR_BYTES, (range.end - range.start) * SECTOR_BYTES)
}

impl Local {
    /// Makes a disk in `folder` that begins as the version of `manifest`. If `data` is given, this block device
    /// keeps the bytes; it is zeroed as far as the disk reaches. `Exists` if there is a disk in `folder`.
    pub(super) fn create(folder: &Path, data: Option<&Path>, manifest: &Manifest) -> Result<Opened> {
        std::fs::create_dir_all(folder).map_err(|error| failed("create folder", folder, error))?;
        let lock = lock(folder)?;
        if folder.join("journal").exists() {
            let text = format!("there is a disk in `{}` already: open it", folder.display());
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let (layout, cut) = sizes(folder, manifest)?;
        // The journal is written last. Until then there is no disk, so a crash leaves nothing half made.
        let target = open_data(folder, data, &layout)?;
        let zeroed = target.write_zeroes(0, layout.size_bytes());
        zeroed.and_then(|()| target.sync()).map_err(|error| error.within("clear a new disk"))?;
        let of = Of { base: manifest.clone(), landed: None, in_doubt: None };
        Self::begin(folder, target, lock, (of, layout, cut, Held::default()))
    }

    /// Opens the disk in `folder`, and recovers it if it was not closed. `NotFound` if there is none; `Exists` if
    /// another process has it.
    pub(super) fn open(folder: &Path, data: Option<&Path>) -> Result<Opened> {
        let path = folder.join("journal");
        if !path.exists() {
            let text = format!("there is no disk in `{}`", folder.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let lock = lock(folder)?;
        let length = std::fs::metadata(&path).map_err(|error| failed("look at", &path, error))?.len();
        if length > JOURNAL_BYTES_MAX {
            let text = format!("`{}` has {length} bytes", path.display());
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        let bytes = std::fs::read(&path).map_err(|error| failed("read", &path, error))?;
        let recovered = state::recover(&bytes, &boot_id()?)
            .map_err(|error| Error::from_source(error.kind(), format!("read `{}`", path.display()), error))?;
        let of = Of::read(folder, &recovered.lineage)?;
        let (layout, cut) = sizes(folder, &of.base)?;
        if cut != recovered.cut {
            let text = format!("`{}` describes a disk of another size or chunk size", path.display());
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        let target = open_data(folder, data, &layout)?;
        if !recovered.closed {
            clear_void(&target, &recovered)?;
        }
        target.sync().map_err(|error| error.within("recover a disk"))?;
        Self::begin(folder, target, lock, (of, layout, cut, recovered.held))
    }

    fn begin(
        folder: &Path,
        data: Target,
        lock: File,
        (of, layout, cut, held): (Of, Layout, Cut, Held),
    ) -> Result<Opened> {
        let boot = boot_id()?;
        let journal = replace_journal(folder, &snapshot(folder, &boot, &cut, &of, &held)?)?;
        let journal_end = journal.end;
        // A side file is left over from a commit whose process died; it is worthless.
        let _ = std::fs::remove_file(folder.join("side"));
        let (journal, side) = (Mutex::new(journal), Mutex::new(None));
        let filling = Mutex::new(());
        let local = Self { folder: folder.to_owned(), data, journal, side, filling, boot, _lock: lock };
        Ok(Opened { local, of, layout, cut, held, journal_end })
    }

    /// The file or device with the bytes of the disk.
    pub(super) fn data(&self) -> &Target {
        &self.data
    }

    /// Locked while a worker writes a chunk. A file system allows one writer per file at a time, and those that wait
    /// in the kernel spin and waste their processors.
    pub(super) fn fill_turn(&self) -> MutexGuard<'_, ()> {
        self.filling.lock()
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock()
    }

    /// Appends a record. Returns the new end of the journal in bytes.
    pub(super) fn append(&self, record: &Record, added: &[u8]) -> Result<u64> {
        let mut journal = self.journal();
        let bytes = state::encode(journal.end, record, added);
        self.extend(&mut journal, &bytes)
    }

    fn extend(&self, journal: &mut Journal, bytes: &[u8]) -> Result<u64> {
        let written = journal.file.write_all_at(bytes, journal.end);
        written.map_err(|error| failed("append to", &self.folder.join("journal"), error))?;
        journal.end += bytes.len() as u64;
        Ok(journal.end)
    }

    /// Appends a barrier that covers everything before offset `upto`, and syncs the journal. Returns its new end.
    pub(super) fn barrier(&self, upto: u64) -> Result<u64> {
        let (end, file) = {
            let mut journal = self.journal();
            let bytes = state::barrier(journal.end, upto);
            let end = self.extend(&mut journal, &bytes)?;
            let file = journal.file.try_clone();
            (end, file.map_err(|error| failed("sync", &self.folder.join("journal"), error))?)
        };
        // The lock is released: other threads may append during the sync.
        file.sync_data().map_err(|error| failed("sync", &self.folder.join("journal"), error))?;
        Ok(end)
    }

    /// Replaces the journal by a new one that states `held`. Returns its end in bytes.
    pub(super) fn rewrite(&self, cut: &Cut, of: &Of, held: &Held) -> Result<u64> {
        let bytes = snapshot(&self.folder, &self.boot, cut, of, held)?;
        let mut journal = self.journal();
        *journal = replace_journal(&self.folder, &bytes)?;
        Ok(journal.end)
    }

    /// Makes everything durable, then appends the record that the disk was closed.
    pub(super) fn close(&self) -> Result<()> {
        self.data.sync().map_err(|error| error.within("close a disk"))?;
        let end = self.journal().end;
        self.barrier(end)?;
        let mut journal = self.journal();
        let bytes = state::closed(journal.end);
        self.extend(&mut journal, &bytes)?;
        let synced = journal.file.sync_all();
        synced.map_err(|error| failed("sync", &self.folder.join("journal"), error))
    }

    /// Copies sectors to the side file.
    pub(super) fn copy_out(&self, range: &Sectors) -> Result<()> {
        let (offset, count) = bytes_of(range);
        let mut bytes = vec![0; usize::try_from(count).expect("writes fit memory")];
        self.data.read_exact_at(&mut bytes, offset).map_err(|error| error.within("copy frozen sectors"))?;
        let path = self.folder.join("side");
        let mut side = self.side.lock();
        if side.is_none() {
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
            *side = Some(options.map_err(|error| failed("create", &path, error))?);
        }
        let file = side.as_ref().expect("it was just made");
        file.write_all_at(&bytes, offset).map_err(|error| failed("write", &path, error))
    }

    /// Reads sectors that were copied to the side file.
    pub(super) fn read_side(&self, range: &Sectors, into: &mut [u8]) -> Result<()> {
        let path = self.folder.join("side");
        let side = self.side.lock();
        let file = side.as_ref().expect("something was copied");
        file.read_exact_at(into, bytes_of(range).0).map_err(|error| failed("read", &path, error))
    }

    /// Deletes the side file after a commit.
    pub(super) fn drop_side(&self) {
        if self.side.lock().take().is_some() {
            let _ = std::fs::remove_file(self.folder.join("side"));
        }
    }
}

fn sizes(folder: &Path, manifest: &Manifest) -> Result<(Layout, Cut)> {
    let layout = manifest.layout().map_err(|error| corrupt(folder, error))?;
    let chunk_sectors = u64::from(layout.chunk.sectors());
    Ok((layout, Cut { size_sectors: layout.size_sectors, chunk_sectors, height: manifest.root.height }))
}

fn open_data(folder: &Path, data: Option<&Path>, layout: &Layout) -> Result<Target> {
    let path = data.map_or_else(|| folder.join("data"), Path::to_owned);
    let options = TargetOptions {
        // If a device has disappeared, a file of zeros must not be created in its place.
        create_size: data.is_none().then(|| layout.size_bytes()),
        file_sector_bytes: Some(layout.logical_sector_bytes),
        ..TargetOptions::default()
    };
    let target = open_target(&path, &options).map_err(|error| error.within("open the local disk"))?;
    let geometry = target.geometry();
    let fits = geometry.size_bytes >= layout.size_bytes()
        && geometry.logical_sector_bytes <= layout.logical_sector_bytes;
    if fits {
        return Ok(target);
    }
    let (has, needs) = (geometry.size_bytes, layout.size_bytes());
    let text = format!(
        "`{}` has {has} bytes in sectors of {}, the image {needs} in sectors of {}",
        path.display(),
        geometry.logical_sector_bytes,
        layout.logical_sector_bytes
    );
    Err(Error::new(ErrorKind::Refused, text))
}

/// Clears the sectors that may hold bytes without a record, after a crash.
fn clear_void(target: &Target, recovered: &Recovered) -> Result<()> {
    for run in recovered.void() {
        let (offset, count) = bytes_of(&run);
        // Holes need no clearing.
        if !target.is_hole(offset, count) {
            let cleared = target.write_zeroes(offset, count);
            cleared.map_err(|error| error.within("recover a disk"))?;
        }
    }
    Ok(())
}

fn snapshot(folder: &Path, boot: &BootId, cut: &Cut, of: &Of, held: &Held) -> Result<Vec<u8>> {
    Ok(state::snapshot(boot, cut, &of.lineage(folder)?, held))
}

fn replace_journal(folder: &Path, bytes: &[u8]) -> Result<Journal> {
    let (path, new) = (folder.join("journal"), folder.join("journal.new"));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new);
    let file = file.map_err(|error| failed("create", &new, error))?;
    let written = file.write_all_at(bytes, 0).and_then(|()| file.sync_all());
    written.map_err(|error| failed("write", &new, error))?;
    std::fs::rename(&new, &path).map_err(|error| failed("rename", &new, error))?;
    // Without this the rename may be lost in a power cut.
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| failed("sync", folder, error))?;
    Ok(Journal { file, end: bytes.len() as u64 })
}

fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|error| failed("open", &path, error))?;
    match hold(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let text = format!("another process has the disk in `{}`", folder.display());
            Err(Error::new(ErrorKind::Exists, text))
        }
        Err(TryLockError::Error(error)) => Err(failed("lock", &path, error)),
    }
}

/// The boot id of the running system.
fn boot_id() -> Result<BootId> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(|error| failed("read", path, error))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let wrong = || Error::new(ErrorKind::Unsupported, format!("`{}` is not a boot id", text.trim()));
    base::hex::decode(&digits).ok_or_else(wrong)
}
