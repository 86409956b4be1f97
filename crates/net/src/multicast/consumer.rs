//! Who takes what a session brings, and what came of it.

use std::ops::Range;
use std::time::Duration;

use base::Result;
use base::limits;
use bytes::Bytes;
use proto::multicast::ReceiverCounters;

use crate::clock::Stop;
use crate::interface::Interface;
use crate::waker::Waker;

/// Default of [`ReceiveOptions::scattered_bytes_max`]: what a server gives by the way.
pub(crate) const SCATTERED_BYTES_MAX: u64 = 16 << 20;

/// How a session is received.
#[derive(Debug, Clone)]
pub struct ReceiveOptions {
    /// Interface to join the group on.
    pub interface: Interface,
    /// Whether to join for the server's address only.
    pub source_specific: bool,
    /// Memory for objects, in bytes.
    pub buffer_bytes: u64,
    /// What a stored object has on average, in bytes.
    pub object_bytes_mean: u32,
    /// Most bytes that may come by unicast because too little of their bundles is wanted.
    pub scattered_bytes_max: u64,
    /// Without any packet of the server for so long, the session has failed.
    pub silent_after: Duration,
    /// Without any new object for so long, though the server speaks and there is room, the session has failed.
    pub stalled_after: Duration,
    /// Whether to leave when the network brings much less than what is sent.
    pub leaves_if_slow: bool,
    /// Ends it.
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
            stop: Stop::new(),
        }
    }
}

/// What came of handing an object on.
#[derive(Debug)]
pub enum Accept {
    /// It is right and taken, or no longer needed.
    Taken,
    /// There is no room now: it will be handed on again.
    Full,
    /// Its digest is wrong.
    Bad,
}

/// What a receiver changes of what it wants. Objects are stored objects, by their number in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// All heads are here, and with them the length of each object is known. Others than heads can be wanted now.
    Lengths(Vec<u32>),
    /// These objects are wanted.
    Want(Range<u64>),
    /// This object is wanted, and somebody waits for it: it is asked for before others.
    Hurry(u64),
    /// This object is here by other means.
    Have(u64),
    /// Nothing more will be wanted: when all is here, the session has done its work.
    Nothing,
}

/// What a receiver knows of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// How many take part, this one included.
    pub receivers: u32,
    /// Blocks that were wanted and came, so far.
    pub blocks: u64,
}

/// Who wants the objects. Called by the driving thread, and must not wait.
pub trait Consumer {
    /// What changed of what is wanted, since the last call.
    ///
    /// # Errors
    /// Any error ends the session.
    fn wishes(&mut self) -> Result<Vec<Wish>>;

    /// Takes the bytes of `object`, after having verified them.
    ///
    /// # Errors
    /// Any error ends the session.
    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept>;

    /// Is woken when [`Self::wishes`] has something new that no call of this trait brought about.
    fn waker(&self) -> Option<&Waker> {
        None
    }

    /// What is known of the session by now. Called often, once anything was heard of it.
    fn hear(&mut self, heard: Heard) {
        let _ = heard;
    }

    /// `object` is not asked for any more: get it by other means. It came with a wrong digest, or unicast is cheaper.
    fn get_otherwise(&mut self, object: u64);
}

/// Why receiving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All that was wanted is here.
    Complete,
    /// Nothing was heard from the server, ever or any more.
    Silent {
        /// Whether anything was heard before.
        heard: bool,
    },
    /// The server speaks, but nothing new comes.
    Stalled,
    /// The network brings this receiver much less than what is sent.
    TooSlow,
    /// The server started anew: ask it for another grant.
    NewEpoch,
    /// The server ended the session.
    Ended,
    /// The caller asked to stop.
    Stopped,
}

/// What receiving did.
#[derive(Debug, Clone)]
pub struct Received {
    /// Why it ended.
    pub end: End,
    /// Stored objects handed on.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that came damaged.
    pub spoilt: u64,
    /// Objects left to unicast because too little of their bundles was wanted.
    pub scattered: u64,
    /// Objects left to unicast because the server did not send what was lacked of them, or its packets contradicted
    /// each other.
    pub unanswered: u64,
    /// What the machine counted.
    pub counters: ReceiverCounters,
    /// Receive buffer that the system granted, in bytes.
    pub socket_buffer_bytes: usize,
    /// How long it took to say goodbye after all that.
    pub farewell: Duration,
}
