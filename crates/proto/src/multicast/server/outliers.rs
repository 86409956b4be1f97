//! Detects receivers that lose far more than the others: a request for a large part of an object waits, unless many
//! machines make it. Source: `formats/multicast.md`, section 6.

use std::collections::HashMap;

use super::machines::MachineId;

/// Most objects for which requests are remembered.
const OBJECTS_MAX: usize = 1 << 12;
/// This many machines count as many, however many take part.
const MANY_MAX: usize = 8;

/// Which machines requested a large repair of each object.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    /// The different machines per object, at most `MANY_MAX` each.
    asked: HashMap<u64, Vec<MachineId>>,
}

impl Outliers {
    /// Notes that `machine` misses a large part of `object`. True if at least a quarter of all `machines` (2 to 8)
    /// requested the same.
    pub(super) fn are_many(&mut self, object: u64, machine: MachineId, machines: u32) -> bool {
        if self.asked.len() == OBJECTS_MAX && !self.asked.contains_key(&object) {
            self.asked.clear();
        }
        // When many receivers miss the same, only a few report it; so two to eight reports are enough.
        let many = usize::try_from(machines / 4).unwrap_or(MANY_MAX).clamp(2, MANY_MAX);
        let asked = self.asked.entry(object).or_default();
        if asked.len() < MANY_MAX && !asked.contains(&machine) {
            asked.push(machine);
        }
        asked.len() >= many
    }

    /// The object is sent in full again, so its requests are void.
    pub(super) fn forget(&mut self, object: u64) {
        self.asked.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_asks_often_is_still_one() {
        let mut outliers = Outliers::default();
        let mut ask = |receiver| outliers.are_many(5, MachineId(receiver), 16);
        assert!((0..9).all(|time| !ask(1 + time % 2)));
        assert!([2, 3].into_iter().all(|receiver| !ask(receiver)));
        assert!(ask(4));
    }

    #[test]
    fn memory_is_bounded() {
        let mut outliers = Outliers::default();
        (0..20_000).for_each(|object| _ = outliers.are_many(object, MachineId(1), 9));
        assert!(outliers.asked.len() <= OBJECTS_MAX);
    }
}
