//! What becomes of the machines that fetch: their reports, and the server's answer to who asks.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// How far a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostStage {
    /// It joined, and fetches the tree of the version.
    Tree,
    /// It reads its target for chunks that are there already.
    Comparing,
    /// It receives chunks and writes them.
    Receiving,
    /// Everything is written. Before the end of a fetch that verifies, it is read back now.
    Written,
    /// Everything was read back and is correct; or, where nothing is written, every object was correct.
    Verified,
    /// It ended with an error.
    Failed,
    /// It has not reported for some seconds. Only the server uses this.
    Gone,
}

impl HostStage {
    /// The name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Comparing => "comparing",
            Self::Receiving => "receiving",
            Self::Written => "written",
            Self::Verified => "verified",
            Self::Failed => "failed",
            Self::Gone => "gone",
        }
    }
}

/// The body of `PUT /api/v1/hosts/{id}`: the progress of one fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// Name of the machine.
    pub host: String,
    /// `image@version`.
    pub reference: String,
    /// How far it is.
    pub stage: HostStage,
    /// This is the last report of the fetch.
    #[serde(default)]
    pub ended: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes of the target that are done in this stage, and all that it has to do.
    pub done_bytes: u64,
    /// See `done_bytes`; 0 if not known yet.
    pub total_bytes: u64,
    /// Bytes that came by multicast so far: payload of blocks, in the last report bytes of objects. Older clients
    /// tell it only there.
    #[serde(default)]
    pub multicast_bytes: u64,
    /// Bytes of objects that came from other machines so far; 0 from older clients.
    #[serde(default)]
    pub peer_bytes: u64,
    /// Bytes of objects that came from the server by unicast so far. Older clients tell it only in the last report.
    #[serde(default)]
    pub unicast_bytes: u64,
    /// Milliseconds since the fetch began; 0 from older clients.
    #[serde(default)]
    pub elapsed_ms: u64,
}

/// The answer to a [`HostReport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextReport {
    /// Milliseconds until the next report is due.
    pub next_ms: u64,
}

/// One machine, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Name of the machine.
    pub host: String,
    /// The address from which it reports.
    pub address: IpAddr,
    /// `image@version`.
    pub reference: String,
    /// How far it is.
    pub stage: HostStage,
    /// The fetch is over: it reported its end, or it is gone. `false` from older servers.
    #[serde(default)]
    pub ended: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes of the target that are done in this stage.
    pub done_bytes: u64,
    /// Bytes that this stage has to do; 0 if not known yet.
    pub total_bytes: u64,
    /// Bytes per second that it received from the network over the last seconds, while it receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_second: Option<u64>,
    /// Seconds that the rest of this stage takes at the pace of the last seconds, in bytes of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_seconds: Option<u64>,
    /// Seconds since its fetch began; if it ended, until its end.
    pub runtime_seconds: u64,
    /// Seconds since its last report.
    pub quiet_seconds: u64,
    /// Bytes that came by multicast so far.
    pub multicast_bytes: u64,
    /// Bytes that came from other machines so far; 0 from older servers.
    #[serde(default)]
    pub peer_bytes: u64,
    /// Bytes that came from the server by unicast so far.
    pub unicast_bytes: u64,
}

impl HostStatus {
    /// Whole per cent of this stage; `None` if its size is not known, or nothing is under way.
    #[must_use]
    pub fn percent(&self) -> Option<u64> {
        let share = u128::from(self.done_bytes.min(self.total_bytes)) * 100;
        u64::try_from(share.checked_div(u128::from(self.total_bytes))?).ok()
    }
}

/// One session, in few numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// `image@version`.
    pub reference: String,
    /// Multicast group of its blocks.
    pub group: SocketAddr,
    /// Whether it still runs.
    pub running: bool,
    /// Receivers that have not left.
    pub receivers: u64,
    /// Bits per second that it sent on the wire over the last seconds; `None` if it has ended, is idle, or began just
    /// now.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Payload bytes that were sent, repeated ones included.
    pub payload_bytes: u64,
    /// Part of the blocks that its receivers lost, 0 to 1; `None` before they counted enough.
    pub loss: Option<f64>,
    /// Blocks that were sent, repeated ones included.
    pub blocks_sent: u64,
    /// Blocks sent again because a receiver joined late.
    pub resent_late: u64,
    /// Blocks sent again because a receiver's buffer was full.
    pub resent_buffer_full: u64,
    /// Blocks sent again, or symbols sent, because a receiver lost blocks.
    pub resent_lost: u64,
    /// Bytes of objects that its receivers got by unicast.
    pub unicast_bytes: u64,
}

/// The answer to `GET /api/v1/status`: all that the token covers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Running sessions, then those that ended, the latest first.
    pub sessions: Vec<SessionStatus>,
    /// Machines that fetch, then those that ended, the latest first.
    pub hosts: Vec<HostStatus>,
    /// The machines that serve each other, by version; none from older servers.
    #[serde(default)]
    pub swarms: Vec<SwarmStatus>,
}

/// The machines that serve each other a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmStatus {
    /// `image@version`.
    pub reference: String,
    /// Machines that reported within some seconds.
    pub members: u32,
    /// Those of them that hold all of it.
    pub whole: u32,
    /// Chunks and nodes of the version.
    pub objects: u32,
}
