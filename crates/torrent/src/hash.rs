//! The digests of a torrent: SHA-1 of each piece (BEP 3), and for version 2 (BEP 52) a tree of SHA-256 over blocks of
//! 16 KiB, of which metainfo holds the level of pieces and the root.

use std::sync::atomic::{AtomicU32, Ordering};

use base::{Error, ErrorKind, Result, is_zero};
use parking_lot::Mutex;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

use crate::content::Content;
use crate::metainfo::{PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECES_MAX};

/// Bytes of a leaf of version 2's tree.
const LEAF_BYTES: usize = 16 << 10;
/// The size of pieces that gave the best mean time in seed 001 (figure 6.6).
const PIECE_BYTES_BEST: u64 = 256 << 10;
/// With more pieces, metainfo takes longer to fetch than larger pieces cost.
const PIECES_WISHED: u64 = 1 << 15;

/// The digests of one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHash {
    /// SHA-1 of the piece.
    pub v1: [u8; 20],
    /// Root of its part of version 2's tree.
    pub v2: [u8; 32],
}

/// The digests of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashes {
    /// Length of the file in bytes.
    pub length: u64,
    /// Length of each piece but the last one.
    pub piece_bytes: u32,
    /// Those of each piece.
    pub pieces: Vec<PieceHash>,
}

/// The size of pieces for a file of `length` bytes: 256 KiB, larger ones for large files, and never less than a chunk,
/// of `chunk_bytes`, so that a piece holds whole chunks.
#[must_use]
pub fn piece_bytes_for(length: u64, chunk_bytes: u32) -> u32 {
    let wished = length.div_ceil(PIECES_WISHED).next_power_of_two().max(PIECE_BYTES_BEST);
    let bytes = wished.min(PIECE_BYTES_MAX.into()).max(chunk_bytes.into());
    u32::try_from(bytes).expect("at most PIECE_BYTES_MAX, which is more than the largest chunk")
}

/// Reads all of `content` on several threads, and makes the digests of its pieces.
///
/// # Errors
/// `Unsupported` for more than `PIECES_MAX` pieces; those of the content.
pub fn hash(content: &dyn Content, piece_bytes: u32) -> Result<Hashes> {
    assert!(piece_bytes.is_power_of_two() && piece_bytes >= PIECE_BYTES_MIN, "a piece is a power of two");
    let length = content.len();
    let count = u32::try_from(length.div_ceil(piece_bytes.into())).unwrap_or(u32::MAX);
    if count == 0 || count > PIECES_MAX {
        let text =
            format!("a torrent of {length} bytes in pieces of {piece_bytes} has none or too many of them");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let (next, failed) = (AtomicU32::new(0), Mutex::new(None));
    let pieces = Mutex::new(vec![PieceHash { v1: [0; 20], v2: [0; 32] }; count as usize]);
    let work = || -> Result<()> {
        let (mut buffer, mut zeros) = (vec![0; piece_bytes as usize], None);
        while failed.lock().is_none() {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= count {
                break;
            }
            let offset = u64::from(piece) * u64::from(piece_bytes);
            let len = usize::try_from((length - offset).min(piece_bytes.into())).expect("at most a piece");
            let bytes = &mut buffer[..len];
            content.read_at(offset, bytes)?;
            let whole = len == piece_bytes as usize;
            let digest = match whole && is_zero(bytes) {
                true => *zeros.get_or_insert_with(|| hash_piece(bytes, piece_bytes, false)),
                false => hash_piece(bytes, piece_bytes, count == 1),
            };
            pieces.lock()[piece as usize] = digest;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                if let Err(error) = work() {
                    failed.lock().get_or_insert(error);
                }
            });
        }
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(Hashes { length, piece_bytes, pieces: pieces.into_inner() }),
    }
}

/// The digests of a piece. Its tree has the height of a whole piece, unless it is the only one.
fn hash_piece(bytes: &[u8], piece_bytes: u32, only: bool) -> PieceHash {
    let leaves: Vec<[u8; 32]> = bytes.chunks(LEAF_BYTES).map(|leaf| Sha256::digest(leaf).into()).collect();
    let width = if only { leaves.len().next_power_of_two() } else { piece_bytes as usize / LEAF_BYTES };
    PieceHash { v1: Sha1::digest(bytes).into(), v2: root(leaves, width, [0; 32]) }
}

