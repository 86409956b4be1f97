//! Configuration of a receiver, and the events that it reports to its driver.

use base::{Chance, Duration, Instant};

use crate::code::Held;
use crate::multicast::receiver::congestion::Strain;
use crate::multicast::receiver::half::Half;
use crate::multicast::receiver::slot::Slot;
use crate::multicast::wire::header::{ReceiverId, Shape};

/// Configuration of a receiver.
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    /// The parameters that server and receivers share.
    pub shape: Shape,
    /// Its number at the server.
    pub receiver: ReceiverId,
    /// Memory in bytes for objects between their first block and [`super::Receiver::release`]; at least the largest
    /// object.
    pub buffer_bytes: u64,
    /// Mean length of an object in bytes, to estimate how many fit until their lengths are known.
    pub object_bytes_mean: u32,
    /// [`ReceiverEvent::Silent`] is reported after this time without a packet from the server, after half of it if none
    /// ever came.
    pub silent_after: Duration,
    /// [`ReceiverEvent::Stalled`] is reported after this time without a new block while other packets arrive.
    pub stalled_after: Duration,
    /// Number of receivers that were admitted to the session so far, this one included. The receivers spread their
    /// first reports according to it.
    pub receivers: u32,
    /// Leaving the session did not free this receiver's link: the switch sends it the session's packets anyway. It asks
    /// the server to leave room for other traffic instead.
    pub stays: bool,
    /// Random numbers for the spreading of reports.
    pub chance: Chance,
}

/// What happened, for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// The object is complete. If `held` is not empty, restore its missing blocks by [`crate::code::recover`]. Then
    /// verify the digest and call [`super::Receiver::verified`].
    Complete {
        /// Which object.
        object: u64,
        /// The slot of its buffer.
        slot: Slot,
        /// Its length in bytes.
        bytes: u32,
        /// Symbols that lie in the places of missing blocks.
        held: Box<[Held]>,
    },
    /// Multicast did not deliver the object: its digest was wrong, its packets contradict each other, or requests
    /// were not answered. Fetch it by unicast, then call [`super::Receiver::satisfied`]. The receiver does not
    /// request it any more.
    FetchByUnicast {
        /// Which object.
        object: u64,
    },
    /// No packet of the server has arrived for `silent_after`. Reported once per silence.
    Silent {
        /// When the last packet came (or when the machine began).
        since: Instant,
    },
    /// Packets arrive, but no new block for `stalled_after`, although objects are wanted. Reported once per stall.
    Stalled {
        /// When the last new block arrived (or when the machine began).
        since: Instant,
    },
    /// Packets arrive again after [`Self::Silent`], or new blocks after [`Self::Stalled`].
    Resumed,
    /// The path to this receiver carries less than the session sends, while others take part too. Leave the session,
    /// and fetch the rest by unicast. Reported once per such time, a queue again each 1.5 s.
    TooSlow(Strain),
    /// Only a part of multicast works here. Leave the session, and fetch the rest in other ways. Reported once.
    Half(Half),
    /// For some seconds little of what the session sends was of use here. Leave it if another way does better, and
    /// fetch the rest in that way. Reported by few of the receivers at a time, and again after some seconds.
    Behind {
        /// Bytes of use in a second.
        bytes_each_second: u64,
    },
    /// Packets of this session arrive with another epoch: the server was restarted. Request a new grant. Reported
    /// once per epoch.
    NewEpoch {
        /// The other epoch.
        epoch: u32,
    },
    /// The server ended the session.
    Ended,
}
