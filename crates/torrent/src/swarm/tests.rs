//! Swarms that talk to each other in memory.

#![allow(clippy::cast_possible_truncation, reason = "the numbers of a test are small")]

use std::collections::{HashMap, HashSet};

use super::*;
use crate::hash::hash;
use crate::hash::tests::Memory;
use crate::metainfo::Kind;

const PIECE: u32 = 256 << 10;

fn file(pieces: usize) -> Vec<u8> {
    let mut bytes = vec![0; pieces * PIECE as usize - 1000];
    Chance::from_seed(9).fill(&mut bytes);
    bytes
}

/// The name of a member.
fn name(key: Key) -> Name {
    let mut name = [0; 20];
    Chance::from_seed(key).fill(&mut name);
    name
}

fn torrent_of(bytes: &[u8]) -> Metainfo {
    let content = Memory(parking_lot::Mutex::new(bytes.to_vec()));
    Metainfo::new("file", &hash(&content, PIECE).unwrap(), Kind::V1)
}

/// Members that are all connected; member 0 has everything. Messages travel one at a time, in turn.
struct Lan {
    torrent: Metainfo,
    file: Vec<u8>,
    members: Vec<Swarm>,
    /// Pieces that each found right.
    kept: Vec<u32>,
    /// What was sent from one to another, in blocks.
    sent: HashMap<(usize, usize), u32>,
    requests: HashMap<(usize, usize), VecDeque<Block>>,
    closed: HashSet<(usize, usize)>,
    complete: HashSet<usize>,
    /// One that sends wrong bytes.
    liar: Option<usize>,
}

impl Lan {
    fn new(pieces: usize, members: usize, nearness: impl Fn(usize, usize) -> Nearness) -> Self {
        let file = file(pieces);
        let torrent = torrent_of(&file);
        let count = torrent.piece_count();
        let swarm = |number: usize| {
            let have = if number == 0 { Bits::all(count) } else { Bits::none(count) };
            Swarm::new(&torrent, have, name(number as Key), Chance::from_seed(number as u64 + 1))
        };
        let mut lan = Self {
            members: (0..members).map(swarm).collect(),
            kept: vec![0; members],
            sent: HashMap::new(),
            requests: HashMap::new(),
            closed: HashSet::new(),
            complete: HashSet::new(),
            liar: None,
            torrent,
            file,
        };
        for one in 0..members {
            for other in (0..members).filter(|&other| other != one) {
                lan.members[one].connected(
                    other as Key,
                    (name(other as Key), nearness(one, other)),
                    Instant::ZERO,
                );
            }
        }
        lan
    }

    /// Runs until nobody has anything to say. In each turn, each member sends one block, to the others in turn.
    fn run(&mut self) {
        let count = self.members.len();
        let mut next = vec![0; count];
        loop {
            while self.talk() {}
            let mut moved = false;
            for (from, next) in next.iter_mut().enumerate() {
                let order = (0..count).map(|step| (*next + step) % count);
                let waits =
                    |to: &usize| self.requests.get(&(from, *to)).is_some_and(|queue| !queue.is_empty());
                let Some(to) = order.into_iter().find(waits) else { continue };
                *next = to + 1;
                moved = true;
                self.send(from, to);
                while self.talk() {}
            }
            if !moved {
                return;
            }
        }
    }

    /// Sends the next block that one asked for.
    fn send(&mut self, from: usize, to: usize) {
        let Some(block) = self.requests.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        *self.sent.entry((from, to)).or_default() += 1;
        let at = self.torrent.piece_offset(block.piece) as usize + block.begin as usize;
        let mut bytes = self.file[at..at + block.len as usize].to_vec();
        if self.liar == Some(from) {
            bytes[0] ^= 1;
        }
        let message = Message::Piece(block.piece, block.begin, bytes.into());
        self.members[to].heard(from as Key, message, Instant::ZERO).unwrap();
    }

    fn talk(&mut self) -> bool {
        let mut any = false;
        for one in 0..self.members.len() {
            while let Some(output) = self.members[one].poll() {
                any = true;
                self.act(one, output);
            }
        }
        any
    }

    fn act(&mut self, one: usize, output: Output) {
        let now = Instant::ZERO;
        match output {
            Output::Send(other, message) => {
                let other = other as usize;
                if !self.closed.contains(&(one, other)) {
                    self.members[other].heard(one as Key, message, now).unwrap();
                }
            }
            Output::Serve(other, block) => {
                self.requests.entry((one, other as usize)).or_default().push_back(block);
            }
            Output::Unserve(other, block) => {
                self.requests.entry((one, other as usize)).or_default().retain(|waiting| *waiting != block);
            }
            Output::UnserveAll(other) => {
                self.requests.remove(&(one, other as usize));
            }
            Output::Close(other, _) => self.close(one, other as usize),
            Output::Verify(piece, bytes) => {
                let at = self.torrent.piece_offset(piece) as usize;
                let is_right = self.file[at..at + self.torrent.piece_len(piece) as usize] == bytes;
                self.kept[one] += u32::from(is_right);
                self.members[one].verified(piece, is_right, now);
            }
            Output::Complete => {
                assert!(self.complete.insert(one), "said once");
            }
        }
    }

    fn close(&mut self, one: usize, other: usize) {
        for (one, other) in [(one, other), (other, one)] {
            if self.closed.insert((one, other)) {
                self.requests.remove(&(one, other));
                self.members[one].disconnected(other as Key, Instant::ZERO);
            }
        }
    }

    fn check_all(&self) {
        for member in 1..self.members.len() {
            assert!(self.complete.contains(&member), "member {member}");
            assert_eq!(self.kept[member], self.torrent.piece_count());
            assert_eq!((self.members[member].open_pieces(), self.members[member].under_way), (0, 0));
        }
    }

