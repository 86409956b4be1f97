//! What a seeker knows of members: whom to avoid, who lied, and to whom there is a connection.

use std::collections::BTreeMap;

use base::{Duration, Instant};

use crate::peer::wire::packet::{AVOIDED_MAX, MemberId};

/// A member that failed is not asked for this time; doubled each time, up to `AVOIDED_FOR_MAX`.
const AVOIDED_FOR: Duration = Duration::from_millis(500);
const AVOIDED_FOR_MAX: Duration = Duration::from_secs(30);
/// A connection to a member that is asked for nothing is closed after this time: a member serves only so many.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Most members that are remembered.
const PEERS_MAX: usize = 4096;

/// What is known of a member.
#[derive(Debug, Clone, Copy)]
struct Peer {
    avoided_until: Instant,
    failures: u32,
    lied: bool,
}

/// What is known of all members. In order of their names, so that equal runs are equal.
#[derive(Debug, Default)]
pub(super) struct Known {
    peers: BTreeMap<MemberId, Peer>,
    /// Members to whom there is a connection, and when they last were to send something.
    connected: BTreeMap<MemberId, Instant>,
}

impl Known {
    /// A member failed.
    pub(super) fn avoid(&mut self, now: Instant, member: MemberId) {
        let peer = self.peer(member);
        let time = (AVOIDED_FOR * (1 << peer.failures.min(8))).min(AVOIDED_FOR_MAX);
        (peer.failures, peer.avoided_until) = (peer.failures + 1, now + time);
    }

    /// A member is not asked for some time, though it did not fail.
    pub(super) fn avoid_for(&mut self, now: Instant, member: MemberId, time: Duration) {
        let peer = self.peer(member);
        peer.avoided_until = peer.avoided_until.max(now + time);
    }

    /// A member sent wrong bytes.
    pub(super) fn lied(&mut self, member: MemberId) {
        self.peer(member).lied = true;
    }

    pub(super) fn is_avoided(&self, now: Instant, member: MemberId) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.lied || peer.avoided_until > now)
    }

    /// Members that a request asks not to be named, and which of them lied. Those that lied go first.
    pub(super) fn avoided(&self, now: Instant) -> ([MemberId; AVOIDED_MAX], u8) {
        let mut avoided = [MemberId(0); AVOIDED_MAX];
        let liars = self.peers.iter().filter(|(_, peer)| peer.lied);
        let others = self.peers.iter().filter(|(_, peer)| !peer.lied && peer.avoided_until > now);
        let mut blamed = 0;
        for (index, (&member, peer)) in liars.chain(others).take(AVOIDED_MAX).enumerate() {
            avoided[index] = member;
            blamed |= u8::from(peer.lied) << index;
        }
        (avoided, blamed)
    }

    /// A member is to send something.
    pub(super) fn connect(&mut self, now: Instant, member: MemberId) {
        self.connected.insert(member, now);
    }

    /// The connection to a member has ended.
    pub(super) fn disconnect(&mut self, member: MemberId) {
        self.connected.remove(&member);
    }

    /// When a connection may be idle for too long.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        self.connected.values().map(|used| *used + IDLE_AFTER).min()
    }

    /// Members that were to send nothing for too long. Their connections are to be closed.
    pub(super) fn idle(&mut self, now: Instant, sends: impl Fn(MemberId) -> bool) -> Vec<MemberId> {
        let mut idle = Vec::new();
        self.connected.retain(|&member, used| {
            if sends(member) {
                *used = now;
            } else if now.since(*used) >= IDLE_AFTER {
                idle.push(member);
                return false;
            }
            true
        });
        idle
    }

    fn peer(&mut self, member: MemberId) -> &mut Peer {
        if self.peers.len() >= PEERS_MAX {
            self.peers.retain(|_, peer| peer.lied);
        }
        if self.peers.len() >= PEERS_MAX {
            self.peers.clear();
        }
        self.peers.entry(member).or_insert(Peer { avoided_until: Instant::ZERO, failures: 0, lied: false })
    }
}
