//! The server's machine: takes reports in, says which blocks go out next, and which objects to read ahead.
//! Source: `formats/multicast.md`, section 7.

use std::sync::Arc;

use base::{Duration, Instant};

use super::mutant::Mutant;
use super::packet::{BlockHeader, Reject, Shape};
use super::report::{ReceiverId, Upstream};
use super::stats::{ReceiverStatistics, SessionStatistics};

/// What a session of a server is made of.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// What both ends know.
    pub shape: Shape,
    /// Length of each object in bytes; as many as `shape.objects`.
    pub object_bytes: Arc<[u32]>,
    /// Cap of the rate in bits per second on the wire; `None` sends as fast as the driver polls.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes that the network adds to each packet (Ethernet, IP and UDP headers), for the rate cap.
    pub overhead_bytes: u16,
    /// Most blocks in one [`Run`], `1..=64`: as many as the driver sends with one system call.
    pub run_blocks_max: u16,
    /// The driver's memory for objects in bytes: half of it is read ahead, the rest keeps what may be repaired.
    pub cache_bytes: u64,
    /// A receiver that was not heard for so long has gone.
    pub receiver_timeout: Duration,
    /// A seeded bug, for the simulator.
    pub mutant: Mutant,
}

/// Consecutive blocks of one object, to be sent in order with consecutive sequences. All have `block_bytes` payload,
/// but the last of an object, which may be shorter: so a run goes out as one segmented send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block's header.
    pub first: BlockHeader,
    /// Number of blocks, at least 1.
    pub count: u16,
}

impl Run {
    /// Header of the `index`-th block of the run.
    #[must_use]
    pub fn header(&self, index: u16) -> BlockHeader {
        debug_assert!(index < self.count);
        BlockHeader {
            sequence: self.first.sequence + u64::from(index),
            block: self.first.block + index,
            ..self.first
        }
    }
}

/// What the driver sends to the group next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    /// Blocks of an object that the driver has loaded: for each the header, the payload and the tag.
    Blocks(Run),
    /// A whole packet that lacks only its tag (see [`super::seal`]).
    Control(Vec<u8>),
}

/// What the driver should do or may want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEvent {
    /// Get this object into memory and say [`Server::loaded`]. Asked in the order of sending.
    Load(u64),
    /// Drop this object from memory.
    Evict(u64),
    /// A receiver takes part from now on.
    Joined(ReceiverId),
    /// A receiver left, or was not heard for too long.
    Left(ReceiverStatistics),
    /// The last receiver left: the session may end.
    Deserted,
}

/// See the module.
#[derive(Debug)]
pub struct Server {}

impl Server {
    /// A session that begins at `now`, with nobody in it.
    ///
    /// # Panics
    /// If `config` breaks the bounds given at its fields.
    #[must_use]
    pub fn new(now: Instant, config: ServerConfig) -> Self {
        todo!("{now:?} {config:?}")
    }

    /// Takes in a report.
    pub fn handle_input(&mut self, now: Instant, packet: &Upstream) {
        todo!("{now:?} {packet:?}")
    }

    /// Counts a datagram that could not be opened.
    pub fn handle_reject(&mut self, why: Reject) {
        todo!("{why:?}")
    }

    /// The driver has the object of [`ServerEvent::Load`] in memory (`ok`), or can't get it: then nobody gets it
    /// from this session until it is asked for again.
    pub fn loaded(&mut self, object: u64, ok: bool) {
        todo!("{object} {ok}")
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!("{now:?}")
    }

    /// When to call [`Self::handle_timeout`] at the latest, and when to look at [`Self::poll_transmit`] again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// What to send now, if anything. What it returns counts as sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        todo!("{now:?}")
    }

    /// The next thing to do or to know.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        todo!()
    }

    /// Ends the session: what is left to transmit is BYE, a few times.
    pub fn end(&mut self, now: Instant) {
        todo!("{now:?}")
    }

    /// Whether the last BYE was handed out.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        todo!()
    }

    /// What was counted until `now`.
    #[must_use]
    pub fn statistics(&self, now: Instant) -> SessionStatistics {
        todo!("{now:?}")
    }
}
