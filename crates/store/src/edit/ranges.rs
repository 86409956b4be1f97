//! Sets of byte ranges of an image.

use std::ops::Range;

use base::{Extent, RunSet};
use image::Layout;

/// The first chunk from `from` on that `ranges` touch.
pub(crate) fn next_chunk(ranges: &RunSet, layout: &Layout, from: u64) -> Option<u64> {
    let bytes = u64::from(layout.chunk.bytes());
    let range = ranges.next_from(from.saturating_mul(bytes))?;
    Some(from.max(range.start / bytes))
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
            let ranges: RunSet = given.into_iter().collect();
            let (start, end) = (chance.below(200), chance.below(200));
            let window = start.min(end)..start.max(end);
            let inside = &map[window.start as usize..window.end as usize];
            let scaled = window.start * unit..window.end * unit;
            assert_eq!(ranges.contains(&scaled), inside.iter().all(|set| *set), "seed {seed}");
            let bytes: u64 = ranges.within(scaled).map(|part| part.end - part.start).sum();
            assert_eq!(bytes, unit * inside.iter().filter(|set| **set).count() as u64, "seed {seed}");
            let dirty = (0..200u64).filter(|&at| map[at as usize]);
            let mut chunks: Vec<u64> =
                dirty.flat_map(|at| at * unit / 65_536..=((at + 1) * unit - 1) / 65_536).collect();
            chunks.dedup();
            let mut found = Vec::new();
            while let Some(next) = next_chunk(&ranges, &layout, found.last().map_or(0, |last| last + 1)) {
                found.push(next);
            }
            assert_eq!(found, chunks, "seed {seed}");
        }
    }
}
