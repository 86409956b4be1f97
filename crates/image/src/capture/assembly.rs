//! Puts chunks that were encoded in parallel into order again, and builds the tree.

use std::collections::BTreeMap;

use base::Result;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::manifest::Statistics;
use crate::tree::{LeafRun, Root, TreeBuilder};
use crate::workers::FirstError;

/// Most chunks between the fastest and the slowest worker.
const AHEAD_MAX: u64 = 1024;

/// Accepts leaves in any order, with consecutive tickets, and builds the tree in the order of the tickets.
pub(super) struct Assembly<'a> {
    state: Mutex<State<'a>>,
    moved: Condvar,
}

struct State<'a> {
    next: u64,
    waiting: BTreeMap<u64, LeafRun>,
    builder: TreeBuilder<'a>,
    statistics: Statistics,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(builder: TreeBuilder<'a>) -> Self {
        let statistics = Statistics::default();
        let state = State { next: 0, waiting: BTreeMap::new(), builder, statistics };
        Self { state: Mutex::new(state), moved: Condvar::new() }
    }

    /// Accepts the chunks of part `ticket` of the plan. Waits while they are too far ahead; returns at once if `group`
    /// was stopped.
    pub(super) fn deliver(&self, ticket: u64, run: LeafRun, group: &FirstError) -> Result<()> {
        let mut state = self.lock();
        while ticket >= state.next + AHEAD_MAX && !group.is_stopped() {
            self.moved.wait(&mut state);
        }
        state.waiting.insert(ticket, run);
        let before = state.next;
        state.drain()?;
        if state.next != before {
            self.moved.notify_all();
        }
        Ok(())
    }

    /// Wakes waiting workers after the group was stopped.
    pub(super) fn wake(&self) {
        drop(self.lock());
        self.moved.notify_all();
    }

    /// The tree and the statistics, after all parts were accepted.
    pub(super) fn finish(self) -> Result<(Root, Statistics)> {
        let state = self.state.into_inner();
        assert!(state.waiting.is_empty(), "every ticket was delivered");
        let (root, mut statistics) = (state.builder.finish()?, state.statistics);
        // Free chunks have no leaf of their own.
        statistics.free_chunks = root.chunk_count - statistics.zero_chunks - statistics.data_chunks;
        Ok((root, statistics))
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock()
    }
}

impl State<'_> {
    fn drain(&mut self) -> Result<()> {
        while let Some(run) = self.waiting.remove(&self.next) {
            self.next += 1;
            self.statistics.add(&run.leaf, run.count);
            self.builder.push_run(&run)?;
        }
        Ok(())
    }
}
