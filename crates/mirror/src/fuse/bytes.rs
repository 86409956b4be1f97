//! A disk as the bytes of a file: reads and writes at any offset on top of the whole sectors of [`Served`], zeroing,
//! and the search for data and holes (lseek(2), fallocate(2)).
//!
//! A write that begins or ends inside a sector reads that sector, changes part of it and writes it back. Meanwhile
//! no other write may touch the sector ([`SectorLocks`]), so that two writers of one sector do not lose bytes.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use super::locks::SectorLocks;
use crate::{Durability, Served, Space};

/// Number of bytes examined in the first step of a search for data or a hole. It is doubled with each step, so that
/// few tree nodes are fetched if the search ends soon.
const LOOK_BYTES_MIN: u64 = 16 << 20;
/// The limit of that doubling.
const LOOK_BYTES_MAX: u64 = 4 << 30;
/// Maximum number of runs that one step returns.
const LOOK_RUNS_MAX: usize = 1024;
const NONE: Range<u64> = 0..0;

/// See the module.
pub(super) struct ByteDisk {
    disk: Arc<dyn Served>,
    sector_bytes: u64,
    size_bytes: u64,
    locks: SectorLocks,
}

/// What [`ByteDisk::seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sought {
    /// Bytes that may be something other than zeros.
    Data,
    /// Zeros that need not be read.
    Hole,
}

impl ByteDisk {
    /// The bytes of `disk`.
    pub(super) fn new(disk: Arc<dyn Served>) -> Self {
        let geometry = disk.geometry();
        let sector_bytes = u64::from(geometry.logical_sector_bytes);
        Self { disk, sector_bytes, size_bytes: geometry.size_bytes, locks: SectorLocks::default() }
    }

    /// The size in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The sectors that hold these bytes.
    fn sectors(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start / self.sector_bytes * self.sector_bytes
            ..bytes.end.div_ceil(self.sector_bytes) * self.sector_bytes
    }

