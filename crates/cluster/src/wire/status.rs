//! What devices and the metadata service say of themselves.

use proto::cluster::DeviceId;
use serde::{Deserialize, Serialize};

/// A device with fewer free bytes takes no data: its database must always be able to say what happened. With fewer than
/// half of it, it takes no entries of the index either.
pub const FULL_BYTES: u64 = 64 << 20;

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
    /// Files of objects that its database does not know.
    #[serde(default)]
    pub orphans: u64,
    /// Bytes of the objects.
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

/// What a device knows of what is wrong on its disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceHealth {
    /// Bytes that were damaged and mended since it started.
    pub mended: u64,
    /// Objects with damage that is not mended yet.
    pub damaged: u64,
    /// Components of sealed segments that are shorter here than they should be, and could not be completed yet.
    pub incomplete: u64,
    /// Files of objects that its database does not know.
    pub orphans: u64,
    /// Components that lie there by what the metadata service knows, and that it has yet to compute anew.
    pub missing: u64,
    /// It was away, and has yet to look for such components: it does not know how many there are.
    pub searching: bool,
}

impl DeviceHealth {
    /// That of a device that has told nothing yet.
    #[must_use]
    pub fn unknown() -> Self {
        Self { searching: true, ..Self::default() }
    }
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
    /// Milliseconds that its clock is ahead of the metadata service's time; negative if it is behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_ms: Option<i64>,
    /// What it told of its disk last.
    #[serde(flatten)]
    pub health: DeviceHealth,
}

impl DeviceView {
    /// Whether it answers, and its disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.device.state.answers() && self.device.free < FULL_BYTES
    }
}

/// What a group may use. `None` is without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes on disks, with parity.
    pub quota: Option<u64>,
    /// Bytes per second that are read and written, with parity.
    pub rate: Option<u64>,
}

/// What one group may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// The group.
    pub group: u32,
    /// What it may use.
    #[serde(flatten)]
    pub limits: Limits,
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
    /// Segments with a component on a lost device, which has to be rebuilt.
    #[serde(default)]
    pub segments_lacking: u64,
    /// Segments of which no further component may fail.
    #[serde(default)]
    pub segments_unprotected: u64,
    /// Segments of which too few components answer.
    #[serde(default)]
    pub segments_unreadable: u64,
    /// Segments whose space is used again soon.
    pub segments_emptied: u64,
    /// Segments that are to be compacted.
    pub compacting: u64,
    /// Components that are to be rebuilt.
    pub rebuilding: u64,
    /// Records.
    pub records: u64,
    /// What groups may use, on all devices together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<GroupLimits>,
}
