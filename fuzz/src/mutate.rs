//! Mutation of valid inputs: flips, cuts, splices and numbers at their edges, from a seed that replays.

use base::Chance;

/// Numbers at which parsers break: zero, ones, signs and widths.
const EDGES: [u64; 9] =
    [0, 1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x8000_0000, 0x7FFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF];

/// `seed` with one to four small damages.
pub(crate) fn mutate(chance: &mut Chance, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=chance.below(4) {
        damage(chance, &mut bytes);
    }
    bytes
}

fn damage(chance: &mut Chance, bytes: &mut Vec<u8>) {
    let length = bytes.len() as u64;
    // Headers stand at the front: half of the damage goes there.
    let reach = if chance.below(2) == 0 { length.min(128) } else { length };
    let at = index(chance.below(reach));
    match chance.below(6) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << chance.below(8),
        1 if !bytes.is_empty() => bytes[at] = chance.u64().to_le_bytes()[0],
        2 => bytes.truncate(at),
        3 => set_number(chance, bytes, at),
        4 => {
            let end = bytes.len().min(at + index(chance.below(16)));
            let piece: Vec<u8> = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let end = bytes.len().min(at + index(chance.below(16)));
            bytes.drain(at..end);
        }
    }
}

fn set_number(chance: &mut Chance, bytes: &mut [u8], at: usize) {
    let width = 1 << chance.below(4);
    let edge = EDGES[index(chance.below(EDGES.len() as u64))].to_le_bytes();
    if let Some(field) = bytes.get_mut(at..at + width) {
        field.copy_from_slice(&edge[..width]);
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("an index of a vector in memory")
}
