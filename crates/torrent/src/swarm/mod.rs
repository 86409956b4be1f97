//! One torrent and its peers: who is asked for which block, and who is served. A machine without I/O; `node` drives it.
//!
//! Which piece next: the rarest among the peers, by chance among equally rare ones (BEP 3), but with nearness. A peer
//! that is far, such as the server, is asked for what no near peer has; only while little is under way is it asked for
//! more. Of that, a member asks first for its own share, which is another one than that of its near peers. So each
//! piece crosses a switch, and leaves the server, about once. Clients of the internet reward those that
//! send much. Here all machines have one owner, so whoever is interested is served, as long as there is room.

mod open;
mod output;
mod peer;
mod share;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base::{Chance, Instant, Result};
use bytes::Bytes;

use crate::bits::Bits;
use crate::metainfo::Metainfo;
use crate::wire::{BLOCK_BYTES_MAX, Block, Message};
use open::{Open, violation};
pub(crate) use output::Key;
pub use output::Output;
pub use peer::Nearness;
use peer::Peer;
pub(crate) use share::Name;
use share::Share;

/// Blocks that are asked for at once, of all peers together: 4 MiB.
const UNDER_WAY_WISHED: usize = 256;
/// Fewest and most blocks that one peer is asked for at once. Clients drop those that ask for more than 250.
const ASKED_MIN: usize = 16;
/// See [`ASKED_MIN`].
const ASKED_MAX: usize = 200;
/// While fewer blocks than this are under way, far peers are asked for what near ones have, too. And not more than this
/// are asked of all far peers together while there are near ones: what one asks for, the others do not know of.
const UNDER_WAY_LOW: usize = 32;
/// So many blocks are asked of all far peers together once no piece of the own share is left.
const BEYOND_SHARE_MAX: usize = 16;
/// If no block has come for this time, far peers are asked for what others were asked for.
const STALLED: Duration = Duration::from_secs(1);
/// Memory for pieces that are not complete, or not kept yet, in bytes; but two pieces at least.
const OPEN_BYTES_MAX: u64 = 64 << 20;
/// A peer that was asked and sends nothing for this time is left.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How many peers are served at once.
const SERVED_MAX: usize = 64;
/// After this time, one that is served makes room if others wait.
const TURN: Duration = Duration::from_secs(10);
/// A peer that sent parts of so many wrong pieces is left.
const WRONG_MAX: u32 = 3;

/// See the module.
pub struct Swarm {
    piece_bytes: u32,
    last_bytes: u32,
    have: Bits,
    peers: BTreeMap<Key, Peer>,
    /// How many peers have each piece, and how many of them are near.
    held: Vec<(u16, u16)>,
    open: BTreeMap<u32, Open>,
    share: Share,
    /// When a block came last.
    came_at: Instant,
    /// Blocks that peers are asked for.
    under_way: usize,
    chance: Chance,
    out: VecDeque<Output>,
}

