//! BitTorrent: files of torrents, what peers send, announces, and what trackers answer.

use bytes::BytesMut;
use torrent::bencode::Value;
use torrent::hash::{Hashes, PieceHash};
use torrent::tracker::{Announce, Answer, refusal};
use torrent::wire::{Block, Message};
use torrent::{Kind, Metainfo};

use crate::Target;

fn torrent(kind: Kind) -> Vec<u8> {
    let pieces = vec![PieceHash { v1: [1; 20], v2: [2; 32] }; 3];
    let hashes = Hashes { length: 700_000, piece_bytes: 1 << 18, pieces };
    Metainfo::new("web@3.img", &hashes, kind).encode(Some("http://10.0.0.1:7717/announce"))
}

pub(crate) const METAINFO: Target = Target {
    name: "metainfo",
    seeds: || vec![torrent(Kind::V1), torrent(Kind::Hybrid)],
    take: |input| {
        if let Ok(value) = Value::decode(input) {
            assert_eq!(value.encode(), input, "there is one form");
        }
        if let Ok((torrent, announce)) = Metainfo::parse(input) {
            let again = Metainfo::parse(&torrent.encode(announce.as_deref()));
            assert_eq!(again.ok(), Some((torrent, announce)));
        }
    },
};

/// Messages of a peer.
pub(crate) const MESSAGES: Target = Target {
    name: "torrent_messages",
    seeds: || {
        let block = Block { piece: 1, begin: 16384, len: 16384 };
        let mut wire = BytesMut::new();
        let bits = Message::Bitfield(vec![0xA0, 0x01].into());
        let piece = Message::Piece(1, 16384, vec![7; 40].into());
        for message in [bits, Message::Interested, Message::Request(block), piece, Message::Have(3)] {
            message.encode(&mut wire);
        }
        vec![wire.to_vec()]
    },
    take: |input| {
        let mut input = BytesMut::from(input);
        while let Ok(Some(_)) = Message::decode(&mut input, 16) {}
    },
};

/// What clients announce, and what trackers answer.
pub(crate) const TRACKER: Target = Target {
    name: "tracker",
    seeds: || {
        let answer =
            b"d8:completei1e10:incompletei2e8:intervali30e5:peers6:\x0a\x00\x00\x01\x1a\xe16:peers60:e";
        let announce =
            b"info_hash=%01%02aaaaaaaaaaaaaaaaaa&port=6881&left=7&event=started&numwant=50&compact=1";
        vec![answer.to_vec(), announce.to_vec(), refusal("not here")]
    },
    take: |input| {
        let _ = Answer::parse(input);
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = Announce::parse(text);
        }
    },
};
