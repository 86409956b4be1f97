//! Leaves: the description of a chunk in the tree, known before the chunk is fetched. `formats/image.md`, "Leaf".

use base::wire::Reader;
use base::{Digest, Error, ErrorKind, Result};

use crate::chunk::{ChunkRef, HEADER_BYTES};
use crate::extents::{ChunkExtents, ChunkSize};

/// One chunk of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaf {
    /// No sector is allocated: its contents are irrelevant.
    Free,
    /// These sectors are allocated and hold zeros.
    Zero(ChunkExtents),
    /// These sectors are allocated, and not all of them hold zeros.
    Data(ChunkExtents, ChunkRef),
}

const FREE: u8 = 0;
const ZERO: u8 = 1;
const DATA: u8 = 2;
/// Reserved: data inside a larger object, found by a locator.
const PACKED: u8 = 3;

impl Leaf {
    /// The allocated sectors; `None` if there are none.
    #[must_use]
    pub fn extents(&self) -> Option<&ChunkExtents> {
        match self {
            Self::Free => None,
            Self::Zero(extents) | Self::Data(extents, _) => Some(extents),
        }
    }

    /// How many sectors are allocated.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.extents().map_or(0, ChunkExtents::sectors)
    }

    /// Whether all sectors of the chunk are allocated and hold zeros.
    #[must_use]
    pub fn is_full_zero(&self) -> bool {
        matches!(self, Self::Zero(extents) if extents.is_full())
    }

    /// Appends the leaf to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Free => out.push(FREE),
            Self::Zero(extents) => {
                out.push(ZERO);
                extents.encode(out);
            }
            Self::Data(extents, chunk) => {
                out.push(DATA);
                extents.encode(out);
                out.extend(chunk.encoded_len.to_le_bytes());
                out.extend(chunk.encoded.0);
                out.extend(chunk.plain.0);
            }
        }
    }

    /// Reads a leaf from `reader`; encryption has added `sealed_bytes_more` to its object. `Corrupt` if it is not
    /// valid; `Unsupported` if its chunk lies in a larger object.
    pub(crate) fn decode(reader: &mut Reader<'_>, size: ChunkSize, sealed_bytes_more: u32) -> Result<Self> {
        let cut = |_| Error::corrupt("a leaf ends early");
        match reader.u8().map_err(cut)? {
            FREE => Ok(Self::Free),
            ZERO => Ok(Self::Zero(ChunkExtents::decode(reader, size)?)),
            DATA => {
                let before = reader.remaining();
                let extents = ChunkExtents::decode(reader, size)?;
                let overhead = HEADER_BYTES + before - reader.remaining();
                let chunk = ChunkRef {
                    encoded_len: reader.u32().map_err(cut)?,
                    encoded: Digest(reader.array().map_err(cut)?),
                    plain: Digest(reader.array().map_err(cut)?),
                };
                // A chunk that zstd cannot compress is stored raw, so an object is never longer than that.
                let least = overhead as u64 + u64::from(sealed_bytes_more);
                let bounds = least + 1..=least + u64::from(extents.len_bytes());
                if !bounds.contains(&u64::from(chunk.encoded_len)) {
                    return Err(Error::corrupt(format!(
                        "a leaf names an object of {} bytes",
                        chunk.encoded_len
                    )));
                }
                Ok(Self::Data(extents, chunk))
            }
            PACKED => Err(Error::new(ErrorKind::Unsupported, "a leaf names a chunk inside a larger object")),
            tag => Err(Error::corrupt(format!("unknown state {tag} of a leaf"))),
        }
    }
}
