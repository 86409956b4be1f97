//! What sources and targets share: the identity of a file or device, its geometry, its holes, and errors of its I/O.

use std::fs::{File, Metadata, TryLockError};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use rustix::fs::SeekFrom;

use crate::{Geometry, ReadAt};

/// Alignment in bytes of the offsets, lengths and buffers of direct reads; every device and filesystem accepts it.
pub(crate) const DIRECT_BYTES: usize = 4096;

/// Identifies a file or device; all paths that lead to it give the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// A regular file: device and inode.
    File {
        /// Device number of the filesystem that holds it.
        dev: u64,
        /// Its inode number.
        ino: u64,
    },
    /// A block device.
    Device {
        /// Its own device number.
        rdev: u64,
    },
}

impl Identity {
    /// The identity of the file or device that `metadata` describes; `None` if it is neither a regular file nor a block
    /// device.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let kind = metadata.file_type();
        if kind.is_block_device() {
            Some(Self::Device { rdev: metadata.rdev() })
        } else {
            kind.is_file().then(|| Self::File { dev: metadata.dev(), ino: metadata.ino() })
        }
    }
}

/// The identity of the regular file or block device at `path`; follows symbolic links. `NotFound`, `Io`; `Refused` for
/// any other kind of file.
pub(crate) fn identify(path: &Path) -> Result<Identity> {
    let metadata = std::fs::metadata(path).map_err(|e| io_error("look at", path, e))?;
    identity_of(&metadata, path)
}

/// The identity in the `metadata` of `path`. `Refused` unless it is a regular file or a block device.
pub(crate) fn identity_of(metadata: &Metadata, path: &Path) -> Result<Identity> {
    Identity::of(metadata).ok_or_else(|| {
        Error::new(ErrorKind::Refused, format!("`{}` is neither a file nor a block device", path.display()))
    })
}

/// How often the lock of another program is tried, and at what interval: half a second in all. A program that is just
/// ending, or one that it started, may still have it.
const CLAIM_LOOKS: u32 = 25;
/// See [`CLAIM_LOOKS`].
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// Locks the file at `path`, so that no other program overwrites it while this one does, whoever runs it. `Refused` if
/// one has the lock. It ends with the last handle of `file`.
pub(crate) fn claim(file: &File, path: &Path) -> Result<()> {
    for look in 0.. {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if look < CLAIM_LOOKS => std::thread::park_timeout(CLAIM_PAUSE),
            Err(TryLockError::WouldBlock) => break,
            // What has no locks has no others either.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
    let text = format!("`{}` is being written, or locked, by another program", path.display());
    Err(Error::new(ErrorKind::Refused, text))
}

/// An error that says which operation (`what`) failed on `path`, with the kind that matches `source`.
pub(crate) fn io_error(what: &str, path: &Path, source: impl Into<std::io::Error>) -> Error {
    Error::from_io(format!("{what} `{}`", path.display()), source)
}

/// Size and sector sizes of an open block device.
pub(crate) fn device_geometry(file: &File, path: &Path) -> Result<Geometry> {
    let size_bytes =
        rustix::fs::seek(file, SeekFrom::End(0)).map_err(|e| io_error("get the size of", path, e))?;
    let logical_sector_bytes =
        rustix::fs::ioctl_blksszget(file).map_err(|e| io_error("get the sector size of", path, e))?;
    let physical_sector_bytes =
        rustix::fs::ioctl_blkpbszget(file).map_err(|e| io_error("get the sector size of", path, e))?;
    Ok(Geometry { size_bytes, logical_sector_bytes, physical_sector_bytes })
}

/// The first offset at or after `offset` in a regular file that is not in a hole; `end` if there is none. `len` is the
/// expected length of the file. The missing end of a file that has become shorter is not a hole: reads of it fail.
pub(crate) fn next_data(file: &File, offset: u64, len: u64, end: u64) -> u64 {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data.clamp(offset, end.max(offset)),
        // The kernel returns the same error for a hole up to the end of the file and for an offset after the end.
        Err(rustix::io::Errno::NXIO) if file.metadata().is_ok_and(|found| found.len() >= len) => {
            end.max(offset)
        }
        // The filesystem does not know its holes: treat everything as data.
        Err(_) => offset,
    }
}

/// Reads the range from a file that was opened with `O_DIRECT`. If it or `buf` is not aligned to `unit` bytes, reads
/// it, extended, into memory that is, and copies it out.
pub(crate) fn read_direct(direct: &File, buf: &mut [u8], offset: u64, unit: usize) -> std::io::Result<()> {
    let start = offset / unit as u64 * unit as u64;
    if (offset | buf.len() as u64 | buf.as_ptr().addr() as u64).is_multiple_of(unit as u64) {
        return direct.read_exact_at(buf, offset);
    }
    let skip = usize::try_from(offset - start).expect("less than a unit");
    let len = (skip + buf.len()).next_multiple_of(unit);
    // More than is read, because the start of the vector need not be aligned.
    let mut memory = vec![0u8; len + DIRECT_BYTES];
    let shift = memory.as_ptr().align_offset(DIRECT_BYTES);
    let aligned = &mut memory[shift..shift + len];
    let mut filled = 0;
    // The last unit may be incomplete at the end of a file: only the range itself must be read in full.
    while filled < skip + buf.len() {
        match direct.read_at(&mut aligned[filled..], start + filled as u64)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    buf.copy_from_slice(&aligned[skip..skip + buf.len()]);
    Ok(())
}

/// The size in bytes of the sectors of a disk that does not tell, as one in a file, so its partition table has to: 4096
/// if it has a GPT header at a place for such sectors, and none at a place for 512; else 512.
pub fn sector_bytes_by_table(disk: &dyn ReadAt) -> u32 {
    let size = disk.geometry().size_bytes;
    let header_at = |offset: u64| {
        let mut signature = [0; 8];
        disk.read_exact_at(&mut signature, offset).is_ok() && signature == *b"EFI PART"
    };
    // A GPT has its header in the second sector, and the header of its backup in the last.
    let found = |sector: u64| size > 4 * sector && (header_at(sector) || header_at(size - sector));
    if size.is_multiple_of(4096) && found(4096) && !found(512) { 4096 } else { 512 }
}
