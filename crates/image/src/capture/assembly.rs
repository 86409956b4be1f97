//! Puts chunks that workers encoded in parallel back into disk order, and builds the tree from them.

use std::collections::BTreeMap;

use base::Result;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::manifest::Statistics;
use crate::tree::{LeafRun, Root, TreeBuilder};
use crate::workers::FirstError;

/// How far a worker may be ahead of the slowest one, in tickets. Bounds the leaves that wait in memory.
const AHEAD_MAX: u64 = 1024;

/// Takes leaves in any order and builds the tree in the order of their tickets. A ticket is the index of a part of the
/// plan; tickets are consecutive from 0.
pub(super) struct Assembly<'a> {
    state: Mutex<State<'a>>,
    moved: Condvar,
}

struct State<'a> {
    /// The ticket that the tree needs next.
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

    /// Takes the leaves of the part of the plan with number `ticket`. Waits while that is `AHEAD_MAX` or more ahead of
    /// the next ticket that the tree needs, unless `group` is stopped. Errors are those of the tree's sink.
    pub(super) fn deliver(&self, ticket: u64, run: LeafRun, group: &FirstError) -> Result<()> {
        let mut state = self.lock();
        // The worker with the ticket `next` never waits here, so there is no deadlock.
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

    /// Wakes all workers that wait in `deliver`. Call it after the group was stopped.
    pub(super) fn wake(&self) {
        // A worker checks `is_stopped` under this lock. Once we had the lock, each worker has either seen the stop or
        // waits already, so it can't miss the notification.
        drop(self.lock());
        self.moved.notify_all();
    }

    /// The root of the tree and the statistics, after all tickets were delivered. Panics if a ticket is missing.
    pub(super) fn finish(self) -> Result<(Root, Statistics)> {
        let state = self.state.into_inner();
        assert!(state.waiting.is_empty(), "every ticket was delivered");
        let (root, mut statistics) = (state.builder.finish()?, state.statistics);
        // The plan skips free chunks, so `drain` did not count them.
        statistics.free_chunks = root.chunk_count - statistics.zero_chunks - statistics.data_chunks;
        Ok((root, statistics))
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock()
    }
}

impl State<'_> {
    /// Adds the leaves to the tree that are next in order.
    fn drain(&mut self) -> Result<()> {
        while let Some(run) = self.waiting.remove(&self.next) {
            self.next += 1;
            self.statistics.add(&run.leaf, run.count);
            self.builder.push_run(&run)?;
        }
        Ok(())
    }
}
