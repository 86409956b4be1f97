//! The ranges of bytes that a write changes, and what this means for each chunk.

use std::ops::Range;

use base::RunSet;
use image::Layout;

use super::ranges::{bytes_of, next_chunk};

/// The bytes that a write changes.
#[derive(Debug)]
pub(super) struct DirtyRanges {
    /// Bytes that get new content.
    pub(super) written: RunSet,
    /// Bytes that become free, except those in `written`.
    pub(super) freed: RunSet,
    /// The union of both.
    pub(super) all: RunSet,
}

/// What happens to one or more chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// This chunk keeps part of its old content, or gets new content.
    Compose(u64),
    /// All these chunks become free.
    Free(Range<u64>),
}

impl DirtyRanges {
    pub(super) fn new(written: &[Range<u64>], freed: &[Range<u64>]) -> Self {
        let all = RunSet::from_iter(written.iter().chain(freed).cloned());
        Self {
            written: RunSet::from_iter(written.iter().cloned()),
            freed: RunSet::from_iter(freed.iter().cloned()),
            all,
        }
    }

    /// The steps for all dirty chunks, ascending.
    pub(super) fn steps(&self, layout: &Layout) -> impl Iterator<Item = Step> + use<'_> {
        let layout = *layout;
        let mut next = 0;
        std::iter::from_fn(move || {
            let step = self.step(&layout, next)?;
            next = match &step {
                Step::Compose(index) => index + 1,
                Step::Free(chunks) => chunks.end,
            };
            Some(step)
        })
    }

    /// The first step at or after chunk `from`.
    fn step(&self, layout: &Layout, from: u64) -> Option<Step> {
        let first = next_chunk(&self.all, layout, from)?;
        let written = next_chunk(&self.written, layout, first);
        let freed = self.freed.around(&bytes_of(layout.chunk_extent(first)));
        let Some(freed) = freed.filter(|_| written != Some(first)) else { return Some(Step::Compose(first)) };
        let whole = match freed.end >= layout.size_bytes() {
            true => layout.chunk_count(),
            false => freed.end / u64::from(layout.chunk.bytes()),
        };
        Some(Step::Free(first..whole.min(written.unwrap_or(u64::MAX))))
    }
}
