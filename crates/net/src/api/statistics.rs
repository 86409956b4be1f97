//! What sessions count.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::sessions::SessionId;

/// What a session did so far. Every block sent again is booked with the cause that its requester gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatistics {
    /// The session.
    pub session: SessionId,
    /// Which start of the server this is.
    pub epoch: u32,
    /// `image@version`.
    pub reference: String,
    /// Where blocks go.
    pub group: SocketAddr,
    /// Whether it still runs.
    pub running: bool,
    /// Milliseconds since it began, or that it ran.
    pub runtime_ms: u64,
    /// Milliseconds that reading objects took, summed over the threads that read.
    pub read_ms: u64,
    /// Bytes read from the repository.
    pub read_bytes: u64,
    /// Bytes of objects read more than once.
    pub reread_bytes: u64,
    /// Objects that could not be read, or were damaged.
    pub read_failures: u64,
    /// Objects in the session: tree nodes, and bundles of chunks.
    pub objects: u64,
    /// Nodes and chunks in them.
    pub stored_objects: u64,
    /// Bytes of all its objects.
    pub image_bytes: u64,
    /// Blocks of all its objects.
    pub blocks_in_image: u64,
    /// Blocks sent, first and again.
    pub blocks_sent: u64,
    /// Blocks sent again because a receiver joined after they had gone.
    pub resent_late: u64,
    /// Blocks sent again because a receiver had no buffer for them.
    pub resent_buffer_full: u64,
    /// Blocks sent again, or symbols sent, because a receiver lost blocks.
    pub resent_lost: u64,
    /// Repair symbols among the blocks sent; those that receivers needed are counted as resent, too.
    pub symbols_sent: u64,
    /// Those of the symbols that went ahead of any loss that was reported.
    pub symbols_ahead: u64,
    /// At what rate it sends if it has something to send, in bits per second on the wire.
    pub rate_bits_per_second: u64,
    /// Bytes of objects that its receivers got by unicast.
    pub unicast_bytes: u64,
    /// Payload bytes of all blocks sent.
    pub payload_bytes: u64,
    /// Bytes of all packets sent, without IP and UDP headers.
    pub packet_bytes: u64,
    /// Packets of status and other control sent.
    pub control_packets: u64,
    /// Packets received from receivers.
    pub reports: u64,
    /// Packets received that were not from a receiver, or broken.
    pub rejected: u64,
    /// Why nothing can be sent at the moment, in words.
    pub trouble: Option<String>,
    /// Every receiver that ever joined, at most [`base::limits::SESSION_RECEIVERS_MAX`].
    pub receivers: Vec<ReceiverStatistics>,
}

/// What one receiver did in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiverStatistics {
    /// Its number.
    pub receiver: u32,
    /// What it calls itself.
    pub name: String,
    /// Milliseconds from the session's begin until it joined.
    pub joined_ms: u64,
    /// Milliseconds that it has taken part.
    pub runtime_ms: u64,
    /// Whether it left, and did not just fall silent.
    pub left: bool,
    /// The part of its runtime, 0 to 1, in which another receiver took part, too.
    pub concurrency: f64,
    /// Blocks that it says it received, each once.
    pub blocks_received: u64,
    /// Blocks that it says it received again.
    pub blocks_duplicate: u64,
    /// Blocks that it says were lost on their way.
    pub blocks_lost: u64,
    /// Blocks that it says it had no buffer for.
    pub blocks_refused: u64,
}

/// The body of `GET /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    /// Sessions that run, then those that ended not long ago.
    pub sessions: Vec<SessionStatistics>,
}
