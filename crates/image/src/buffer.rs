//! Aligned buffers, for direct I/O (`O_DIRECT`) with a device.

use base::Result;
use base::limits::SECTOR_BYTES;

use crate::extents::{ChunkExtents, Run};

/// Alignment of every buffer in bytes: the strictest that `O_DIRECT` asks for.
const ALIGNMENT: usize = 4096;

/// A buffer whose address in memory is a multiple of 4096.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` bytes, all zeros.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT, "pointers to bytes can be aligned");
        Self { bytes, start, len }
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// If the buffer is shorter than `len`.
    pub fn front(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len);
        &mut self.bytes[self.start..self.start + len]
    }

    /// Reads the allocated bytes of a chunk at byte `offset`, and returns them one run after the other. Calls `read`
    /// for one piece with the gaps between them: few large reads cost less than many small ones. If that fails, it
    /// reads each run alone, since a gap may be unreadable. Errors are those of `read`.
    pub(crate) fn read_extents(
        &mut self,
        extents: &ChunkExtents,
        offset: u64,
        mut read: impl FnMut(&mut [u8], u64) -> Result<()>,
    ) -> Result<&mut [u8]> {
        let first = extents.runs().next().map_or(0, Run::offset_bytes);
        let whole = SECTOR_BYTES * u64::from(extents.end()) - first;
        let offset = offset + first;
        let bytes = self.front(usize::try_from(whole).expect("at most a chunk"));
        let len_of = |bytes: u64| usize::try_from(bytes).expect("inside a chunk");
        let runs = || extents.runs().map(|run| (len_of(run.offset_bytes() - first), len_of(run.len_bytes())));
        if read(bytes, offset).is_err() {
            for (from, len) in runs() {
                read(&mut bytes[from..from + len], offset + from as u64)?;
            }
        }
        let mut end = 0;
        for (from, len) in runs() {
            if from > end {
                bytes.copy_within(from..from + len, end);
            }
            end += len;
        }
        Ok(&mut bytes[..end])
    }
}
