//! Reads the disks of virtual machines in QCOW2 and in VMDK files that describe flat extents, by the crate `imago`.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::limits::{DISK_SECTORS_MAX, SECTOR_BYTES};
use base::{Error, ErrorKind, Result};
use imago::file::File;
use imago::format::drivers::FormatDriverInstance;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::vmdk::Vmdk;
use imago::{FormatAccess, FormatDriverBuilder, Mapping, Storage, StorageOpenOptions};
use parking_lot::Mutex;

use super::NEEDS_ANOTHER;
use crate::file::{Identity, sector_bytes_by_table};
use crate::{Geometry, ReadAt, Source};

/// How many mappings are looked up in one search for data.
const STEPS_MAX: usize = 1 << 14;
/// Offsets in the header of QCOW2 (QEMU, docs/interop/qcow2).
mod field {
    pub(super) const VERSION: usize = 4;
    pub(super) const BACKING: usize = 8;
    pub(super) const BACKING_LEN: usize = 16;
    pub(super) const CLUSTER_BITS: usize = 20;
    pub(super) const CRYPT_METHOD: usize = 32;
    pub(super) const L1_SIZE: usize = 36;
    pub(super) const L1_OFFSET: usize = 40;
    pub(super) const SNAPSHOTS: usize = 60;
    pub(super) const INCOMPATIBLE: usize = 72;
}
/// Longest name of a backing file in bytes.
pub(super) const BACKING_LEN_MAX: u32 = 1023;
/// The part of an entry of a table that is an offset in the file.
const OFFSET_MASK: u64 = 0x00FF_FFFF_FFFF_FE00;
/// The incompatible features that metadata are corrupt, and that the data lie in a file of their own: the only one that
/// `imago` knows.
const QCOW2_CORRUPT: u64 = 1 << 1;
const QCOW2_DATA_FILE: u64 = 1 << 2;

/// A disk in a file of another format than raw.
#[derive(Debug)]
pub struct VirtualDisk {
    disk: FormatAccess<File>,
    name: String,
    geometry: Geometry,
    linked: Vec<PathBuf>,
    /// The last cluster of the file may be shorter than this.
    cluster_bytes: u64,
}

/// Opens the disk in `source`, a QCOW2 or VMDK file. A backing file is only opened if `backing` is set, and data files
/// of the disk if they lie in the same folder, or `backing` is set. `Refused` if such a file is named but not allowed,
/// if the disk is encrypted, or marked as corrupt; `Unsupported` for kinds of these formats that need QEMU: zstd in
/// QCOW2, sparse VMDK, a disk that was not closed. `Corrupt`, `NotFound`, `Io`.
pub fn open_virtual_disk(source: &Source, is_qcow2: bool, backing: bool) -> Result<VirtualDisk> {
    let name = source.name().to_owned();
    let gate = Gate::new(source.path(), backing);
    let opened = source
        .file()
        .try_clone()
        .and_then(|file| File::from_open_file(file, StorageOpenOptions::new().filename(source.path())));
    let opened = opened.map_err(|e| Error::from_io(format!("open `{name}`"), e))?;
    let mut cluster_bytes = SECTOR_BYTES;
    let disk = if is_qcow2 {
        cluster_bytes = check_qcow2(source.file(), &name)?.cluster_bytes;
        access(Qcow2::<File>::builder(opened).open(gate.clone()))
    } else {
        access(Vmdk::<File>::builder(opened).open(gate.clone()))
    };
    // What `imago` takes for no VMDK may be one of the kinds that it does not know: another program decides.
    let kind = if is_qcow2 { ErrorKind::Corrupt } else { ErrorKind::Unsupported };
    let disk = disk.map_err(|error| gate.explain(&name, error, kind))?;
    if disk.size().div_ceil(SECTOR_BYTES) > DISK_SECTORS_MAX {
        let text = format!("`{name}` says that its disk has {} bytes: more than any", disk.size());
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let size_bytes = disk.size().next_multiple_of(SECTOR_BYTES);
    let geometry = Geometry::of_file(size_bytes, 512);
    let linked = gate.opened.lock().iter().cloned().collect();
    let mut disk = VirtualDisk { disk, name, geometry, linked, cluster_bytes };
    disk.geometry = Geometry::of_file(size_bytes, sector_bytes_by_table(&disk));
    Ok(disk)
}

fn access<D: FormatDriverInstance<Storage = File> + Debug + 'static>(
    opened: io::Result<D>,
) -> io::Result<FormatAccess<File>> {
    opened.map(FormatAccess::new)
}

