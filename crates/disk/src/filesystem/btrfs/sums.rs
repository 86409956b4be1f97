//! The kinds of checksums. One stands in the first 32 bytes of a superblock or a node, and covers the rest.

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use sha2::Sha256;
use xxhash_rust::xxh64::xxh64;

use super::super::checksum::crc32c;

/// Bytes of the field, of which a short checksum fills the first.
pub(super) const SUM_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sum {
    Crc32c,
    Xxhash,
    Sha256,
    Blake2b,
}

impl Sum {
    /// The kind that a superblock names; `None` if it is not known.
    pub(super) fn of_kind(kind: u16) -> Option<Self> {
        [Self::Crc32c, Self::Xxhash, Self::Sha256, Self::Blake2b].get(usize::from(kind)).copied()
    }

    /// Whether a block has the right checksum.
    pub(super) fn matches(self, block: &[u8]) -> bool {
        let (told, rest) = block.split_at(SUM_BYTES);
        match self {
            Self::Crc32c => told.starts_with(&(!crc32c(!0, &[rest])).to_le_bytes()),
            Self::Xxhash => told.starts_with(&xxh64(rest, 0).to_le_bytes()),
            Self::Sha256 => told == Sha256::digest(rest).as_slice(),
            Self::Blake2b => told == Blake2b::<U32>::digest(rest).as_slice(),
        }
    }
}
