//! Paths, headers and JSON bodies of the cluster's HTTP interfaces. formats/cluster.md, sections 6 and 7.

mod records;
mod status;

use std::collections::BTreeMap;

use proto::cluster::{DeviceId, Map};
use serde::{Deserialize, Serialize};

pub use records::{PutMode, Record, RecordList, RecordName, RecordNames, RecordRequest, Records};
pub use status::{ClusterStatus, DeviceHealth, DeviceStatus, DeviceView, FULL_BYTES, GroupLimits, Limits};

/// The capability of a request.
pub(crate) const CAPABILITY_HEADER: &str = "diskcast-capability";
/// The epoch of the sender's map.
pub(crate) const EPOCH_HEADER: &str = "diskcast-epoch";
/// The sender reads only, and takes an answer that may be old: no metadata service answers it.
pub(crate) const OLD_HEADER: &str = "diskcast-old";
/// The length of an object, where a request supposed another.
pub(crate) const LENGTH_HEADER: &str = "diskcast-length";
/// Whether a listing goes on.
pub(crate) const MORE_HEADER: &str = "diskcast-more";

/// The page and number of the attribute that holds what the creator gave.
pub(crate) const LAYOUT_ATTRIBUTE: (u32, u32) = (256, 0);
/// What that attribute says of a component of a segment, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayoutAttribute {
    /// Only of one that was rebuilt or moved: it had another device before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) component: Option<u8>,
    /// The device of each component.
    pub(crate) devices: Vec<DeviceId>,
    /// Data components.
    pub(crate) k: u8,
    /// Parity components.
    pub(crate) m: u8,
    /// The segment.
    pub(crate) segment: u64,
}

impl LayoutAttribute {
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }
}

/// A group's quota in bytes.
pub(crate) const QUOTA_ATTRIBUTE: (u32, u32) = (1, 0);
/// A group's rate in bytes per second.
pub(crate) const RATE_ATTRIBUTE: (u32, u32) = (2, 0);
/// The first page that clients may use as they like.
pub(crate) const CLIENT_PAGES: u32 = 256;
/// Longest attribute.
pub(crate) const ATTRIBUTE_BYTES_MAX: usize = 4096;

/// `POST /devices`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// 128 bits in hexadecimal, chosen by the device once.
    pub identity: String,
    /// Where it serves.
    pub address: String,
    /// What fails together with it.
    pub domain: String,
    /// Size of its disk in bytes.
    pub bytes: u64,
    /// Free bytes.
    pub free: u64,
    /// The epoch of the map that it has; 0 if it has none.
    #[serde(default)]
    pub epoch: u64,
    /// What the clock of its machine shows, nanoseconds since 1970.
    #[serde(default)]
    pub clock: Option<u64>,
    /// The cluster of that map; empty if it has none.
    #[serde(default)]
    pub cluster: String,
    /// Random, of this start of the device.
    #[serde(default)]
    pub start: String,
    /// Commits that it made, each start counted as one; 0 of a device that does not count.
    #[serde(default)]
    pub commits: u64,
}

/// What a device gets when it joins.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinAnswer {
    /// Its number.
    pub device: DeviceId,
    /// Its key, in hexadecimal.
    pub key: String,
    /// The key's epoch.
    pub key_epoch: u32,
    /// The map.
    pub map: Map,
    /// The time of the metadata service, nanoseconds since 1970: the device judges capabilities and stamps by it.
    #[serde(default)]
    pub now: Option<u64>,
    /// It made fewer commits than it told before: what it holds is an older copy.
    #[serde(default)]
    pub older: bool,
}

/// `POST /devices/D/heartbeat`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Heartbeat {
    /// As in [`JoinRequest`].
    pub identity: String,
    /// The epoch of the map that it has.
    pub epoch: u64,
    /// Bytes in use.
    pub used: u64,
    /// Free bytes.
    pub free: u64,
    /// Slots that it has copied, each with the `from` that it was copied for.
    pub ready: Vec<(usize, u64)>,
    /// As in [`JoinRequest`].
    #[serde(default)]
    pub clock: Option<u64>,
    /// As in [`JoinRequest`].
    #[serde(default)]
    pub cluster: String,
    /// As in [`JoinRequest`].
    #[serde(default)]
    pub commits: u64,
    /// What is known of its disk.
    #[serde(default)]
    pub health: DeviceHealth,
}

/// `POST /devices/D/segments`: sealed segments of which the device has a component, in order of their numbers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct HoldingsRequest {
    /// Those behind this one.
    pub(crate) after: u64,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Holdings {
    /// The segments.
    pub(crate) segments: Vec<Segment>,
    /// With the first ones: open segments of which the device has a component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) open: Vec<Segment>,
    /// Where to go on, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<u64>,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pulse {
    /// How long the lease lasts, from before the heartbeat was sent.
    pub lease_ms: u64,
    /// The key, in hexadecimal, and its epoch.
    pub key: String,
    /// The key's epoch.
    pub key_epoch: u32,
    /// The map's epoch.
    pub epoch: u64,
    /// As in [`JoinAnswer`].
    #[serde(default)]
    pub now: Option<u64>,
    /// The map, if the device's is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<Map>,
    /// Capabilities to read the index of other devices.
    pub peers: BTreeMap<DeviceId, String>,
    /// Components that the device is to rebuild.
    pub rebuild: Vec<RebuildTask>,
    /// A segment whose contents the device is to store elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compact: Option<CompactTask>,
    /// The device's share in what groups may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<GroupLimits>,
}

/// Segments that a device is to compact together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactTask {
    /// The segments.
    pub segments: Vec<u64>,
    /// Their group.
    pub group: u32,
}