/// Refuses what `imago` would read, or write, nevertheless: encrypted disks, corrupt ones, and files that end before
/// what their tables say. `Refused`, `Unsupported`, `Corrupt`, `Io`.
pub(super) fn check_qcow2(file: &std::fs::File, name: &str) -> Result<Qcow2Header> {
    let read = |into: &mut [u8], offset: u64| {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::UnexpectedEof => short(name),
            _ => Error::from_io(format!("read the header of `{name}`"), e),
        };
        file.read_exact_at(into, offset).map_err(failed)
    };
    let mut bytes = [0; 80];
    read(&mut bytes, 0)?;
    let refused = |why: &str| Err(Error::new(ErrorKind::Refused, format!("`{name}` is {why}")));
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if word(field::CRYPT_METHOD) != 0 {
        return refused("an encrypted QCOW2: its key is not known here");
    }
    let version = word(field::VERSION);
    let features = if version >= 3 { long(field::INCOMPATIBLE) } else { 0 };
    if features & QCOW2_CORRUPT != 0 {
        return refused("a QCOW2 that is marked as corrupt: `qemu-img check -r all` repairs it");
    }
    if version < 2 || features & !QCOW2_DATA_FILE != 0 {
        let text = format!("`{name}` is a QCOW2 of version {version} with features {features:#x}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let cluster_bits = word(field::CLUSTER_BITS);
    if !(9..=21).contains(&cluster_bits) {
        return Err(Error::corrupt(format!("`{name}` is a QCOW2 with clusters of 2^{cluster_bits} bytes")));
    }
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    let size = size.map_err(|e| Error::from_io(format!("get the size of `{name}`"), e))?;
    // A table beyond the end would read as zeros, and everything in it as free.
    let (entries, start) = (u64::from(word(field::L1_SIZE)), long(field::L1_OFFSET));
    let mut piece = vec![0; 64 << 10];
    let mut at = 0;
    while at < entries * 8 {
        let len = usize::try_from((entries * 8 - at).min(piece.len() as u64)).expect("at most the piece");
        read(&mut piece[..len], start.saturating_add(at))?;
        let tables =
            piece[..len].as_chunks::<8>().0.iter().map(|entry| u64::from_be_bytes(*entry) & OFFSET_MASK);
        if tables.into_iter().any(|table| table >= size && table > 0) {
            return Err(short(name));
        }
        at += len as u64;
    }
    let is_single = features & QCOW2_DATA_FILE == 0 && word(field::SNAPSHOTS) == 0;
    let mut backing = vec![0; word(field::BACKING_LEN).min(BACKING_LEN_MAX) as usize];
    read(&mut backing, long(field::BACKING))?;
    let backing = (long(field::BACKING) > 0).then(|| String::from_utf8_lossy(&backing).into_owned());
    Ok(Qcow2Header { cluster_bytes: 1 << cluster_bits, is_single, backing })
}

/// What the header of a QCOW2 says.
pub(super) struct Qcow2Header {
    cluster_bytes: u64,
    /// Whether it has no data file and no snapshots.
    pub(super) is_single: bool,
    /// The name of its backing file.
    pub(super) backing: Option<String>,
}

fn short(name: &str) -> Error {
    Error::corrupt(format!("`{name}` ends before its data do: it was not copied in full"))
}

/// Decides which other files a disk may open. The name of such a file stands in the disk, and a stranger may have
/// written it.
#[derive(Debug, Clone)]
struct Gate {
    folder: Option<PathBuf>,
    backing: bool,
    opened: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// The disks of the chain so far.
    layers: Arc<Mutex<BTreeSet<PathBuf>>>,
    refused: Arc<Mutex<Option<PathBuf>>>,
}

impl Gate {
    fn new(path: &Path, backing: bool) -> Self {
        let path = path.canonicalize().ok();
        let folder = path.as_deref().and_then(Path::parent).map(Path::to_owned);
        let layers = Arc::new(Mutex::new(path.into_iter().collect()));
        Self { folder, backing, opened: Arc::default(), layers, refused: Arc::default() }
    }

    /// Refuses the file at `path` unless it is allowed, and is a file or block device.
    fn check(&self, path: Option<&Path>, may: impl FnOnce(&Path) -> bool) -> io::Result<()> {
        let Some(path) = path else { return Err(io::ErrorKind::PermissionDenied.into()) };
        if !may(path) {
            *self.refused.lock() = Some(path.to_owned());
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if Identity::of(&path.metadata()?).is_none() {
            let text = format!("`{}` is neither a file nor a block device", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.opened.lock().insert(path.to_owned());
        Ok(())
    }

    /// `broken` is the kind of the error if the disk's metadata make no sense.
    fn explain(&self, name: &str, error: io::Error, broken: ErrorKind) -> Error {
        if let Some(path) = self.refused.lock().take() {
            let text = format!("`{name}` {NEEDS_ANOTHER}, `{}`", path.display());
            return Error::new(ErrorKind::Refused, text);
        }
        let text = format!("open `{name}`");
        match error.kind() {
            io::ErrorKind::Unsupported => Error::from_source(ErrorKind::Unsupported, text, error),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Error::from_source(broken, text, error)
            }
            _ => Error::from_io(text, error),
        }
    }
}

impl ImplicitOpenGate<File> for Gate {
    fn open_format<F: FormatDriverBuilder<File>>(&mut self, builder: F) -> io::Result<FormatAccess<File>> {
        let path = builder.get_image_path();
        self.check(path.as_deref(), |_| self.backing)?;
        let layer = path.unwrap_or_default().canonicalize()?;
        let opened = std::fs::File::open(&layer)?;
        let mut magic = [0; 4];
        if opened.read_exact_at(&mut magic, 0).is_ok() && magic == *b"QFI\xfb" {
            check_qcow2(&opened, &layer.display().to_string()).map_err(io::Error::other)?;
        }
        if !self.layers.lock().insert(layer) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its backing files refer to each other in a circle",
            ));
        }
        access(builder.open(self.clone()))
    }

    fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<File> {
        let path = options.get_filename().map(Path::to_owned);
        let is_beside =
            |path: &Path| path.canonicalize().is_ok_and(|path| path.parent() == self.folder.as_deref());
        self.check(path.as_deref(), |path| self.backing || is_beside(path))?;
        File::open(options.write(false))
    }
}

