//! What a server machine asks of its driver.

use std::sync::Arc;

use base::Duration;

use crate::multicast::rate::RateConfig;
use crate::multicast::server::gather::Gathering;
use crate::multicast::stats::ReceiverStatistics;
use crate::multicast::wire::header::{BlockHeader, ReceiverId, Shape};

/// What a session of a server is made of.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// What both ends know.
    pub shape: Shape,
    /// Length of each object in bytes; as many as `shape.objects`.
    pub object_bytes: Arc<[u32]>,
    /// Where the rate begins, and between what it moves.
    pub rate: RateConfig,
    /// Bytes that the network adds to each packet (Ethernet, IP and UDP headers), for the rate.
    pub overhead_bytes: u16,
    /// Most blocks in one [`Run`], `1..=64`: as many as the driver sends with one system call.
    pub run_blocks_max: u16,
    /// The driver's memory for objects in bytes: a quarter of it is read ahead, the rest keeps what may be repaired.
    /// Up to 32 heads and the front of each plan are loaded even beyond it.
    pub cache_bytes: u64,
    /// How long the first blocks wait for receivers that start together.
    pub gathering: Gathering,
    /// A receiver that was not heard for so long has gone.
    pub receiver_timeout: Duration,
}

/// Consecutive blocks of one object, or consecutive symbols of it (see [`BlockHeader::symbol`]), to be sent in order
/// with consecutive sequences. All have `block_bytes` payload, but the last block of an object, which may be shorter:
/// so a run goes out as one segmented send.
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
        let passed = if self.first.repair { u8::try_from(index).unwrap_or(u8::MAX) } else { 0 };
        BlockHeader {
            sequence: self.first.sequence + u64::from(index),
            block: self.first.block + index,
            coming: self.first.coming.saturating_sub(passed),
            ..self.first
        }
    }
}

/// What the driver sends to the group next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    /// Blocks of an object that the driver has loaded: for each the header, the payload and the tag.
    Blocks(Run),
    /// A whole packet that lacks only its tag (see [`crate::multicast::seal`]).
    Control(Vec<u8>),
}

/// What the driver should do or may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// Get this object into memory and say `Server::loaded`. Asked in the order of sending.
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
