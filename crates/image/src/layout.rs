//! How an image is divided into chunks: their size, their number, and the position of chunk `i`.

use base::{Error, Extent, Result};

use crate::extents::{ChunkExtents, ChunkSize};
use crate::tree::{LeafRun, Root};

/// The sizes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Size of a chunk.
    pub chunk: ChunkSize,
    /// Size of the image in sectors of 512 bytes, a multiple of the logical sector, at least 1.
    pub size_sectors: u64,
    /// The disk's smallest addressable unit in bytes: every extent starts and ends at a multiple of it.
    pub logical_sector_bytes: u32,
}

impl Layout {
    /// How many chunks the image has, free ones included. The last one may be shorter.
    #[must_use]
    pub fn chunk_count(&self) -> u64 {
        self.size_sectors.div_ceil(u64::from(self.chunk.sectors()))
    }

    /// Size of the image in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        Extent::new(0, self.size_sectors).len_bytes()
    }

    /// The sectors of chunk `index`, relative to the image's start. It ends with the image: the last chunk may be
    /// shorter, and the extent of an index after it is empty.
    #[must_use]
    pub fn chunk_extent(&self, index: u64) -> Extent {
        let sectors = u64::from(self.chunk.sectors());
        let start = index.saturating_mul(sectors).min(self.size_sectors);
        Extent::between(start, start.saturating_add(sectors).min(self.size_sectors))
    }

    /// Offset of chunk `index` from the image's start, in bytes.
    #[must_use]
    pub fn chunk_offset(&self, index: u64) -> u64 {
        index * u64::from(self.chunk.bytes())
    }

    /// The allocated sectors of chunk `index`, relative to the image's start; `extents` holds them relative to the
    /// chunk.
    pub fn extents_of<'a>(
        &self,
        index: u64,
        extents: &'a ChunkExtents,
    ) -> impl Iterator<Item = Extent> + use<'a> {
        let start = self.chunk_extent(index).start;
        extents.runs().map(move |run| Extent::new(start + u64::from(run.start), u64::from(run.count)))
    }

    /// `Corrupt` unless the tree of `root` has as many chunks as this image, and the height that fits this number.
    pub(crate) fn check_root(&self, root: &Root) -> Result<()> {
        let count = self.chunk_count();
        if root.chunk_count == count && root.height == Root::height_of(count) {
            return Ok(());
        }
        let text = format!("a tree of {} chunks and height {}", root.chunk_count, root.height);
        Err(Error::corrupt(format!("{text} does not fit an image of {count} chunks")))
    }

    /// `Corrupt` unless the allocated sectors of `run` lie inside the image and are whole logical sectors.
    pub fn check_run(&self, run: &LeafRun) -> Result<()> {
        let Some(extents) = run.leaf.extents() else { return Ok(()) };
        // All chunks of a run have the same extents, and only the last chunk can be shorter.
        let last = run.first + run.count - 1;
        let room = self.chunk_extent(last).count;
        if u64::from(extents.end()) > room {
            return Err(Error::corrupt(format!("chunk {last} reaches behind the end of the image")));
        }
        if !extents.is_aligned(self.logical_sector_bytes) {
            let unit = self.logical_sector_bytes;
            return Err(Error::corrupt(format!(
                "chunk {} has extents that are not multiples of {unit} bytes",
                run.first
            )));
        }
        Ok(())
    }
}
