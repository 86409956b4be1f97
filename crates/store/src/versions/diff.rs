//! Compares two versions: which sectors differ, and how. If both have the same chunk size, only nodes that differ are
//! read, and chunks only if an exact answer is wanted.

use std::iter::Peekable;
use std::ops::Range;

use base::limits::SECTOR_BYTES;
use base::{Extent, ExtentSet, Result};
use image::{ChunkExtents, Difference, Differences, Leaf};

use crate::edit::Snapshot;
use crate::nodes::Nodes;

/// How a range of sectors differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Allocated in both, with other content.
    Written,
    /// Free before, allocated after.
    Allocated,
    /// Allocated before, free after.
    Freed,
}

impl Change {
    /// The change as one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Allocated => "allocated",
            Self::Freed => "freed",
        }
    }
}

/// A range of sectors that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Sectors of 512 bytes, counted from the start of the image.
    pub extent: Extent,
    /// How the range differs.
    pub change: Change,
}

/// Totals of a comparison, in bytes of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiffTotals {
    /// Number of ranges.
    pub ranges: u64,
    /// Allocated in both, with other content.
    pub written_bytes: u64,
    /// Free before, allocated after.
    pub allocated_bytes: u64,
    /// Allocated before, free after.
    pub freed_bytes: u64,
}

/// How exact a comparison is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closeness {
    /// Uses the trees only: a chunk that differs counts as written in all sectors that are allocated in both
    /// versions.
    Chunks,
    /// Also compares the content of chunks that differ: finds the sectors that really differ.
    Sectors,
}

impl Snapshot<'_> {
    /// Calls `each` for every range in which `after` differs from this version, ascending, and returns the totals.
    /// After its end, the shorter image counts as free. The versions may belong to different images. If their chunk
    /// sizes differ, all content is compared sector by sector.
    pub fn diff(
        &self,
        after: &Snapshot<'_>,
        closeness: Closeness,
        each: &mut dyn FnMut(Changed) -> Result<()>,
    ) -> Result<DiffTotals> {
        let mut joiner = Joiner { pending: None, totals: DiffTotals::default(), each };
        if self.layout().chunk == after.layout().chunk {
            self.by_tree(after, closeness, &mut joiner)?;
        } else {
            self.by_content(after, &mut joiner)?;
        }
        joiner.flush()?;
        Ok(joiner.totals)
    }

    fn by_tree(&self, after: &Snapshot<'_>, closeness: Closeness, joiner: &mut Joiner<'_>) -> Result<()> {
        let old = (Nodes(self.repository()), &self.manifest().root);
        let new = (Nodes(after.repository()), &after.manifest().root);
        for difference in Differences::new(self.layout().chunk, old, new) {
            let difference = difference.map_err(|error| error.within("compare two versions"))?;
            let Difference { first, count, before, after: leaf } = difference;
            let last = [self, after].map(|side| side.layout().chunk_extent(first + count - 1).end());
            let start = first.saturating_mul(u64::from(self.layout().chunk.sectors()));
            let window = Extent::between(start, last[0].max(last[1]));
            let same_content = match (&before, &leaf) {
                (Leaf::Data(_, old), Leaf::Data(_, new)) => old.plain == new.plain,
                _ => false,
            };
            if same_content {
                continue;
            }
            let both = [&before, &leaf].map(|leaf| matches!(leaf, Leaf::Data(..)));
            if closeness == Closeness::Sectors && (both[0] || both[1]) {
                self.compare(after, window, joiner)?;
                continue;
            }
            let sets = [&before, &leaf].map(|leaf| sectors_of(leaf, window, count));
            joiner.sets(&sets[0], &sets[1], window, |part, joiner| joiner.push(part, Change::Written))?;
        }
        Ok(())
    }

    fn by_content(&self, after: &Snapshot<'_>, joiner: &mut Joiner<'_>) -> Result<()> {
        let sectors = u64::from(self.layout().chunk.sectors().max(after.layout().chunk.sectors()));
        let mut old = self.windows(sectors).peekable();
        let mut new = after.windows(sectors).peekable();
        while let Some(index) = next_of(&mut old, &mut new)? {
            self.compare(after, Extent::new(index * sectors, sectors), joiner)?;
        }
        Ok(())
    }

    /// The windows of `sectors` sectors that are not entirely free, ascending.
    fn windows(&self, sectors: u64) -> impl Iterator<Item = Result<u64>> + '_ {
        let chunk = u64::from(self.layout().chunk.sectors());
        let mut behind = 0;
        self.runs().flat_map(move |run| {
            let range = run.map(|run| {
                let first = (run.first * chunk / sectors).max(behind);
                behind = ((run.first + run.count) * chunk).div_ceil(sectors);
                first..behind
            });
            let (range, error) = match range {
                Ok(range) => (range, None),
                Err(error) => (Range::default(), Some(Err(error))),
            };
            range.map(Ok).chain(error)
        })
    }

    /// Compares the contents of `window`, sector by sector.
    fn compare(&self, after: &Snapshot<'_>, window: Extent, joiner: &mut Joiner<'_>) -> Result<()> {
        let [(old_set, old), (new_set, new)] = [self.content(window)?, after.content(window)?];
        joiner.sets(&old_set, &new_set, window, |part, joiner| {
            let bytes = |content: &[u8], sector: u64| {
                let at =
                    usize::try_from((sector - window.start) * SECTOR_BYTES).expect("a chunk fits memory");
                <[u8; 512]>::try_from(&content[at..at + 512]).expect("a sector")
            };
            (part.start..part.end())
                .filter(|&sector| bytes(&old, sector) != bytes(&new, sector))
                .try_for_each(|sector| joiner.push(Extent::new(sector, 1), Change::Written))
        })
    }

    /// The allocated sectors in `window`, and its bytes, which are zeros after the end of the image.
    fn content(&self, window: Extent) -> Result<(ExtentSet, Vec<u8>)> {
        let mut bytes = vec![0; usize::try_from(window.len_bytes()).expect("a chunk fits memory")];
        let inside = Extent::between(window.start, window.end().min(self.layout().size_sectors));
        let inside_bytes = usize::try_from(inside.len_bytes()).expect("a chunk fits memory");
        if inside.is_empty() {
            return Ok((ExtentSet::new(), bytes));
        }
        self.read(inside.offset_bytes(), &mut bytes[..inside_bytes])?;
        Ok((self.allocated(inside)?, bytes))
    }
}

