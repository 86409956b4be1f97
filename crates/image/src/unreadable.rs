//! The sectors that could not be read when a disk was captured (`capture --rescue`), and are zeros in its image.
//! `formats/image.md`, "Sectors that could not be read".

use base::{Extent, ExtentSet};
use serde::{Deserialize, Serialize};

/// Most ranges in a manifest, which they must not fill.
pub(crate) const RANGES_MAX: usize = 4096;

/// A range of the disk, in sectors of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableRange {
    /// Its first sector, counted from the start of the disk.
    pub start_sector: u64,
    /// Number of sectors.
    pub sectors: u64,
}

impl UnreadableRange {
    /// The ranges of `sectors`, ascending. If there are more than a manifest takes, those with the smallest gaps
    /// between them become one, so that sectors which could be read are among them.
    #[must_use]
    pub fn all(sectors: &ExtentSet) -> Vec<Self> {
        Self::joined(sectors.runs(), RANGES_MAX)
    }

    fn joined(runs: &[Extent], most: usize) -> Vec<Self> {
        let gap = |index: usize| runs[index].start - runs[index - 1].end();
        let mut breaks: Vec<usize> = (1..runs.len()).collect();
        breaks.sort_by_key(|&index| std::cmp::Reverse(gap(index)));
        breaks.truncate(most - 1);
        breaks.sort_unstable();
        let starts = (!runs.is_empty()).then_some(0).into_iter().chain(breaks.iter().copied());
        let ends = breaks.iter().copied().chain([runs.len()]);
        let range = |(start, end): (usize, usize)| {
            let all = Extent::between(runs[start].start, runs[end - 1].end());
            Self { start_sector: all.start, sectors: all.count }
        };
        starts.zip(ends).map(range).collect()
    }

    /// The same range.
    #[must_use]
    pub fn extent(self) -> Extent {
        Extent::new(self.start_sector, self.sectors)
    }

    /// The part of it that lies in `extent`.
    pub(crate) fn within(self, extent: Extent) -> Option<Self> {
        let both = self.extent().intersection(extent)?;
        Some(Self { start_sector: both.start, sectors: both.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_are_joined() {
        let runs = [Extent::new(5, 1), Extent::new(10, 2), Extent::new(13, 1), Extent::new(100, 4)];
        let joined = |most| {
            let all = UnreadableRange::joined(&runs, most).into_iter();
            all.map(|range| (range.start_sector, range.sectors)).collect::<Vec<_>>()
        };
        assert_eq!(joined(9), [(5, 1), (10, 2), (13, 1), (100, 4)]);
        assert_eq!(joined(4), joined(9));
        assert_eq!(joined(3), [(5, 1), (10, 4), (100, 4)]);
        assert_eq!(joined(2), [(5, 9), (100, 4)]);
        assert_eq!(joined(1), [(5, 99)]);
        assert_eq!(UnreadableRange::joined(&[], 1), []);
    }
}