impl Swarm {
    /// A swarm of `torrent`, of which the pieces `have` are here, in which this side is `own`.
    pub fn new(torrent: &Metainfo, have: Bits, own: Name, chance: Chance) -> Self {
        let count = torrent.piece_count();
        assert_eq!(have.len(), count, "the pieces are those of the torrent");
        Self {
            piece_bytes: torrent.piece_bytes(),
            last_bytes: torrent.piece_len(count - 1),
            have,
            peers: BTreeMap::new(),
            held: vec![(0, 0); count as usize],
            open: BTreeMap::new(),
            share: Share::of_all(own, count),
            came_at: Instant::ZERO,
            under_way: 0,
            chance,
            out: VecDeque::new(),
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// The pieces that are here.
    pub(crate) fn have(&self) -> &Bits {
        &self.have
    }

    /// How many peers are connected.
    pub(crate) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// The peer `name` is connected, and both handshakes are done.
    pub fn connected(&mut self, key: Key, (name, nearness): (Name, Nearness), now: Instant) {
        let known = self.peers.insert(key, Peer::new(nearness, self.have.len(), now));
        assert!(known.is_none(), "a key is used once");
        if nearness == Nearness::Near {
            self.share.joined(key, name);
        }
        if !self.have.is_empty() {
            let bits = Bytes::copy_from_slice(self.have.bytes());
            self.out.push_back(Output::Send(key, Message::Bitfield(bits)));
        }
    }

    /// The connection has ended. What the peer was asked for is asked of others.
    pub fn disconnected(&mut self, key: Key, now: Instant) {
        self.release(key);
        let Some(peer) = self.peers.remove(&key) else { return };
        self.share.left(key);
        for piece in peer.has.iter() {
            self.count(piece, peer.nearness, false);
        }
        self.give_room(now);
        self.ask_all(now);
    }

    /// A peer said something.
    ///
    /// # Errors
    /// `Malformed` if it broke the protocol: the driver ends the connection.
    pub fn heard(&mut self, key: Key, message: Message, now: Instant) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        match message {
            Message::Choke => {
                peer.chokes_us = true;
                self.release(key);
                self.ask_all(now);
            }
            Message::Unchoke => {
                peer.chokes_us = false;
                peer.heard_at = now;
                self.ask(key, now);
            }
            Message::Interested => {
                peer.is_interested = true;
                self.give_room(now);
            }
            Message::NotInterested => {
                peer.is_interested = false;
                self.choke(key);
                self.give_room(now);
            }
            Message::Have(piece) => self.learn(key, piece, now)?,
            Message::Bitfield(bytes) => self.learn_all(key, &bytes, now)?,
            Message::Request(block) => self.requested(key, block)?,
            Message::Cancel(block) => self.out.push_back(Output::Unserve(key, block)),
            Message::Piece(piece, begin, bytes) => self.arrived(key, (piece, begin), &bytes, now),
            Message::Other => {}
        }
        Ok(())
    }

    /// A piece of [`Output::Verify`] was found right and kept, or it was wrong.
    pub fn verified(&mut self, piece: u32, is_right: bool, now: Instant) {
        let open = self.open.remove(&piece).expect("only open pieces are verified");
        if !is_right {
            self.blame(&open.from);
            self.ask_all(now);
            return;
        }
        self.have.insert(piece);
        let is_complete = self.have.is_full();
        for (&key, peer) in &mut self.peers {
            self.out.push_back(Output::Send(key, Message::Have(piece)));
            if peer.has.has(piece) {
                peer.useful -= 1;
                if peer.useful == 0 && std::mem::take(&mut peer.told_interest) {
                    self.out.push_back(Output::Send(key, Message::NotInterested));
                }
            }
            // Two that have everything are of no use to each other.
            if is_complete && peer.has.is_full() {
                self.out.push_back(Output::Close(key, false));
            }
        }
        if is_complete {
            self.out.push_back(Output::Complete);
        } else {
            self.ask_all(now);
        }
    }

    /// Time has passed; called about once a second.
    pub fn tick(&mut self, now: Instant) {
        for (&key, peer) in &self.peers {
            if !peer.asked.is_empty() && now.since(peer.heard_at) > SILENCE_MAX {
                self.out.push_back(Output::Close(key, false));
            }
        }
        if self.is_stalled(now) {
            self.ask_all(now);
        }
        let waits = |peer: &Peer| peer.is_interested && peer.is_choked;
        if !self.peers.values().any(waits) {
            return;
        }
        let served = self.peers.iter().filter(|(_, peer)| !peer.is_choked);
        let longest = served.min_by_key(|(_, peer)| peer.unchoked_at);
        if let Some((&key, peer)) = longest
            && now.since(peer.unchoked_at) > TURN
        {
            self.choke(key);
            // It goes to the end of the line.
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.unchoked_at = now;
            }
        }
        self.give_room(now);
    }

    /// Serves those that wait, the longest first, while there is room.
    fn give_room(&mut self, now: Instant) {
        let served = self.peers.values().filter(|peer| !peer.is_choked).count();
        let waits = |(_, peer): &(&Key, &mut Peer)| peer.is_interested && peer.is_choked;
        let mut waiting: Vec<_> = self.peers.iter_mut().filter(waits).collect();
        waiting.sort_by_key(|(_, peer)| peer.unchoked_at);
        for (&key, peer) in waiting.into_iter().take(SERVED_MAX.saturating_sub(served)) {
            (peer.is_choked, peer.unchoked_at) = (false, now);
            self.out.push_back(Output::Send(key, Message::Unchoke));
        }
    }

