//! Repairs: symbols, each of which replaces any lost block of its object, and single blocks where symbols do not
//! help. When many receivers request the same repair, it is sent once. Source: `formats/multicast.md`, section 6.

use std::collections::{HashMap, VecDeque};

use crate::multicast::bits::{BlockSet, index};
use crate::multicast::wire::report::Cause;

/// Most objects with pending repairs. Requests for further ones are dropped; the receivers repeat them.
const REPAIR_OBJECTS_MAX: usize = 1 << 14;
/// Sent repairs are remembered until this many more blocks were sent: longer than any report is in flight.
const REMEMBERED: u64 = 1 << 16;

/// An object's symbols have the numbers below this; after the last one the server starts again from the first.
const ROWS_MAX: u16 = 4096;

/// Repairs of an object that wait to be sent.
#[derive(Debug)]
struct Pending {
    /// The number of symbols, any that were not sent before.
    symbols: u32,
    /// The numbers of the blocks.
    blocks: BlockSet,
    cause: Cause,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.symbols == 0 && self.blocks.is_empty()
    }
}

/// Repairs of an object that were sent recently.
#[derive(Debug)]
struct Resent {
    blocks: BlockSet,
    /// Sequence of the last of `blocks`.
    sequence: u64,
    /// The last symbols that were sent one after the other: sequence of the first, and their number.
    burst: (u64, u32),
}

impl Resent {
    /// Upper bound of the sequences of all these repairs.
    fn last(&self) -> u64 {
        self.sequence.max(self.burst.0 + u64::from(self.burst.1))
    }
}

/// A run of repairs, to be sent with consecutive sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepairRun {
    /// The first block; from the number of the object's blocks on: a symbol.
    pub(super) first: u32,
    pub(super) count: u16,
    pub(super) cause: Cause,
    /// Number of symbols of the object that remain to be sent after this run.
    pub(super) more: u32,
    /// Nothing remains of the object, which was removed from the plan.
    pub(super) done: bool,
}

/// Pending repairs of all objects, and those that were sent recently.
#[derive(Debug)]
pub(super) struct Repairs {
    pending: HashMap<u64, Pending>,
    /// Objects of `pending` that wait to be planned, in the order of the first request.
    waiting: VecDeque<u64>,
    /// Objects of `pending` that are pinned in the cache.
    planned: VecDeque<u64>,
    resent: HashMap<u64, Resent>,
    /// Objects of `resent` with the sequence when they were noted, oldest first.
    resent_order: VecDeque<(u64, u64)>,
    /// The next symbol of each object. No symbol is sent twice before all `ROWS_MAX` were sent.
    rows: Vec<u16>,
}

impl Repairs {
    /// No repairs, for a session of `objects`.
    pub(super) fn new(objects: u64) -> Self {
        Self {
            pending: HashMap::new(),
            waiting: VecDeque::new(),
            planned: VecDeque::new(),
            resent: HashMap::new(),
            resent_order: VecDeque::new(),
            rows: vec![0; index(objects)],
        }
    }

    /// A receiver is missing `block` of `object`, which has `blocks` blocks, although all BLOCKs below `seen` had
    /// time to arrive. True if this adds a repair.
    pub(super) fn ask_block(
        &mut self,
        object: u64,
        blocks: u32,
        block: u32,
        seen: u64,
        cause: Cause,
    ) -> bool {
        if let Some(resent) = self.resent.get_mut(&object) {
            if resent.sequence < seen {
                resent.blocks.clear();
            } else if resent.blocks.contains(block) {
                return false;
            }
        }
        block < blocks
            && self.pending(object, blocks, cause).is_some_and(|pending| pending.blocks.insert(block))
    }

    /// A receiver needs `count` symbols of `object`, which has `blocks` blocks, although all BLOCKs below `seen` had
    /// time to arrive. Returns how many more symbols will be sent than before.
    pub(super) fn ask_symbols(
        &mut self,
        object: u64,
        blocks: u32,
        count: u32,
        seen: u64,
        cause: Cause,
    ) -> u32 {
        let lacking = count.saturating_sub(self.on_their_way(object, seen));
        if lacking == 0 {
            return 0;
        }
        let Some(pending) = self.pending(object, blocks, cause) else { return 0 };
        let fresh = lacking.saturating_sub(pending.symbols);
        // Any symbol helps every receiver, so the largest request serves all of them: no sum.
        pending.symbols = pending.symbols.max(lacking);
        fresh
    }

    /// Number of symbols of `object` that were sent at or after sequence `seen`, and so may still arrive.
    fn on_their_way(&self, object: u64, seen: u64) -> u32 {
        let Some(resent) = self.resent.get(&object) else { return 0 };
        let (first, count) = resent.burst;
        count - u32::try_from(seen.saturating_sub(first)).unwrap_or(u32::MAX).min(count)
    }

