//! What is to be rebuilt, and who does it.

use std::collections::{BTreeMap, BTreeSet};

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
}

impl Rebuild {
    /// How many components are to be rebuilt.
    pub(super) fn count(&self) -> u64 {
        let given: usize = self.given.values().map(BTreeSet::len).sum();
        (self.waiting.len() + given) as u64
    }
}
