//! Repair by exact resends of single blocks. The next form sends erasure-coded symbols instead.

use std::collections::{HashMap, VecDeque};

use super::bits::BlockSet;
use super::mutant::Mutant;
use super::report::Cause;

/// Most objects with blocks to be resent; further wishes are dropped and come again with the next report.
const REPAIR_OBJECTS_MAX: usize = 1 << 14;
/// Resends are remembered for so many blocks sent after them: longer than any report is on its way.
const REMEMBERED: u64 = 1 << 16;

/// Blocks to resend.
#[derive(Debug)]
struct Pending {
    blocks: BlockSet,
    cause: Cause,
}

/// Blocks resent lately.
#[derive(Debug)]
struct Resent {
    blocks: BlockSet,
    /// Sequence of the last of them.
    sequence: u64,
}

/// The blocks to be resent, and those that were.
#[derive(Debug)]
pub(super) struct Repairs {
    pending: HashMap<u64, Pending>,
    /// Objects of `pending` that wait to be planned, in the order of the first wish.
    waiting: VecDeque<u64>,
    /// Objects of `pending` that are pinned in the cache.
    planned: VecDeque<u64>,
    resent: HashMap<u64, Resent>,
    /// Objects of `resent` with the sequence when they were noted, oldest first.
    resent_order: VecDeque<(u64, u64)>,
    mutant: Mutant,
}

impl Repairs {
    pub(super) fn new(mutant: Mutant) -> Self {
        Self {
            pending: HashMap::new(),
            waiting: VecDeque::new(),
            planned: VecDeque::new(),
            resent: HashMap::new(),
            resent_order: VecDeque::new(),
            mutant,
        }
    }

    /// Somebody lacks `block` of `object`, which has `blocks`, though all before sequence `seen` had time to arrive.
    /// True if that is news.
    pub(super) fn ask(&mut self, object: u64, blocks: u32, block: u32, seen: u64, cause: Cause) -> bool {
        if let Some(resent) = self.resent.get_mut(&object) {
            if resent.sequence < seen {
                resent.blocks.clear();
            } else if resent.blocks.contains(block) && !self.mutant.is(Mutant::IgnoresSequence) {
                return false;
            }
        }
        if let Some(pending) = self.pending.get_mut(&object) {
            return pending.blocks.insert(block);
        }
        if self.pending.len() == REPAIR_OBJECTS_MAX || block >= blocks {
            return false;
        }
        let mut set = BlockSet::empty(blocks);
        set.insert(block);
        self.pending.insert(object, Pending { blocks: set, cause });
        self.waiting.push_back(object);
        true
    }

    /// Whether nothing is to be resent.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Moves the next object to the plan.
    pub(super) fn plan(&mut self) -> Option<u64> {
        loop {
            let object = self.waiting.pop_front()?;
            if self.pending.contains_key(&object) {
                self.planned.push_back(object);
                return Some(object);
            }
        }
    }

    /// The next planned object.
    pub(super) fn front(&self) -> Option<u64> {
        self.planned.front().copied()
    }

    /// The object is about to be sent whole.
    pub(super) fn supersede(&mut self, object: u64) {
        self.pending.remove(&object);
    }

    /// Takes the next run of at most `count_max` blocks off the front object, to be sent from `sequence` on: first
    /// block, count, cause, and whether nothing is left of the object, which then is off the plan. `None` if it was
    /// superseded.
    pub(super) fn take_run(&mut self, count_max: u16, sequence: u64) -> Option<(u32, u16, Cause, bool)> {
        let object = self.front()?;
        let pending = self.pending.get_mut(&object)?;
        let first = pending.blocks.next_from(0).expect("pending objects lack a block");
        let mut count = 0;
        while count < count_max && pending.blocks.remove(first + u32::from(count)) {
            count += 1;
        }
        let (cause, done) = (pending.cause, pending.blocks.is_empty());
        let blocks = pending.blocks.bound();
        if done {
            self.drop_front();
        }
        self.remember(object, blocks, first, count, sequence);
        Some((first, count, cause, done))
    }

    /// Takes the front object off the plan and forgets what was wished of it.
    pub(super) fn drop_front(&mut self) {
        if let Some(object) = self.planned.pop_front() {
            self.pending.remove(&object);
        }
    }

    /// Nobody wants anything any more, but for what is planned.
    pub(super) fn forget(&mut self) {
        for object in self.waiting.drain(..) {
            self.pending.remove(&object);
        }
    }

    fn remember(&mut self, object: u64, blocks: u32, first: u32, count: u16, sequence: u64) {
        let order = &mut self.resent_order;
        let resent = self.resent.entry(object).or_insert_with(|| {
            order.push_back((object, sequence));
            Resent { blocks: BlockSet::empty(blocks), sequence }
        });
        resent.sequence = sequence + u64::from(count) - 1;
        for block in first..first + u32::from(count) {
            resent.blocks.insert(block);
        }
        while let Some(&(oldest, noted)) = order.front().filter(|entry| entry.1 + REMEMBERED < sequence) {
            order.pop_front();
            match self.resent.get(&oldest) {
                Some(again) if again.sequence > noted && again.sequence + REMEMBERED >= sequence => {
                    order.push_back((oldest, again.sequence));
                }
                _ => _ = self.resent.remove(&oldest),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(repairs: &mut Repairs, block: u32, seen: u64) -> bool {
        repairs.ask(7, 100, block, seen, Cause::Lost)
    }

    #[test]
    fn reports_merge_and_runs_are_taken_in_order() {
        let mut repairs = Repairs::new(Mutant::None);
        assert!([3, 4, 5, 9].into_iter().all(|block| ask(&mut repairs, block, 50)));
        assert!(!ask(&mut repairs, 4, 50), "asked for already");
        assert_eq!((repairs.plan(), repairs.front()), (Some(7), Some(7)));
        assert_eq!(repairs.take_run(2, 60), Some((3, 2, Cause::Lost, false)));
        assert_eq!(repairs.take_run(16, 62), Some((5, 1, Cause::Lost, false)));
        assert_eq!(repairs.take_run(16, 63), Some((9, 1, Cause::Lost, true)));
        assert!(repairs.is_empty() && repairs.front().is_none());
    }

    #[test]
    fn a_resend_on_its_way_is_not_resent() {
        let mut repairs = Repairs::new(Mutant::None);
        assert!(ask(&mut repairs, 3, 50));
        repairs.plan();
        repairs.take_run(16, 60);
        assert!(!ask(&mut repairs, 3, 60), "block 3 went out with sequence 60");
        assert!(ask(&mut repairs, 4, 60), "another one did not");
        assert!(ask(&mut repairs, 3, 61), "and was lost");
    }

    #[test]
    fn what_comes_whole_is_not_repaired() {
        let mut repairs = Repairs::new(Mutant::None);
        assert!(ask(&mut repairs, 3, 50));
        repairs.supersede(7);
        assert!(repairs.plan().is_none() && repairs.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut repairs = Repairs::new(Mutant::None);
        let most = REPAIR_OBJECTS_MAX as u64;
        let asked = (0..most + 10).filter(|&object| repairs.ask(object, 8, 0, 50, Cause::Lost)).count();
        assert_eq!(asked, REPAIR_OBJECTS_MAX);
        for sequence in (0..most * 100).step_by(100) {
            repairs.plan();
            repairs.take_run(1, sequence);
        }
        assert!(repairs.resent.len() as u64 <= REMEMBERED / 100 + 2, "{} remembered", repairs.resent.len());
        assert!(repairs.resent_order.len() as u64 <= REMEMBERED / 100 + 2);
    }
}
