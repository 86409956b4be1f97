//! Messages between peers (BEP 3, "peer protocol"), and the handshake before them. Extensions are neither offered nor
//! used: what this crate needs of them, a tracker of ours tells.

use base::{Error, ErrorKind, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::metainfo::InfoHash;

/// What a client asks for at once: all clients take requests of this size.
pub(crate) const BLOCK_BYTES: u32 = 16 << 10;
/// Largest block that is served, as in other clients.
pub(crate) const BLOCK_BYTES_MAX: u32 = 128 << 10;
/// Length of a handshake.
pub(crate) const HANDSHAKE_BYTES: usize = 68;

const PROTOCOL: &[u8; 20] = b"\x13BitTorrent protocol";
/// Bytes of a `piece` message before its block.
pub(crate) const PIECE_HEADER_BYTES: usize = 13;

/// What both sides say first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// The torrent.
    pub(crate) info_hash: InfoHash,
    /// The name of the peer, which it chose.
    pub(crate) peer: [u8; 20],
}

impl Handshake {
    /// The bytes on the wire.
    #[must_use]
    pub(crate) fn encode(&self) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = [0; HANDSHAKE_BYTES];
        bytes[..20].copy_from_slice(PROTOCOL);
        bytes[28..48].copy_from_slice(&self.info_hash.0);
        bytes[48..].copy_from_slice(&self.peer);
        bytes
    }

    /// The handshake that these bytes are; `None` if they are none, such as the first ones of an encrypted connection.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8; HANDSHAKE_BYTES]) -> Option<Self> {
        let is_one = bytes[..20] == PROTOCOL[..];
        let info_hash = InfoHash(bytes[28..48].try_into().expect("20 bytes"));
        is_one.then(|| Self { info_hash, peer: bytes[48..].try_into().expect("20 bytes") })
    }
}

/// A part of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The piece.
    pub piece: u32,
    /// Offset in the piece, in bytes.
    pub begin: u32,
    /// Length in bytes.
    pub len: u32,
}

/// What one peer tells the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Requests are not answered.
    Choke,
    /// Requests are answered.
    Unchoke,
    /// The sender lacks what the receiver has.
    Interested,
    /// The receiver has nothing that the sender lacks.
    NotInterested,
    /// The sender has this piece.
    Have(u32),
    /// The pieces that the sender has, as [`Bits`](crate::Bits).
    Bitfield(Bytes),
    /// The sender asks for a block.
    Request(Block),
    /// The sender needs the block no more.
    Cancel(Block),
    /// A block: piece, offset and bytes.
    Piece(u32, u32, Bytes),
    /// An extension that is not known here.
    Other,
}

