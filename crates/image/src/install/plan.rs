//! The plan of an install: the chunk objects of a version, each with all places on the disk where it belongs.

use base::{Digest, Error, Result};

use crate::catalogue::Catalogue;
use crate::extents::ChunkExtents;
use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::object::ObjectRef;

/// One chunk object and its places.
pub(super) struct PlannedChunk {
    pub(super) object: ObjectRef,
    pub(super) extents: ChunkExtents,
    pub(super) plain: Digest,
    /// Index of the first chunk that has this content.
    first: u64,
    /// Indices of the other chunks that have this content, ascending.
    others: Vec<u64>,
}

impl PlannedChunk {
    /// The indices of all chunks that have this content, ascending.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Bytes of the disk that it fills, at all its places together.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.extents.len_bytes()) * (1 + self.others.len() as u64)
    }
}

/// All chunk objects of a version, in the order of their numbers in the catalogue.
pub(super) struct Plan {
    pub(super) layout: Layout,
    /// Number of the first chunk object: the catalogue numbers tree nodes first.
    pub(super) heads: u64,
    pub(super) chunks: Vec<PlannedChunk>,
}

impl Plan {
    /// The plan for the version of `catalogue`. `Corrupt` if chunks that name the same object differ in their extents
    /// or plain digests.
    pub(super) fn of(catalogue: &Catalogue) -> Result<Self> {
        let heads = catalogue.heads();
        let mut chunks: Vec<PlannedChunk> = Vec::new();
        for run in catalogue.leaves() {
            let run = run?;
            let Leaf::Data(extents, chunk) = run.leaf else { continue };
            let object = chunk.object();
            let id = catalogue.id_of(&object.digest).and_then(|id| id.checked_sub(heads));
            let id =
                usize::try_from(id.expect("the catalogue numbers every chunk")).expect("ids fit 32 bits");
            match chunks.get_mut(id) {
                Some(known) if known.extents == extents && known.plain == chunk.plain => {
                    known.others.push(run.first);
                }
                Some(_) => {
                    return Err(Error::corrupt(format!(
                        "chunks with different content name the same object: {object}"
                    )));
                }
                None => {
                    assert_eq!(id, chunks.len(), "chunks are numbered by first appearance");
                    let (plain, first) = (chunk.plain, run.first);
                    chunks.push(PlannedChunk { object, extents, plain, first, others: Vec::new() });
                }
            }
        }
        Ok(Self { layout: *catalogue.layout(), heads, chunks })
    }

    /// The chunk object with number `id`; `None` if the number is that of a tree node, or of no object.
    pub(super) fn chunk(&self, id: u64) -> Option<&PlannedChunk> {
        self.chunks.get(usize::try_from(id.checked_sub(self.heads)?).ok()?)
    }

    /// Bytes of the disk that all chunk objects fill.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(PlannedChunk::bytes).sum()
    }
}
