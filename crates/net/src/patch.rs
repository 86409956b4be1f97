//! Mends a damaged copy of an object: the client sends short digests of the copy's pieces, the server answers with the
//! pieces that differ. A member of a session can forge a block of each object at little cost; so mending must cost
//! little, too. Source: `formats/api.md`, "Objects".

use base::Digest;

/// Length of a piece in bytes; the last one may be shorter.
const PIECE_BYTES: usize = 1024;
/// Length of a piece's digest: the first bytes of its BLAKE3 digest. What is mended is verified by its whole digest.
const DIGEST_BYTES: usize = 8;
/// Bytes before a piece in an answer: its index.
const INDEX_BYTES: usize = 4;

/// Number of pieces of an object of `bytes` bytes.
const fn pieces(bytes: u32) -> u32 {
    bytes.div_ceil(1024)
}

type Short = [u8; DIGEST_BYTES];

fn digest(piece: &[u8]) -> Short {
    *Digest::of(piece).0.first_chunk().expect("a digest is longer")
}

/// Length in bytes of what [`digests`] makes of an object of `bytes` bytes.
#[must_use]
pub const fn digests_bytes(bytes: u32) -> u32 {
    pieces(bytes) * 8
}

/// The digests of the pieces of `copy`.
#[must_use]
pub(crate) fn digests(copy: &[u8]) -> Vec<u8> {
    copy.chunks(PIECE_BYTES).flat_map(digest).collect()
}

/// The pieces of `object` whose digests are not those in `digests`; `None` if there is another number of digests.
#[must_use]
pub fn differing(object: &[u8], digests: &[u8]) -> Option<Vec<u8>> {
    let (theirs, rest) = digests.as_chunks::<DIGEST_BYTES>();
    let pieces = object.chunks(PIECE_BYTES);
    if !rest.is_empty() || pieces.len() != theirs.len() {
        return None;
    }
    let mut answer = Vec::new();
    for ((index, piece), theirs) in (0u32..).zip(pieces).zip(theirs) {
        if digest(piece) != *theirs {
            answer.extend_from_slice(&index.to_le_bytes());
            answer.extend_from_slice(piece);
        }
    }
    Some(answer)
}

/// Most bytes of an answer on an object of `bytes` bytes.
#[must_use]
pub(crate) const fn answer_bytes_max(bytes: u32) -> u32 {
    bytes + pieces(bytes) * 4
}

/// Replaces the pieces of `copy` that are in `answer`; `None` if it is no answer on a copy of this length.
#[must_use]
pub(crate) fn apply(copy: &mut [u8], mut answer: &[u8]) -> Option<()> {
    while !answer.is_empty() {
        let (index, rest) = answer.split_first_chunk::<INDEX_BYTES>()?;
        let index = usize::try_from(u32::from_le_bytes(*index)).ok()?;
        let place = copy.chunks_mut(PIECE_BYTES).nth(index)?;
        let (piece, rest) = rest.split_at_checked(place.len())?;
        place.copy_from_slice(piece);
        answer = rest;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use base::Chance;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_damaged_copy_is_mended_by_the_pieces_that_differ(
            bytes in 0..9000usize,
            damaged in prop::collection::vec(0..9000usize, 0..6),
        ) {
            let mut object = vec![0; bytes];
            Chance::from_seed(1).fill(&mut object);
            let mut copy = object.clone();
            damaged.iter().filter(|&&at| at < bytes).for_each(|&at| copy[at] ^= 1);
            let sent = digests(&copy);
            let len = u32::try_from(bytes).unwrap();
            prop_assert_eq!(sent.len(), digests_bytes(len) as usize);
            let answer = differing(&object, &sent).unwrap();
            prop_assert!(answer.len() <= damaged.len() * (PIECE_BYTES + INDEX_BYTES));
            prop_assert!(answer.len() <= answer_bytes_max(len) as usize);
            prop_assert_eq!(apply(&mut copy, &answer), Some(()));
            prop_assert_eq!(copy, object);
        }

        #[test]
        fn no_answer_breaks_out_of_the_copy(answer in prop::collection::vec(any::<u8>(), 0..5000)) {
            let mut copy = vec![0; 3000];
            let _ = apply(&mut copy, &answer);
            prop_assert_eq!(differing(&copy, &answer).is_some(), answer.len() == 24);
        }
    }
}