/// The root of version 2's tree over the digests of all pieces.
pub(crate) fn layer_root(pieces: &[[u8; 32]], piece_bytes: u32) -> [u8; 32] {
    // What stands for a piece behind the end: a tree of zeros.
    let blank = root(Vec::new(), piece_bytes as usize / LEAF_BYTES, [0; 32]);
    root(pieces.to_vec(), pieces.len().next_power_of_two(), blank)
}

/// The root of a tree over `width` digests, a power of two; those that are missing are `blank`.
fn root(mut level: Vec<[u8; 32]>, mut width: usize, mut blank: [u8; 32]) -> [u8; 32] {
    let pair = |left: &[u8; 32], right: &[u8; 32]| -> [u8; 32] {
        Sha256::new().chain_update(left).chain_update(right).finalize().into()
    };
    while width > 1 {
        level = level.chunks(2).map(|two| pair(&two[0], two.get(1).unwrap_or(&blank))).collect();
        blank = pair(&blank, &blank);
        width /= 2;
    }
    level.first().copied().unwrap_or(blank)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file in memory.
    pub(crate) struct Memory(pub(crate) Mutex<Vec<u8>>);

    impl Content for Memory {
        fn len(&self) -> u64 {
            self.0.lock().len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            let at = usize::try_from(offset).unwrap();
            into.copy_from_slice(&self.0.lock()[at..at + into.len()]);
            Ok(())
        }

        fn keep(&self, offset: u64, piece: &[u8]) -> Result<()> {
            let at = usize::try_from(offset).unwrap();
            self.0.lock()[at..at + piece.len()].copy_from_slice(piece);
            Ok(())
        }
    }

    #[test]
    fn pieces_are_small_unless_there_are_too_many() {
        let sizes = [
            (1, 1 << 18),
            (8 << 30, 1 << 18),
            (10 << 30, 1 << 19),
            (256 << 30, 8 << 20),
            (1 << 50, 128 << 20),
        ];
        for (length, bytes) in sizes {
            assert_eq!(piece_bytes_for(length, 1 << 16), bytes, "{length}");
        }
        assert_eq!(piece_bytes_for(1, 1 << 24), 1 << 24, "a piece holds whole chunks");
    }

    #[test]
    fn a_tree_is_filled_up_with_zeros() {
        // One leaf alone is its own root; three are four.
        let one = hash_piece(&[7; 100], 1 << 18, true);
        assert_eq!(one.v2, <[u8; 32]>::from(Sha256::digest([7; 100])));
        let bytes: Vec<u8> = (0..3 * LEAF_BYTES).map(|at| (at / 1000).to_le_bytes()[0]).collect();
        let leaf = |number: usize| Sha256::digest(&bytes[number * LEAF_BYTES..(number + 1) * LEAF_BYTES]);
        let pair = |left: &[u8], right: &[u8]| Sha256::digest([left, right].concat());
        let left = pair(&leaf(0), &leaf(1));
        let right = pair(&leaf(2), &[0; 32]);
        assert_eq!(hash_piece(&bytes, 1 << 18, true).v2[..], pair(&left, &right)[..]);
        // In pieces of two leaves, the same root comes from the level of pieces.
        let pieces = bytes.chunks(2 * LEAF_BYTES).map(|piece| hash_piece(piece, 2 << 14, false).v2);
        assert_eq!(layer_root(&pieces.collect::<Vec<_>>(), 2 << 14)[..], pair(&left, &right)[..]);
    }

    #[test]
    fn threads_find_each_piece_once() {
        let mut bytes = vec![0; 5 * (16 << 10) + 3];
        bytes[40_000] = 1;
        let hashes = hash(&Memory(Mutex::new(bytes.clone())), 16 << 10).unwrap();
        assert_eq!((hashes.length, hashes.pieces.len()), (bytes.len() as u64, 6));
        for (piece, digest) in bytes.chunks(16 << 10).zip(&hashes.pieces) {
            assert_eq!(digest.v1[..], Sha1::digest(piece)[..]);
        }
    }
}
