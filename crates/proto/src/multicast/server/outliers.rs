//! Wishes for much of an object, which most receivers have: who loses far more than the others do must wait, unless
//! many lost the same. Source: `formats/multicast.md`, section 6.

use std::collections::HashMap;

use crate::multicast::wire::header::ReceiverId;

/// Most objects that are remembered.
const OBJECTS_MAX: usize = 1 << 12;
/// So many receivers are many, whatever their number.
const MANY_MAX: usize = 8;

/// Who asked for much of each object.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    /// Different ones, at most as many as are many.
    asked: HashMap<u64, Vec<ReceiverId>>,
}

impl Outliers {
    /// `receiver` lacks much of `object`: whether at least a quarter of all `receivers` seem to.
    pub(super) fn are_many(&mut self, object: u64, receiver: ReceiverId, receivers: u32) -> bool {
        if self.asked.len() == OBJECTS_MAX && !self.asked.contains_key(&object) {
            self.asked.clear();
        }
        // Of many, few speak for the others.
        let many = usize::try_from(receivers / 4).unwrap_or(MANY_MAX).clamp(2, MANY_MAX);
        let asked = self.asked.entry(object).or_default();
        if asked.len() < MANY_MAX && !asked.contains(&receiver) {
            asked.push(receiver);
        }
        asked.len() >= many
    }

    /// The object goes out again.
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
        let mut ask = |receiver| outliers.are_many(5, ReceiverId(receiver), 16);
        assert!((0..9).all(|time| !ask(1 + time % 2)));
        assert!([2, 3].into_iter().all(|receiver| !ask(receiver)));
        assert!(ask(4));
    }

    #[test]
    fn memory_is_bounded() {
        let mut outliers = Outliers::default();
        (0..20_000).for_each(|object| _ = outliers.are_many(object, ReceiverId(1), 9));
        assert!(outliers.asked.len() <= OBJECTS_MAX);
    }
}
