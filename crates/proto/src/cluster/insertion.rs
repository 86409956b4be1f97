//! One insertion of entries into the index: done when all holders of all slots have the entries, under one epoch.
//! formats/cluster.md, section 3.

use std::collections::BTreeMap;

use super::{DeviceId, Map};

/// A batch of entries on its way to its holders. The driver sends, and reports what came back.
#[derive(Debug)]
pub struct Insertion {
    /// The slot of each entry.
    slots: Vec<usize>,
    /// The epoch under which the holders were asked; what they acknowledged under another one does not count.
    epoch: u64,
    /// The entries that each holder has yet to acknowledge, by their place in `slots`.
    missing: BTreeMap<DeviceId, Vec<usize>>,
}

/// What an insertion needs next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send these entries to these holders.
    Send(Vec<(DeviceId, Vec<usize>)>),
    /// Nothing: some answers are still to come.
    Wait,
    /// Get the map again, after a moment if its epoch is the same, and call [`Insertion::start`].
    NeedMap,
    /// All entries are stored.
    Done,
}

impl Insertion {
    /// An insertion of entries of these slots.
    #[must_use]
    pub fn new(slots: Vec<usize>) -> Self {
        Self { slots, epoch: 0, missing: BTreeMap::new() }
    }

    /// Begins, or goes on under this map. Under a new epoch all holders are asked, also those that acknowledged under
    /// an older one: between the two they may have lost the slot, forgotten it, and got it again.
    pub fn start(&mut self, map: &Map) -> Step {
        if map.epoch != self.epoch {
            self.epoch = map.epoch;
            self.missing.clear();
            for (entry, &slot) in self.slots.iter().enumerate() {
                let holders: Vec<_> =
                    map.holders(slot).iter().filter(|holder| holder.takes_entries()).collect();
                // With fewer holders, an acknowledged entry would not survive as many losses as it should.
                if holders.len() < map.holders_wanted() {
                    self.epoch = 0;
                    self.missing.clear();
                    return Step::NeedMap;
                }
                for holder in holders {
                    self.missing.entry(holder.device).or_default().push(entry);
                }
            }
        }
        if self.missing.is_empty() {
            return Step::Done;
        }
        Step::Send(self.missing.iter().map(|(&device, entries)| (device, entries.clone())).collect())
    }

    /// A holder acknowledged, asked under `epoch`.
    pub fn acknowledged(&mut self, device: DeviceId, epoch: u64) -> Step {
        if epoch == self.epoch {
            self.missing.remove(&device);
        }
        if self.missing.is_empty() && self.epoch != 0 { Step::Done } else { Step::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Holder, SLOTS};
    use super::*;

    fn map(epoch: u64, holders: &[u32]) -> Map {
        let holders: Vec<_> = holders.iter().map(|&device| Holder::new(DeviceId(device), 0, 1)).collect();
        Map {
            cluster: String::new(),
            epoch,
            k: 2,
            m: 1,
            unit: 65536,
            devices: Vec::new(),
            slots: vec![holders; SLOTS],
        }
    }

    fn to(devices: &[u32]) -> Step {
        Step::Send(devices.iter().map(|&device| (DeviceId(device), vec![0, 1])).collect())
    }

    #[test]
    fn done_after_all_holders_acknowledged() {
        let mut insertion = Insertion::new(vec![3, 4]);
        assert_eq!(insertion.start(&map(7, &[1, 2])), to(&[1, 2]));
        assert_eq!(insertion.acknowledged(DeviceId(1), 7), Step::Wait);
        assert_eq!(insertion.start(&map(7, &[1, 2])), to(&[2]), "the same epoch: only what is missing");
        assert_eq!(insertion.acknowledged(DeviceId(2), 7), Step::Done);
    }

    #[test]
    fn an_older_epoch_does_not_count() {
        let mut insertion = Insertion::new(vec![3, 4]);
        insertion.start(&map(7, &[1, 2]));
        insertion.acknowledged(DeviceId(1), 7);
        assert_eq!(insertion.start(&map(8, &[1, 3])), to(&[1, 3]));
        assert_eq!(insertion.acknowledged(DeviceId(1), 7), Step::Wait, "a late answer from before");
        assert_eq!(insertion.acknowledged(DeviceId(3), 8), Step::Wait);
        assert_eq!(insertion.acknowledged(DeviceId(1), 8), Step::Done);
    }

    #[test]
    fn too_few_holders_store_nothing() {
        let mut insertion = Insertion::new(vec![3]);
        assert_eq!(insertion.start(&map(7, &[1])), Step::NeedMap);
        assert_eq!(insertion.acknowledged(DeviceId(1), 7), Step::Wait);
    }
}