impl Message {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let simple = |out: &mut BytesMut, id: u8| {
            out.put_u32(1);
            out.put_u8(id);
        };
        let of_block = |out: &mut BytesMut, id: u8, block: &Block| {
            out.put_u32(13);
            out.put_u8(id);
            [block.piece, block.begin, block.len].iter().for_each(|&number| out.put_u32(number));
        };
        match self {
            Self::Choke => simple(out, 0),
            Self::Unchoke => simple(out, 1),
            Self::Interested => simple(out, 2),
            Self::NotInterested => simple(out, 3),
            Self::Have(piece) => {
                out.put_u32(5);
                out.put_u8(4);
                out.put_u32(*piece);
            }
            Self::Bitfield(bits) => {
                out.put_u32(u32::try_from(1 + bits.len()).expect("one bit for each piece"));
                out.put_u8(5);
                out.put_slice(bits);
            }
            Self::Request(block) => of_block(out, 6, block),
            Self::Cancel(block) => of_block(out, 8, block),
            Self::Piece(piece, begin, bytes) => {
                out.put_slice(&piece_header(*piece, *begin, bytes.len()));
                out.put_slice(bytes);
            }
            Self::Other => out.put_u32(0),
        }
    }

    /// Takes the next message out of `input`; `None` while it is not complete. A torrent of `pieces` pieces allows no
    /// longer message than a block or a set of pieces.
    ///
    /// # Errors
    /// `Malformed` if it is too long, or not as long as its kind is.
    pub fn decode(input: &mut BytesMut, pieces: u32) -> Result<Option<Self>> {
        let malformed = || Error::new(ErrorKind::Malformed, "a peer sent a message of a wrong length");
        let Some(len) = input.first_chunk::<4>().map(|len| u32::from_be_bytes(*len)) else { return Ok(None) };
        if len > (9 + BLOCK_BYTES_MAX).max(1 + pieces.div_ceil(8)) {
            return Err(malformed());
        }
        if input.len() < 4 + len as usize {
            return Ok(None);
        }
        input.advance(4);
        let mut body = input.split_to(len as usize).freeze();
        // The shortest message has no kind and keeps the connection alive.
        if body.is_empty() {
            return Ok(Some(Self::Other));
        }
        let id = body.get_u8();
        let right = match id {
            0..=3 => body.is_empty(),
            4 => body.len() == 4,
            6 | 8 => body.len() == 12,
            7 => body.len() >= 8,
            _ => true,
        };
        if !right {
            return Err(malformed());
        }
        let block =
            |body: &mut Bytes| Block { piece: body.get_u32(), begin: body.get_u32(), len: body.get_u32() };
        Ok(Some(match id {
            0 => Self::Choke,
            1 => Self::Unchoke,
            2 => Self::Interested,
            3 => Self::NotInterested,
            4 => Self::Have(body.get_u32()),
            5 => Self::Bitfield(body),
            6 => Self::Request(block(&mut body)),
            7 => Self::Piece(body.get_u32(), body.get_u32(), body),
            8 => Self::Cancel(block(&mut body)),
            _ => Self::Other,
        }))
    }
}

/// What precedes `len` bytes of a block on the wire.
#[must_use]
pub(crate) fn piece_header(piece: u32, begin: u32, len: usize) -> [u8; PIECE_HEADER_BYTES] {
    let mut header = [0; PIECE_HEADER_BYTES];
    header[..4].copy_from_slice(&u32::try_from(9 + len).expect("at most a block").to_be_bytes());
    header[4] = 7;
    header[5..9].copy_from_slice(&piece.to_be_bytes());
    header[9..].copy_from_slice(&begin.to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_went_however_they_are_cut() {
        let block = Block { piece: 1, begin: 2, len: 3 };
        let messages = [
            Message::Choke,
            Message::Unchoke,
            Message::Interested,
            Message::NotInterested,
            Message::Have(7),
            Message::Bitfield(Bytes::from_static(&[0x80])),
            Message::Request(block),
            Message::Cancel(block),
            Message::Piece(1, 2, Bytes::from_static(b"abc")),
            Message::Other,
        ];
        let mut wire = BytesMut::new();
        messages.iter().for_each(|message| message.encode(&mut wire));
        let (mut input, mut found) = (BytesMut::new(), Vec::new());
        for byte in wire {
            input.put_u8(byte);
            found.extend(Message::decode(&mut input, 8).unwrap());
        }
        assert_eq!(found, messages);
    }

    #[test]
    fn wrong_lengths_are_refused_before_memory_is_taken() {
        for wrong in
            [&[0xFF, 0, 0, 0][..], &[0, 0, 0, 2, 0, 0], &[0, 0, 0, 1, 4], &[0, 0, 0, 5, 7, 0, 0, 0, 0]]
        {
            assert!(Message::decode(&mut wrong.into(), 8).is_err(), "{wrong:?}");
        }
        // A set of many pieces may be longer than a block.
        let mut long = BytesMut::from(&(2 * BLOCK_BYTES_MAX).to_be_bytes()[..]);
        assert!(Message::decode(&mut long.clone(), 8).is_err());
        assert_eq!(Message::decode(&mut long, 32 * BLOCK_BYTES_MAX).unwrap(), None);
    }

    #[test]
    fn a_handshake_names_torrent_and_peer() {
        let handshake = Handshake { info_hash: InfoHash([3; 20]), peer: [4; 20] };
        let mut bytes = handshake.encode();
        assert_eq!(Handshake::decode(&bytes), Some(handshake));
        bytes[0] = 18;
        assert_eq!(Handshake::decode(&bytes), None);
    }
}
