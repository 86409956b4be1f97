//! Which sectors of which chunks to read: the allocated sectors of a disk, cut at chunk boundaries.

use base::{Extent, ExtentSet};

use crate::extents::{ChunkExtents, Run};
use crate::layout::Layout;

/// A chunk of which something is allocated.
pub(super) struct Planned {
    pub(super) index: u64,
    pub(super) extents: ChunkExtents,
}

/// The chunks of an image that are not free, ascending.
pub(super) struct Plan<'a> {
    layout: Layout,
    /// First sector of the image on its disk.
    start: u64,
    allocated: &'a ExtentSet,
    next: u64,
}

impl<'a> Plan<'a> {
    /// The chunks of an image of `layout` that begins at sector `start` of a disk with these `allocated` sectors.
    pub(super) fn new(layout: Layout, start: u64, allocated: &'a ExtentSet) -> Self {
        Self { layout, start, allocated, next: 0 }
    }

    /// What is allocated of `chunk` (relative to the image), widened to whole logical sectors.
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
        let index = (first.start - self.start) / u64::from(self.layout.chunk.sectors());
        let chunk = self.layout.chunk_extent(index);
        self.next = chunk.end();
        Some(Planned { index, extents: self.extents(chunk).expect("something of it is allocated") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::ChunkSize;
    use base::Chance;

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
            let mut planned = ExtentSet::new();
            for chunk in Plan::new(layout, start, &allocated) {
                for extent in layout.extents_of(chunk.index, &chunk.extents) {
                    planned.insert(Extent::new(start + extent.start, extent.count));
                }
            }
            assert_eq!(planned, expected, "seed {seed}");
        }
    }
}