impl VirtualDisk {
    /// Checks that the files hold the bytes of a range: what lies beyond their ends `imago` reads as zeros.
    fn check_length(&self, offset: u64, end: u64) -> io::Result<()> {
        let mut at = offset;
        while at < end.min(self.disk.size()) {
            let (mapping, len) = self.disk.get_mapping(at, end - at)?;
            if let Mapping::Raw { storage, offset, .. } = mapping {
                let behind = offset + len;
                let size = storage.size()?;
                // The last cluster of a file, or the last sector, may be cut.
                if behind > size && behind.saturating_sub(1) / self.cluster_bytes * self.cluster_bytes >= size
                {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a file of the disk ends before its data do",
                    ));
                }
            }
            if len == 0 {
                break;
            }
            at += len;
        }
        Ok(())
    }

    /// The other files that the disk consists of: backing files, extents.
    #[must_use]
    pub fn linked(&self) -> &[PathBuf] {
        &self.linked
    }
}

impl ReadAt for VirtualDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let wanted = buf.len() as u64;
        let failed = |e: io::Error| {
            let text = format!("read {wanted} bytes at offset {offset} of `{}`", self.name);
            if e.kind() == io::ErrorKind::InvalidData {
                return Error::from_source(ErrorKind::Corrupt, text, e);
            }
            Error::from_io(text, e)
        };
        // Past the end of the disk `imago` reads zeros.
        let end = offset.checked_add(wanted).filter(|&end| end <= self.geometry.size_bytes);
        let end = end.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        self.check_length(offset, end).map_err(failed)?;
        self.disk.read(buf, offset).map_err(failed)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        next_data(&self.disk, offset, self.geometry.size_bytes)
    }
}

/// The first offset at or after `offset` that may hold a byte other than zero; `size` if there is none.
pub(super) fn next_data(disk: &FormatAccess<File>, offset: u64, size: u64) -> u64 {
    let mut at = offset;
    // Each step passes what one table maps, half a gigabyte in most files: a caller asks again for the rest.
    for _ in 0..STEPS_MAX {
        if at >= size {
            break;
        }
        match disk.get_mapping(at, size - at) {
            Ok((Mapping::Zero { .. }, len)) if len > 0 => at += len,
            // A part that can't be looked up is read, and the error shows then.
            _ => break,
        }
    }
    at.clamp(offset, size.max(offset))
}
