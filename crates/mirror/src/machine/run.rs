//! The interface of the core for its driver: begin, step and end operations.

use std::collections::{HashMap, VecDeque};

use base::{Instant, RunSet};

use crate::machine::fetch_queue::Supply;
use crate::machine::held::Held;
use crate::machine::operations::{Exclusive, Freeze, FrozenRead, Learn, Read, Rewrite, Rounds, Thaw, Write};
use crate::machine::prefetch::spatial::Neighbours;
use crate::machine::prefetch::streams::Contexts;
use crate::machine::state::{Core, Op};
use crate::machine::types::{
    Config, Counters, Cut, Done, Ending, Failure, Io, OpId, Record, Request, Sectors, Step,
};

/// Maximum number of chunks in the recorded order of first reads.
const ORDER_MAX: usize = 1 << 16;

impl Core {
    /// The core of a disk that is divided into chunks as `cut` says. `held` is in the local file. The journal ends
    /// at `journal_end` bytes, and all of it is durable.
    #[must_use]
    pub fn new(cut: Cut, config: Config, held: Held, journal_end: u64) -> Self {
        let supply = Supply::new(&config, cut.height);
        Self {
            cut,
            held,
            copied: RunSet::new(),
            ops: HashMap::new(),
            next_op: 0,
            wakes: VecDeque::new(),
            writing: Vec::new(),
            frozen_reading: Vec::new(),
            wrong: RunSet::new(),
            appending: Vec::new(),
            locked: Vec::new(),
            blocked: Vec::new(),
            rounds: Rounds::new(journal_end),
            exclusive: Exclusive::default(),
            supply,
            contexts: Contexts::new(config.ahead_chunks_max),
            neighbours: Neighbours::default(),
            counters: Counters::default(),
            order: Vec::new(),
            touched: RunSet::new(),
            rewriting: false,
            broken: false,
            config,
        }
    }

    /// Begins an operation. Drive it with [`Self::step`].
    pub fn submit(&mut self, request: Request) -> OpId {
        let op = match request {
            Request::Read(range) => {
                self.note_read(&range);
                Op::Read(Read::new(range))
            }
            Request::Write { range, durable } => Op::Write(Write::bytes(range, durable)),
            Request::Zero { range, space, durable } => Op::Write(Write::zeros(range, space, durable)),
            Request::Flush => Op::Flush(self.rounds.flush()),
            Request::Learn(range) => Op::Learn(Learn::new(range)),
            Request::Freeze => Op::Freeze(Freeze::default()),
            Request::ReadFrozen(range) => Op::FrozenRead(FrozenRead::new(range)),
            Request::Thaw(Ending::Committed) => Op::Thaw(Thaw::new(Record::Committed)),
            Request::Thaw(Ending::Landed) => Op::Thaw(Thaw::new(Record::Landed)),
            Request::Thaw(Ending::Abandoned) => Op::Thaw(Thaw::new(Record::Abandoned)),
            Request::Rebase => Op::Thaw(Thaw::new(Record::Rebased)),
        };
        self.enter(op)
    }

