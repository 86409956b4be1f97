//! A receiver's memory: which objects are here in part or wait for their verification, within a budget.

use std::collections::HashMap;

use base::{Duration, Instant};

use super::bits::{BlockSet, ObjectSet};
use super::mutant::Mutant;
use super::packet::{BlockHeader, Shape};
use super::receiver::{Disposition, Slot};
use super::report::{Cause, Lacking, NeedBlocks};
use super::status::ObjectRange;
use super::stream::Stream;

/// Most bytes of a bitmap in one NEED: 2048 blocks.
const BITMAP_BYTES_MAX: u32 = 256;

/// One object that is here in part or as a whole.
#[derive(Debug)]
struct Entry {
    object: u64,
    bytes: u32,
    missing: BlockSet,
    /// Sequence of block 0 in the last pass that was seen.
    pass_first: u64,
    /// Its packets contradict each other.
    given_up: bool,
    /// Its missing blocks are not asked for again before this.
    ask_at: Instant,
}

/// What else is known when blocks are asked for.
pub(super) struct View<'a> {
    pub(super) stream: &'a Stream,
    pub(super) refused: &'a ObjectSet,
    /// What will come whole.
    pub(super) pending: &'a [ObjectRange],
}

/// The slots in use and their sum.
#[derive(Debug)]
pub(super) struct Slots {
    budget_bytes: u64,
    used_bytes: u64,
    entries: Vec<Option<Entry>>,
    unused: Vec<u32>,
    by_object: HashMap<u64, Slot>,
    /// The object that was found last: most blocks belong to the same as the one before.
    last: Option<(u64, Slot)>,
    /// Slots that lack blocks, in the order of their beginning.
    filling: Vec<Slot>,
    /// Objects begun and their lengths, for the mean.
    begun: u64,
    begun_bytes: u64,
    mutant: Mutant,
}

impl Slots {
    pub(super) fn new(budget_bytes: u64, mean_bytes: u32, mutant: Mutant) -> Self {
        Self {
            budget_bytes,
            used_bytes: 0,
            entries: Vec::new(),
            unused: Vec::new(),
            by_object: HashMap::new(),
            last: None,
            filling: Vec::new(),
            begun: 1,
            begun_bytes: mean_bytes.max(1).into(),
            mutant,
        }
    }

    /// The slot of `object`, if it has one.
    pub(super) fn find(&mut self, object: u64) -> Option<Slot> {
        if let Some((last, slot)) = self.last
            && last == object
        {
            return Some(slot);
        }
        let slot = *self.by_object.get(&object)?;
        self.last = Some((object, slot));
        Some(slot)
    }

    /// The object in `slot`.
    pub(super) fn object_of(&self, slot: Slot) -> Option<u64> {
        self.entries.get(slot.0 as usize)?.as_ref().map(|entry| entry.object)
    }

