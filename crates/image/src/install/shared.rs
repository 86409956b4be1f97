//! The state that the threads of an install share: the plan, the target, and the progress of each chunk object.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use base::Result;
use disk::WriteAt;

use crate::catalogue::Catalogue;
use crate::progress::Progress;
use crate::workers::FirstError;

use super::plan::{Plan, PlannedChunk};

/// The progress of one chunk object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// It has not arrived.
    Needed = 0,
    /// It has arrived and its digest is right, but it is not written yet.
    Taken = 1,
    /// It is on the target.
    Done = 2,
    /// It was on the target before, and was read to find that out.
    Kept = 3,
}

/// The counters behind [`InstallReport`](super::InstallReport): bytes, except for the last three.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) written: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) kept_zeros: AtomicU64,
    pub(super) zeroed: AtomicU64,
    pub(super) discarded: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) verified: AtomicU64,
    /// Number of signatures.
    pub(super) erased: AtomicU64,
    pub(super) moved_gpt: AtomicBool,
    /// Whether at least one verifying read came from the page cache.
    pub(super) through_cache: AtomicBool,
}

/// The state that all threads of an install share.
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) target: Arc<dyn WriteAt>,
    pub(super) progress: Arc<dyn Progress>,
    pub(super) group: FirstError,
    pub(super) counters: Counters,
    /// Whether all allocated zeros were found on the target before the install.
    pub(super) zeros_are_right: AtomicBool,
    /// The [`State`] of each chunk object, in the order of the plan.
    states: Vec<AtomicU8>,
}

impl Shared {
    pub(super) fn new(
        plan: Arc<Plan>,
        catalogue: Arc<Catalogue>,
        target: Arc<dyn WriteAt>,
        progress: Arc<dyn Progress>,
    ) -> Self {
        let states = plan.chunks.iter().map(|_| AtomicU8::new(State::Needed as u8)).collect();
        let (group, counters) = (FirstError::default(), Counters::default());
        let zeros_are_right = AtomicBool::new(false);
        Self { plan, catalogue, target, progress, group, counters, zeros_are_right, states }
    }

    /// Moves object `id` from state `from` to state `to`. Returns false, and changes nothing, if the object is in
    /// another state or is not a chunk.
    pub(super) fn change(&self, id: u64, from: State, to: State) -> bool {
        let state = self.index(id).map(|index| &self.states[index]);
        let exchange = |state: &AtomicU8| {
            state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        state.is_some_and(exchange)
    }

    /// Whether object `id` is a chunk that has not arrived.
    pub(super) fn is_needed(&self, id: u64) -> bool {
        self.index(id).is_some_and(|index| self.is(index, State::Needed))
    }

    /// Whether object `id` is a chunk that is on the target.
    pub(super) fn is_there(&self, id: u64) -> bool {
        self.index(id).is_some_and(|index| self.is_done(index))
    }

    fn is_done(&self, index: usize) -> bool {
        self.is(index, State::Done) || self.is(index, State::Kept)
    }

    /// The number of chunk objects that are not on the target yet.
    pub(super) fn unfinished(&self) -> usize {
        (0..self.states.len()).filter(|&index| !self.is_done(index)).count()
    }

    /// Whether object `id` was on the target before the install.
    pub(super) fn is_kept(&self, id: u64) -> bool {
        self.index(id).is_some_and(|index| self.is(index, State::Kept))
    }

    /// Reads from the target past the page cache, and notes if that was not possible.
    pub(super) fn read_medium(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if !self.target.read_back_at(buf, offset)? {
            self.counters.through_cache.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Calls `each` for the parts of `chunk` in its place `index`: the range of its allocated bytes, and the offset on
    /// the target. The place may lie behind the end of the image.
    pub(super) fn for_each_part(
        &self,
        chunk: &PlannedChunk,
        index: u64,
        mut each: impl FnMut(Range<usize>, u64) -> Result<()>,
    ) -> Result<()> {
        let (start, mut from) = (self.plan.layout.chunk_offset(index), 0);
        for run in chunk.extents.runs() {
            let to = from + usize::try_from(run.len_bytes()).expect("a run lies inside a chunk");
            each(from..to, start + run.offset_bytes())?;
            from = to;
        }
        Ok(())
    }

    /// Writes the allocated bytes of `chunk` to its place `index`.
    pub(super) fn write_chunk(&self, chunk: &PlannedChunk, index: u64, plain: &[u8]) -> Result<()> {
        self.for_each_part(chunk, index, |part, offset| {
            let written = self.target.write_all_at(&plain[part], offset);
            written.map_err(|e| e.within(format!("write chunk {index} at offset {offset}")))
        })
    }

    /// The numbers of the chunk objects that have not arrived, as ascending ranges that do not touch.
    pub(super) fn missing(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for id in (0..self.states.len()).filter(|&index| self.is(index, State::Needed)) {
            let id = self.plan.heads + id as u64;
            match ranges.last_mut() {
                Some(last) if last.end == id => last.end = id + 1,
                _ => ranges.push(id..id + 1),
            }
        }
        ranges
    }

    /// The index of object `id` in the plan; `None` if it is not a chunk.
    fn index(&self, id: u64) -> Option<usize> {
        let index = usize::try_from(id.checked_sub(self.plan.heads)?).ok()?;
        (index < self.states.len()).then_some(index)
    }

    fn is(&self, index: usize, state: State) -> bool {
        self.states[index].load(Ordering::Acquire) == state as u8
    }
}