/// `POST /segments/S/emptied`: all holders of the index agreed that nothing lies there any more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EmptiedRequest {
    /// The client that moved what lay there.
    pub(crate) client: u64,
}

/// `GET /index/usage` of a device: bytes of content in each segment, by the slots of which it is the first holder.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SegmentUsage {
    /// Bytes by segment.
    pub(crate) segments: BTreeMap<u64, u64>,
}

/// Where one component can be read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RebuildSource {
    /// The device's address.
    pub address: String,
    /// A capability to read the component.
    pub capability: String,
}

/// A component that a device is to rebuild.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RebuildTask {
    /// The segment.
    pub segment: u64,
    /// Its group.
    pub group: u32,
    /// Its data components.
    pub k: u8,
    /// Its parity components.
    pub m: u8,
    /// The component that is missing.
    pub component: u8,
    /// The length of all components.
    pub length: u64,
    /// The device of each component.
    pub devices: Vec<DeviceId>,
    /// All components; `null` for those that can't be read now.
    pub sources: Vec<Option<RebuildSource>>,
    /// The creator's attribute of the component.
    pub layout: String,
}

/// `POST /segments/S/component`: a device wants to mend its component.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ComponentRequest {
    /// The device.
    pub(crate) device: DeviceId,
}

/// `POST /segments/S/rebuilt`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The component.
    pub component: u8,
    /// The device that has it now.
    pub device: DeviceId,
}

/// The answer to `POST /rebalance`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Rebalanced {
    /// Components that are to be moved.
    pub(crate) moves: u64,
}

/// `POST /clients`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientRequest {
    /// The group that it works with.
    pub group: u32,
}

/// What a client gets: on joining, and on each renewal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientAnswer {
    /// Its number.
    pub client: u64,
    /// How long its lease lasts; without renewal it loses its segments.
    pub lease_ms: u64,
    /// The map.
    pub map: Map,
    /// A capability for each device.
    pub capabilities: BTreeMap<DeviceId, String>,
    /// The time of the metadata service, nanoseconds since 1970: stamps are made of it.
    #[serde(default)]
    pub now: Option<u64>,
}

/// `POST /segments`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentRequest {
    /// The client that will append.
    pub client: u64,
    /// The group that the segment belongs to.
    pub group: u32,
    /// Devices that failed lately.
    pub avoid: Vec<DeviceId>,
}

/// A segment that was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentAnswer {
    /// The client that it was opened for.
    pub client: u64,
    /// Its number.
    pub segment: u64,
    /// Its data components.
    pub k: u8,
    /// Its parity components.
    pub m: u8,
    /// The device of each component.
    pub devices: Vec<DeviceId>,
    /// A capability for each component.
    pub capabilities: Vec<String>,
    /// For each device a capability to insert entries of what lies in the segment.
    #[serde(default)]
    pub index: BTreeMap<DeviceId, String>,
}

/// `POST /segments/S/index`: rights to insert entries of what lies in the client's segment, as devices came or rights
/// ended since it was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IndexRequest {
    /// The client that the segment was opened for.
    pub(crate) client: u64,
}

/// The answer to that, and to `POST /clients/C/index` for all names of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IndexRights {
    /// A capability for each device.
    pub(crate) capabilities: BTreeMap<DeviceId, String>,
}

/// Whether a segment is appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentState {
    /// A client holds a lease on it.
    Open,
    /// It never grows again.
    Sealed,
    /// Nothing of any name lies there any more. Its space is used again when nobody can read it any longer.
    Emptied,
}

/// What the metadata service knows of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its number.
    pub segment: u64,
    /// Its group.
    pub group: u32,
    /// Its data components.
    pub k: u8,
    /// Its parity components.
    pub m: u8,
    /// The device of each component.
    pub devices: Vec<DeviceId>,
    /// Whether it is appended to.
    pub state: SegmentState,
    /// The length of each component, once it is sealed.
    pub length: u64,
    /// The client that appends.
    pub client: u64,
    /// Raised when a client lost it.
    pub fence: u32,
    /// Bytes of contents that its client stored there; 0 if the client did not tell.
    pub content: u64,
    /// Seconds since 1970: when it may be compacted, if it is sealed, or since when it is empty.
    pub since: u64,
}

/// `POST /segments/list`: segments in order of their numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SegmentList {
    /// Who asks. While it lives nothing is compacted: it may put entries into the index again.
    pub(crate) client: u64,
    /// Those behind this one.
    pub(crate) after: u64,
    /// At most so many.
    pub(crate) limit: usize,
}

/// The answer: first all that are open, then a page of those that are sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Segments {
    /// The segments.
    pub(crate) segments: Vec<Segment>,
    /// Whether there are more.
    pub(crate) more: bool,
}

/// `POST /index/rebuilt`: under this map, all holders got all entries that are in segments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IndexRebuilt {
    /// The epoch of the map.
    pub(crate) epoch: u64,
}

/// `POST /segments/S/seal`: all entries of what is there are inserted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SealRequest {
    /// The client that appended.
    pub client: u64,
    /// The length of each component.
    pub length: u64,
    /// Bytes of the contents there.
    pub content: u64,
}

/// One object in a listing of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedObject {
    /// Its id.
    pub id: String,
    /// Its length in bytes.
    pub length: u64,
    /// Whether it is sealed.
    pub sealed: bool,
}

/// `GET /objects`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListedObjects {
    /// The objects, by number.
    pub objects: Vec<ListedObject>,
    /// Whether there are more.
    pub more: bool,
}

/// The answer to a fence.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Fenced {
    /// The durable length.
    pub length: u64,
}
