//! Lays out the contents of a run on its components, and computes its parity. formats/cluster.md, section 2.

use bytes::Bytes;
use proto::cluster::{Item, Piece, Run, Width, checksum, directory_bytes, encode_directory};
use proto::code::encode_stripe;

use crate::buffers::{Buffer, Buffers};

/// A piece of content that is to be stored.
#[derive(Debug, Clone)]
pub(super) struct NewPiece {
    pub(super) name: String,
    pub(super) stamp: u64,
    /// The length of the whole content, and where this piece begins in it.
    pub(super) whole: u64,
    pub(super) from: u64,
    pub(super) content: Bytes,
    /// The entry is inserted as soon as the piece is stored. Of a content in several pieces, and of one that is moved,
    /// whoever stores it does that.
    pub(super) indexed: bool,
}

/// A run, ready to be sent.
#[derive(Debug)]
pub(super) struct Formed {
    /// What goes to each component.
    pub(super) parts: Vec<Bytes>,
    /// Where each piece lies.
    pub(super) pieces: Vec<Piece>,
}

/// Forms the run at `place` of `segment`.
pub(super) fn form(buffers: &Buffers, segment: u64, place: Run, width: Width, new: &[NewPiece]) -> Formed {
    let mut offset = directory_bytes(new.iter().map(|piece| piece.name.len()));
    let small = |number: usize| u32::try_from(number).expect("a run is bounded");
    let mut items = Vec::with_capacity(new.len());
    let mut pieces = Vec::with_capacity(new.len());
    for piece in new {
        let (at, length, sum) = (small(offset), small(piece.content.len()), checksum(&piece.content));
        offset += piece.content.len();
        pieces.push(Piece { segment, run: place, width, offset: at, length, sum });
        let NewPiece { stamp, whole, from, name, .. } = piece;
        let name = name.clone();
        items.push(Item { stamp: *stamp, whole: *whole, from: *from, offset: at, length, sum, name });
    }
    let directory = encode_directory(&items, place.bytes);
    let fresh = |count: u8| (0..count).map(|_| buffers.take(place.bytes as usize)).collect::<Vec<_>>();
    let mut parts = fresh(width.data);
    lay_out(&mut parts, place, width, 0, &directory);
    for (piece, new) in pieces.iter().zip(new) {
        lay_out(&mut parts, place, width, piece.offset.into(), &new.content);
    }
    // The rest is zero, whatever the buffers held before.
    let rest = usize::try_from(place.content_bytes(width)).expect("a run is bounded") - offset;
    lay_out(&mut parts, place, width, offset as u64, &vec![0; rest]);
    let mut parity = fresh(width.parity);
    let data: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    let mut symbols: Vec<&mut [u8]> = parity.iter_mut().map(|part| &mut part[..]).collect();
    // Units of one stripe lie at the same place in all parts, and the code works tile by tile: so whole parts can be
    // coded at once, whatever stripes they hold.
    encode_stripe(&data, &mut symbols);
    Formed { parts: parts.into_iter().chain(parity).map(Buffer::freeze).collect(), pieces }
}

/// Copies `content`, which begins at `from` of the run's content, to the parts.
fn lay_out(parts: &mut [Buffer], place: Run, width: Width, from: u64, content: &[u8]) {
    let mut rest = content;
    for span in place.spans(width, from..from + content.len() as u64) {
        let (here, behind) = rest.split_at(span.bytes as usize);
        let at = span.in_part as usize;
        parts[usize::from(span.component)][at..at + here.len()].copy_from_slice(here);
        rest = behind;
    }
    assert!(rest.is_empty(), "the run was formed for this content");
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Chance;
    use proto::cluster::decode_directory;
    use proto::code::recover_stripe;

    #[test]
    fn any_k_parts_give_every_piece_back() {
        let mut chance = Chance::from_seed(1);
        for (data, parity) in [(8, 2), (3, 1), (1, 1), (1, 2), (4, 0), (10, 3)] {
            let width = Width::new(data, parity).unwrap();
            let new: Vec<_> = (0..7).map(|number| piece(&mut chance, number)).collect();
            let names = directory_bytes(new.iter().map(|piece| piece.name.len()));
            let content = names + new.iter().map(|piece| piece.content.len()).sum::<usize>();
            let place = Run { at: 8192, bytes: Run::part_bytes(content as u64, width) };
            let formed = form(&Buffers::new(1 << 20), 5, place, width, &new);
            let k = usize::from(data);
            // Lose as many data parts as there is parity.
            let lost: Vec<usize> = (0..k.min(parity.into())).collect();
            let known: Vec<Option<&[u8]>> =
                (0..k).map(|part| (!lost.contains(&part)).then(|| &formed.parts[part][..])).collect();
            let symbols: Vec<(u16, &[u8])> =
                (0u16..).zip(formed.parts[k..].iter().map(|part| &part[..])).collect();
            let mut restored = vec![vec![0; place.bytes as usize]; lost.len()];
            let mut missing: Vec<&mut [u8]> = restored.iter_mut().map(Vec::as_mut_slice).collect();
            recover_stripe(&known, &symbols[..lost.len()], &mut missing);
            let parts: Vec<&[u8]> = (0..k)
                .map(|part| {
                    lost.iter()
                        .position(|&gone| gone == part)
                        .map_or(&formed.parts[part][..], |at| &restored[at])
                })
                .collect();
            let whole = gather(&parts, place, width, 0..place.content_bytes(width));
            let (items, bytes) = decode_directory(&whole).unwrap();
            assert_eq!((items.len(), bytes), (7, place.bytes));
            for ((item, piece), new) in items.iter().zip(&formed.pieces).zip(&new) {
                let at = piece.offset as usize;
                let found = &whole[at..at + piece.length as usize];
                assert_eq!(
                    (found, &item.name, item.sum),
                    (&new.content[..], &new.name, checksum(&new.content))
                );
            }
        }
    }

    fn piece(chance: &mut Chance, number: u64) -> NewPiece {
        let mut content = vec![0; usize::try_from(chance.below(200_000)).unwrap()];
        chance.fill(&mut content);
        let (whole, content) = (content.len() as u64, Bytes::from(content));
        NewPiece { name: format!("piece/{number}"), stamp: number, whole, from: 0, content, indexed: true }
    }

    fn gather(parts: &[&[u8]], place: Run, width: Width, range: std::ops::Range<u64>) -> Vec<u8> {
        let mut whole = Vec::new();
        for span in place.spans(width, range) {
            let at = span.in_part as usize;
            whole.extend_from_slice(&parts[usize::from(span.component)][at..at + span.bytes as usize]);
        }
        whole
    }
}
