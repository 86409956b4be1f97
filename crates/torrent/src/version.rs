//! A version, as its raw file: chunks are decoded when a piece of them is read, and free sectors read as zeros.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use image::{Catalogue, Decoder, Leaf, ObjectSource};
use parking_lot::Mutex;

use crate::content::Content;

/// The raw file of a version, which is only read.
pub struct VersionContent {
    catalogue: Arc<Catalogue>,
    objects: Arc<dyn ObjectSource>,
    /// Decoders that nobody uses now.
    decoders: Mutex<Vec<Decoder>>,
}

impl VersionContent {
    /// The version of `catalogue`, whose chunks come from `objects`.
    #[must_use]
    pub fn new(catalogue: Arc<Catalogue>, objects: Arc<dyn ObjectSource>) -> Self {
        Self { catalogue, objects, decoders: Mutex::default() }
    }

    fn read(&self, decoder: &mut Decoder, offset: u64, into: &mut [u8]) -> Result<()> {
        let layout = self.catalogue.layout();
        let chunk_bytes = u64::from(layout.chunk.bytes());
        let end = offset + into.len() as u64;
        into.fill(0);
        let mut plain = Vec::new();
        for run in self.catalogue.leaves_within(offset / chunk_bytes..end.div_ceil(chunk_bytes)) {
            let run = run?;
            let Leaf::Data(extents, chunk) = &run.leaf else { continue };
            let object = self.objects.verified(&chunk.object())?;
            plain.resize(extents.len_bytes() as usize, 0);
            decoder.decode(&object, extents, chunk.plain, &mut plain)?;
            copy_part(&plain, extents, layout.chunk_offset(run.first), (offset, into));
        }
        Ok(())
    }
}

/// Copies what of a chunk at `start`, whose allocated bytes are `plain`, lies in `into`, which begins at `offset`.
pub(crate) fn copy_part(
    plain: &[u8],
    extents: &image::ChunkExtents,
    start: u64,
    (offset, into): (u64, &mut [u8]),
) {
    let index = |at: u64| usize::try_from(at).expect("what is in memory has an index");
    let end = offset + into.len() as u64;
    let mut from = 0;
    for run in extents.runs() {
        let at = start + run.offset_bytes();
        let (first, last) = (at.max(offset), (at + run.len_bytes()).min(end));
        if first < last {
            let source = &plain[from + index(first - at)..from + index(last - at)];
            into[index(first - offset)..index(last - offset)].copy_from_slice(source);
        }
        from += index(run.len_bytes());
    }
}

impl Content for VersionContent {
    fn len(&self) -> u64 {
        self.catalogue.layout().size_bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let idle = self.decoders.lock().pop();
        let mut decoder = match idle {
            Some(decoder) => decoder,
            None => Decoder::new()?.decrypting(self.catalogue.cipher().clone()),
        };
        let read = self.read(&mut decoder, offset, into);
        self.decoders.lock().push(decoder);
        read
    }

    fn keep(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Refused, "a version is only read"))
    }
}