    /// A slot for the object of `header`, which has `blocks`; `None` if there is no room.
    pub(super) fn begin(&mut self, header: &BlockHeader, blocks: u32) -> Option<Slot> {
        let bytes = u64::from(header.object_bytes);
        if self.used_bytes + bytes > self.budget_bytes && !self.mutant.is(Mutant::IgnoresBudget) {
            return None;
        }
        self.used_bytes += bytes;
        self.begun += 1;
        self.begun_bytes += bytes;
        let slot = Slot(self.unused.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("fewer slots than objects")
        }));
        self.entries[slot.0 as usize] = Some(Entry {
            object: header.object,
            bytes: header.object_bytes,
            missing: BlockSet::full(blocks),
            pass_first: header.sequence - u64::from(header.block),
            given_up: false,
            ask_at: Instant::ZERO,
        });
        self.by_object.insert(header.object, slot);
        self.last = Some((header.object, slot));
        self.filling.push(slot);
        Some(slot)
    }

    /// Whether the object in `slot` is not complete.
    pub(super) fn is_partial(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].as_ref().is_some_and(|entry| !entry.missing.is_empty())
    }

    /// Whether `header` gives the incomplete object in `slot` another length than the packet that began it.
    pub(super) fn contradicts(&self, slot: Slot, header: &BlockHeader) -> bool {
        let entry = self.entries[slot.0 as usize].as_ref();
        entry.is_some_and(|entry| {
            !entry.given_up && !entry.missing.is_empty() && entry.bytes != header.object_bytes
        })
    }

    /// Nothing more is placed in `slot` or asked for it; it stays in use until it is freed.
    pub(super) fn give_up(&mut self, slot: Slot) {
        if let Some(entry) = &mut self.entries[slot.0 as usize] {
            entry.given_up = true;
        }
        self.stop_filling(slot);
    }

    /// Where a block of the object in `slot` goes.
    pub(super) fn place(&mut self, slot: Slot, header: &BlockHeader, shape: &Shape) -> Disposition {
        let Some(entry) = self.entries[slot.0 as usize].as_mut() else { return Disposition::Unwanted };
        if entry.given_up || header.object_bytes != entry.bytes {
            return Disposition::Unwanted;
        }
        if !header.repair {
            entry.pass_first = entry.pass_first.max(header.sequence - u64::from(header.block));
        }
        if !entry.missing.remove(header.block.into()) {
            return Disposition::Duplicate;
        }
        let (mut offset, _) = shape.place(entry.bytes, header.block);
        if self.mutant.is(Mutant::MisplacesBlock) && header.block == 1 {
            offset = 0;
        }
        Disposition::Place { slot, offset, begins: None }
    }

    /// The slot and length of `object` if nothing of it is missing any more. Says so once.
    pub(super) fn complete(&mut self, object: u64) -> Option<(Slot, u32)> {
        let slot = self.find(object)?;
        let entry = self.entries[slot.0 as usize].as_ref()?;
        let enough = u32::from(self.mutant.is(Mutant::IgnoresLastBlock));
        if entry.missing.len() > enough || (enough == 1 && entry.missing.next_from(0) != entry.last_block()) {
            return None;
        }
        let bytes = entry.bytes;
        self.stop_filling(slot);
        Some((slot, bytes))
    }

    /// Empties `slot`.
    pub(super) fn free(&mut self, slot: Slot) {
        let Some(entry) = self.entries.get_mut(slot.0 as usize).and_then(Option::take) else { return };
        if !self.mutant.is(Mutant::LeaksSlot) {
            self.used_bytes -= u64::from(entry.bytes);
        }
        self.by_object.remove(&entry.object);
        self.last = None;
        self.unused.push(slot.0);
        self.stop_filling(slot);
    }

    /// Bytes that are not in use.
    pub(super) const fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.used_bytes)
    }

    /// Whether something is here in part.
    pub(super) const fn are_filling(&self) -> bool {
        !self.filling.is_empty()
    }

    /// For how many of `lacked` objects there is room, as far as one can guess; for one at least if all is empty. For
    /// none while three quarters are in use: who waits for its disk need not ask for every object as it becomes free.
    pub(super) fn room_for(&self, lacked: u64) -> u64 {
        if self.used_bytes > self.budget_bytes / 4 * 3 {
            return 0;
        }
        let room = self.free_bytes().saturating_mul(self.begun) / self.begun_bytes;
        room.max(u64::from(self.used_bytes == 0)).min(lacked)
    }

    /// Adds to `into` the blocks that have gone by without arriving, while it fits `room` bytes. They are asked for
    /// again after `retry`.
    pub(super) fn lacking_blocks(
        &mut self,
        now: Instant,
        retry: Duration,
        view: &View<'_>,
        room: usize,
        into: &mut Lacking,
    ) {
        for slot in &self.filling {
            let entry = self.entries[slot.0 as usize].as_mut().expect("filling slots are in use");
            let comes_whole = |range: &ObjectRange| (range.first..range.end()).contains(&entry.object);
            if now < entry.ask_at || view.pending.iter().any(comes_whole) {
                continue;
            }
            let Some(need) = entry.lacking(view) else { continue };
            into.blocks.push(need);
            if into.packet_bytes() > room {
                into.blocks.pop();
                return;
            }
            entry.ask_at = now + retry;
        }
    }

    fn stop_filling(&mut self, slot: Slot) {
        if let Some(at) = self.filling.iter().position(|&other| other == slot) {
            self.filling.remove(at);
        }
    }
}

impl Entry {
    fn last_block(&self) -> Option<u32> {
        self.missing.bound().checked_sub(1)
    }

    /// The missing blocks that have gone by.
    fn lacking(&self, view: &View<'_>) -> Option<NeedBlocks> {
        let sent = view.stream.settled().saturating_sub(self.pass_first);
        let passed = if view.stream.is_over(self.pass_first) { u64::MAX } else { sent };
        let passed = u32::try_from(passed).unwrap_or(u32::MAX).min(self.missing.bound());
        let first_byte = self.missing.next_from(0).filter(|&block| block < passed)? / 8;
        let end_byte = passed.div_ceil(8).min(first_byte + BITMAP_BYTES_MAX);
        let mut bitmap: Vec<u8> =
            (first_byte..end_byte).map(|index| self.missing.byte(index, passed)).collect();
        while bitmap.last() == Some(&0) {
            bitmap.pop();
        }
        let cause = if view.refused.contains(self.object) {
            Cause::BufferFull
        } else if self.pass_first < view.stream.joined_sequence() {
            Cause::Late
        } else {
            Cause::Lost
        };
        let first_block = u16::try_from(first_byte * 8).expect("OBJECT_BLOCKS_MAX");
        Some(NeedBlocks { object: self.object, first_block, bitmap, cause })
    }
}
