//! What is known of one peer of a torrent.

use std::collections::VecDeque;

use base::Instant;

use crate::bits::Bits;
use crate::wire::Block;

/// Who a peer is to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// In the same network, or at the same place.
    Near,
    /// Elsewhere; or the server, whose link all share.
    Far,
}

/// One peer.
pub(super) struct Peer {
    pub(super) nearness: Nearness,
    /// The pieces that it has.
    pub(super) has: Bits,
    /// How many of them are missing here.
    pub(super) useful: u32,
    /// Whether it answers no requests.
    pub(super) chokes_us: bool,
    /// Whether it was told that it has what is missing here.
    pub(super) told_interest: bool,
    /// Whether it lacks what is here.
    pub(super) is_interested: bool,
    /// Whether its requests are not answered.
    pub(super) is_choked: bool,
    /// Since when they are.
    pub(super) unchoked_at: Instant,
    /// What it was asked for, the first one first.
    pub(super) asked: VecDeque<Block>,
    /// When it last sent a block, or was asked while nothing was under way.
    pub(super) heard_at: Instant,
    /// How many blocks it sent.
    pub(super) sent: usize,
    /// Wrong pieces of which it sent a part.
    pub(super) wrong: u32,
}

impl Peer {
    pub(super) fn new(nearness: Nearness, pieces: u32, now: Instant) -> Self {
        Self {
            nearness,
            has: Bits::none(pieces),
            useful: 0,
            chokes_us: true,
            told_interest: false,
            is_interested: false,
            is_choked: true,
            unchoked_at: now,
            asked: VecDeque::new(),
            heard_at: now,
            sent: 0,
            wrong: 0,
        }
    }

    pub(super) fn is_far(&self) -> bool {
        self.nearness == Nearness::Far
    }

    /// Forgets that `block` was asked for. False if it was not.
    pub(super) fn answered(&mut self, block: Block) -> bool {
        let at = self.asked.iter().position(|asked| *asked == block);
        at.and_then(|at| self.asked.remove(at)).is_some()
    }
}
