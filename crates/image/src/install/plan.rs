//! The plan of an install: each chunk object with all places of its content.

use base::{Digest, Error, Result};

use crate::catalogue::Catalogue;
use crate::extents::ChunkExtents;
use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::object::ObjectRef;

/// One chunk object.
pub(super) struct PlannedChunk {
    pub(super) object: ObjectRef,
    pub(super) extents: ChunkExtents,
    pub(super) plain: Digest,
    /// Index of the chunk where it appears first.
    first: u64,
    /// The other chunks with this content.
    others: Vec<u64>,
}

impl PlannedChunk {
    /// The indices of the chunks with this content.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Bytes that it fills on the disk, at all its places together.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.extents.len_bytes()) * (1 + self.others.len() as u64)
    }
}

/// All chunk objects of a version, in the order of the catalogue.
pub(super) struct Plan {
    pub(super) layout: Layout,
    /// Number of the first chunk object.
    pub(super) heads: u64,
    pub(super) chunks: Vec<PlannedChunk>,
}

impl Plan {
    /// `Corrupt` if chunks that share an object have different lengths or extents.
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
                    return Err(Error::corrupt(format!("{object} is the content of chunks that differ")));
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

    /// The chunk object with number `id`; `None` if that is a node or unknown.
    pub(super) fn chunk(&self, id: u64) -> Option<&PlannedChunk> {
        self.chunks.get(usize::try_from(id.checked_sub(self.heads)?).ok()?)
    }

    /// Bytes that all chunks fill on a disk.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(PlannedChunk::bytes).sum()
    }
}
