//! The receiver's machine: places what comes, finds what is missing, and reports it without being loud.
//! Source: `formats/multicast.md`, section 8.

use base::{Chance, Duration, Instant};

use super::mutant::Mutant;
use super::packet::{Reject, Shape};
use super::report::{ReceiverCounters, ReceiverId};
use super::status::{Downstream, ObjectRange};

/// What a receiver is made of.
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    /// What both ends know.
    pub shape: Shape,
    /// Its number at the server.
    pub receiver: ReceiverId,
    /// Memory for objects between their first block and [`Receiver::release`], in bytes; at least the largest object.
    pub buffer_bytes: u64,
    /// What an object has on average, in bytes: to guess how many fit, until their lengths are known.
    pub object_bytes_mean: u32,
    /// After so long without a packet from the server, [`ReceiverEvent::Silent`].
    pub silent_after: Duration,
    /// After so long without a new block, though the server speaks, [`ReceiverEvent::Stalled`].
    pub stalled_after: Duration,
    /// For back-off.
    pub chance: Chance,
    /// A seeded bug, for the simulator.
    pub mutant: Mutant,
}

/// A place for one object in the driver's memory. Small numbers, used again: an index into a table of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What to do with the payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Copy it into the buffer of `slot` at `offset` (its length fits).
    Place {
        /// Where.
        slot: Slot,
        /// Offset in bytes inside the object.
        offset: u32,
        /// If this is the first block of the object: make a buffer of so many bytes first.
        begins: Option<u32>,
    },
    /// A control packet: nothing to place.
    Control,
    /// Already there.
    Duplicate,
    /// Of an object that is not wanted, or not wanted in this way.
    Unwanted,
    /// No room: it will be asked for again.
    BufferFull,
}

/// What happened, for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// All blocks are there: verify the digest and say [`Receiver::verified`].
    Complete {
        /// Which object.
        object: u64,
        /// Where it lies.
        slot: Slot,
        /// Its length.
        bytes: u32,
    },
    /// It came with a wrong digest: get it by unicast, then say [`Receiver::satisfied`]. It is not asked for any more.
    FetchByUnicast {
        /// Which object.
        object: u64,
    },
    /// Nothing was heard from the server since then. Said once per silence.
    Silent {
        /// When the last packet came (or when the machine began).
        since: Instant,
    },
    /// The server speaks, but nothing new came since then though something is wanted. Said once per stall.
    Stalled {
        /// When the last new block came (or when the machine began).
        since: Instant,
    },
    /// The server speaks again after [`Self::Silent`], or blocks come again after [`Self::Stalled`].
    Resumed,
    /// Packets of this session under another epoch: the server started anew. Ask it for a new grant. Said once per epoch.
    NewEpoch {
        /// Which.
        epoch: u32,
    },
    /// The server ended the session.
    Ended,
}

/// See the module.
#[derive(Debug)]
pub struct Receiver {}

impl Receiver {
    /// A receiver that wants nothing yet, and joins at once.
    #[must_use]
    pub fn new(now: Instant, config: ReceiverConfig) -> Self {
        todo!("{now:?} {config:?}")
    }

    /// Wants these objects from now on, but for those satisfied already.
    pub fn want(&mut self, now: Instant, objects: ObjectRange) {
        todo!("{now:?} {objects:?}")
    }

    /// The object was got otherwise, or is not needed. If part of it was here, its slot is free now and returned: the driver drops the buffer.
    pub fn satisfied(&mut self, object: u64) -> Option<Slot> {
        todo!("{object}")
    }

    /// Number of objects wanted and not verified yet, those to fetch by unicast included.
    #[must_use]
    pub fn lacking(&self) -> u64 {
        todo!()
    }

    /// The first object at or behind `from` that is wanted and not verified yet.
    #[must_use]
    pub fn next_lacking(&self, from: u64) -> Option<u64> {
        todo!("{from}")
    }

    /// Takes in a packet and says where its payload goes.
    pub fn handle_input(&mut self, now: Instant, packet: &Downstream<'_>) -> Disposition {
        todo!("{now:?} {packet:?}")
    }

    /// Counts a datagram that could not be opened.
    pub fn handle_reject(&mut self, why: Reject) {
        todo!("{why:?}")
    }

    /// The digest of what lies in `slot` was right or not. If not, the slot is free: the driver drops the buffer.
    pub fn verified(&mut self, now: Instant, slot: Slot, ok: bool) {
        todo!("{now:?} {slot:?} {ok}")
    }

    /// The driver is done with the buffer of a verified object.
    pub fn release(&mut self, slot: Slot) {
        todo!("{slot:?}")
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!("{now:?}")
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// The next packet to send to the server, if any. It lacks only its tag (see [`super::seal`]).
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        todo!("{now:?}")
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        todo!()
    }

    /// Leaves: what is left to transmit is LEAVE, twice.
    pub fn leave(&mut self, now: Instant) {
        todo!("{now:?}")
    }

    /// Whether the last LEAVE was handed out.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        todo!()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> ReceiverCounters {
        todo!()
    }
}