    /// Blocks from members that `from` names to those that `to` names, as a share of the file.
    fn images(&self, from: impl Fn(usize) -> bool, to: impl Fn(usize) -> bool) -> f64 {
        let links = self.sent.iter().filter(|((one, other), _)| from(*one) && to(*other));
        let blocks: u32 = links.map(|(_, blocks)| blocks).sum();
        f64::from(blocks) * f64::from(crate::wire::BLOCK_BYTES) / self.file.len() as f64
    }
}

fn all_near(_: usize, other: usize) -> Nearness {
    if other == 0 { Nearness::Far } else { Nearness::Near }
}

#[test]
fn one_gets_all_from_one() {
    let mut lan = Lan::new(9, 2, all_near);
    lan.run();
    lan.check_all();
    assert_eq!(lan.sent[&(0, 1)], 9 * 16, "each block once");
    assert!(lan.members[0].peers() == 0, "two that have everything part");
}

#[test]
fn many_share_and_the_server_sends_little_more_than_one_image() {
    let mut lan = Lan::new(240, 9, all_near);
    lan.run();
    lan.check_all();
    let images = lan.images(|from| from == 0, |_| true);
    assert!((1.0..1.15).contains(&images), "{images}");
}

#[test]
fn little_crosses_between_two_places() {
    // Members 1 to 4 are at one place, 5 to 8 at another.
    let nearness = |one: usize, other: usize| {
        if other != 0 && (one < 5) == (other < 5) { Nearness::Near } else { Nearness::Far }
    };
    let mut lan = Lan::new(240, 9, nearness);
    lan.run();
    lan.check_all();
    let images = lan.images(|from| from < 5, |to| to >= 5);
    assert!((1.0..1.25).contains(&images), "{images}");
}

#[test]
fn who_sends_wrong_pieces_is_left() {
    let mut lan = Lan::new(40, 4, all_near);
    lan.liar = Some(3);
    lan.run();
    for member in [1, 2] {
        assert!(lan.complete.contains(&member), "member {member}");
        assert!(lan.closed.contains(&(member, 3)));
    }
}

#[test]
fn a_member_that_vanishes_holds_nothing_up() {
    let mut lan = Lan::new(60, 4, all_near);
    while lan.talk() {}
    // It was asked by others, and is asked no more.
    lan.close(1, 3);
    lan.close(2, 3);
    lan.run();
    lan.check_all();
}

#[test]
fn a_silent_peer_is_left_and_what_it_owed_is_asked_of_others() {
    let torrent = torrent_of(&file(4));
    let mut swarm = Swarm::new(&torrent, Bits::none(4), name(0), Chance::from_seed(1));
    let all = || Message::Bitfield(Bytes::copy_from_slice(Bits::all(4).bytes()));
    for key in [1, 2] {
        swarm.connected(key, (name(key), Nearness::Near), Instant::ZERO);
        swarm.heard(key, all(), Instant::ZERO).unwrap();
    }
    swarm.heard(1, Message::Unchoke, Instant::ZERO).unwrap();
    assert_eq!(swarm.under_way, 64, "everything is asked of the one that answers");
    while swarm.poll().is_some() {}
    let later = Instant::ZERO + Duration::from_secs(16);
    swarm.tick(later);
    assert!(matches!(swarm.poll(), Some(Output::Close(1, false))));
    swarm.disconnected(1, later);
    assert_eq!(swarm.under_way, 0);
    swarm.heard(2, Message::Unchoke, later).unwrap();
    assert_eq!(swarm.under_way, 64);
}

#[test]
fn what_breaks_the_protocol_is_an_error() {
    let torrent = torrent_of(&file(4));
    let mut swarm = Swarm::new(&torrent, Bits::all(4), name(0), Chance::from_seed(1));
    swarm.connected(1, (name(1), Nearness::Near), Instant::ZERO);
    swarm.heard(1, Message::Interested, Instant::ZERO).unwrap();
    let wrong = [
        Message::Have(4),
        Message::Bitfield(Bytes::from_static(&[0xFF])),
        Message::Request(Block { piece: 4, begin: 0, len: 1 }),
        Message::Request(Block { piece: 0, begin: PIECE, len: 1 }),
        Message::Request(Block { piece: 3, begin: PIECE - 1000, len: 1 }),
        Message::Request(Block { piece: 0, begin: u32::MAX, len: BLOCK_BYTES_MAX }),
        Message::Request(Block { piece: 0, begin: 0, len: 0 }),
    ];
    for message in wrong {
        assert!(swarm.heard(1, message.clone(), Instant::ZERO).is_err(), "{message:?}");
    }
    // What nobody asked for is no harm.
    swarm.heard(1, Message::Piece(9, 9, Bytes::from_static(b"x")), Instant::ZERO).unwrap();
}

#[test]
fn those_that_wait_are_served_in_turn() {
    let torrent = torrent_of(&file(4));
    let mut swarm = Swarm::new(&torrent, Bits::all(4), name(0), Chance::from_seed(1));
    for key in 0..=SERVED_MAX as Key {
        swarm.connected(key, (name(key), Nearness::Near), Instant::ZERO);
        swarm.heard(key, Message::Interested, Instant::ZERO).unwrap();
    }
    let served = |swarm: &Swarm| -> Vec<Key> {
        swarm.peers.iter().filter(|(_, peer)| !peer.is_choked).map(|(&key, _)| key).collect()
    };
    assert!(served(&swarm).iter().copied().eq(0..SERVED_MAX as Key));
    swarm.tick(Instant::ZERO + TURN + Duration::from_secs(1));
    let after = served(&swarm);
    assert!(after.len() == SERVED_MAX && after.contains(&(SERVED_MAX as Key)), "{after:?}");
}
