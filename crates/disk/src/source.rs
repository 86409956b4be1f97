//! Raw files and block devices as sources: opens them, and reads large ranges of a device past the page cache.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::limits::SECTOR_BYTES;
use base::{Error, Result};
use rustix::fs::{Advice, OFlags};

use crate::file::{
    Identity, device_geometry, identify, identity_of, io_error, next_data, read_direct, sector_bytes_by_table,
};
use crate::{Geometry, ReadAt};

/// Shorter reads go through the page cache: partition tables and filesystem metadata are read in small pieces, often
/// more than once.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// A raw file or block device, open for reading.
#[derive(Debug)]
pub struct Source {
    file: File,
    /// A second handle on a device, opened with `O_DIRECT`: the pages of the first one may be stale.
    direct: Option<File>,
    path: PathBuf,
    name: String,
    identity: Identity,
    geometry: Geometry,
    /// Length in bytes before padding: a file is padded with zeros to a multiple of `SECTOR_BYTES`.
    end: u64,
}

/// Opens the raw file or block device at `path` for reading. If a file ends inside a sector of 512 bytes, its length is
/// rounded up, and the rest of that sector reads as zeros. Logical sectors of a file have 512 bytes, or 4096 if its GPT
/// was made for that size. `NotFound`, `Io`; `Refused` if it is neither file nor block device, or may not be read.
pub fn open_source(path: &Path) -> Result<Source> {
    // Before it is opened: the open of a named pipe would wait for somebody who writes to it.
    identify(path)?;
    Source::of(File::open(path).map_err(|e| io_error("open", path, e))?, path)
}

/// A handle that reads past the page cache.
fn open_direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path)
}

impl Source {
    /// The source in an open `file`, which `path` names in messages.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self> {
        let metadata = file.metadata().map_err(|e| io_error("look at", path, e))?;
        let identity = identity_of(&metadata, path)?;
        let (geometry, end) = match identity {
            Identity::Device { .. } => {
                let geometry = device_geometry(&file, path)?;
                (geometry, geometry.size_bytes)
            }
            Identity::File { .. } => {
                let end = metadata.len();
                let size_bytes = end.next_multiple_of(SECTOR_BYTES);
                (Geometry::of_file(size_bytes, 512), end)
            }
        };
        // A capture reads from start to end. If the kernel rejects the hint, reads are slower but correct.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        let is_device = matches!(identity, Identity::Device { .. });
        let direct = is_device.then(|| open_direct(path)).and_then(std::io::Result::ok);
        let (path, name) = (path.to_owned(), path.display().to_string());
        let mut source = Self { file, direct, path, name, identity, geometry, end };
        if !is_device {
            source.geometry = Geometry::of_file(source.geometry.size_bytes, sector_bytes_by_table(&source));
        }
        Ok(source)
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self.identity, Identity::Device { .. })
    }

    /// A path by which other programs can open it while this process has it open, whatever became of its name.
    #[must_use]
    pub fn open_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// A handle on the source's bytes for one reader that begins at their start.
    pub fn stream(&self) -> impl Read + '_ {
        Stream { file: &self.file, at: 0 }
    }

    /// The identity of the file or device, to check whether a target is the same one.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The handle that reads through the page cache.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The path given to [`open_source`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The part of `buf` that lies in the file, if `buf` is read from `offset`. What comes after it is zeros.
    fn without_padding<'b>(&self, buf: &'b mut [u8], offset: u64) -> Result<&'b mut [u8]> {
        let wanted = buf.len() as u64;
        let behind = offset.checked_add(wanted).filter(|&behind| behind <= self.geometry.size_bytes);
        let behind =
            behind.ok_or_else(|| self.failed(buf.len(), offset, std::io::ErrorKind::UnexpectedEof.into()))?;
        let padding =
            usize::try_from(behind.saturating_sub(self.end).min(wanted)).expect("at most buf.len()");
        let (bytes, zeros) = buf.split_at_mut(buf.len() - padding);
        zeros.fill(0);
        Ok(bytes)
    }

    fn failed(&self, len: usize, offset: u64, error: std::io::Error) -> Error {
        io_error(&format!("read {len} bytes at offset {offset} of"), &self.path, error)
    }

    /// Reads past the page cache; `None` if the range is shorter than `DIRECT_BYTES_MIN`, if the range or the buffer is
    /// not aligned to sectors, or if the device refuses. This avoids a copy, and the speed does not depend on what the
    /// cache holds.
    fn read_past_cache(&self, bytes: &mut [u8], offset: u64) -> Option<std::io::Result<()>> {
        let direct = self.direct.as_ref().filter(|_| bytes.len() >= DIRECT_BYTES_MIN)?;
        let unit = u64::from(self.geometry.logical_sector_bytes.max(512));
        let address = bytes.as_ptr().addr() as u64;
        if !(offset | bytes.len() as u64 | address).is_multiple_of(unit) {
            return None;
        }
        match direct.read_exact_at(bytes, offset) {
            // The device needs a larger alignment than a sector.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => None,
            read => Some(read),
        }
    }
}

impl ReadAt for Source {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len();
        let bytes = self.without_padding(buf, offset)?;
        let read =
            self.read_past_cache(bytes, offset).unwrap_or_else(|| self.file.read_exact_at(bytes, offset));
        read.map_err(|e| self.failed(len, offset, e))
    }

    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (len, unit) = (buf.len(), self.geometry.logical_sector_bytes.max(512) as usize);
        let bytes = self.without_padding(buf, offset)?;
        let opened = match self.direct {
            Some(_) => None,
            None => open_direct(&self.open_path()).ok(),
        };
        let direct = self.direct.as_ref().or(opened.as_ref());
        let read = match direct.map(|direct| read_direct(direct, bytes, offset, unit)) {
            // What takes no direct reads, or not of this alignment.
            None => self.file.read_exact_at(bytes, offset),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                self.file.read_exact_at(bytes, offset)
            }
            Some(read) => read,
        };
        read.map_err(|e| self.failed(len, offset, e))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        match self.identity {
            Identity::File { .. } => next_data(&self.file, offset, self.end, self.geometry.size_bytes),
            Identity::Device { .. } => offset,
        }
    }
}

/// Reads a file by offsets of its own: the handle and its offset are shared with others.
struct Stream<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
