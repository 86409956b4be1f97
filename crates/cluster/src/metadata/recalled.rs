//! What devices told of a state that was restored, and which of them are waited for.

use std::collections::{BTreeMap, BTreeSet};

use proto::cluster::{DeviceId, Map, State};

/// What devices told so far.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// A device knows a newer map than this instance.
    pub(super) is_older: bool,
    pub(super) newest: Option<Map>,
    pub(super) told: BTreeSet<DeviceId>,
    pub(super) lost: BTreeSet<DeviceId>,
    /// Who has which components of a segment.
    pub(super) holders: BTreeMap<u64, Vec<(DeviceId, u8)>>,
    /// Segments that are known, once the first device tells of some.
    pub(super) segments: BTreeSet<u64>,
}

impl Recalled {
    /// Devices that are waited for; none before one has told its map.
    pub(super) fn missing(&self) -> Vec<DeviceId> {
        let devices = self.newest.iter().flat_map(|map| &map.devices);
        let wanted = devices.filter(|device| device.state != State::Lost).map(|device| device.device);
        wanted.filter(|device| !self.told.contains(device) && !self.lost.contains(device)).collect()
    }
}
