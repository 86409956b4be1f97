//! The work of one thread on one chunk: decode and write it, or read it back and compare.

use base::{Digest, Error, Result};

use crate::buffer::AlignedBuffer;
use crate::chunk::Decoder;
use crate::extents::ChunkExtents;
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

    /// The content of `object`. `Corrupt` unless both digests are right.
    pub(super) fn decode(&mut self, chunk: &PlannedChunk, object: &Verified) -> Result<&[u8]> {
        let plain = self.buffer.front(chunk.extents.len_bytes() as usize);
        let decoded = self.decoder.decode(object, &chunk.extents, chunk.plain, plain);
        decoded.map_err(|e| {
            let first = chunk.places().next().unwrap_or_default();
            Error::from_source(e.kind(), format!("decode chunk {first} from {}", chunk.object), e)
        })?;
        Ok(plain)
    }

    /// Returns those of `places` where `read` finds other content than that of `chunk`, with the digest of what is
    /// there.
    /// Errors are those of `read`.
    pub(super) fn other_content(
        &mut self,
        shared: &Shared,
        chunk: &PlannedChunk,
        places: &mut dyn Iterator<Item = u64>,
        mut read: impl FnMut(&mut [u8], u64) -> Result<()>,
    ) -> Result<Vec<(Digest, u64)>> {
        let mut other = Vec::new();
        for place in places {
            let start = shared.plan.layout.chunk_offset(place);
            let plain = self.buffer.read_extents(&chunk.extents, start, |buf, offset| {
                read(buf, offset).map_err(|e| e.within(format!("read back chunk {place} at offset {offset}")))
            })?;
            let digest = self.decoder.plain_digest(&chunk.extents, plain);
            if digest != chunk.plain {
                other.push((digest, place));
            }
        }
        Ok(other)
    }

    /// The content of `chunk` from one of its places, or of a chunk with the same extents; `None` if it is not there.
    /// Errors are those of the target.
    pub(super) fn read(
        &mut self,
        shared: &Shared,
        chunk: &PlannedChunk,
        place: u64,
    ) -> Result<Option<Vec<u8>>> {
        let mut places = std::iter::once(place);
        let other = self.other_content(shared, chunk, &mut places, |buf, offset| {
            shared.target.read_exact_at(buf, offset)
        })?;
        Ok(other.is_empty().then(|| self.buffer.front(chunk.extents.len_bytes() as usize).to_vec()))
    }

    /// The plain digest of a chunk with these extents that `read` fills in; `None` if `read` returns false.
    pub(super) fn digest_of(
        &mut self,
        extents: &ChunkExtents,
        read: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Digest> {
        let plain = self.buffer.front(extents.len_bytes() as usize);
        read(plain).then(|| self.decoder.plain_digest(extents, plain))
    }
}
