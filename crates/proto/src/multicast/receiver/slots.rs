//! A receiver's memory: the objects of which blocks have arrived, until they are verified and released, within a
//! budget.

use std::collections::HashMap;

use base::{Duration, Instant};

use crate::code::Held;
use crate::multicast::bits::{BlockSet, ObjectSet};
use crate::multicast::receiver::slot::{Disposition, Slot};
use crate::multicast::receiver::stream::Stream;
use crate::multicast::wire::header::{BlockHeader, COMING_MAX, ObjectRange, Shape, are_coded};
use crate::multicast::wire::report::{Cause, Lacking, NeedBlocks};

/// Most bytes of a bitmap in one NEED: 2048 blocks.
const BITMAP_BYTES_MAX: u32 = 256;

/// Longest time between two requests for an object, and how many requests are made.
const RETRY_MAX: Duration = Duration::from_millis(500);
const ASKS_MAX: u8 = 10;

/// One object of which at least one block has arrived.
#[derive(Debug)]
struct Entry {
    object: u64,
    bytes: u32,
    /// Bytes that it takes of the budget.
    padded_bytes: u32,
    /// Blocks that have not arrived. Symbols lie in the places of some of them (`held`).
    missing: BlockSet,
    held: Vec<Held>,
    /// Sequence of block 0 in the last pass that the receiver saw.
    pass_first: u64,
    /// Announced symbols of this object may arrive until this sequence.
    coming_until: u64,
    /// Enough blocks and symbols have arrived to restore the object.
    complete: bool,
    /// Multicast cannot complete it: its packets contradict each other, or requests were not answered.
    given_up: bool,
    /// It is not requested again before this time.
    ask_at: Instant,
    /// How often it was requested since its last new block.
    asks: u8,
}

/// What the receiver knows of the stream and of the server's plans when it decides what to request.
pub(super) struct View<'a> {
    pub(super) stream: &'a Stream,
    pub(super) refused: &'a ObjectSet,
    /// Objects that the server will send in full.
    pub(super) pending: &'a [ObjectRange],
    /// The objects of which the server will send symbols, and how many.
    pub(super) repairs: &'a [(u64, u8)],
}

/// The slots in use, and the bytes that they take together.
#[derive(Debug)]
pub(super) struct Slots {
    budget_bytes: u64,
    used_bytes: u64,
    entries: Vec<Option<Entry>>,
    unused: Vec<u32>,
    by_object: HashMap<u64, Slot>,
    /// The object that was found last: a block usually belongs to the same object as the block before.
    last: Option<(u64, Slot)>,
    /// Slots whose objects are incomplete, in the order in which they were begun.
    filling: Vec<Slot>,
    /// Number of objects ever begun and the sum of their lengths in bytes, for the mean length.
    begun: u64,
    begun_bytes: u64,
}

