//! The interface between a session's receiver and the consumer of its objects, and the result of a session.

use std::ops::Range;
use std::time::Duration;

use base::Result;
use base::limits;
use bytes::Bytes;
use proto::multicast::{Half, ReceiverCounters, Strain};

use super::authentic::Forged;
use super::outage::Reach;
use crate::clock::Stop;
use crate::interface::Interface;
use crate::waker::Waker;

/// Default of [`ReceiveOptions::scattered_bytes_max`]: a load that a server hardly notices.
pub(crate) const SCATTERED_BYTES_MAX: u64 = 16 << 20;

/// Options of receiving a session.
#[derive(Debug, Clone)]
pub struct ReceiveOptions {
    /// Interface to join the group on.
    pub interface: Interface,
    /// Whether to accept packets to the group only from the server's address.
    pub source_specific: bool,
    /// Memory for objects, in bytes.
    pub buffer_bytes: u64,
    /// Mean length of a stored object, in bytes.
    pub object_bytes_mean: u32,
    /// Most bytes that may be fetched by unicast because only a small part of their bundles is wanted.
    pub scattered_bytes_max: u64,
    /// The session has failed after this time without any packet of the server.
    pub silent_after: Duration,
    /// The session has failed after this time without a new object, although packets arrive and there is room.
    pub stalled_after: Duration,
    /// Whether to leave the session when the link to this receiver carries less than the session sends.
    pub leaves_if_slow: bool,
    /// Leaving did not help: the network sends the session's packets here anyway, and other traffic fills the link.
    pub stays: bool,
    /// Asks for the server when a session that had worked falls silent. The receiver goes on listening until the
    /// server has answered. `None`: such a session has failed at once.
    pub reach: Option<Reach>,
    /// Ends the receiving.
    pub stop: Stop,
}

impl ReceiveOptions {
    /// The defaults, on `interface`.
    #[must_use]
    pub fn on(interface: Interface) -> Self {
        Self {
            interface,
            source_specific: false,
            buffer_bytes: limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            object_bytes_mean: limits::CHUNK_BYTES_DEFAULT,
            scattered_bytes_max: SCATTERED_BYTES_MAX,
            silent_after: Duration::from_secs(3),
            stalled_after: Duration::from_secs(10),
            leaves_if_slow: true,
            stays: false,
            reach: None,
            stop: Stop::new(),
        }
    }
}

/// How the consumer took an object.
#[derive(Debug)]
pub enum Accept {
    /// The object is right and was taken, or is no longer needed.
    Taken,
    /// There is no room now: the object will be offered again.
    Full,
    /// The object's digest is wrong.
    Bad,
}

/// A change of what the consumer wants. Objects are stored objects, by their number in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// All heads have arrived, so the lengths of all objects are known. From now on chunks can be wanted too.
    Lengths(Vec<u32>),
    /// These objects are wanted.
    Want(Range<u64>),
    /// This object is wanted and an application waits for it: it is requested before others.
    Hurry(u64),
    /// This object has arrived in another way.
    Have(u64),
    /// Nothing more will be wanted: the session is complete when everything has arrived.
    Nothing,
}

/// What a receiver knows of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView {
    /// Number of receivers, this one included.
    pub receivers: u32,
    /// Number of wanted blocks that arrived so far.
    pub blocks: u64,
}

/// Takes the objects of a session. The driving thread calls it, so its methods must not block.
pub trait Consumer {
    /// The changes of what is wanted since the last call.
    ///
    /// # Errors
    /// Any error ends the session.
    fn wishes(&mut self) -> Result<Vec<Wish>>;

    /// Verifies and takes the bytes of `object`.
    ///
    /// # Errors
    /// Any error ends the session.
    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept>;

    /// A waker for the driving thread: the consumer wakes it when [`Self::wishes`] has news that no call of this
    /// trait caused.
    fn waker(&self) -> Option<&Waker> {
        None
    }

    /// Called often, with what is known of the session, once a packet has arrived.
    fn observe(&mut self, view: SessionView) {
        let _ = view;
    }

    /// `object` is not requested any more: get it in another way. Unicast is cheaper, or the session does not deliver
    /// it.
    fn get_otherwise(&mut self, object: u64);

    /// The same for an object whose digest is wrong, but of which most may be right.
    fn mend(&mut self, object: u64, damaged: &Bytes) {
        let _ = damaged;
        self.get_otherwise(object);
    }
}

/// Why receiving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything that was wanted has arrived.
    Complete,
    /// No packets of the server arrive.
    Silent {
        /// Whether any packet had arrived before.
        heard: bool,
    },
    /// Packets arrive, but no new blocks.
    Stalled,
    /// The link to this receiver carries less than the session sends.
    TooSlow(Strain),
    /// Only a part of multicast works here.
    Half(Half),
    /// Little of what the session sends is of use here, and another way brings more.
    Behind,
    /// The server was restarted: request a new grant.
    NewEpoch,
    /// The server ended the session.
    Ended,
    /// The caller asked to stop.
    Stopped,
}

/// The result of receiving a session.
#[derive(Debug, Clone)]
pub struct Received {
    /// Why it ended.
    pub end: End,
    /// Number of stored objects that the consumer took.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of stored objects that arrived damaged.
    pub spoilt: u64,
    /// Number of stored objects left to unicast because only a small part of their bundles was wanted.
    pub scattered: u64,
    /// Number of stored objects left to unicast because the server did not send what was missing, or because packets
    /// contradicted each other.
    pub unanswered: u64,
    /// Packets that a member of the session forged.
    pub forged: Forged,
    /// The state machine's counters.
    pub counters: ReceiverCounters,
    /// Receive buffer that the system granted, in bytes.
    pub socket_buffer_bytes: usize,
    /// Time that leaving the session took.
    pub farewell: Duration,
}
