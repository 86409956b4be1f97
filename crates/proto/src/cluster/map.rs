//! The map of the cluster: its devices, and who holds which part of the index. formats/cluster.md, sections 3 and 7.

use serde::{Deserialize, Serialize};

use super::{DeviceId, Width};

/// Parts of the index.
pub const SLOTS: usize = 1024;

/// What a device is to its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It answers, and takes new data.
    Up,
    /// It answers; its data is being moved away.
    Draining,
    /// It was silent for too long. What it holds counts as still there.
    Down,
    /// What it held is gone.
    Lost,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its number.
    pub device: DeviceId,
    /// Where it serves: `http://10.0.0.7:7420`.
    pub address: String,
    /// What fails together with it: a host, a rack. Components of a segment are spread over domains.
    pub domain: String,
    /// Whether it answers.
    pub state: State,
    /// Size of its disk in bytes.
    pub bytes: u64,
    /// Free bytes, as of its last join: a hint for placement.
    pub free: u64,
}

/// One holder of a slot; in JSON `[device, ready, since]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(DeviceId, bool, u64)", into = "(DeviceId, bool, u64)")]
pub struct Holder {
    /// The device.
    pub device: DeviceId,
    /// Whether it has all entries of the slot that were acknowledged.
    pub ready: bool,
    /// The epoch in which it became a holder. A device that finds another number than before held the slot not all the
    /// time, and forgets what it has of it.
    pub since: u64,
}

impl From<(DeviceId, bool, u64)> for Holder {
    fn from((device, ready, since): (DeviceId, bool, u64)) -> Self {
        Self { device, ready, since }
    }
}

impl From<Holder> for (DeviceId, bool, u64) {
    fn from(holder: Holder) -> Self {
        (holder.device, holder.ready, holder.since)
    }
}

/// All devices and slots. A new epoch for each change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// 128 random bits in hexadecimal.
    pub cluster: String,
    /// Grows by one with each change.
    pub epoch: u64,
    /// Data components of new segments.
    pub k: u8,
    /// Parity components of all segments: as many devices may be lost.
    pub m: u8,
    /// Bytes of a stripe unit.
    pub unit: u32,
    /// All devices that ever joined.
    pub devices: Vec<Device>,
    /// The holders of each slot: [`SLOTS`] lists, or none before the cluster has enough devices.
    pub slots: Vec<Vec<Holder>>,
}

impl Map {
    /// The device `id`.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.iter().find(|device| device.device == id)
    }

    /// The holders of `slot`; empty if the cluster has none yet.
    #[must_use]
    pub fn holders(&self, slot: usize) -> &[Holder] {
        self.slots.get(slot).map_or(&[], Vec::as_slice)
    }

    /// Holders of a slot: one more than devices that may be lost.
    #[must_use]
    pub fn holders_wanted(&self) -> usize {
        usize::from(self.m) + 1
    }

    /// The width of segments when all devices are up. `None` if the map has none that is possible.
    #[must_use]
    pub fn width(&self) -> Option<Width> {
        Width::new(self.k, self.m)
    }

    /// The devices that answer.
    pub fn reachable(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| matches!(device.state, State::Up | State::Draining))
    }
}

/// The slot of `name`.
#[must_use]
pub fn slot_of(name: &str) -> usize {
    let hash = blake3::hash(name.as_bytes());
    let [low, high, ..] = *hash.as_bytes();
    usize::from(u16::from_le_bytes([low, high])) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_spread_over_the_slots() {
        let mut seen = vec![0; SLOTS];
        for number in 0..20_000 {
            seen[slot_of(&format!("chunks/{number}"))] += 1;
        }
        assert!(seen.iter().all(|&names| (2..50).contains(&names)), "{seen:?}");
        // formats/cluster.md: BLAKE3 of `a` begins with 17 76.
        assert_eq!(slot_of("a"), 0x7617 % SLOTS);
    }
}