    /// The pending repairs of `object`, at the end of the queue if it had none; `None` if too many objects are
    /// pending.
    fn pending(&mut self, object: u64, blocks: u32, cause: Cause) -> Option<&mut Pending> {
        if !self.pending.contains_key(&object) {
            if self.pending.len() == REPAIR_OBJECTS_MAX {
                return None;
            }
            self.waiting.push_back(object);
        }
        let empty = || Pending { symbols: 0, blocks: BlockSet::empty(blocks), cause };
        Some(self.pending.entry(object).or_insert_with(empty))
    }

    /// Whether no repairs are pending.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Moves the next object to the plan, and returns it.
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

    /// The object is about to be sent in full, so its pending repairs are void.
    pub(super) fn supersede(&mut self, object: u64) {
        self.pending.remove(&object);
    }

    /// Takes the next run of at most `count_max` packets of the front object, which has `blocks` blocks, to be sent
    /// from `sequence` on. `None` if its repairs are void.
    pub(super) fn take_run(&mut self, blocks: u32, count_max: u16, sequence: u64) -> Option<RepairRun> {
        let object = self.front()?;
        let pending = self.pending.get_mut(&object)?;
        let (cause, symbols) = (pending.cause, pending.symbols);
        let (first, count) = match pending.blocks.next_from(0) {
            Some(first) => (first, self.take_blocks(object, blocks, first, count_max, sequence)),
            None => self.take_symbols(object, blocks, symbols.min(count_max.into()), sequence),
        };
        let pending = self.pending.get_mut(&object).expect("just seen");
        debug_assert!(count > 0 && count <= count_max, "a run of {count} packets, at most {count_max}");
        pending.symbols -= if first >= blocks { count.into() } else { 0 };
        let (more, done) = (pending.symbols, pending.is_empty());
        if done {
            self.drop_front();
        }
        Some(RepairRun { first, count, cause, more, done })
    }

    /// Takes block `first`, which is pending, and the pending blocks directly after it, at most `most` in total, to
    /// be sent from `sequence` on. Returns their number.
    fn take_blocks(&mut self, object: u64, blocks: u32, first: u32, most: u16, sequence: u64) -> u16 {
        let pending = self.pending.get_mut(&object).expect("it is pending");
        let mut count = 0;
        while count < most && pending.blocks.remove(first + u32::from(count)) {
            count += 1;
        }
        let resent = self.remember(object, blocks, sequence);
        resent.sequence = sequence + u64::from(count) - 1;
        for block in first..first + u32::from(count) {
            resent.blocks.insert(block);
        }
        count
    }

    /// Takes at most `most` (at least 1) new symbols of `object`, which has `blocks` blocks, to be sent from
    /// `sequence` on. Returns the block number of the first one and how many they are.
    pub(super) fn take_symbols(&mut self, object: u64, blocks: u32, most: u32, sequence: u64) -> (u32, u16) {
        let row = &mut self.rows[index(object)];
        if *row >= ROWS_MAX {
            *row = 0;
        }
        let count = u16::try_from(most.max(1)).unwrap_or(u16::MAX).min(ROWS_MAX - *row);
        let first = blocks + u32::from(*row);
        *row += count;
        let resent = self.remember(object, blocks, sequence);
        let (begin, before) = resent.burst;
        // Symbols without another packet between them form one burst, so the sequence of each is known.
        let goes_on = begin + u64::from(before) == sequence;
        resent.burst = if goes_on { (begin, before + u32::from(count)) } else { (sequence, count.into()) };
        (first, count)
    }

    /// Removes the front object from the plan and drops its pending repairs.
    pub(super) fn drop_front(&mut self) {
        if let Some(object) = self.planned.pop_front() {
            self.pending.remove(&object);
        }
    }

    /// Drops all repairs that are not planned, since no receiver is left.
    pub(super) fn forget(&mut self) {
        for object in self.waiting.drain(..) {
            self.pending.remove(&object);
        }
    }

    /// The objects with pending symbols and how many (at most 255), for at most `most` objects in the order of
    /// sending.
    pub(super) fn coming(&self, most: usize) -> Vec<(u64, u8)> {
        let queued = self.planned.iter().chain(&self.waiting);
        let symbols = |object: &u64| self.pending.get(object).map_or(0, |pending| pending.symbols);
        let coming = queued.map(|object| (*object, u8::try_from(symbols(object)).unwrap_or(u8::MAX)));
        coming.filter(|entry| entry.1 > 0).take(most).collect()
    }

