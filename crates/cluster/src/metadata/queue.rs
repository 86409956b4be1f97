//! What is to be rebuilt and compacted, and who does it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Instant;
use proto::cluster::DeviceId;

/// What is to be rebuilt.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    /// The epoch for which the segments were looked through.
    pub(super) looked_at: u64,
    /// Segment and component, the most exposed first.
    pub(super) waiting: Vec<(u64, u8)>,
    /// Who rebuilds what.
    pub(super) given: BTreeMap<DeviceId, BTreeSet<(u64, u8)>>,
    /// Components that need not leave their device, and where they are to go all the same.
    pub(super) moves: BTreeMap<(u64, u8), DeviceId>,
}

impl Rebuild {
    /// How many components are to be rebuilt.
    pub(super) fn count(&self) -> u64 {
        let given: usize = self.given.values().map(BTreeSet::len).sum();
        (self.waiting.len() + given) as u64
    }
}

/// What is to be compacted.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// When the devices were asked last.
    pub(super) planned: Instant,
    /// Segments that go together, those with the emptiest first.
    pub(super) waiting: VecDeque<Vec<u64>>,
    /// Who compacts what.
    pub(super) given: BTreeMap<DeviceId, Vec<u64>>,
    /// Segments that were given to a device and are not emptied yet: in the next round others come first.
    pub(super) tried: BTreeSet<u64>,
}

impl Compaction {
    /// How many segments are to be compacted.
    pub(super) fn count(&self) -> u64 {
        self.waiting.iter().chain(self.given.values()).map(|segments| segments.len() as u64).sum()
    }
}
