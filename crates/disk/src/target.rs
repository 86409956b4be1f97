//! Raw files and block devices as targets. Writes, zeroes and discards with the cheapest system call, and reads back
//! from the medium instead of the page cache.

use std::fs::{File, OpenOptions};
use std::io::IoSliceMut;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::file::{
    DIRECT_BYTES, Identity, claim, device_geometry, identify, io_error, next_data, read_direct,
};
use crate::{Geometry, ReadAt, WriteAt};

/// Shorter writes go through the page cache, which gathers them.
const DIRECT_WRITE_BYTES: usize = 64 << 10;
/// The buffer for writing zeros where neither the device nor the filesystem has a cheaper way.
static ZEROS: [u8; 1 << 18] = [0; 1 << 18];

/// How to open a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TargetOptions {
    /// Create the file if it is missing, and grow a shorter one to this size in bytes. Ignored for devices.
    pub create_size: Option<u64>,
    /// Also cut a longer file to `create_size`, if its filesystem can.
    pub cut: bool,
    /// Logical sector size of a file in bytes; 512 if `None`. Ignored for devices.
    pub file_sector_bytes: Option<u32>,
    /// Open a device even if it is in use.
    pub force: bool,
    /// Refuse a file that another program has open with this option. A device is always refused then.
    pub alone: bool,
}

/// A raw file or block device, open for writing.
#[derive(Debug)]
pub struct Target {
    file: File,
    /// A second handle opened with `O_DIRECT`, which reads past the page cache, and writes past it if this is a device;
    /// `None` if that is not supported.
    direct: Option<File>,
    path: PathBuf,
    name: String,
    is_device: bool,
    geometry: Geometry,
}

/// Opens the raw file or block device at `path` for writing; a device exclusively, unless `options.force` is set. Call
/// [`crate::preflight()`] first: its errors say why a target is not suitable. `NotFound` if the file is missing and
/// `options` have no `create_size`; `Refused` if it may not be written, is in use, or is neither file nor block device.
pub fn open_target(path: &Path, options: &TargetOptions) -> Result<Target> {
    let found = match identify(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && options.create_size.is_some() => None,
        other => Some(other?),
    };
    let is_device = matches!(found, Some(Identity::Device { .. }));
    // With `O_EXCL`, the open of a block device fails if the kernel or another program has claimed it.
    let exclusive = if is_device && !options.force { OFlags::EXCL } else { OFlags::empty() };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(found.is_none())
        .custom_flags(exclusive.bits().cast_signed())
        .open(path)
        .map_err(|e| io_error("open", path, e))?;
    if options.alone && !is_device {
        claim(&file, path)?;
    }
    let geometry =
        if is_device { device_geometry(&file, path)? } else { file_geometry(&file, path, options)? };
    let direct = OpenOptions::new()
        .write(is_device)
        .read(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(path)
        .ok();
    Ok(Target { file, direct, path: path.to_owned(), name: path.display().to_string(), is_device, geometry })
}

/// Opens the target at `path` for reading only, to look at its contents before writing; `None` if it does not exist.
/// Sector sizes are the same as from [`open_target`]. `Refused` if it is neither file nor block device.
pub fn look_at_target(path: &Path, options: &TargetOptions) -> Result<Option<Box<dyn ReadAt>>> {
    let is_device = match identify(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => matches!(found?, Identity::Device { .. }),
    };
    let file = File::open(path).map_err(|e| io_error("open", path, e))?;
    let options = TargetOptions { create_size: None, ..*options };
    let geometry =
        if is_device { device_geometry(&file, path)? } else { file_geometry(&file, path, &options)? };
    let (path, name) = (path.to_owned(), path.display().to_string());
    Ok(Some(Box::new(Target { file, direct: None, path, name, is_device, geometry })))
}

/// Resizes the file as `options` ask, and returns its geometry.
fn file_geometry(file: &File, path: &Path, options: &TargetOptions) -> Result<Geometry> {
    let mut size_bytes = file.metadata().map_err(|e| io_error("look at", path, e))?.len();
    // A file that is too long stays so, unless the options allow to cut it.
    let fits = |wanted: u64| wanted == size_bytes || (wanted < size_bytes && !options.cut);
    if let Some(wanted) = options.create_size.filter(|&wanted| !fits(wanted)) {
        match rustix::fs::ftruncate(file, wanted) {
            Ok(()) => size_bytes = wanted,
            // A file that cannot be cut, as on some FUSE filesystems, is used like a disk that is too large.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) if wanted < size_bytes => {}
            Err(e) => return Err(io_error(&format!("resize to {wanted} bytes"), path, e)),
        }
    }
    let sector_bytes = options.file_sector_bytes.unwrap_or(512);
    Ok(Geometry::of_file(size_bytes, sector_bytes))
}

impl Target {
    fn failed(&self, what: &str, len: u64, offset: u64, source: impl Into<std::io::Error>) -> Error {
        io_error(&format!("{what} {len} bytes at offset {offset} of"), &self.path, source)
    }

    /// Whether the target is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Fills `buf` from the page cache, without waiting for the medium. Returns false if part of the range is not
    /// cached, or if the kernel or filesystem does not support such reads; `buf` is then partly overwritten.
    pub fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        let (len, parts) = (buf.len(), &mut [IoSliceMut::new(buf)]);
        match rustix::io::preadv2(&self.file, parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count == len),
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => Ok(false),
            Err(e) => Err(self.failed("read", len as u64, offset, e)),
        }
    }

    /// Makes `len` bytes from `offset` read as zeros and keeps their space allocated, so that later writes there cannot
    /// run out of it.
    pub fn allocate_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.write_zeroes_by_hand(offset, len),
            Err(e) => Err(self.failed("zero", len, offset, e)),
        }
    }

    /// Allocates space for `len` bytes from `offset` in one call, before a large write. Without it ext4 allocates page
    /// by page once delayed writes have reserved much of its free space: 12 times slower. Does nothing on a device, or
    /// where the filesystem cannot preallocate. `Full` if there is not enough space.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        if self.is_device || len == 0 {
            return Ok(());
        }
        // This is only a hint: where it is not supported, the write itself allocates.
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(e) => Err(self.failed("find room for", len, offset, e)),
        }
    }

    fn write_zeroes_by_hand(&self, offset: u64, len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let piece =
                usize::try_from((len - done).min(ZEROS.len() as u64)).expect("at most the length of ZEROS");
            self.write_all_at(&ZEROS[..piece], offset + done)?;
            done += piece as u64;
        }
        Ok(())
    }
}