    /// Serves a peer no more.
    fn choke(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| !peer.is_choked) else { return };
        peer.is_choked = true;
        self.out.push_back(Output::UnserveAll(key));
        self.out.push_back(Output::Send(key, Message::Choke));
    }

    fn learn_all(&mut self, key: Key, bytes: &[u8], now: Instant) -> Result<()> {
        let Some(bits) = Bits::from_bytes(bytes, self.have.len()) else {
            return violation("sent a set of other pieces than the torrent has");
        };
        for piece in bits.iter() {
            self.learn_one(key, piece);
        }
        self.show_interest(key, now);
        Ok(())
    }

    fn learn(&mut self, key: Key, piece: u32, now: Instant) -> Result<()> {
        if piece >= self.have.len() {
            return violation("has a piece that the torrent does not have");
        }
        self.learn_one(key, piece);
        self.show_interest(key, now);
        Ok(())
    }

    fn learn_one(&mut self, key: Key, piece: u32) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if peer.has.insert(piece) {
            peer.useful += u32::from(!self.have.has(piece));
            let nearness = peer.nearness;
            self.count(piece, nearness, true);
        }
    }

    fn count(&mut self, piece: u32, nearness: Nearness, more: bool) {
        let (all, near) = &mut self.held[piece as usize];
        let change =
            |count: &mut u16| *count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
        change(all);
        if nearness == Nearness::Near {
            change(near);
        }
    }

    /// Tells a peer that it has what is missing here, if so, and asks for it.
    fn show_interest(&mut self, key: Key, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if self.have.is_full() && peer.has.is_full() {
            self.out.push_back(Output::Close(key, false));
            return;
        }
        if peer.useful > 0 && !peer.told_interest {
            peer.told_interest = true;
            self.out.push_back(Output::Send(key, Message::Interested));
        }
        self.ask(key, now);
    }

    fn requested(&mut self, key: Key, block: Block) -> Result<()> {
        let ends = u64::from(block.begin) + u64::from(block.len);
        if block.piece >= self.have.len()
            || block.len == 0
            || block.len > BLOCK_BYTES_MAX
            || ends > self.piece_len(block.piece).into()
        {
            return violation("asks for a block that no piece has");
        }
        // Its requests may have crossed a choke.
        let is_served = self.peers.get(&key).is_some_and(|peer| !peer.is_choked);
        if is_served && self.have.has(block.piece) {
            self.out.push_back(Output::Serve(key, block));
        }
        Ok(())
    }

    /// A block has arrived. What nobody asked for, or not any more, is dropped.
    fn arrived(&mut self, key: Key, (piece, begin): (u32, u32), bytes: &[u8], now: Instant) {
        let Ok(len) = u32::try_from(bytes.len()) else { return };
        let block = Block { piece, begin, len };
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.heard_at = now;
        if !peer.answered(block) {
            return;
        }
        peer.sent += 1;
        self.came_at = now;
        self.under_way -= 1;
        let Some(open) = self.open.get_mut(&piece) else { return };
        let Some(asked) = open.take(block, bytes, key) else { return };
        let whole = open.whole();
        if asked > 1 {
            self.cancel(block);
        }
        if let Some(bytes) = whole {
            self.out.push_back(Output::Verify(piece, bytes));
        }
        // Peers that were spared so far may be needed now.
        if self.under_way < UNDER_WAY_LOW { self.ask_all(now) } else { self.ask(key, now) }
    }

    /// Tells all that were asked for `block`, too, that it has come.
    fn cancel(&mut self, block: Block) {
        for (&key, peer) in &mut self.peers {
            if peer.answered(block) {
                self.under_way -= 1;
                self.out.push_back(Output::Send(key, Message::Cancel(block)));
            }
        }
    }

    /// A peer is asked for nothing any more.
    fn release(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        for block in std::mem::take(&mut peer.asked) {
            self.under_way -= 1;
            if let Some(open) = self.open.get_mut(&block.piece) {
                open.release(block);
            }
        }
    }

    /// A piece was wrong. A peer that sent it alone lied or has a damaged disk; of several, one did.
    fn blame(&mut self, from: &[Key]) {
        for key in from {
            if let Some(peer) = self.peers.get_mut(key) {
                peer.wrong += if from.len() == 1 { WRONG_MAX } else { 1 };
                if peer.wrong >= WRONG_MAX {
                    self.out.push_back(Output::Close(*key, true));
                }
            }
        }
    }

    fn ask_all(&mut self, now: Instant) {
        let keys: Vec<Key> = self.peers.keys().copied().collect();
        keys.into_iter().for_each(|key| self.ask(key, now));
    }

    /// Asks a peer for as many blocks as it may be asked for.
    fn ask(&mut self, key: Key, now: Instant) {
        // All peers count, not those alone that have something now: what many members ask the server for at once, some
        // of them will have asked for twice.
        let most = (UNDER_WAY_WISHED / self.peers.len().max(1)).clamp(ASKED_MIN, ASKED_MAX);
        let far_most = self.far_most(key, most);
        loop {
            let Some(peer) = self.peers.get(&key) else { return };
            // Requests go in runs: one at a time would cost a packet for each block.
            if peer.chokes_us || peer.useful == 0 || peer.asked.len() >= most.min(far_most) {
                return;
            }
            let Some(block) = self.next_block(key, now) else { return };
            let peer = self.peers.get_mut(&key).expect("it is there");
            if peer.asked.is_empty() {
                peer.heard_at = now;
            }
            peer.asked.push_back(block);
            self.under_way += 1;
            self.out.push_back(Output::Send(key, Message::Request(block)));
        }
    }

    /// How many blocks a peer may be asked for because it is far: no limit if it is not. Who has near peers knows them
    /// soon; until then little is asked of far ones, and more with each block that comes.
    fn far_most(&self, key: Key, most: usize) -> usize {
        match self.peers.get(&key).filter(|peer| peer.is_far()) {
            None => usize::MAX,
            Some(peer) if self.share.is_alone() => UNDER_WAY_LOW + peer.sent,
            Some(peer) => UNDER_WAY_LOW.max(most).saturating_sub(self.asked_of_far() - peer.asked.len()),
        }
    }

    /// Blocks that far peers are asked for.
    fn asked_of_far(&self) -> usize {
        self.peers.values().filter(|peer| peer.is_far()).map(|peer| peer.asked.len()).sum()
    }

    fn is_stalled(&self, now: Instant) -> bool {
        now.since(self.came_at) > STALLED
    }

    /// Whether a peer is asked only for what no near peer has.
    fn is_spared(&self, key: Key) -> bool {
        self.peers[&key].is_far() && self.under_way >= UNDER_WAY_LOW
    }

    /// A block for which `key` is to be asked.
    fn next_block(&mut self, key: Key, now: Instant) -> Option<Block> {
        let last = self.peers[&key].asked.back().map(|block| block.piece);
        // The rest of the piece that this peer is asked for.
        if let Some(block) = last.and_then(|piece| self.open.get_mut(&piece)?.ask(false, |_| true)) {
            return Some(block);
        }
        if let Some(piece) = self.choose(key) {
            let len = self.piece_len(piece);
            let open = self.open.entry(piece).or_insert_with(|| Open::new(piece, len));
            return open.ask(false, |_| true);
        }
        if self.is_spared(key) {
            return None;
        }
        let peer = &self.peers[&key];
        let held = |piece: &u32| peer.has.has(*piece);
        let mut open = self.open.iter_mut().filter(|(piece, _)| held(piece));
        if let Some(block) = open.find_map(|(_, open)| open.ask(false, |_| true)) {
            return Some(block);
        }
        // Near the end: what others were asked for and have not sent. It is about to come from near ones.
        if peer.is_far() && !self.share.is_alone() && !self.is_stalled(now) {
            return None;
        }
        let is_end = self.open.len() as u64 == u64::from(self.have.len() - self.have.count());
        let is_new = |block| !peer.asked.contains(&block);
        let mut open = self.open.iter_mut().filter(|(piece, _)| is_end && held(piece));
        open.find_map(|(_, open)| open.ask(true, is_new))
    }

    /// The piece that is begun next with peer `key`: the rarest one that it has, is missing and not open. If it is far,
    /// pieces come first that no near peer has, then those of the own share.
    fn choose(&mut self, key: Key) -> Option<u32> {
        let room = OPEN_BYTES_MAX.max(2 * u64::from(self.piece_bytes));
        if (self.open.len() as u64 + 1) * u64::from(self.piece_bytes) > room {
            return None;
        }
        let (spares, asked_of_far) = (self.is_spared(key), self.asked_of_far());
        let Self { peers, held, have, open, share, chance, .. } = self;
        let peer = &peers[&key];
        let (mut best, mut least, mut ties) = (None, (true, true, u16::MAX), 0);
        for (piece, &(all, near)) in (0..).zip(held.iter()) {
            let is_far = peer.is_far();
            let order = (is_far && near > 0, is_far && !share.has(piece), all);
            let is_wanted = order <= least && !(spares && near > 0) && peer.has.has(piece);
            if !is_wanted || have.has(piece) || open.contains_key(&piece) {
                continue;
            }
            if order < least {
                (least, ties) = (order, 0);
            }
            ties += 1;
            if chance.below(ties) == 0 {
                best = Some(piece);
            }
        }
        // What is another's task may be on its way to it.
        let is_beyond = least.1 && asked_of_far >= BEYOND_SHARE_MAX;
        best.filter(|_| !is_beyond)
    }

    fn piece_len(&self, piece: u32) -> u32 {
        if piece + 1 == self.have.len() { self.last_bytes } else { self.piece_bytes }
    }

    /// How many peers are asked for something that is not verified; for assertions.
    #[cfg(test)]
    fn open_pieces(&self) -> usize {
        self.open.values().filter(|open| !open.is_whole()).count()
    }
}
