//! Finds and erases stale signatures: those that an earlier use of a disk left in sectors that the image does not use.

use base::limits::SECTOR_BYTES;
use base::{Extent, ExtentSet, Result};

use crate::signature::{Claim, claims};
use crate::{Geometry, ReadAt, WriteAt};

/// The unit of reads in bytes. No disk has larger sectors, so one bad sector fails at most one page.
const PAGE_BYTES: usize = 4096;

/// A signature on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale {
    /// The format that it belongs to, as in [`Claim`].
    pub kind: &'static str,
    /// Offset of its first byte, from the start of the disk.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub len: u64,
    /// Index of the volume in which it was found.
    pub volume: usize,
}

impl Stale {
    /// The sectors of 512 bytes in which it lies.
    #[must_use]
    pub fn sectors(&self) -> Extent {
        let end = (self.offset + self.len).div_ceil(SECTOR_BYTES);
        Extent::between(self.offset / SECTOR_BYTES, end)
    }
}

/// The signatures of `volumes` that lie completely in the sectors of `within`, by ascending offset, at most one per
/// offset. A volume is the whole disk of `size_bytes`, or a partition of it. `read` fills a buffer from a byte offset.
/// Pages that it cannot read count as zeros, because another program could not find a signature there either. So this
/// function never fails with `Io`.
pub fn find(
    size_bytes: u64,
    volumes: &[Extent],
    within: &ExtentSet,
    read: impl Fn(&mut [u8], u64) -> Result<()> + Send + Sync,
) -> Result<Vec<Stale>> {
    let disk = Lenient { size_bytes, read };
    let mut found = Vec::new();
    for (volume, extent) in volumes.iter().enumerate() {
        for Claim { kind, offset, len, .. } in claims(&disk, *extent)? {
            // A claim without magic bytes (an Atari table) has nothing to erase.
            let stale = Stale { kind, offset: extent.offset_bytes() + offset, len, volume };
            if len > 0 && within.contains(stale.sectors()) {
                found.push(stale);
            }
        }
    }
    found.sort_by_key(|stale: &Stale| stale.offset);
    found.dedup_by_key(|stale| stale.offset);
    Ok(found)
}

/// The number and the place of each partition in the table of `disk`; each is a volume for [`find`]. `Io` if the disk
/// fails.
pub fn partitions(disk: &dyn ReadAt) -> Result<Vec<(u32, Extent)>> {
    let entries = crate::table::read(disk)?.entries;
    Ok(entries.into_iter().map(|entry| (entry.number, entry.extent)).collect())
}

/// Overwrites a signature with zeros, and changes no other byte. It reads and writes whole logical sectors, so no other
/// thread or process may write them at the same time. `Io` if the target fails.
pub fn erase(target: &dyn WriteAt, stale: &Stale) -> Result<()> {
    let unit = u64::from(target.geometry().logical_sector_bytes);
    let start = stale.offset / unit * unit;
    let end = (stale.offset + stale.len).next_multiple_of(unit);
    let mut bytes = vec![0; usize::try_from(end - start).expect("a sector or two")];
    target.read_exact_at(&mut bytes, start)?;
    let at = usize::try_from(stale.offset - start).expect("inside a sector");
    bytes[at..at + usize::try_from(stale.len).expect("a few bytes")].fill(0);
    target.write_all_at(&bytes, start)
}

/// A disk whose unreadable pages read as zeros. All reads are widened to whole pages.
struct Lenient<F> {
    size_bytes: u64,
    read: F,
}

impl<F: Fn(&mut [u8], u64) -> Result<()> + Send + Sync> ReadAt for Lenient<F> {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes, logical_sector_bytes: 512, physical_sector_bytes: 512 }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let start = offset / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let end = (offset + buf.len() as u64).next_multiple_of(PAGE_BYTES as u64).min(self.size_bytes);
        let skip = usize::try_from(offset - start).expect("inside a page");
        let mut pages = vec![0; usize::try_from(end - start).expect("little more than was asked for")];
        // After a failed read of all pages, single reads find out which ones fail.
        if (self.read)(&mut pages, start).is_err() {
            for (page, at) in pages.chunks_mut(PAGE_BYTES).zip((start..).step_by(PAGE_BYTES)) {
                if (self.read)(page, at).is_err() {
                    page.fill(0);
                }
            }
        }
        buf.copy_from_slice(&pages[skip..skip + buf.len()]);
        Ok(())
    }

    fn name(&self) -> &'static str {
        "target"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDisk;
    use base::{Error, ErrorKind};

    const SWAP: &[u8] = b"SWAPSPACE2";
    const BTRFS: &[u8] = b"_BHRfS_M";

    fn found(disk: &MemoryDisk, volumes: &[Extent], within: &ExtentSet) -> Vec<Stale> {
        let read = |buf: &mut [u8], offset| disk.read_exact_at(buf, offset);
        find(disk.geometry().size_bytes, volumes, within, read).unwrap()
    }

    #[test]
    fn is_found_in_disk_and_partition_and_erased_alone() {
        let (whole, part) = (Extent::new(0, 8192), Extent::new(2048, 4096));
        let disk = MemoryDisk::new(vec![0xA5; 4 << 20]);
        for (at, magic) in [(0x1_0040, BTRFS), (part.offset_bytes() + 4086, SWAP)] {
            disk.write_all_at(magic, at).unwrap();
        }
        let there = found(&disk, &[whole, part], &ExtentSet::of(whole));
        let seen: Vec<_> = there.iter().map(|one| (one.kind, one.offset, one.len, one.volume)).collect();
        assert_eq!(seen, [("btrfs", 0x1_0040, 8, 0), ("swap", (1 << 20) + 4086, 10, 1)]);
        let mut elsewhere = ExtentSet::of(whole);
        elsewhere.remove(there[1].sectors());
        assert_eq!(found(&disk, &[whole, part], &elsewhere), there[..1]);
        there.iter().for_each(|one| erase(&disk, one).unwrap());
        assert_eq!(found(&disk, &[whole, part], &ExtentSet::of(whole)), []);
        let zeros = disk.contents().iter().filter(|&&byte| byte == 0).count();
        assert_eq!(zeros, 18, "nothing beside them changes");
    }

    #[test]
    fn sectors_that_fail_hold_nothing_and_hide_nothing() {
        let disk = MemoryDisk::new(vec![0; 1 << 20]);
        disk.write_all_at(SWAP, 4086).unwrap();
        disk.write_all_at(BTRFS, 0x1_0040).unwrap();
        let whole = Extent::new(0, 2048);
        let read = |buf: &mut [u8], offset: u64| {
            if (offset..offset + buf.len() as u64).contains(&4086) {
                return Err(Error::new(ErrorKind::Io, "unreadable"));
            }
            disk.read_exact_at(buf, offset)
        };
        let there = find(1 << 20, &[whole], &ExtentSet::of(whole), read).unwrap();
        assert_eq!(there.iter().map(|one| one.kind).collect::<Vec<_>>(), ["btrfs"]);
    }
}
