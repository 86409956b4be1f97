//! Sets of byte ranges of an image.

use std::ops::Range;

use base::Extent;
use image::Layout;

/// Ascending ranges of bytes with gaps between them; no range is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The union of `ranges`, which may be in any order and may overlap.
    pub(crate) fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut sorted: Vec<Range<u64>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        sorted.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// The end of the last range (exclusive), or 0 if there are none.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| last.end)
    }

    /// The parts of the ranges that are inside `window`.
    pub(crate) fn within(&self, window: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let window = window.clone();
        let first = self.0.partition_point(|range| range.end <= window.start);
        self.0[first..]
            .iter()
            .take_while(move |range| range.start < window.end)
            .map(move |range| range.start.max(window.start)..range.end.min(window.end))
    }

    /// The range that contains all of `window`, which must not be empty.
    pub(crate) fn around(&self, window: &Range<u64>) -> Option<&Range<u64>> {
        let range = self.0.get(self.0.partition_point(|range| range.end <= window.start))?;
        (range.start <= window.start && window.end <= range.end).then_some(range)
    }

    /// Whether the ranges contain all of `window`.
    pub(crate) fn cover(&self, window: &Range<u64>) -> bool {
        window.is_empty() || self.around(window).is_some()
    }

    /// The first chunk from `from` on that the ranges touch.
    pub(crate) fn next_chunk(&self, layout: &Layout, from: u64) -> Option<u64> {
        let bytes = u64::from(layout.chunk.bytes());
        let start = from.saturating_mul(bytes);
        let range = self.0.get(self.0.partition_point(|range| range.end <= start))?;
        Some(from.max(range.start / bytes))
    }
}

/// The bytes of `extent`.
pub(crate) fn bytes_of(extent: Extent) -> Range<u64> {
    extent.offset_bytes()..extent.offset_bytes() + extent.len_bytes()
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "these numbers are small")]
mod tests {
    use super::*;
    use base::Chance;
    use image::ChunkSize;

    #[test]
    fn ranges_are_those_of_a_map_of_bytes() {
        let layout = Layout {
            chunk: ChunkSize::from_log2(16).unwrap(),
            size_sectors: 1 << 20,
            logical_sector_bytes: 512,
        };
        for seed in 0..500 {
            let mut chance = Chance::from_seed(seed);
            let unit = [1, 9000][usize::try_from(seed % 2).unwrap()];
            let mut map = [false; 200];
            let given: Vec<_> = (0..chance.below(12))
                .map(|_| {
                    let start = chance.below(200);
                    let end = (start + chance.below(30)).min(200);
                    map[start as usize..end as usize].fill(true);
                    start * unit..end * unit
                })
                .collect();
            let ranges = Ranges::new(given);
            let (start, end) = (chance.below(200), chance.below(200));
            let window = start.min(end)..start.max(end);
            let inside = &map[window.start as usize..window.end as usize];
            let scaled = window.start * unit..window.end * unit;
            assert_eq!(ranges.cover(&scaled), inside.iter().all(|set| *set), "seed {seed}");
            let bytes: u64 = ranges.within(&scaled).map(|part| part.end - part.start).sum();
            assert_eq!(bytes, unit * inside.iter().filter(|set| **set).count() as u64, "seed {seed}");
            let dirty = (0..200u64).filter(|&at| map[at as usize]);
            let mut chunks: Vec<u64> =
                dirty.flat_map(|at| at * unit / 65_536..=((at + 1) * unit - 1) / 65_536).collect();
            chunks.dedup();
            let mut found = Vec::new();
            while let Some(next) = ranges.next_chunk(&layout, found.last().map_or(0, |last| last + 1)) {
                found.push(next);
            }
            assert_eq!(found, chunks, "seed {seed}");
        }
    }
}