/// The smaller of the next two items; removes it from both iterators if they are equal.
fn next_of(
    old: &mut Peekable<impl Iterator<Item = Result<u64>>>,
    new: &mut Peekable<impl Iterator<Item = Result<u64>>>,
) -> Result<Option<u64>> {
    let low = match (old.peek(), new.peek()) {
        (None, None) => return Ok(None),
        (Some(Err(_)), _) => return old.next().transpose(),
        (_, Some(Err(_))) => return new.next().transpose(),
        (Some(Ok(one)), None) | (None, Some(Ok(one))) => *one,
        (Some(Ok(one)), Some(Ok(other))) => *one.min(other),
    };
    let is_low = |next: &Result<u64>| matches!(next, Ok(index) if *index == low);
    let _ = old.next_if(is_low);
    let _ = new.next_if(is_low);
    Ok(Some(low))
}

/// The allocated sectors of `window`, which has `count` chunks that all have the same leaf.
fn sectors_of(leaf: &Leaf, window: Extent, count: u64) -> ExtentSet {
    if count > 1 {
        return if *leaf == Leaf::Free { ExtentSet::new() } else { ExtentSet::of(window) };
    }
    let mut set = ExtentSet::new();
    for run in leaf.extents().into_iter().flat_map(ChunkExtents::runs) {
        set.insert(Extent::new(window.start + u64::from(run.start), run.count.into()));
    }
    set
}

/// Joins adjacent ranges of the same kind, and counts.
struct Joiner<'a> {
    pending: Option<Changed>,
    totals: DiffTotals,
    each: &'a mut dyn FnMut(Changed) -> Result<()>,
}

impl Joiner<'_> {
    /// Reports how `old` and `new` differ in `window`, ascending; calls `both` for sectors that are allocated in
    /// both.
    fn sets(
        &mut self,
        old: &ExtentSet,
        new: &ExtentSet,
        window: Extent,
        both: impl Fn(Extent, &mut Self) -> Result<()>,
    ) -> Result<()> {
        let mut edges: Vec<u64> = [old, new]
            .iter()
            .flat_map(|set| set.within(window).flat_map(|part| [part.start, part.end()]))
            .collect();
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let part = Extent::between(pair[0], pair[1]);
            match (old.contains(part), new.contains(part)) {
                (true, true) => both(part, self)?,
                (true, false) => self.push(part, Change::Freed)?,
                (false, true) => self.push(part, Change::Allocated)?,
                (false, false) => {}
            }
        }
        Ok(())
    }

    fn push(&mut self, extent: Extent, change: Change) -> Result<()> {
        match &mut self.pending {
            Some(last) if last.change == change && last.extent.end() == extent.start => {
                last.extent.count += extent.count;
                Ok(())
            }
            _ => {
                self.flush()?;
                self.pending = Some(Changed { extent, change });
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        let Some(changed) = self.pending.take() else { return Ok(()) };
        let totals = &mut self.totals;
        totals.ranges += 1;
        *match changed.change {
            Change::Written => &mut totals.written_bytes,
            Change::Allocated => &mut totals.allocated_bytes,
            Change::Freed => &mut totals.freed_bytes,
        } += changed.extent.len_bytes();
        (self.each)(changed)
    }
}