impl Slots {
    pub(super) fn new(budget_bytes: u64, mean_bytes: u32) -> Self {
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

    /// A new slot for the object of `header`; `None` if it does not fit the budget.
    pub(super) fn begin(&mut self, header: &BlockHeader, shape: &Shape) -> Option<Slot> {
        let bytes = u64::from(shape.padded_bytes(header.object_bytes));
        if self.used_bytes + bytes > self.budget_bytes {
            return None;
        }
        debug_assert!(!self.by_object.contains_key(&header.object), "an object has one slot");
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
            padded_bytes: shape.padded_bytes(header.object_bytes),
            missing: BlockSet::full(shape.blocks(header.object_bytes)),
            held: Vec::new(),
            pass_first: header.sequence - u64::from(header.block),
            coming_until: 0,
            complete: false,
            given_up: false,
            ask_at: Instant::ZERO,
            asks: 0,
        });
        self.by_object.insert(header.object, slot);
        self.last = Some((header.object, slot));
        self.filling.push(slot);
        Some(slot)
    }

    /// Whether the object in `slot` is not complete.
    pub(super) fn is_partial(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].as_ref().is_some_and(|entry| !entry.complete)
    }

    /// Whether `header` gives another length of the incomplete object in `slot` than the packet that began it.
    pub(super) fn contradicts(&self, slot: Slot, header: &BlockHeader) -> bool {
        let entry = self.entries[slot.0 as usize].as_ref();
        entry.is_some_and(|entry| !entry.given_up && !entry.complete && entry.bytes != header.object_bytes)
    }

    /// Places and requests nothing more for `slot`; it stays in use until it is freed.
    pub(super) fn give_up(&mut self, slot: Slot) {
        if let Some(entry) = &mut self.entries[slot.0 as usize] {
            entry.given_up = true;
        }
        self.stop_filling(slot);
    }

    /// Where the block or symbol of `header`, of the object in `slot`, goes.
    pub(super) fn place(&mut self, slot: Slot, header: &BlockHeader, shape: &Shape) -> Disposition {
        let Some(entry) = self.entries[slot.0 as usize].as_mut() else { return Disposition::Unwanted };
        if entry.given_up || header.object_bytes != entry.bytes {
            return Disposition::Unwanted;
        }
        entry.note(header, shape);
        if entry.complete {
            return Disposition::Duplicate;
        }
        let block = match header.symbol(shape) {
            Some(row) => entry.hold(row),
            None => entry.missing.remove(header.block.into()).then(|| entry.unhold(header.block)),
        };
        let Some(block) = block else { return Disposition::Duplicate };
        entry.asks = 0;
        let offset = u32::from(block) * u32::from(shape.block_bytes);
        Disposition::Place { slot, offset, begins: None }
    }

    /// Slot, length in bytes and held symbols of `object` if it has just become complete; returned only once.
    pub(super) fn complete(&mut self, object: u64) -> Option<(Slot, u32, Box<[Held]>)> {
        let slot = self.find(object)?;
        let entry = self.entries[slot.0 as usize].as_mut()?;
        if entry.complete || entry.lacking() > 0 {
            return None;
        }
        debug_assert_eq!(entry.missing.len() as usize, entry.held.len(), "each missing block has a symbol");
        entry.complete = true;
        let (bytes, held) = (entry.bytes, std::mem::take(&mut entry.held).into());
        self.stop_filling(slot);
        Some((slot, bytes, held))
    }

    /// Empties `slot`.
    pub(super) fn free(&mut self, slot: Slot) {
        let Some(entry) = self.entries.get_mut(slot.0 as usize).and_then(Option::take) else { return };
        self.used_bytes -= u64::from(entry.padded_bytes);
        let slot_of = self.by_object.remove(&entry.object);
        debug_assert_eq!(slot_of, Some(slot), "the map and the slots agree");
        self.last = None;
        self.unused.push(slot.0);
        self.stop_filling(slot);
    }

    /// Bytes that are not in use.
    pub(super) const fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.used_bytes)
    }

    /// Whether any object is incomplete.
    pub(super) const fn are_filling(&self) -> bool {
        !self.filling.is_empty()
    }

    /// The estimated number of objects, at most `lacked`, that fit the free memory; at least one if all memory is
    /// free. Zero while three quarters are in use: a receiver that waits for its disk should not send a report for
    /// every object that it frees.
    pub(super) fn room_for(&self, lacked: u64) -> u64 {
        if self.used_bytes > self.budget_bytes / 4 * 3 {
            return 0;
        }
        let room = self.free_bytes().saturating_mul(self.begun) / self.begun_bytes;
        room.max(u64::from(self.used_bytes == 0)).min(lacked)
    }

    /// Whether an incomplete object misses blocks that should be requested at `now`.
    pub(super) fn lacks(&self, now: Instant, view: &View<'_>) -> bool {
        self.filling.iter().any(|slot| {
            let entry = self.entries[slot.0 as usize].as_ref().expect("filling slots are in use");
            entry.need(now, view).is_some()
        })
    }

    /// Adds the missing blocks and symbols of incomplete objects to `into`, as far as they fit `room` bytes. A
    /// request is repeated after `retry`, then after longer times. After `ASKS_MAX` requests without an effect the
    /// object is given up and returned, to be fetched by unicast.
    pub(super) fn write_lacking(
        &mut self,
        now: Instant,
        retry: Duration,
        view: &View<'_>,
        room: usize,
        into: &mut Lacking,
    ) -> Vec<u64> {
        let mut unanswered = Vec::new();
        for slot in &self.filling {
            let entry = self.entries[slot.0 as usize].as_mut().expect("filling slots are in use");
            match entry.need(now, view) {
                None => continue,
                Some(_) if entry.asks == ASKS_MAX => {
                    entry.given_up = true;
                    unanswered.push(entry.object);
                    continue;
                }
                Some(Need::Symbols(count)) => {
                    into.push_symbols(entry.object, count, entry.cause(view));
                    if into.packet_bytes() > room {
                        into.pop_symbols();
                        break;
                    }
                }
                Some(Need::Blocks(passed)) => {
                    let Some(need) = entry.lacking_blocks(passed, view) else { continue };
                    into.blocks.push(need);
                    if into.packet_bytes() > room {
                        into.blocks.pop();
                        break;
                    }
                }
            }
            entry.asks += 1;
            entry.ask_at = now + back_off(retry, entry.asks);
        }
        self.filling
            .retain(|slot| !self.entries[slot.0 as usize].as_ref().is_some_and(|entry| entry.given_up));
        unanswered
    }

    fn stop_filling(&mut self, slot: Slot) {
        if let Some(at) = self.filling.iter().position(|&other| other == slot) {
            self.filling.remove(at);
        }
    }
}

