//! BitTorrent, by the machine that is shipped (`torrent::swarm`): the server and all receivers are members of one
//! swarm, each of them connected to all that are there. A chunk of the stage is a block.
//!
//! Assumed: a tracker that names all, at once; handshakes and digests that take no time. Receivers at one switch are
//! near each other. What was asked for and is called off is sent all the same.

use std::collections::BTreeMap;

use base::{Chance, Duration, Instant};
use bytes::Bytes;
use torrent::hash::PieceHash;
use torrent::swarm::{Nearness, Output, Swarm};
use torrent::wire::{Block, Message};
use torrent::{Bits, Hashes, Kind, Metainfo, piece_bytes_for};

use super::{Policy, Setting, Stage};
use crate::fabric::Place;

/// What clients ask for at once.
pub(super) const BLOCK_BYTES: u32 = 16 << 10;
/// Chunks of an image, which pieces hold whole.
const IMAGE_CHUNK_BYTES: u32 = 256 << 10;
const TICK: Duration = Duration::from_secs(1);

static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The swarm of each place.
pub(super) struct Torrent {
    metainfo: Metainfo,
    swarms: BTreeMap<Place, Swarm>,
    chance: Chance,
    /// When the server's swarm was last told the time.
    ticked: Instant,
}

impl Torrent {
    /// A torrent of the setting's image, which the server has. Chunks of the setting are blocks.
    #[must_use]
    pub(super) fn new(setting: &Setting) -> Self {
        assert_eq!(setting.chunk_bytes, u64::from(BLOCK_BYTES), "a chunk is a block");
        let length = u64::from(setting.chunks) * setting.chunk_bytes;
        let piece_bytes = piece_bytes_for(length, IMAGE_CHUNK_BYTES);
        let count = length.div_ceil(piece_bytes.into()) as usize;
        let pieces = vec![PieceHash { v1: [0; 20], v2: [0; 32] }; count];
        let metainfo = Metainfo::new("image", &Hashes { length, piece_bytes, pieces }, Kind::V1);
        let chance = Chance::from_seed(setting.seed);
        let mut all = Self { metainfo, swarms: BTreeMap::new(), chance, ticked: Instant::ZERO };
        all.join(setting.server, Bits::all(count as u32));
        all
    }

    fn join(&mut self, at: Place, have: Bits) {
        let chance = self.chance.fork();
        self.swarms.insert(at, Swarm::new(&self.metainfo, have, name(at), chance));
    }

    /// Connects two places.
    fn connect<M: Clone>(&mut self, stage: &Stage<M>, one: Place, other: Place) {
        let is_near = stage.number(other).is_some() && stage.switch(one) == stage.switch(other);
        let nearness = if is_near { Nearness::Near } else { Nearness::Far };
        for (at, peer) in [(one, other), (other, one)] {
            if let Some(swarm) = self.swarms.get_mut(&at) {
                swarm.connected(peer.0.into(), (name(peer), nearness), stage.now());
            }
        }
    }

    fn disconnect(&mut self, one: Place, other: Place, now: Instant) {
        for (at, peer) in [(one, other), (other, one)] {
            if let Some(swarm) = self.swarms.get_mut(&at) {
                swarm.disconnected(peer.0.into(), now);
            }
        }
    }

    fn chunk(&self, block: Block) -> u32 {
        block.piece * (self.metainfo.piece_bytes() / BLOCK_BYTES) + block.begin / BLOCK_BYTES
    }

    fn block(&self, chunk: u32) -> (u32, u32) {
        let each = self.metainfo.piece_bytes() / BLOCK_BYTES;
        (chunk / each, chunk % each * BLOCK_BYTES)
    }

    /// Does what the swarm of a place wants.
    fn act(&mut self, stage: &mut Stage<Message>, at: Place) {
        while let Some(output) = self.swarms.get_mut(&at).and_then(Swarm::poll) {
            match output {
                Output::Send(peer, message @ Message::Request(_)) => stage.ask(at, place(peer), message),
                Output::Send(peer, message) => stage.tell(at, place(peer), message),
                Output::Serve(peer, block) => {
                    stage.send(at, place(peer), self.chunk(block));
                }
                Output::Verify(piece, _) => {
                    if let Some(swarm) = self.swarms.get_mut(&at) {
                        swarm.verified(piece, true, stage.now());
                    }
                }
                Output::Close(peer, _) => {
                    self.disconnect(at, place(peer), stage.now());
                    self.act(stage, place(peer));
                }
                Output::Unserve(..) | Output::UnserveAll(_) | Output::Complete => {}
            }
        }
    }

    fn hear(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, message: Message) {
        // Of a place that has left nothing is heard.
        if let Some(swarm) = self.swarms.get_mut(&at) {
            swarm.heard(from.0.into(), message, stage.now()).expect("members keep to the protocol");
            self.act(stage, at);
        }
    }
}

/// The name of a member: other ones than of another place in the part that is by chance.
fn name(at: Place) -> [u8; 20] {
    let mut name = [b'-'; 20];
    name[12..].copy_from_slice(&Chance::from_seed(at.0.into()).u64().to_be_bytes());
    name
}

fn place(key: u64) -> Place {
    Place(u32::try_from(key).expect("keys are numbers of places"))
}

impl Policy for Torrent {
    type Message = Message;

    fn started(&mut self, stage: &mut Stage<Message>, at: Place) {
        let others: Vec<Place> = self.swarms.keys().copied().collect();
        self.join(at, Bits::none(self.metainfo.piece_count()));
        for other in others {
            self.connect(stage, at, other);
            self.act(stage, other);
        }
        self.act(stage, at);
        stage.wake(at, stage.now() + TICK, 0);
    }

    fn told(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, message: Message) {
        self.hear(stage, at, from, message);
    }

    fn arrived(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, chunk: u32, _: bool) {
        let (piece, begin) = self.block(chunk);
        self.hear(stage, at, from, Message::Piece(piece, begin, Bytes::from_static(&ZEROS)));
    }

    fn woken(&mut self, stage: &mut Stage<Message>, at: Place, _: u64) {
        let (now, server) = (stage.now(), stage.setting().server);
        let is_time = now.since(self.ticked) >= TICK;
        for place in [Some(at), is_time.then_some(server)].into_iter().flatten() {
            if let Some(swarm) = self.swarms.get_mut(&place) {
                swarm.tick(now);
                self.act(stage, place);
            }
        }
        if is_time {
            self.ticked = now;
        }
        if self.swarms.contains_key(&at) {
            stage.wake(at, now + TICK, 0);
        }
    }

    fn ended(&mut self, stage: &mut Stage<Message>, at: Place) {
        self.swarms.remove(&at);
        let others: Vec<Place> = self.swarms.keys().copied().collect();
        for other in others {
            self.disconnect(other, at, stage.now());
            self.act(stage, other);
        }
    }
}