    /// Adds an operation and returns its number.
    pub(in crate::machine) fn enter(&mut self, op: Op) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += 1;
        self.ops.insert(id, op);
        id
    }

    /// The next step of operation `id`. After [`Step::Over`] the operation no longer exists.
    pub fn step(&mut self, now: Instant, id: OpId) -> Step {
        let mut op = self.ops.remove(&id).expect("only operations that are not over are driven");
        let step = match &mut op {
            Op::Read(read) => self.step_read(now, id, read),
            Op::Write(write) => self.step_write(id, write),
            Op::Flush(flush) => self.step_flush(id, flush),
            Op::Rewrite(rewrite) => self.step_rewrite(id, rewrite),
            Op::Learn(learn) => self.step_learn(now, id, learn),
            Op::Freeze(freeze) => self.step_freeze(id, freeze),
            Op::FrozenRead(read) => self.step_frozen_read(id, read),
            Op::Thaw(thaw) => self.step_thaw(id, thaw),
            Op::Fetch(fetch) => self.step_fetch(now, id, fetch),
        };
        match &step {
            Step::Over(_) => return step,
            Step::Do(Io::Append(_)) => self.appending.push(id),
            Step::Do(_) | Step::Wait => {}
        }
        self.ops.insert(id, op);
        step
    }

    /// Reports the result of the last [`Step::Do`] of operation `id`. Call [`Self::step`] next.
    pub fn done(&mut self, now: Instant, id: OpId, done: Done) {
        if let Done::Appended(end) = done {
            self.rounds.appended(end);
        }
        self.appending.retain(|appending| *appending != id);
        let mut op = self.ops.remove(&id).expect("only operations that are not over are driven");
        match &mut op {
            Op::Read(read) => read.done(&done),
            Op::Write(write) => self.done_write(id, write, &done),
            Op::Flush(flush) => self.done_flush(id, flush, &done),
            Op::Rewrite(rewrite) => self.done_rewrite(id, rewrite, &done),
            Op::Learn(_) => {}
            Op::Freeze(freeze) => self.done_freeze(id, freeze, &done),
            Op::FrozenRead(read) => self.done_frozen_read(id, read, &done),
            Op::Thaw(thaw) => self.done_thaw(id, thaw, &done),
            Op::Fetch(fetch) => self.done_fetch(now, id, fetch, done),
        }
        self.ops.insert(id, op);
    }

    /// The next operation that waited and can continue. It may have to wait again.
    pub fn poll_wake(&mut self) -> Option<OpId> {
        loop {
            let id = self.wakes.pop_front()?;
            if self.ops.contains_key(&id) {
                return Some(id);
            }
        }
    }

    /// The next operation that the core starts itself, to be driven like any other: a fetch, if an item is wanted
    /// and a source is free, or a rewrite of the journal.
    pub fn poll_begin(&mut self, now: Instant) -> Option<OpId> {
        if self.rounds.journal_bytes() > self.config.journal_bytes_max && !self.rewriting && !self.broken {
            self.rewriting = true;
            return Some(self.enter(Op::Rewrite(Rewrite::default())));
        }
        self.next_fetch(now)
    }

    /// When [`Self::handle_timeout`] must be called. `None`: not before something else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    /// Handles all timers that have expired at `now`. Call [`Self::poll_begin`] and [`Self::poll_wake`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.pass_time(now);
    }

    /// Whether all of `range` is local, so that a read of it needs no operation.
    #[must_use]
    pub fn is_here(&self, range: &Sectors) -> bool {
        self.held.is_here(&self.cut, range)
    }

    /// Notes a read that is answered without an operation, after [`Self::is_here`] said so. Returns whether there
    /// may be something to fetch now.
    pub(crate) fn read_here(&mut self, range: &Sectors) -> bool {
        self.note_read(range)
    }

    /// Makes all reads fail that wait for a source, because the disk is being closed.
    pub(crate) fn give_up_all(&mut self) {
        let reads = |(id, op): (&OpId, &Op)| matches!(op, Op::Read(_) | Op::Learn(_)).then_some(*id);
        let waiting: Vec<OpId> = self.ops.iter().filter_map(reads).collect();
        self.fail(waiting, Failure::Dead);
    }

    /// What is in the local file.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Whether the chunk is known to hold nothing but zeros in the base version.
    #[must_use]
    pub fn is_empty(&self, chunk: u64) -> bool {
        self.supply.empty.contains(&(chunk..chunk + 1))
    }

    /// How the disk is divided into chunks.
    #[must_use]
    pub fn cut(&self) -> &Cut {
        &self.cut
    }

    /// The counters since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The chunks that were read so far, in the order of their first read.
    #[must_use]
    pub fn order(&self) -> &[u64] {
        &self.order
    }

    /// Adds chunks that will probably be read, in this order. They are prefetched, after demanded chunks. Chunks
    /// that were expected before stay in the queue. A new chunk is inserted after the nearest chunk before it in
    /// `chunks` that is still in the queue; without one, it goes to the front of the queue.
    pub fn expect_reads(&mut self, chunks: &[u64]) {
        let count = self.cut.chunks();
        let is_new =
            |&chunk: &u64| chunk < count && !self.is_chunk_here(chunk) && !self.supply.is_wanted(chunk);
        let new: Vec<u64> = chunks.iter().copied().filter(is_new).collect();
        self.supply.expected.add(&new);
    }

    /// Whether expected chunks are still fetched. Not any more once most of them turned out to be useless.
    #[must_use]
    pub fn expects(&self) -> bool {
        !self.supply.expected.is_given_up()
    }

    /// Whether the whole disk is in the local file.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.held.is_here(&self.cut, &(0..self.cut.size_sectors))
    }

    /// Wakes all operations that wait for a write, a fill or an exclusive operation.
    pub(in crate::machine) fn unblock(&mut self) {
        self.wakes.extend(self.blocked.drain(..));
    }

    /// Makes `id` wait until [`Self::unblock`] is called.
    pub(in crate::machine) fn wait_blocked(&mut self, id: OpId) -> Step {
        self.blocked.push(id);
        Step::Wait
    }

    /// Notes a read: for the order of first reads, for the statistics of prefetching, and for the detection of
    /// streams. Returns whether there may be something to fetch now.
    pub(in crate::machine) fn note_read(&mut self, range: &Sectors) -> bool {
        let chunks = self.cut.chunks_of(range);
        for chunk in chunks.clone() {
            if let Some(unread) = self.supply.unread.remove(&chunk) {
                self.counters.used(unread);
                self.contexts.used(chunk);
            } else if self.supply.is_wanted(chunk) {
                // It is still being fetched, but the prefetch was useful.
                self.contexts.used(chunk);
            }
        }
        let mut bets = false;
        if !self.touched.contains(&chunks) && self.order.len() < ORDER_MAX {
            let fresh: Vec<u64> = self.touched.gaps(chunks.clone()).flatten().collect();
            self.compare_expected(&fresh);
            bets = self.bet_beside(&fresh, range);
            let room = ORDER_MAX - self.order.len();
            self.order.extend(fresh.into_iter().take(room));
            self.touched.insert(chunks);
        }
        let ahead = self.contexts.read(range, &self.cut);
        let begins = bets || !ahead.is_empty();
        self.read_ahead(ahead);
        begins
    }
}
