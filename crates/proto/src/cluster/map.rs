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

impl State {
    /// Whether such a device answers.
    #[must_use]
    pub fn answers(self) -> bool {
        matches!(self, Self::Up | Self::Draining)
    }
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

/// One holder of a slot; in JSON `[device, from, since, until, had]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "HolderText", into = "HolderText")]
pub struct Holder {
    /// The device.
    pub device: DeviceId,
    /// The epoch from which on it has everything that was acknowledged: 0 if it has all, before that the epoch in which
    /// it began to take entries.
    pub from: u64,
    /// The epoch in which it became a holder. A device that finds another number than before held the slot not all the
    /// time, and forgets what it has of it.
    pub since: u64,
    /// If not 0, it retired in this epoch: it has what was acknowledged before, and gets nothing new. It stays until
    /// those that replace it know everything, since until then it may be the last that does.
    pub until: u64,
    /// Epochs before `from` of which it has everything, too: it had retired, and came back.
    pub had: Vec<(u64, u64)>,
}

type HolderText = (DeviceId, u64, u64, u64, Vec<(u64, u64)>);

impl Holder {
    /// A holder that begins in `epoch`; `from` as in the field.
    #[must_use]
    pub fn new(device: DeviceId, from: u64, epoch: u64) -> Self {
        Self { device, from, since: epoch, until: 0, had: Vec::new() }
    }

    /// Whether it has all entries of the slot that were acknowledged.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.from == 0 && self.until == 0
    }

    /// Whether entries must be inserted there.
    #[must_use]
    pub fn takes_entries(&self) -> bool {
        self.until == 0
    }

    /// The epochs of which it has everything that was acknowledged.
    fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        let until = if self.until == 0 { u64::MAX } else { self.until };
        self.had.iter().copied().chain(std::iter::once((self.from, until)))
    }
}

impl From<HolderText> for Holder {
    fn from((device, from, since, until, had): HolderText) -> Self {
        Self { device, from, since, until, had }
    }
}

impl From<Holder> for HolderText {
    fn from(holder: Holder) -> Self {
        (holder.device, holder.from, holder.since, holder.until, holder.had)
    }
}

/// From whom `learner` can copy a slot, so that it has everything then: one that is ready, or several that together,
/// and with what it has itself, have all from before it began. `None` if those that answer do not suffice.
#[must_use]
pub fn teachers(
    holders: &[Holder],
    learner: &Holder,
    answers: impl Fn(DeviceId) -> bool,
) -> Option<Vec<DeviceId>> {
    let known: Vec<&Holder> =
        holders.iter().filter(|holder| holder.device == learner.device || answers(holder.device)).collect();
    let others = known.iter().filter(|holder| holder.device != learner.device);
    if let Some(ready) = others.clone().find(|holder| holder.is_ready()) {
        return Some(vec![ready.device]);
    }
    let (mut end, mut chosen) = (0, Vec::new());
    while end < learner.from {
        let spans = known.iter().flat_map(|holder| holder.spans().map(|span| (holder.device, span)));
        let (device, (_, until)) =
            spans.filter(|(_, (from, _))| *from <= end).max_by_key(|(_, span)| span.1)?;
        if until <= end {
            return None;
        }
        end = until;
        if device != learner.device && !chosen.contains(&device) {
            chosen.push(device);
        }
    }
    Some(chosen)
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
        self.devices.iter().filter(|device| device.state.answers())
    }

    /// Whether a device answers, as far as the map knows.
    #[must_use]
    pub fn answers(&self, device: DeviceId) -> bool {
        self.device(device).is_some_and(|device| device.state.answers())
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
