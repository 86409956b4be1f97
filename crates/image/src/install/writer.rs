//! The work of one thread on one chunk: decode and write it, or read it back and compare.

use base::{Error, Extent, Result};

use crate::buffer::AlignedBuffer;
use crate::chunk::Decoder;
use crate::object::Verified;

use super::plan::PlannedChunk;
use super::shared::Shared;

/// The decoder and buffer of one thread, which it reuses for each chunk.
pub(super) struct Writer {
    decoder: Decoder,
    buffer: AlignedBuffer,
}

impl Writer {
    pub(super) fn new(shared: &Shared) -> Result<Self> {
        let buffer = AlignedBuffer::new(shared.plan.layout.chunk.bytes() as usize);
        let decoder = Decoder::new()?.decrypting(shared.catalogue.cipher().clone());
        Ok(Self { decoder, buffer })
    }

    /// Decodes `object` and writes it to all its places. Writes nothing unless both digests are right; `Corrupt` if
    /// not.
    pub(super) fn write(&mut self, shared: &Shared, chunk: &PlannedChunk, object: &Verified) -> Result<()> {
        let plain = self.buffer.front(chunk.extents.len_bytes() as usize);
        let decoded = self.decoder.decode(object, &chunk.extents, chunk.plain, plain);
        decoded.map_err(|e| {
            let first = chunk.places().next().unwrap_or_default();
            Error::from_source(e.kind(), format!("decode chunk {first} from {}", chunk.object), e)
        })?;
        for index in chunk.places() {
            let mut from = 0;
            for extent in shared.plan.layout.extents_of(index, &chunk.extents) {
                let to = from + len_of(extent);
                let offset = extent.offset_bytes();
                let written = shared.target.write_all_at(&plain[from..to], offset);
                written.map_err(|e| e.within(format!("write chunk {index} at offset {offset}")))?;
                from = to;
            }
        }
        Ok(())
    }

    /// Returns the offsets, in bytes, of the places of `chunk` where `read` finds other content. Errors are those of
    /// `read`.
    pub(super) fn wrong_places(
        &mut self,
        shared: &Shared,
        chunk: &PlannedChunk,
        mut read: impl FnMut(&mut [u8], u64) -> Result<()>,
    ) -> Result<Vec<u64>> {
        let plain = self.buffer.front(chunk.extents.len_bytes() as usize);
        let mut wrong = Vec::new();
        for index in chunk.places() {
            let mut from = 0;
            for extent in shared.plan.layout.extents_of(index, &chunk.extents) {
                let to = from + len_of(extent);
                let offset = extent.offset_bytes();
                let done = read(&mut plain[from..to], offset);
                done.map_err(|e| e.within(format!("read back chunk {index} at offset {offset}")))?;
                from = to;
            }
            if self.decoder.plain_digest(&chunk.extents, plain) != chunk.plain {
                wrong.push(shared.plan.layout.chunk_offset(index));
            }
        }
        Ok(wrong)
    }
}

fn len_of(extent: Extent) -> usize {
    usize::try_from(extent.len_bytes()).expect("a run lies inside a chunk")
}
