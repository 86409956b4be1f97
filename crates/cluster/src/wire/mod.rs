//! Paths, headers and JSON bodies of the cluster's HTTP interfaces. formats/cluster.md, sections 6 and 7.

mod status;

use std::collections::BTreeMap;

use proto::cluster::{DeviceId, Map};
use serde::{Deserialize, Serialize};

pub use status::{ClusterStatus, DeviceStatus, DeviceView};

/// The capability of a request.
pub(crate) const CAPABILITY_HEADER: &str = "diskcast-capability";
/// The epoch of the sender's map.
pub(crate) const EPOCH_HEADER: &str = "diskcast-epoch";
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

/// How a record is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PutMode {
    /// Only if there is none.
    Create,
    /// In any case.
    Put,
}

/// `PUT /records`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordRequest {
    /// The group.
    pub group: u32,
    /// The name.
    pub name: String,
    /// Its value, in base64.
    pub value: String,
    /// Tells the maker's record from others with the same value.
    pub nonce: String,
    /// Whether there may be one.
    pub mode: PutMode,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name.
    pub name: String,
    /// Its value, in base64.
    pub value: String,
    /// That of its maker.
    pub nonce: String,
    /// Nanoseconds since 1970.
    pub modified: u64,
}

/// `POST /records/remove`; the answer is [`Records`]: those that were there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordNames {
    /// The group.
    pub group: u32,
    /// The names.
    pub names: Vec<String>,
}

/// `POST /records/get`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordName {
    /// The group.
    pub group: u32,
    /// The name.
    pub name: String,
}

/// `POST /records/list`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordList {
    /// The group.
    pub group: u32,
    /// What the names begin with.
    pub prefix: String,
    /// Names behind this one.
    pub after: String,
    /// At most so many.
    pub limit: usize,
}

/// The answer: records in order of their names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Records {
    /// The records.
    pub records: Vec<Record>,
    /// Whether there are more.
    pub more: bool,
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