impl ReadAt for Target {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        self.file.read_exact_at(buf, offset).map_err(|e| self.failed("read", len, offset, e))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        let size = self.geometry.size_bytes;
        if self.is_device { offset } else { next_data(&self.file, offset, size, size) }
    }
}

impl WriteAt for Target {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        if let Some(direct) =
            self.direct.as_ref().filter(|_| self.is_device && buf.len() >= DIRECT_WRITE_BYTES)
            && (offset | buf.len() as u64 | buf.as_ptr().addr() as u64).is_multiple_of(DIRECT_BYTES as u64)
        {
            match direct.write_all_at(buf, offset) {
                Ok(()) => return Ok(()),
                // The page cache takes what the device does not.
                Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {}
                Err(e) => return Err(self.failed("write", buf.len() as u64, offset, e)),
            }
        }
        self.file.write_all_at(buf, offset).map_err(|e| self.failed("write", buf.len() as u64, offset, e))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        // A hole in a file reads as zeros and takes no space. A device keeps its blocks allocated.
        let flags = if self.is_device {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        };
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.write_zeroes_by_hand(offset, len),
            Err(e) => Err(self.failed("zero", len, offset, e)),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let done = if self.is_device {
            crate::ioctl::discard(&self.file, offset, len)
        } else {
            rustix::fs::fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                offset,
                len,
            )
        };
        done.map_err(|e| match e {
            Errno::OPNOTSUPP | Errno::NOSYS => Error::from_source(
                ErrorKind::Unsupported,
                format!("`{}` has no way to discard", self.name),
                std::io::Error::from(e),
            ),
            _ => self.failed("discard", len, offset, e),
        })
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| io_error("sync", &self.path, e))
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        if let Some(direct) = &self.direct {
            match read_direct(direct, buf, offset, DIRECT_BYTES) {
                Ok(()) => return Ok(true),
                // Some filesystems accept `O_DIRECT` when opening and reject the reads.
                Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {}
                Err(e) => return Err(self.failed("read back", buf.len() as u64, offset, e)),
            }
        }
        // Without direct reads, drop the cached pages. The kernel may keep some: hence the `false`.
        let len = std::num::NonZeroU64::new(buf.len() as u64);
        let _ = rustix::fs::fadvise(&self.file, offset, len, Advice::DontNeed);
        self.read_exact_at(buf, offset).map(|()| false)
    }
}