    /// The record of the repairs of `object`, some of which are sent from `sequence` on. Drops records that are too
    /// old.
    fn remember(&mut self, object: u64, blocks: u32, sequence: u64) -> &mut Resent {
        let order = &mut self.resent_order;
        while let Some(&(oldest, noted)) = order.front().filter(|entry| entry.1 + REMEMBERED < sequence) {
            order.pop_front();
            match self.resent.get(&oldest).map(Resent::last) {
                Some(again) if again > noted && again + REMEMBERED >= sequence => {
                    order.push_back((oldest, again));
                }
                _ => _ = self.resent.remove(&oldest),
            }
        }
        self.resent.entry(object).or_insert_with(|| {
            order.push_back((object, sequence));
            Resent { blocks: BlockSet::empty(blocks), sequence: 0, burst: (0, 0) }
        })
    }
}

/// The largest repair of an object of `blocks` blocks that one receiver gets while there are others: an eighth of the
/// blocks plus 4, plus twice the usual loss (`loss_per_million`).
pub(super) fn repairs_max(blocks: u32, loss_per_million: u32) -> u32 {
    let usual = u64::from(blocks) * u64::from(loss_per_million) / 1_000_000;
    blocks / 8 + 4 + 2 * u32::try_from(usual).unwrap_or(u32::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repairs() -> Repairs {
        Repairs::new(1 << 17)
    }

    fn ask(repairs: &mut Repairs, block: u32, seen: u64) -> bool {
        repairs.ask_block(7, 100, block, seen, Cause::Lost)
    }

    fn ask_symbols(repairs: &mut Repairs, count: u32, seen: u64) -> bool {
        repairs.ask_symbols(7, 100, count, seen, Cause::Lost) > 0
    }

    fn run(first: u32, count: u16, more: u32, done: bool) -> Option<RepairRun> {
        Some(RepairRun { first, count, cause: Cause::Lost, more, done })
    }

    #[test]
    fn reports_merge_and_runs_are_taken_in_order() {
        let mut repairs = repairs();
        assert!([3, 4, 5, 9].into_iter().all(|block| ask(&mut repairs, block, 50)));
        assert!(!ask(&mut repairs, 4, 50), "asked for already");
        assert!(!ask(&mut repairs, 100, 50), "there is no such block");
        assert_eq!((repairs.plan(), repairs.front()), (Some(7), Some(7)));
        assert_eq!(repairs.take_run(100, 2, 60), run(3, 2, 0, false));
        assert_eq!(repairs.take_run(100, 16, 62), run(5, 1, 0, false));
        assert_eq!(repairs.take_run(100, 16, 63), run(9, 1, 0, true));
        assert!(repairs.is_empty() && repairs.front().is_none());
    }

    #[test]
    fn a_resend_on_its_way_is_not_resent() {
        let mut repairs = repairs();
        assert!(ask(&mut repairs, 3, 50));
        repairs.plan();
        repairs.take_run(100, 16, 60);
        assert!(!ask(&mut repairs, 3, 60), "block 3 went out with sequence 60");
        assert!(ask(&mut repairs, 4, 60), "another one did not");
        assert!(ask(&mut repairs, 3, 61), "and was lost");
    }

    #[test]
    fn symbols_go_out_for_who_lacks_most_and_never_twice() {
        let mut repairs = repairs();
        assert!(ask_symbols(&mut repairs, 3, 50) && !ask_symbols(&mut repairs, 2, 50));
        assert!(ask_symbols(&mut repairs, 5, 50));
        assert_eq!(repairs.coming(9), [(7, 5)]);
        repairs.plan();
        assert_eq!(repairs.take_run(100, 4, 60), run(100, 4, 1, false));
        assert_eq!(repairs.take_run(100, 4, 64), run(104, 1, 0, true));
        assert!(!ask_symbols(&mut repairs, 5, 60), "they are on their way");
        assert!(!ask_symbols(&mut repairs, 2, 63), "two of them are");
        assert!(ask_symbols(&mut repairs, 3, 63), "but not three");
        repairs.plan();
        assert_eq!(repairs.take_run(100, 4, 70), run(105, 1, 0, true));
    }

    #[test]
    fn what_comes_whole_is_not_repaired() {
        let mut repairs = repairs();
        assert!(ask(&mut repairs, 3, 50) && ask_symbols(&mut repairs, 3, 50));
        repairs.supersede(7);
        assert!(repairs.plan().is_none() && repairs.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut repairs = repairs();
        let most = REPAIR_OBJECTS_MAX as u64;
        let asked = (0..most + 10).filter(|&object| repairs.ask_block(object, 8, 0, 50, Cause::Lost)).count();
        assert_eq!(asked, REPAIR_OBJECTS_MAX);
        for sequence in (0..most * 100).step_by(100) {
            repairs.plan();
            repairs.take_run(8, 1, sequence);
        }
        assert!(repairs.resent.len() as u64 <= REMEMBERED / 100 + 2, "{} remembered", repairs.resent.len());
        assert!(repairs.resent_order.len() as u64 <= REMEMBERED / 100 + 2);
    }
}
