//! The plan of a capture: the allocated sectors of a disk, cut at chunk boundaries, in ascending order.

use base::{Extent, ExtentSet};
use disk::ReadAt;

use base::limits::SECTOR_BYTES;

use crate::extents::{ChunkExtents, Run};
use crate::layout::Layout;

/// One part of the plan: one chunk with allocated sectors, or several in the same hole of the disk.
pub(super) struct Planned {
    /// Index of the first chunk.
    pub(super) first: u64,
    /// Number of chunks, at least 1. More than 1 only for fully allocated chunks that lie in one hole of the disk.
    pub(super) count: u64,
    /// The allocated sectors of each of these chunks.
    pub(super) extents: ChunkExtents,
    /// Whether the chunks lie in a hole of the disk, so that they are known to be zeros and need no reading.
    pub(super) is_hole: bool,
}

/// Iterates over the chunks of an image that have allocated sectors, in ascending order.
pub(super) struct Plan<'a> {
    layout: Layout,
    /// First sector of the image on its disk.
    start: u64,
    allocated: &'a ExtentSet,
    disk: &'a dyn ReadAt,
    /// First sector of the image that `next` has not covered yet.
    next: u64,
}

impl<'a> Plan<'a> {
    /// The plan for an image of `layout` that begins at sector `start` of `disk`. `allocated` counts from the start of
    /// the disk, not of the image.
    pub(super) fn new(layout: Layout, start: u64, allocated: &'a ExtentSet, disk: &'a dyn ReadAt) -> Self {
        Self { layout, start, allocated, disk, next: 0 }
    }

    /// How many sectors of the image from `sector` on lie in one hole of the disk, counted up to `end` at most.
    fn hole_sectors(&self, sector: u64, end: u64) -> u64 {
        let data = self.disk.next_data((self.start + sector) * SECTOR_BYTES) / SECTOR_BYTES;
        data.saturating_sub(self.start).min(end).saturating_sub(sector)
    }

    /// The allocated sectors of `chunk` (relative to the image), widened to whole logical sectors of the disk: it can
    /// only be read and written in these. `None` if no sector is allocated.
    fn extents(&self, chunk: Extent) -> Option<ChunkExtents> {
        let unit = u64::from(self.layout.logical_sector_bytes / 512);
        let on_disk = Extent::new(self.start + chunk.start, chunk.count);
        let inside = |sector: u64| u16::try_from(sector).expect("a chunk has at most 32,768 sectors");
        let mut widened = ExtentSet::new();
        for run in self.allocated.within(on_disk) {
            let (from, to) = (run.start - on_disk.start, run.end() - on_disk.start);
            widened.insert(Extent::between(from - from % unit, to.next_multiple_of(unit).min(chunk.count)));
        }
        let runs =
            widened.runs().iter().map(|run| Run { start: inside(run.start), count: inside(run.count) });
        ChunkExtents::from_runs(self.layout.chunk, runs)
    }
}

impl Iterator for Plan<'_> {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let rest = Extent::between(self.start + self.next, self.start + self.layout.size_sectors);
        let first = self.allocated.within(rest).next()?;
        let unit = u64::from(self.layout.chunk.sectors());
        let index = (first.start - self.start) / unit;
        let chunk = self.layout.chunk_extent(index);
        let extents = self.extents(chunk).expect("the chunk contains the allocated sector `first.start`");
        // A hole may go on where sectors are free. Follow it to the end of this allocated run only, since one part of
        // the plan gives the same extents to all its chunks.
        let allocated_end = (first.end() - self.start).max(chunk.end());
        let hole = self.hole_sectors(chunk.start, allocated_end);
        let count = if extents.is_full() { (hole / unit).max(1) } else { 1 };
        self.next = chunk.end() + (count - 1) * unit;
        Some(Planned { first: index, count, extents, is_hole: hole >= chunk.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::ChunkSize;
    use base::Chance;
    use disk::Geometry;
    use disk::device::{MemoryDisk, NullTarget};

    const GEOMETRY: Geometry =
        Geometry { size_bytes: 1 << 40, logical_sector_bytes: 512, physical_sector_bytes: 512 };

    #[test]
    fn covers_what_is_allocated_and_nothing_else_but_whole_sectors() {
        for seed in 0..300 {
            let mut chance = Chance::from_seed(seed);
            let unit = if seed % 2 == 0 { 1 } else { 8 };
            let layout = Layout {
                chunk: ChunkSize::from_log2(16).unwrap(),
                size_sectors: (1 + chance.below(200)) * 8,
                logical_sector_bytes: u32::try_from(unit * 512).unwrap(),
            };
            let start = chance.below(100) * 8;
            let mut allocated = ExtentSet::new();
            for _ in 0..chance.below(30) {
                allocated.insert(Extent::new(chance.below(2600), chance.below(90)));
            }
            let window = Extent::new(start, layout.size_sectors);
            let mut expected = ExtentSet::new();
            for run in allocated.within(window) {
                let end = run.end().next_multiple_of(unit);
                expected.insert(Extent::between(run.start - run.start % unit, end));
            }
            let (full, hole) = (MemoryDisk::new(Vec::new()), NullTarget::new(GEOMETRY));
            let disks: [&dyn ReadAt; 2] = [&full, &hole];
            for (disk, is_hole) in disks.into_iter().zip([false, true]) {
                let mut planned = ExtentSet::new();
                for chunks in Plan::new(layout, start, &allocated, disk) {
                    assert_eq!(chunks.is_hole, is_hole, "seed {seed}");
                    for index in chunks.first..chunks.first + chunks.count {
                        for extent in layout.extents_of(index, &chunks.extents) {
                            planned.insert(Extent::new(start + extent.start, extent.count));
                        }
                    }
                }
                assert_eq!(planned, expected, "seed {seed}");
            }
        }
    }
}
