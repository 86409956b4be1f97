//! Configuration of a server, and what it requests of its driver.

use std::sync::Arc;

use base::Duration;

use crate::multicast::rate::RateConfig;
use crate::multicast::server::gather::Gathering;
use crate::multicast::stats::ReceiverStatistics;
use crate::multicast::wire::header::{BlockHeader, ReceiverId, Shape};

/// Configuration of a session's server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The parameters that server and receivers share.
    pub shape: Shape,
    /// Length of each object in bytes; `shape.objects` entries.
    pub object_bytes: Arc<[u32]>,
    /// Initial, lowest and highest rate.
    pub rate: RateConfig,
    /// Bytes that the driver adds to each control packet besides its tag.
    pub signature_bytes: u16,
    /// Bytes that the network adds to each packet (Ethernet, IP and UDP headers), for the rate.
    pub overhead_bytes: u16,
    /// Most blocks in one [`Run`], `1..=64`: as many as the driver can send with one system call.
    pub run_blocks_max: u16,
    /// The driver's memory for objects in bytes. A quarter of it is for objects loaded in advance, the rest keeps
    /// sent objects for repairs. Up to 32 heads and the first object of each plan are loaded even if they exceed it.
    pub cache_bytes: u64,
    /// How long the first blocks wait for receivers that start together.
    pub gathering: Gathering,
    /// A receiver that is silent for this long no longer counts as a member.
    pub receiver_timeout: Duration,
}

/// Consecutive blocks of one object, or consecutive symbols of it (see [`BlockHeader::symbol`]), to be sent in order
/// with consecutive sequences. Each has a payload of `block_bytes`, except the last block of an object, which may be
/// shorter. So the driver can send a run as one segmented send (UDP GSO).
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
    /// Blocks of an object that the driver has loaded. The driver adds header, payload and tag of each.
    Blocks(Run),
    /// A complete packet except for its tag (see [`crate::multicast::seal`]).
    Control(Vec<u8>),
}

/// What the driver should do, or may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// Load this object and call [`super::Server::loaded`]. Requested in the order of sending.
    Load(u64),
    /// Drop this object from memory.
    Evict(u64),
    /// A receiver joined.
    Joined(ReceiverId),
    /// A receiver left, or was silent for too long.
    Left(ReceiverStatistics),
    /// The last receiver left. The driver may end the session.
    Deserted,
}
