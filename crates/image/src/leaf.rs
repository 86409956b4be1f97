//! Leaves: the entries of a tree that describe one chunk each. `formats/image.md`, "Leaf".

use base::wire::Reader;
use base::{Digest, Error, ErrorKind, Result};

use crate::chunk::{ChunkRef, HEADER_BYTES};
use crate::extents::{ChunkExtents, ChunkSize};

/// One chunk of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaf {
    /// No sector is allocated: the content is not part of the image.
    Free,
    /// These sectors are allocated and contain only zeros.
    Zero(ChunkExtents),
    /// These sectors are allocated and contain other bytes than zeros.
    Data(ChunkExtents, ChunkRef),
}

const FREE: u8 = 0;
const ZERO: u8 = 1;
const DATA: u8 = 2;
/// Reserved for a chunk that is stored inside a larger object.
const PACKED: u8 = 3;

impl Leaf {
    /// The allocated sectors; `None` if the chunk is free.
    #[must_use]
    pub fn extents(&self) -> Option<&ChunkExtents> {
        match self {
            Self::Free => None,
            Self::Zero(extents) | Self::Data(extents, _) => Some(extents),
        }
    }

    /// How many sectors of 512 bytes are allocated.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.extents().map_or(0, ChunkExtents::sectors)
    }

    /// Whether all sectors of the chunk are allocated and contain only zeros.
    #[must_use]
    pub fn is_full_zero(&self) -> bool {
        matches!(self, Self::Zero(extents) if extents.is_full())
    }

    /// Appends the encoded leaf to `out`.
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

    /// Reads a leaf from `reader`. Encryption adds `sealed_bytes_more` bytes to the chunk's object, 0 without it.
    /// `Corrupt` if the bytes are not a leaf; `Unsupported` if its chunk is inside a larger object.
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
                // A chunk that zstd can't make shorter is stored raw, so an object is never longer than this.
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
