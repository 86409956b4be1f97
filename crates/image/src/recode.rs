//! Objects of a version, made again from a disk that holds it: for a machine that has installed a version, and has no
//! room to keep its objects, too.
//!
//! Chunks are encoded and encrypted without chance, so the same encoder makes the same object. Whether it was the same
//! one, only the digest of the object tells: what another release or level of zstd made can't be made again.

use std::sync::Arc;

use base::Result;
use bytes::Bytes;
use disk::ReadAt;
use parking_lot::Mutex;

use crate::buffer::AlignedBuffer;
use crate::capture::LEVEL_DEFAULT;
use crate::catalogue::Catalogue;
use crate::chunk::{ChunkRef, Decoder, Encoder, PlainHasher};
use crate::extents::ChunkExtents;
use crate::leaf::Leaf;

/// Makes objects of a version from a disk that holds it. Many threads may use it at once.
pub struct Recoder {
    catalogue: Arc<Catalogue>,
    /// The first chunk that names each data object, in the order of the objects' numbers.
    places: Vec<u64>,
    /// Those that nobody uses now.
    workers: Mutex<Vec<Worker>>,
}

struct Worker {
    buffer: AlignedBuffer,
    hasher: PlainHasher,
    encoder: Encoder,
}

impl Recoder {
    /// A recoder of the version of `catalogue`. `Corrupt` if its tree contradicts itself.
    pub fn new(catalogue: Arc<Catalogue>) -> Result<Self> {
        let heads = catalogue.heads();
        let mut places = Vec::new();
        for run in catalogue.leaves() {
            let run = run?;
            let Leaf::Data(_, chunk) = run.leaf else { continue };
            // Numbers follow the first appearance of each.
            if catalogue.id_of(&chunk.encoded) == Some(heads + places.len() as u64) {
                places.push(run.first);
            }
        }
        Ok(Self { catalogue, places, workers: Mutex::default() })
    }

    /// The numbers of the objects that hold chunks.
    #[must_use]
    pub fn chunks(&self) -> std::ops::Range<u64> {
        let heads = self.catalogue.heads();
        heads..heads + self.places.len() as u64
    }

    /// Object `id` from `disk`, with its own digest. `None` if it is no chunk, if the disk holds something else in its
    /// place or can't be read, or if another encoder made the object.
    #[must_use]
    pub fn object(&self, id: u64, disk: &dyn ReadAt) -> Option<Bytes> {
        let (first, extents, chunk) = self.chunk(id)?;
        let offset = self.catalogue.layout().chunk_offset(first);
        let mut worker = self.worker().ok()?;
        let read = |buf: &mut [u8], at: u64| disk.read_exact_at(buf, at);
        let plain = worker.buffer.read_extents(&extents, offset, read).ok()?;
        let is_right = worker.hasher.digest(&extents, plain) == chunk.plain;
        let made = is_right.then(|| worker.encoder.encode(&extents, plain, chunk.plain));
        self.workers.lock().push(worker);
        let (name, object) = made?.ok()?;
        (name == chunk).then_some(object)
    }

    /// Whether the chunk `object`, which is object `id`, can be made again.
    #[must_use]
    pub fn makes(&self, id: u64, object: &Bytes) -> bool {
        let remade = || -> Option<bool> {
            let (_, extents, chunk) = self.chunk(id)?;
            let object = chunk.object().verified(object.clone()).ok()?;
            let mut decoder = Decoder::new().ok()?.decrypting(self.catalogue.cipher().clone());
            let mut plain = vec![0; extents.len_bytes() as usize];
            decoder.decode(&object, &extents, chunk.plain, &mut plain).ok()?;
            let mut worker = self.worker().ok()?;
            let (name, _) = worker.encoder.encode(&extents, &plain, chunk.plain).ok()?;
            self.workers.lock().push(worker);
            Some(name == chunk)
        };
        remade() == Some(true)
    }

    /// The first chunk that names object `id`.
    fn chunk(&self, id: u64) -> Option<(u64, ChunkExtents, ChunkRef)> {
        let index = usize::try_from(id.checked_sub(self.catalogue.heads())?).ok()?;
        let first = *self.places.get(index)?;
        let run = self.catalogue.leaves_within(first..first + 1).next()?.ok()?;
        if let Leaf::Data(extents, chunk) = run.leaf { Some((first, extents, chunk)) } else { None }
    }

    fn worker(&self) -> Result<Worker> {
        if let Some(worker) = self.workers.lock().pop() {
            return Ok(worker);
        }
        let encoder = Encoder::new(LEVEL_DEFAULT)?.encrypting(self.catalogue.cipher().clone());
        let buffer = AlignedBuffer::new(self.catalogue.layout().chunk.bytes() as usize);
        Ok(Worker { buffer, hasher: PlainHasher::default(), encoder })
    }
}

impl std::fmt::Debug for Recoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recoder({} chunks)", self.places.len())
    }
}
