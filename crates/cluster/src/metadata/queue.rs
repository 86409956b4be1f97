//! What is to be rebuilt and compacted, and who does it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Duration, Instant};
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
    /// When the last component was rebuilt, or when it was found what is to be.
    pub(super) progressed: Instant,
}

impl Rebuild {
    /// How many components are to be rebuilt.
    pub(super) fn count(&self) -> u64 {
        let given: usize = self.given.values().map(BTreeSet::len).sum();
        (self.waiting.len() + given) as u64
    }

    /// Whether what else moves data waits: what one more loss could take is rebuilt first. A rebuild that gets nowhere
    /// for `patience`, because too few components are left or sources can't be read, holds up nothing.
    pub(super) fn goes_first(&self, now: Instant, patience: Duration) -> bool {
        self.count() > 0 && now.since(self.progressed) < patience
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_goes_first_as_long_as_it_gets_on() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let patience = Duration::from_secs(60);
        let mut rebuild = Rebuild { progressed: at(100), ..Rebuild::default() };
        assert!(!rebuild.goes_first(at(101), patience), "nothing is to be rebuilt");
        rebuild.waiting.push((1, 0));
        assert!(rebuild.goes_first(at(101), patience));
        assert!(!rebuild.goes_first(at(160), patience), "it stands");
        rebuild.progressed = at(160);
        assert!(rebuild.goes_first(at(161), patience), "it goes on");
        rebuild.given.insert(DeviceId(2), BTreeSet::from([(1, 0)]));
        rebuild.waiting.clear();
        assert!(rebuild.goes_first(at(161), patience), "a device is at it");
    }
}
