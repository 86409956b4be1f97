//! Repairs one changed bit, or byte, of a record: tries all changes until the content has the record's digest again.
//! So a single flipped bit does not make a record unusable. formats/repository.md, "Damage".
//!
//! BLAKE3 hashes chunks of 1 KiB and joins the results in a binary tree ("BLAKE3", section 2.1). So each try costs
//! one such piece and its path to the root, not the whole record.

use base::Digest;
use blake3::CHUNK_LEN as PIECE;
use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use bytes::Bytes;

/// Longest record in bytes in which a whole byte is repaired: this takes 32 times as long as a bit, about a second
/// for 1 KiB.
const BYTE_MENDED_MAX: usize = 16 << 10;

/// The end of a record, which the digest does not cover.
#[derive(Clone, Copy)]
enum Ending {
    /// A text line with the digest.
    Line,
    /// The bytes of the digest, as in manifests.
    Bytes,
}

impl Ending {
    fn of(self, digest: &Digest) -> Vec<u8> {
        match self {
            Self::Line => format!("\nblake3 {digest}\n").into_bytes(),
            Self::Bytes => digest.0.to_vec(),
        }
    }

    /// The digest in `ending`; `None` if it has another form.
    fn digest(self, ending: &[u8]) -> Option<Digest> {
        let digest = match self {
            Self::Line => std::str::from_utf8(ending.get(8..72)?).ok()?.parse().ok()?,
            Self::Bytes => Digest(ending.try_into().ok()?),
        };
        (self.of(&digest) == ending).then_some(digest)
    }
}

/// The original content of `stored`, if one bit has changed. `None` if nothing has changed, or if more has. The
/// search takes about 20 ms for 1 KiB.
pub(crate) fn mend(stored: &[u8]) -> Option<Bytes> {
    mend_by(stored, &[1, 2, 4, 8, 16, 32, 64, 128])
}

/// The same for a change of one byte, in a record of at most `BYTE_MENDED_MAX` bytes. Much slower.
pub(crate) fn mend_byte(stored: &[u8]) -> Option<Bytes> {
    let changes: Vec<u8> = (1..=u8::MAX).collect();
    if stored.len() > BYTE_MENDED_MAX { None } else { mend_by(stored, &changes) }
}

fn mend_by(stored: &[u8], changes: &[u8]) -> Option<Bytes> {
    let ending = if looks_like_manifest(stored) { Ending::Bytes } else { Ending::Line };
    let (covered, end) =
        stored.split_at_checked(stored.len().checked_sub(ending.of(&Digest([0; 32])).len())?)?;
    let expected = ending.of(&Digest::of(covered));
    match end.iter().zip(&expected).filter(|(found, expected)| found != expected).count() {
        0 => None,
        1 => Some([covered, &expected].concat().into()),
        _ => {
            let covered = restore(covered, &ending.digest(end)?, changes)?;
            Some([&covered[..], end].concat().into())
        }
    }
}

/// Whether `stored` starts like a manifest, with at most one byte changed.
fn looks_like_manifest(stored: &[u8]) -> bool {
    stored.len() >= 4 && stored.iter().zip(b"DCMF").filter(|(found, expected)| found != expected).count() <= 1
}

/// Content with the digest `digest` that differs from `content` in one byte, by one of the XOR masks `changes`.
fn restore(content: &[u8], digest: &Digest, changes: &[u8]) -> Option<Vec<u8>> {
    let mut tried = content.to_vec();
    for piece in (0..content.len()).step_by(PIECE) {
        let way = Way::up(content, piece);
        let within = piece..content.len().min(piece + PIECE);
        for at in within.clone() {
            for change in changes {
                tried[at] ^= change;
                if way.digest(&tried[within.clone()]) == *digest {
                    return Some(tried);
                }
                tried[at] ^= change;
            }
        }
    }
    None
}

/// The path from a piece to the root of the hash tree.
struct Way {
    /// Offset of the piece in bytes.
    start: usize,
    /// The sibling hashes on the path, lowest first, and whether each comes before the path's own.
    beside: Vec<(bool, ChainingValue)>,
}

impl Way {
    /// The path of the piece of `content` at offset `start`.
    fn up(content: &[u8], start: usize) -> Self {
        let mut beside = Vec::new();
        let (mut from, mut to) = (0, content.len());
        while to - from > PIECE {
            let left = usize::try_from(left_subtree_len((to - from) as u64)).expect("it is in memory");
            let middle = from + left;
            if start < middle {
                beside.push((false, part(&content[middle..to], middle)));
                to = middle;
            } else {
                beside.push((true, part(&content[from..middle], from)));
                from = middle;
            }
        }
        beside.reverse();
        Self { start, beside }
    }

    /// The digest of the whole content if the piece were `piece`.
    fn digest(&self, piece: &[u8]) -> Digest {
        let Some(((is_before, top), below)) = self.beside.split_last() else { return Digest::of(piece) };
        let mut value = part(piece, self.start);
        for (is_before, beside) in below {
            let (left, right) = if *is_before { (beside, &value) } else { (&value, beside) };
            value = merge_subtrees_non_root(left, right, Mode::Hash);
        }
        let (left, right) = if *is_before { (top, &value) } else { (&value, top) };
        Digest(*merge_subtrees_root(left, right, Mode::Hash).as_bytes())
    }
}

/// The chaining value of `bytes` at offset `start`, which are not the whole content.
fn part(bytes: &[u8], start: usize) -> ChainingValue {
    blake3::Hasher::new().set_input_offset(start as u64).update(bytes).finalize_non_root()
}

#[cfg(test)]
mod tests {
    use base::Chance;

    use super::*;

    fn text(length: usize) -> Vec<u8> {
        let line = "x".repeat(length);
        format!("{line}\nblake3 {}\n", Digest::of(line.as_bytes())).into_bytes()
    }

    fn manifest(length: usize) -> Vec<u8> {
        let body = [&b"DCMF"[..], &vec![7; length]].concat();
        [&body[..], &Digest::of(&body).0].concat()
    }

    #[test]
    fn every_bit_is_put_right() {
        for whole in [text(0), text(1), text(300), manifest(0), manifest(200)] {
            assert_eq!(mend(&whole), None);
            for at in 0..whole.len() {
                for bit in 0..8 {
                    let mut damaged = whole.clone();
                    damaged[at] ^= 1 << bit;
                    assert_eq!(mend(&damaged).as_deref(), Some(&whole[..]), "bit {bit} of byte {at}");
                }
            }
        }
    }

    #[test]
    fn long_records_are_put_right_piece_by_piece() {
        let mut chance = Chance::from_seed(1);
        for length in [1023, 1024, 1025, 2048, 2049, 3000, 5000, 20_000] {
            for whole in [text(length), manifest(length)] {
                for _ in 0..2 {
                    let mut damaged = whole.clone();
                    let at = usize::try_from(chance.below(whole.len() as u64)).unwrap();
                    damaged[at] ^= 1 << chance.below(8);
                    assert_eq!(mend(&damaged).as_deref(), Some(&whole[..]), "byte {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_byte_of_a_short_record_is_put_right_and_more_damage_is_not() {
        let whole = text(200);
        let mut damaged = whole.clone();
        damaged[77] = 0;
        assert_eq!(mend(&damaged), None);
        assert_eq!(mend_byte(&damaged).as_deref(), Some(&whole[..]));
        damaged[177] = 0;
        assert_eq!(mend_byte(&damaged), None);
        for spoilt in [&whole[1..], &whole[..whole.len() - 1], &whole[..70], &[], b"DCMF"] {
            assert_eq!(mend(spoilt), None);
        }
    }
}
