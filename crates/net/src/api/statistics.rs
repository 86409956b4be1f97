//! Statistics of sessions.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::sessions::SessionId;

/// The statistics of one session so far. Every repeated block is counted under the cause in the report that requested
/// it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatistics {
    /// The session.
    pub session: SessionId,
    /// Number of the server's start.
    pub epoch: u32,
    /// `image@version`.
    pub reference: String,
    /// Group and port to which blocks are sent.
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
    /// Number of nodes and chunks in them.
    pub stored_objects: u64,
    /// Sum of the lengths of its objects, in bytes.
    pub image_bytes: u64,
    /// Number of blocks of its objects.
    pub blocks_in_image: u64,
    /// Number of blocks sent, including repeated ones.
    pub blocks_sent: u64,
    /// Blocks sent again because a receiver joined after they had been sent.
    pub resent_late: u64,
    /// Blocks sent again because a receiver's buffer was full.
    pub resent_buffer_full: u64,
    /// Blocks sent again, or symbols sent, because a receiver lost blocks.
    pub resent_lost: u64,
    /// Symbols among the blocks sent; those that receivers requested are counted as resent, too.
    pub symbols_sent: u64,
    /// Symbols that were sent before any receiver requested them (proactive symbols).
    pub symbols_ahead: u64,
    /// Bits per second on the wire while it was sending; 0 if that was too short to tell.
    pub rate_bits_per_second: u64,
    /// Milliseconds during which it was sending.
    #[serde(default)]
    pub sending_ms: u64,
    /// Bits per second on the wire over the last seconds; absent if it is idle, has ended, or began just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent_bits_per_second: Option<u64>,
    /// Bytes of objects that its receivers got by unicast.
    pub unicast_bytes: u64,
    /// Payload bytes of all blocks sent.
    pub payload_bytes: u64,
    /// Bytes of all packets sent, without IP and UDP headers.
    pub packet_bytes: u64,
    /// Number of STATUS and BYE packets sent.
    pub control_packets: u64,
    /// Number of reports received.
    pub reports: u64,
    /// Number of received packets that were invalid, or not from a receiver of the session.
    pub rejected: u64,
    /// Why sending fails at the moment, in words; `None` if it does not.
    pub trouble: Option<String>,
    /// Every receiver that ever joined, at most [`base::limits::SESSION_RECEIVERS_MAX`].
    pub receivers: Vec<ReceiverStatistics>,
}

/// What one receiver did in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiverStatistics {
    /// Its number.
    pub receiver: u32,
    /// Its name.
    pub name: String,
    /// Milliseconds from the session's start until it joined.
    pub joined_ms: u64,
    /// Milliseconds during which it has taken part.
    pub runtime_ms: u64,
    /// Whether it has left, by LEAVE or by its timeout.
    pub left: bool,
    /// The part of its runtime, 0 to 1, during which at least one other receiver took part.
    pub concurrency: f64,
    /// Blocks that it received for the first time, as of its last report.
    pub blocks_received: u64,
    /// Blocks that it received again, as of its last report.
    pub blocks_duplicate: u64,
    /// Blocks that were lost on the way to it, as of its last report.
    pub blocks_lost: u64,
    /// Blocks that it dropped because its buffer was full, as of its last report.
    pub blocks_refused: u64,
    /// Number of its requests that were ignored, because its machine had more repaired than its share.
    #[serde(default)]
    pub overdrawn: u64,
}

/// The body of `GET /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    /// The running sessions, then those that ended recently.
    pub sessions: Vec<SessionStatistics>,
}
