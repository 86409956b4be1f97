//! Disks for tests: random content, faults, and huge sparse disks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Chance, Error, ErrorKind, Extent, ExtentSet, Result};
use disk::device::MemoryDisk;
use disk::{DiskMap, Geometry, ReadAt, TableKind, WriteAt};
use parking_lot::RwLock;

/// The content of a disk, and the map of its allocated sectors.
pub(crate) struct Sample {
    pub bytes: Vec<u8>,
    pub map: DiskMap,
}

/// A disk with text, noise, zeros and repeated bytes in random places. Random extents of it are allocated, in
/// multiples of `unit_sectors`.
pub(crate) fn sample(chance: &mut Chance, sectors: u64, unit_sectors: u64) -> Sample {
    let mut bytes = vec![0; usize::try_from(sectors * 512).unwrap()];
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(at + 512 * usize::try_from(1 + chance.below(400)).unwrap());
        match chance.below(4) {
            0 => {}
            1 => chance.fill(&mut bytes[at..end]),
            2 => bytes[at..end].fill(b'x'),
            _ => (at..end).for_each(|i| bytes[i] = b"the quick brown fox "[i % 20]),
        }
        at = end;
    }
    let mut allocated = ExtentSet::new();
    let mut start = 0;
    while start < sectors {
        let count = (unit_sectors * (1 + chance.below(300))).min(sectors - start);
        if chance.hits(600_000) {
            allocated.insert(Extent::new(start, count));
        }
        start += count + unit_sectors * chance.below(3);
    }
    Sample { bytes, map: map(sectors, u32::try_from(unit_sectors * 512).unwrap(), allocated) }
}

/// A map of a whole disk without a partition table.
pub(crate) fn map(sectors: u64, sector_bytes: u32, allocated: ExtentSet) -> DiskMap {
    DiskMap {
        geometry: Geometry {
            size_bytes: sectors * 512,
            logical_sector_bytes: sector_bytes,
            physical_sector_bytes: sector_bytes,
        },
        table: TableKind::None,
        disk_id: None,
        partitions: Vec::new(),
        window: Extent::new(0, sectors),
        allocated,
        warnings: Vec::new(),
    }
}

/// A disk in memory with one [`Fault`].
pub(crate) struct FaultyDisk {
    pub disk: MemoryDisk,
    pub fault: Fault,
    /// Total length of all writes so far, also of those that failed.
    pub written: AtomicU64,
}

/// What goes wrong on a [`FaultyDisk`]. Numbers are byte offsets, and a read or write that covers the byte is affected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Fault {
    None,
    ReadFails(u64),
    WriteFails(u64),
    /// `Full` for a write that would exceed this total number of written bytes.
    FullAfter(u64),
    /// One bit of the byte is flipped, and the write succeeds.
    SpoilsWritesOf(u64),
    /// The write succeeds, but changes nothing.
    LosesWritesOf(u64),
    /// `write_zeroes` succeeds, but changes nothing.
    LosesZeros,
    SyncFails,
}

impl FaultyDisk {
    pub(crate) fn new(bytes: Vec<u8>, sector_bytes: u32, fault: Fault) -> Self {
        Self { disk: MemoryDisk::with_sectors(bytes, sector_bytes), fault, written: AtomicU64::new(0) }
    }
}

/// Whether the byte `at` is one of the `len` bytes from `offset`.
fn hit(at: u64, offset: u64, len: u64) -> bool {
    (offset..offset + len).contains(&at)
}

impl ReadAt for FaultyDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.fault {
            Fault::ReadFails(at) if hit(at, offset, buf.len() as u64) => {
                Err(Error::new(ErrorKind::Io, "unreadable sector"))
            }
            _ => self.disk.read_exact_at(buf, offset),
        }
    }

    fn name(&self) -> &str {
        "faulty"
    }
}

impl WriteAt for FaultyDisk {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        let before = self.written.fetch_add(len, Ordering::Relaxed);
        let unit = u64::from(self.geometry().logical_sector_bytes);
        assert!(offset.is_multiple_of(unit) && len.is_multiple_of(unit), "a write of whole sectors");
        match self.fault {
            Fault::WriteFails(at) if hit(at, offset, len) => {
                Err(Error::new(ErrorKind::Io, "unwritable sector"))
            }
            Fault::FullAfter(limit) if before + len > limit => {
                Err(Error::new(ErrorKind::Full, "no room left"))
            }
            Fault::LosesWritesOf(at) if hit(at, offset, len) => Ok(()),
            Fault::SpoilsWritesOf(at) if hit(at, offset, len) => {
                let mut spoiled = buf.to_vec();
                spoiled[usize::try_from(at - offset).unwrap()] ^= 0x10;
                self.disk.write_all_at(&spoiled, offset)
            }
            _ => self.disk.write_all_at(buf, offset),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        if self.fault == Fault::LosesZeros { Ok(()) } else { self.disk.write_zeroes(offset, len) }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }

    fn sync(&self) -> Result<()> {
        match self.fault {
            Fault::SyncFails => Err(Error::new(ErrorKind::Io, "cache not flushed")),
            _ => Ok(()),
        }
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.read_exact_at(buf, offset).map(|()| true)
    }
}

/// A disk that is mostly a hole: it stores only the pages of 4 KiB that were written, by page number.
pub(crate) struct SparseDisk {
    size_bytes: u64,
    pub pages: RwLock<BTreeMap<u64, [u8; 4096]>>,
}

impl SparseDisk {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self { size_bytes, pages: RwLock::new(BTreeMap::new()) }
    }
}

impl ReadAt for SparseDisk {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes, logical_sector_bytes: 4096, physical_sector_bytes: 4096 }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let pages = self.pages.read();
        for (number, page) in (offset / 4096..).zip(buf.chunks_mut(4096)) {
            page.copy_from_slice(pages.get(&number).unwrap_or(&[0; 4096]));
        }
        Ok(())
    }

    fn name(&self) -> &str {
        "sparse"
    }

    fn next_data(&self, offset: u64) -> u64 {
        let pages = self.pages.read();
        let next = pages.range(offset / 4096..).next();
        next.map_or(self.size_bytes, |(number, _)| offset.max(number * 4096))
    }
}

impl WriteAt for SparseDisk {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut pages = self.pages.write();
        for (number, page) in (offset / 4096..).zip(buf.as_chunks::<4096>().0) {
            pages.insert(number, *page);
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let mut pages = self.pages.write();
        let gone: Vec<u64> =
            pages.range(offset / 4096..(offset + len) / 4096).map(|(number, _)| *number).collect();
        gone.iter().for_each(|number| pages.remove(number).map_or((), |_| ()));
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "no discard here"))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.read_exact_at(buf, offset).map(|()| false)
    }
}
