//! What devices and the metadata service say of themselves.

use proto::cluster::DeviceId;
use serde::{Deserialize, Serialize};

/// `GET /status` of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The program's version.
    pub version: String,
    /// Its number; 0 before it joined.
    pub device: u32,
    /// The epoch of its map.
    pub epoch: u64,
    /// Objects that it keeps.
    pub objects: u64,
    /// Their bytes.
    pub used: u64,
    /// Free bytes of its disk.
    pub free: u64,
    /// Bytes that were verified in the background since its start.
    pub verified: u64,
    /// Bytes that were damaged and mended since then.
    pub mended: u64,
    /// Ranges that clients read since then.
    pub reads: u64,
    /// Those of them that were in memory.
    pub reads_in_memory: u64,
}

/// One device in the status of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceView {
    /// As in the map.
    #[serde(flatten)]
    pub device: proto::cluster::Device,
    /// Bytes in use, as of the last heartbeat.
    pub used: u64,
    /// Slots of the index that it holds.
    pub slots: usize,
    /// How many of them it still copies.
    pub copying: usize,
    /// Milliseconds since its last heartbeat.
    pub silent_ms: u64,
}

/// `GET /status` of the metadata service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster: String,
    /// The instance of the metadata service that leads, if there may be several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Devices that the service waits for, because its state was restored and is older than theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<DeviceId>,
    /// The map's epoch.
    pub epoch: u64,
    /// Data components of a segment.
    pub k: u8,
    /// Parity components.
    pub m: u8,
    /// Whether the index has been spread over the devices.
    pub formed: bool,
    /// All devices.
    pub devices: Vec<DeviceView>,
    /// Segments that are appended to, and sealed ones.
    pub segments_open: u64,
    /// Sealed segments.
    pub segments_sealed: u64,
    /// Segments whose space is used again soon.
    pub segments_emptied: u64,
    /// Segments that are to be compacted.
    pub compacting: u64,
    /// Components that are to be rebuilt.
    pub rebuilding: u64,
    /// Records.
    pub records: u64,
}