/// Time until something is requested again that was requested `asks` times; `retry` for the first time.
pub(super) fn back_off(retry: Duration, asks: u8) -> Duration {
    (retry * (1 << asks.min(8)) / 2).min(RETRY_MAX)
}

/// What an object needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// This number of symbols.
    Symbols(u32),
    /// Those of its missing blocks that are below this one.
    Blocks(u32),
}

impl Entry {
    /// How many blocks or symbols are still needed to complete the object.
    fn lacking(&self) -> u32 {
        self.missing.len() - u32::try_from(self.held.len()).expect("no more than are missing")
    }

    /// Notes the sequences of the object's present pass and of its announced symbols.
    fn note(&mut self, header: &BlockHeader, shape: &Shape) {
        let end = if header.repair {
            header.sequence + 1
        } else {
            let first = header.sequence - u64::from(header.block);
            self.pass_first = self.pass_first.max(first);
            first + u64::from(shape.blocks(header.object_bytes))
        };
        if header.coming > 0 || header.repair {
            self.coming_until = self.coming_until.max(end + u64::from(header.coming));
        }
    }

    /// Keeps symbol `row`, and returns the missing block in whose place it goes; `None` if the symbol is a duplicate.
    fn hold(&mut self, row: u16) -> Option<u16> {
        if self.held.iter().any(|held| held.row == row) {
            return None;
        }
        // Symbols take the places of the first missing blocks: those at the end of the pass may still arrive.
        let behind = self.held.last().map_or(0, |held| u32::from(held.block) + 1);
        let is_free = |block: &u32| self.held.iter().all(|held| u32::from(held.block) != *block);
        let next = |from| self.missing.next_from(from);
        let free =
            next(behind).or_else(|| std::iter::successors(next(0), |block| next(block + 1)).find(is_free))?;
        let block = u16::try_from(free).expect("OBJECT_BLOCKS_MAX");
        self.held.push(Held { row, block });
        Some(block)
    }

    /// The block itself has arrived: it replaces the symbol in its place.
    fn unhold(&mut self, block: u16) -> u16 {
        self.held.retain(|held| held.block != block);
        block
    }

    /// What to request now: what was sent and lost, unless the server has announced it.
    fn need(&self, now: Instant, view: &View<'_>) -> Option<Need> {
        let comes_whole = |range: &ObjectRange| (range.first..range.end()).contains(&self.object);
        if now < self.ask_at || view.pending.iter().any(comes_whole) {
            return None;
        }
        let blocks = self.missing.bound();
        let decided = view.stream.decided();
        let over = view.stream.is_over(self.pass_first);
        let sent = if over { u64::MAX } else { decided.saturating_sub(self.pass_first) };
        let passed = u32::try_from(sent).unwrap_or(u32::MAX).min(blocks);
        if !are_coded(blocks) {
            return self.missing.next_from(0).filter(|&block| block < passed).map(|_| Need::Blocks(passed));
        }
        // No server announces a sequence further ahead, so such a packet is forged.
        let furthest = view.stream.sent() + u64::from(blocks) + u64::from(COMING_MAX);
        let comes = decided < self.coming_until && self.coming_until <= furthest;
        if passed < blocks || (!over && comes) {
            return None;
        }
        let lacking = self.lacking();
        let comes = view.repairs.iter().find(|repair| repair.0 == self.object).map_or(0, |repair| repair.1);
        if comes == u8::MAX || lacking <= comes.into() {
            return None;
        }
        // If most blocks are missing, the receiver joined late. The others are complete, so only this receiver would
        // use the symbols, and blocks need no decoding.
        Some(if lacking <= blocks / 2 { Need::Symbols(lacking) } else { Need::Blocks(blocks) })
    }

    fn cause(&self, view: &View<'_>) -> Cause {
        if view.refused.contains(self.object) {
            Cause::BufferFull
        } else if self.pass_first < view.stream.joined_sequence() {
            Cause::Late
        } else {
            Cause::Lost
        }
    }

    /// The missing blocks below `passed`.
    fn lacking_blocks(&self, passed: u32, view: &View<'_>) -> Option<NeedBlocks> {
        let first_byte = self.missing.next_from(0).filter(|&block| block < passed)? / 8;
        let end_byte = passed.div_ceil(8).min(first_byte + BITMAP_BYTES_MAX);
        let mut bitmap: Vec<u8> =
            (first_byte..end_byte).map(|index| self.missing.byte(index, passed)).collect();
        while bitmap.last() == Some(&0) {
            bitmap.pop();
        }
        let first_block = u16::try_from(first_byte * 8).expect("OBJECT_BLOCKS_MAX");
        Some(NeedBlocks { object: self.object, first_block, bitmap, cause: self.cause(view) })
    }
}
