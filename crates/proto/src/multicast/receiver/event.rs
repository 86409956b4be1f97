//! What a receiver machine is made of, and what it asks of its driver.

use base::{Chance, Duration, Instant};

use crate::code::Held;
use crate::multicast::receiver::slot::Slot;
use crate::multicast::wire::header::{ReceiverId, Shape};

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
    /// Receivers that had been admitted to the session when this one was, itself among them: they share the first
    /// reports.
    pub receivers: u32,
    /// For back-off.
    pub chance: Chance,
}

/// What happened, for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// Enough is there: if `held` is not empty put the object right by [`crate::code::recover`], then verify the digest
    /// and say [`Receiver::verified`].
    Complete {
        /// Which object.
        object: u64,
        /// Where it lies.
        slot: Slot,
        /// Its length.
        bytes: u32,
        /// Symbols that lie in the places of missing blocks.
        held: Box<[Held]>,
    },
    /// It came with a wrong digest, or its packets contradict each other: get it by unicast, then say
    /// [`Receiver::satisfied`]. It is not asked for any more.
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
    /// For a second the network has brought much less than what was sent, while others keep up: leave, and get the rest
    /// by unicast. Said once.
    TooSlow,
    /// Packets of this session under another epoch: the server started anew. Ask it for a new grant. Said once per
    /// epoch.
    NewEpoch {
        /// Which.
        epoch: u32,
    },
    /// The server ended the session.
    Ended,
}
