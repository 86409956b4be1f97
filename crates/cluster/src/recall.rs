//! Bodies of the commands by which devices tell a restored metadata service what it does not know. formats/cluster.md,
//! section 7.

use proto::cluster::{DeviceId, Map};
use serde::{Deserialize, Serialize};

/// `POST /devices/D/recall`: what a device knows, for a service whose state was restored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recall {
    /// As in a request to join.
    pub(crate) identity: String,
    /// The epoch of its key.
    pub(crate) key_epoch: u32,
    /// Its map.
    pub(crate) map: Map,
}

/// A segment of which a device has a component; a list of them is the body of `POST /devices/D/recall/segments`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RecalledSegment {
    /// The segment.
    pub(crate) segment: u64,
    /// Its group.
    pub(crate) group: u32,
    /// Its data components.
    pub(crate) k: u8,
    /// Its parity components.
    pub(crate) m: u8,
    /// The device of each component, as the one who made the device's component knew it.
    pub(crate) devices: Vec<DeviceId>,
    /// The component that the device has.
    pub(crate) component: u8,
}
