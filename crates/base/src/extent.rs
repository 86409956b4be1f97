//! Extents: runs of 512-byte sectors, and ordered sets of them.

use crate::limits::SECTOR_BYTES;

/// A run of sectors: `start..start + count`, in units of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Extent {
    /// First sector.
    pub start: u64,
    /// Number of sectors.
    pub count: u64,
}

impl Extent {
    /// The run of `count` sectors from `start`.
    #[must_use]
    pub const fn new(start: u64, count: u64) -> Self {
        Self { start, count }
    }

    /// The run from `start` up to, not including, `end`; empty if `end` lies before `start`.
    #[must_use]
    pub const fn between(start: u64, end: u64) -> Self {
        Self { start, count: end.saturating_sub(start) }
    }

    /// The first sector after it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.count
    }

    /// Whether it contains no sector.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Offset of its first byte on the disk, in bytes.
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        self.start * SECTOR_BYTES
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> u64 {
        self.count * SECTOR_BYTES
    }

    /// The sectors that both runs contain; `None` if there are none.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let both = Self::between(self.start.max(other.start), self.end().min(other.end()));
        (!both.is_empty()).then_some(both)
    }
}

/// A set of sectors, stored as sorted extents with gaps between them. Best for sectors that arrive in ascending order;
/// [`crate::RunSet`] is for changes at random places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtentSet {
    runs: Vec<Extent>,
}

impl ExtentSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// The set of all sectors of `extent`.
    #[must_use]
    pub fn of(extent: Extent) -> Self {
        Self { runs: if extent.is_empty() { Vec::new() } else { vec![extent] } }
    }

    /// Its extents in ascending order. No extent is empty, and no two overlap or touch.
    #[must_use]
    pub fn runs(&self) -> &[Extent] {
        &self.runs
    }

    /// The number of sectors in the set.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Whether the set contains no sector.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether the set contains all sectors of `extent`. True if `extent` is empty.
    #[must_use]
    pub fn contains(&self, extent: Extent) -> bool {
        extent.is_empty()
            || self
                .from(extent.start)
                .first()
                .is_some_and(|run| run.start <= extent.start && extent.end() <= run.end())
    }

    /// Adds the sectors of `extent`. Takes constant time if extents are added in ascending order, else linear time.
    pub fn insert(&mut self, extent: Extent) {
        if extent.is_empty() {
            return;
        }
        match self.runs.last_mut() {
            Some(last) if extent.start > last.end() => self.runs.push(extent),
            Some(last) if extent.start >= last.start => {
                last.count = last.end().max(extent.end()) - last.start
            }
            None => self.runs.push(extent),
            Some(_) => self.insert_inside(extent),
        }
    }

    fn insert_inside(&mut self, extent: Extent) {
        // Runs that only touch `extent` are merged as well, so that no two runs are adjacent.
        let first = self.runs.partition_point(|run| run.end() < extent.start);
        let behind = self.runs.partition_point(|run| run.start <= extent.end());
        let start = self.runs.get(first).map_or(extent.start, |run| run.start.min(extent.start));
        let end = if behind > first { self.runs[behind - 1].end().max(extent.end()) } else { extent.end() };
        self.runs.splice(first..behind, [Extent::between(start, end)]);
    }

    /// Removes the sectors of `extent`.
    pub fn remove(&mut self, extent: Extent) {
        let first = self.runs.partition_point(|run| run.end() <= extent.start);
        let behind = self.runs.partition_point(|run| run.start < extent.end());
        if extent.is_empty() || first >= behind {
            return;
        }
        let head = Extent::between(self.runs[first].start, extent.start);
        let tail = Extent::between(extent.end(), self.runs[behind - 1].end());
        self.runs.splice(first..behind, [head, tail].into_iter().filter(|run| !run.is_empty()));
    }

    /// The parts of its extents that lie inside `window`, in ascending order.
    pub fn within(&self, window: Extent) -> impl Iterator<Item = Extent> + '_ {
        self.from(window.start)
            .iter()
            .take_while(move |run| run.start < window.end())
            .filter_map(move |run| run.intersection(window))
    }

    /// The sectors of `window` that are not in the set.
    #[must_use]
    pub fn gaps_within(&self, window: Extent) -> Self {
        let mut gaps = Self::of(window);
        for run in self.within(window) {
            gaps.remove(run);
        }
        gaps
    }

    /// The extents that end after sector `start`.
    fn from(&self, start: u64) -> &[Extent] {
        &self.runs[self.runs.partition_point(|run| run.end() <= start)..]
    }
}

impl FromIterator<Extent> for ExtentSet {
    fn from_iter<I: IntoIterator<Item = Extent>>(extents: I) -> Self {
        let mut set = Self::new();
        extents.into_iter().for_each(|extent| set.insert(extent));
        set
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small disks")]
mod tests {
    use super::*;
    use crate::Chance;

    /// Compares every operation with a plain array of booleans.
    #[test]
    fn behaves_as_a_set_of_sectors() {
        for seed in 0..200 {
            let mut chance = Chance::from_seed(seed);
            let (mut set, mut model) = (ExtentSet::new(), [false; 96]);
            for _ in 0..40 {
                let start = chance.below(90);
                let extent = Extent::new(start, chance.below(96 - start));
                let add = chance.below(3) > 0;
                if add {
                    set.insert(extent)
                } else {
                    set.remove(extent)
                }
                (extent.start..extent.end()).for_each(|sector| model[sector as usize] = add);
                let expected: ExtentSet =
                    (0..96).filter(|&s| model[s as usize]).map(|s| Extent::new(s, 1)).collect();
                assert_eq!(set, expected, "seed {seed}");
                assert!(set.runs().windows(2).all(|pair| pair[0].end() < pair[1].start), "seed {seed}");
                let window = Extent::new(chance.below(50), chance.below(46));
                let inside = set.within(window).map(|run| run.count).sum::<u64>();
                assert_eq!(inside + set.gaps_within(window).sectors(), window.count, "seed {seed}");
                assert_eq!(set.contains(window), set.gaps_within(window).is_empty(), "seed {seed}");
            }
        }
    }
}