    /// Reads up to `count` bytes from `offset`, fewer at the end of the disk. `read` does it; if it returns false,
    /// so that nothing was read, the result is `None`.
    fn read_by<'a>(
        &self,
        (offset, count): (u64, usize),
        memory: &'a mut Vec<u8>,
        read: impl FnOnce(u64, &mut [u8]) -> Result<bool>,
    ) -> Result<Option<&'a [u8]>> {
        let end = offset.saturating_add(count as u64).min(self.size_bytes);
        let sectors = self.sectors(&(offset.min(end)..end));
        let room = index(sectors.end - sectors.start);
        if memory.len() < room {
            memory.resize(room, 0);
        }
        if !read(sectors.start, &mut memory[..room])? {
            return Ok(None);
        }
        let from = index(offset.min(end) - sectors.start);
        Ok(Some(&memory[from..from + index(end.saturating_sub(offset))]))
    }

    /// The bytes from `offset` on, at most `count`. `None` if the read would have to wait.
    pub(super) fn read_now<'a>(
        &self,
        offset: u64,
        count: usize,
        memory: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>> {
        self.read_by((offset, count), memory, |at, into| self.disk.read_now(at, into))
    }

    /// The bytes from `offset` on, at most `count`.
    pub(super) fn read<'a>(&self, offset: u64, count: usize, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let read =
            self.read_by((offset, count), memory, |at, into| self.disk.read(at, into).map(|()| true))?;
        Ok(read.expect("it was read"))
    }

    fn check(&self, offset: u64, count: u64) -> Result<Range<u64>> {
        match offset.checked_add(count) {
            Some(end) if end <= self.size_bytes => Ok(offset..end),
            _ => {
                let size = self.size_bytes;
                Err(Error::new(
                    ErrorKind::Invalid,
                    format!("{count} bytes at offset {offset} of a disk of {size}"),
                ))
            }
        }
    }

    /// Writes `bytes` at `offset`. `Invalid` if they reach past the end.
    pub(super) fn write(&self, offset: u64, bytes: &[u8], durability: Durability) -> Result<()> {
        let range = self.check(offset, bytes.len() as u64)?;
        if range.is_empty() {
            return Ok(());
        }
        let sectors = self.sectors(&range);
        if sectors == range {
            let _claim = self.locks.claim(sectors, [NONE, NONE]);
            return self.disk.write(offset, bytes, durability);
        }
        let first = if range.start == sectors.start {
            NONE
        } else {
            sectors.start..sectors.start + self.sector_bytes
        };
        let last = if range.end == sectors.end { NONE } else { sectors.end - self.sector_bytes..sectors.end };
        let last = if last == first { NONE } else { last };
        let _claim = self.locks.claim(sectors.clone(), [first.clone(), last.clone()]);
        let mut whole = vec![0; index(sectors.end - sectors.start)];
        for edge in [first, last].into_iter().filter(|edge| !edge.is_empty()) {
            let place = index(edge.start - sectors.start)..index(edge.end - sectors.start);
            self.disk.read(edge.start, &mut whole[place])?;
        }
        let from = index(range.start - sectors.start);
        whole[from..from + bytes.len()].copy_from_slice(bytes);
        self.disk.write(sectors.start, &whole, durability)
    }

    /// Writes `bytes` at `offset` if they are whole sectors and no conflicting write is running there. Else writes
    /// nothing and returns false.
    pub(super) fn write_now(&self, offset: u64, bytes: &[u8]) -> Result<bool> {
        let range = self.check(offset, bytes.len() as u64)?;
        if self.sectors(&range) != range {
            return Ok(false);
        }
        let Some(_claim) = self.locks.try_claim(range) else { return Ok(false) };
        self.disk.write(offset, bytes, Durability::Cached).map(|()| true)
    }

    /// Makes `count` bytes from `offset` read as zeros. Bytes past the end of the disk are ignored.
    pub(super) fn zero(&self, offset: u64, count: u64, space: Space) -> Result<()> {
        let end = offset.saturating_add(count).min(self.size_bytes);
        let range = offset.min(end)..end;
        let inner = range.start.next_multiple_of(self.sector_bytes)
            ..range.end / self.sector_bytes * self.sector_bytes;
        if inner.is_empty() {
            return self.write(range.start, &vec![0; index(range.end - range.start)], Durability::Cached);
        }
        self.write(range.start, &vec![0; index(inner.start - range.start)], Durability::Cached)?;
        {
            let _claim = self.locks.claim(inner.clone(), [NONE, NONE]);
            let bytes = inner.end - inner.start;
            self.disk.write_zeroes(inner.start, bytes, space, Durability::Cached)?;
        }
        self.write(inner.end, &vec![0; index(range.end - inner.end)], Durability::Cached)
    }

    /// The first offset from `from` on at which there is what is `sought`. The end of the disk counts as a hole.
    pub(super) fn seek(&self, from: u64, sought: Sought) -> Result<Option<u64>> {
        let mut at = from / self.sector_bytes * self.sector_bytes;
        let mut look = LOOK_BYTES_MIN;
        while at < self.size_bytes {
            for run in self.disk.status(at, look.min(self.size_bytes - at), LOOK_RUNS_MAX)? {
                if run.status.zero == (sought == Sought::Hole) {
                    return Ok(Some(at.max(from)));
                }
                at += run.bytes;
            }
            look = (look * 2).min(LOOK_BYTES_MAX);
        }
        Ok((sought == Sought::Hole && from < self.size_bytes).then_some(self.size_bytes))
    }

    /// Makes all writes durable that returned before this call.
    pub(super) fn flush(&self) -> Result<()> {
        self.disk.flush()
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("requests fit memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawDisk;

    const SIZE: u64 = 1 << 20;

    fn disk(folder: &tempfile::TempDir) -> ByteDisk {
        ByteDisk::new(Arc::new(RawDisk::open(&folder.path().join("disk"), Some(SIZE)).unwrap()))
    }

    #[test]
    fn bytes_at_any_offset_are_as_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        let mut model = vec![0; usize::try_from(SIZE).unwrap()];
        let (mut chance, mut memory) = (base::Chance::from_seed(1), Vec::new());
        for round in 0..2000 {
            let offset = chance.below(SIZE);
            let count = chance.below(3000).min(SIZE - offset);
            let place = index(offset)..index(offset + count);
            match chance.below(3) {
                0 => {
                    let mut bytes = vec![0; index(count)];
                    chance.fill(&mut bytes);
                    disk.write(offset, &bytes, Durability::Cached).unwrap();
                    model[place].copy_from_slice(&bytes);
                }
                1 => {
                    disk.zero(offset, count, Space::Free).unwrap();
                    model[place].fill(0);
                }
                _ => assert!(
                    disk.read(offset, index(count), &mut memory).unwrap() == &model[place],
                    "round {round}: {count} bytes at {offset}"
                ),
            }
        }
        assert!(disk.read(0, index(SIZE) + 5, &mut memory).unwrap() == model);
        assert!(disk.read(SIZE + 7, 9, &mut memory).unwrap().is_empty());
        assert_eq!(disk.write(SIZE - 1, &[1, 2], Durability::Cached).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn two_writers_of_one_sector_both_survive() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        for round in 1..=200u8 {
            std::thread::scope(|scope| {
                for writer in 0..4u64 {
                    let disk = &disk;
                    scope.spawn(move || {
                        disk.write(500 + writer * 7, &[round; 7], Durability::Cached).unwrap()
                    });
                }
            });
            assert_eq!(disk.read(500, 28, &mut Vec::new()).unwrap(), [round; 28]);
        }
    }

    #[test]
    fn data_and_holes_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        disk.write(1 << 18, &[7; 1 << 16], Durability::Cached).unwrap();
        let seek = |from, sought| disk.seek(from, sought).unwrap();
        assert_eq!(seek(5, Sought::Hole), Some(5));
        assert_eq!(seek(5, Sought::Data), Some(1 << 18));
        assert_eq!(seek((1 << 18) + 9, Sought::Data), Some((1 << 18) + 9));
        assert_eq!(seek((1 << 18) + 9, Sought::Hole), Some((1 << 18) + (1 << 16)));
        assert_eq!(seek(SIZE - 1, Sought::Data), None);
        disk.write(SIZE - 4096, &[7; 4096], Durability::Cached).unwrap();
        assert_eq!((seek(SIZE - 1, Sought::Hole), seek(SIZE, Sought::Hole)), (Some(SIZE), None));
    }
}
