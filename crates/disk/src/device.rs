//! The two traits through which all code reads and writes disks, [`ReadAt`] and [`WriteAt`]; a disk in memory for
//! tests, and a target that discards all writes, for measurements.

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, ExtentSet, Result, is_zero};
use parking_lot::RwLock;

/// Size and sector sizes of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// Smallest addressable unit in bytes: 512 or 4096.
    pub logical_sector_bytes: u32,
    /// Smallest unit that the medium writes without reading it first, in bytes.
    pub physical_sector_bytes: u32,
}

impl Geometry {
    /// The geometry of a disk in a file, which has one size of sectors.
    pub(crate) fn of_file(size_bytes: u64, sector_bytes: u32) -> Self {
        Self { size_bytes, logical_sector_bytes: sector_bytes, physical_sector_bytes: sector_bytes }
    }
}

/// A disk that can be read at any offset, by many threads at once.
pub trait ReadAt: Send + Sync {
    /// Size and sector sizes.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` with the bytes from `offset`. `Io` if the device fails, or ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Reads as [`ReadAt::read_exact_at`] does, but past the page cache if the disk can, however short the range: the
    /// cache holds pages of several sectors, and has none of a page with one that can't be read.
    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_exact_at(buf, offset)
    }

    /// The disk's name in messages, usually a path.
    fn name(&self) -> &str;

    /// The first offset at or after `offset` that may hold a byte other than zero; the disk's size if there is none.
    /// This skips the holes of sparse files. A disk that does not know its holes returns `offset`.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    /// Whether `len` bytes from `offset` are known to be zeros without reading them.
    fn is_hole(&self, offset: u64, len: u64) -> bool {
        len > 0 && self.next_data(offset) >= offset.saturating_add(len)
    }
}

/// A disk that can also be written. Offsets and lengths are multiples of the logical sector size.
pub trait WriteAt: ReadAt {
    /// Writes all of `buf` at `offset`. `Full` if the target has no room left.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()>;

    /// Makes `len` bytes from `offset` read as zeros, in the cheapest way that guarantees it.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()>;

    /// Tells the medium that `len` bytes from `offset` are unused. Their contents are undefined afterwards.
    /// `Unsupported` if the medium cannot discard.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes all completed writes durable: when it returns, they survive a power cut.
    fn sync(&self) -> Result<()>;

    /// Fills `buf` from `offset` of the medium, bypassing the page cache if the target can. Returns whether it bypassed
    /// the cache. Call [`WriteAt::sync`] first.
    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool>;
}

/// What is read at once to look for zeros, in bytes.
const READ_BYTES: usize = 1 << 20;

/// How many sectors of `extents` are not zeros. `Io` if the disk fails.
pub(crate) fn sectors_with_data(disk: &dyn ReadAt, extents: &ExtentSet) -> Result<u64> {
    let (mut count, mut buffer) = (0, vec![0; READ_BYTES]);
    for extent in extents.runs() {
        let (mut at, end) = (extent.offset_bytes(), extent.end() * SECTOR_BYTES);
        loop {
            at = at.max(disk.next_data(at) / SECTOR_BYTES * SECTOR_BYTES);
            if at >= end {
                break;
            }
            let len = (end - at).min(READ_BYTES as u64);
            let part = &mut buffer[..usize::try_from(len).expect("at most a buffer")];
            disk.read_exact_at(part, at)?;
            count += part.chunks(512).filter(|sector| !is_zero(sector)).count() as u64;
            at += len;
        }
    }
    Ok(count)
}

/// A disk in memory.
pub struct MemoryDisk {
    geometry: Geometry,
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDisk {
    /// A disk that holds `bytes`, with sectors of 512 bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self::with_sectors(bytes, 512)
    }

    /// A disk that holds `bytes`, with logical and physical sectors of `sector_bytes`.
    #[must_use]
    pub fn with_sectors(bytes: Vec<u8>, sector_bytes: u32) -> Self {
        let geometry = Geometry {
            size_bytes: bytes.len() as u64,
            logical_sector_bytes: sector_bytes,
            physical_sector_bytes: sector_bytes,
        };
        Self { geometry, bytes: RwLock::new(bytes) }
    }

    /// A copy of the disk's contents.
    #[must_use]
    pub fn contents(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    fn range(&self, offset: u64, len: u64) -> Result<std::ops::Range<usize>> {
        let end =
            offset.checked_add(len).filter(|&end| end <= self.geometry.size_bytes).ok_or_else(|| {
                Error::new(
                    ErrorKind::Io,
                    format!("{len} bytes at offset {offset} lie beyond the end of `memory`"),
                )
            })?;
        // Both are within the vector, whose length is a usize.
        #[expect(clippy::cast_possible_truncation)]
        Ok(offset as usize..end as usize)
    }

    fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<()> {
        let range = self.range(offset, len)?;
        self.bytes.write()[range].fill(byte);
        Ok(())
    }
}

impl ReadAt for MemoryDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = self.range(offset, buf.len() as u64)?;
        buf.copy_from_slice(&self.bytes.read()[range]);
        Ok(())
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

impl WriteAt for MemoryDisk {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let range = self.range(offset, buf.len() as u64)?;
        self.bytes.write()[range].copy_from_slice(buf);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.fill(offset, len, 0)
    }

    /// Fills the range with a pattern, so that tests fail if code relies on discarded bytes.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.fill(offset, len, 0xDB)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.read_exact_at(buf, offset).map(|()| true)
    }
}

/// A target that accepts all writes, stores nothing and reads as zeros. For measurements.
#[derive(Debug, Clone, Copy)]
pub struct NullTarget {
    geometry: Geometry,
}

impl NullTarget {
    /// A target of this geometry.
    #[must_use]
    pub const fn new(geometry: Geometry) -> Self {
        Self { geometry }
    }
}

impl ReadAt for NullTarget {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_exact_at(&self, buf: &mut [u8], _offset: u64) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn name(&self) -> &'static str {
        "null"
    }

    fn next_data(&self, _offset: u64) -> u64 {
        self.geometry.size_bytes
    }
}

impl WriteAt for NullTarget {
    fn write_all_at(&self, _buf: &[u8], _offset: u64) -> Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.read_exact_at(buf, offset).map(|()| true)
    }
}
