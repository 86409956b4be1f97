//! Flushes, and generations: what must be durable in which order, and the one moment from which a commit takes the disk.

use super::{Core, Done, Failure, Io, Mutant, OpId, Record, RunSet, Sectors, Step, overlaps};

/// Rounds of syncing: those who flush at the same time share one.
pub(super) struct Rounds {
    begun: u64,
    over: u64,
    running: bool,
    waiters: Vec<OpId>,
    /// Writes that are over; how many were when the running round began, and when the last good one did.
    written: u64,
    running_written: u64,
    synced: u64,
    /// Records in the journal, and how many are covered by a barrier.
    records: u64,
    covered: u64,
    journal_end: u64,
}

impl Rounds {
    pub(super) fn new(journal_end: u64) -> Self {
        Self {
            begun: 0,
            over: 0,
            running: false,
            waiters: Vec::new(),
            written: 0,
            running_written: 0,
            synced: 0,
            records: 0,
            covered: 0,
            journal_end,
        }
    }

    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal_end
    }

    pub(super) fn wrote(&mut self) {
        self.written += 1;
    }

    pub(super) fn appended(&mut self, end: u64) {
        self.records += 1;
        self.journal_end = self.journal_end.max(end);
    }

    fn begin(&mut self) {
        self.begun += 1;
        self.running = true;
        self.running_written = self.written;
    }

    /// A flush of all writes that are over by now.
    pub(super) fn flush(&self) -> Flush {
        let joins = self.running && self.running_written == self.written;
        let idle = !self.running && self.written == self.synced && self.records == self.covered;
        Flush { round: if idle { 0 } else { self.begun + u64::from(!joins) }, phase: FlushPhase::Wait }
    }
}

/// A request for durability.
pub(super) struct Flush {
    /// Over once this round is.
    round: u64,
    phase: FlushPhase,
}

enum FlushPhase {
    Wait,
    Data { upto: u64, records: u64 },
    Barrier { upto: u64, records: u64 },
}

/// Freezing, thawing and rewriting exclude each other, and keep writes out.
#[derive(Default)]
pub(super) struct Exclusive {
    holder: Option<OpId>,
    waiters: Vec<OpId>,
}

impl Exclusive {
    pub(super) fn holds_writes(&self) -> bool {
        self.holder.is_some()
    }
}

/// A request to begin a generation.
#[derive(Default)]
pub(super) struct Freeze {
    over: Option<Result<(), Failure>>,
}

/// A request to end one, or to change the base, by a record.
pub(super) struct Thaw {
    record: Record,
    flush: Option<Flush>,
    failure: Option<Failure>,
}

impl Thaw {
    pub(super) fn new(record: Record) -> Self {
        Self { record, flush: None, failure: None }
    }
}

/// The journal is replaced by a shorter one.
#[derive(Default)]
pub(super) struct Rewrite {
    /// It is the round of syncing that runs.
    begun: bool,
    synced: bool,
    over: bool,
}

/// A request for frozen bytes.
pub(super) struct FrozenRead {
    range: Sectors,
    over: Option<Result<(), Failure>>,
}

impl FrozenRead {
    pub(super) fn new(range: Sectors) -> Self {
        Self { range, over: None }
    }
}

impl Core {
    pub(super) fn step_flush(&mut self, id: OpId, flush: &mut Flush) -> Step {
        match flush.phase {
            _ if self.broken => Step::Over(Err(Failure::Local)),
            FlushPhase::Wait if self.rounds.over >= flush.round => Step::Over(Ok(())),
            FlushPhase::Wait if self.rounds.running => {
                if self.has(Mutant::JoinsRunningFlush) {
                    flush.round = self.rounds.begun;
                }
                self.rounds.waiters.push(id);
                Step::Wait
            }
            FlushPhase::Wait => {
                self.rounds.begin();
                let (upto, records) = (self.rounds.journal_end, self.rounds.records);
                flush.phase = FlushPhase::Data { upto, records };
                if self.has(Mutant::SkipsDataSync) {
                    flush.phase = FlushPhase::Barrier { upto, records };
                    return self.step_flush(id, flush);
                }
                Step::Do(Io::SyncData)
            }
            FlushPhase::Data { .. } => Step::Do(Io::SyncData),
            FlushPhase::Barrier { upto, records } => {
                let needed = records > self.rounds.covered && !self.has(Mutant::SkipsBarrier);
                if needed {
                    let end = self.rounds.journal_end;
                    return Step::Do(Io::Barrier(if self.has(Mutant::CoversTooMuch) { end } else { upto }));
                }
                self.round_over();
                Step::Over(Ok(()))
            }
        }
    }

    pub(super) fn done_flush(&mut self, _id: OpId, flush: &mut Flush, done: &Done) {
        if let Done::Failed(_) = done {
            // What the system could not write it may have dropped: nothing is known of it any more.
            self.broken = true;
            self.round_over();
            return;
        }
        match flush.phase {
            FlushPhase::Data { upto, records } => flush.phase = FlushPhase::Barrier { upto, records },
            FlushPhase::Barrier { records, .. } => {
                // A barrier is no record.
                self.rounds.records -= 1;
                self.rounds.covered = records;
            }
            FlushPhase::Wait => {}
        }
    }

    fn round_over(&mut self) {
        let rounds = &mut self.rounds;
        rounds.running = false;
        rounds.over = rounds.begun;
        if !self.broken {
            rounds.synced = rounds.running_written;
        }
        self.wakes.extend(rounds.waiters.drain(..));
    }

    /// Keeps writes out and waits until none is under way. `None` once that is so.
    fn hold(&mut self, id: OpId) -> Option<Step> {
        if self.exclusive.holder.is_some_and(|holder| holder != id) {
            self.exclusive.waiters.push(id);
            return Some(Step::Wait);
        }
        self.exclusive.holder = Some(id);
        let waits = !self.writing.is_empty() && !self.has(Mutant::FreezesAtOnce);
        waits.then(|| self.wait_blocked(id))
    }

    fn release(&mut self) {
        self.exclusive.holder = None;
        self.wakes.extend(self.exclusive.waiters.drain(..));
        self.unblock();
    }

    pub(super) fn step_freeze(&mut self, id: OpId, freeze: &mut Freeze) -> Step {
        if let Some(over) = freeze.over {
            return Step::Over(over);
        }
        if let Some(wait) = self.hold(id) {
            return wait;
        }
        if !self.held.frozen.is_empty() || self.broken {
            self.release();
            return Step::Over(Err(if self.broken { Failure::Local } else { Failure::Busy }));
        }
        Step::Do(Io::Append(Record::Frozen))
    }

    pub(super) fn done_freeze(&mut self, _id: OpId, freeze: &mut Freeze, done: &Done) {
        freeze.over = Some(match done {
            Done::Failed(failure) => {
                self.broken = true;
                Err(*failure)
            }
            _ => {
                self.held.freeze();
                self.copied = RunSet::new();
                Ok(())
            }
        });
        self.release();
    }

    pub(super) fn step_thaw(&mut self, id: OpId, thaw: &mut Thaw) -> Step {
        if let Some(failure) = thaw.failure {
            return Step::Over(Err(failure));
        }
        if let Some(flush) = &mut thaw.flush {
            return self.step_flush(id, flush);
        }
        if let Some(wait) = self.hold(id) {
            return wait;
        }
        Step::Do(Io::Append(thaw.record.clone()))
    }

    pub(super) fn done_thaw(&mut self, id: OpId, thaw: &mut Thaw, done: &Done) {
        if let Some(flush) = &mut thaw.flush {
            return self.done_flush(id, flush, done);
        }
        match (done, &thaw.record) {
            (Done::Failed(failure), _) => {
                self.broken = true;
                thaw.failure = Some(*failure);
            }
            (_, Record::Rebased) => self.supply.forget_nodes(),
            (_, Record::Committed) => {
                self.held.commit(&self.cut);
                self.supply.forget_nodes();
            }
            _ if self.has(Mutant::ForgetsFrozen) => self.held.frozen = RunSet::new(),
            _ => self.held.abandon(),
        }
        self.copied = RunSet::new();
        thaw.flush = Some(self.rounds.flush());
        self.release();
    }

    pub(super) fn step_rewrite(&mut self, id: OpId, rewrite: &mut Rewrite) -> Step {
        if rewrite.over {
            return Step::Over(Ok(()));
        }
        if let Some(wait) = self.hold(id) {
            return wait;
        }
        if !rewrite.begun {
            // A barrier of the old journal has no place in the new one.
            if self.rounds.running {
                self.rounds.waiters.push(id);
                return Step::Wait;
            }
            self.rounds.begin();
            rewrite.begun = true;
        }
        Step::Do(if rewrite.synced { Io::Rewrite } else { Io::SyncData })
    }

    pub(super) fn done_rewrite(&mut self, _id: OpId, rewrite: &mut Rewrite, done: &Done) {
        match done {
            Done::Well if !rewrite.synced => rewrite.synced = true,
            Done::Appended(end) => {
                // All that the new journal says is durable.
                self.rounds.records -= 1;
                self.rounds.covered = self.rounds.records;
                self.rounds.journal_end = *end;
                self.config.journal_bytes_max = self.config.journal_bytes_max.max(2 * end);
                rewrite.over = true;
            }
            _ => {
                self.broken = true;
                rewrite.over = true;
            }
        }
        if rewrite.over {
            self.rewriting = false;
            self.round_over();
            self.release();
        }
    }

    pub(super) fn step_frozen_read(&mut self, id: OpId, read: &mut FrozenRead) -> Step {
        if let Some(over) = read.over {
            return Step::Over(over);
        }
        if self.writing.iter().any(|(_, range)| overlaps(range, &read.range)) {
            return self.wait_blocked(id);
        }
        if !self.is_as_frozen(&read.range) {
            return Step::Over(Ok(()));
        }
        self.frozen_reading.push((id, read.range.clone()));
        let aside: Vec<Sectors> = match self.has(Mutant::ReadsThawed) {
            true => Vec::new(),
            false => self.copied.within(read.range.clone()).collect(),
        };
        let here = aside.iter().cloned().collect::<RunSet>().gaps(read.range.clone()).collect();
        Step::Do(Io::ReadFrozen { aside, here })
    }

    /// Whether all of `range` is as it was when the generation began, here or copied aside.
    fn is_as_frozen(&self, range: &Sectors) -> bool {
        let others = self.held.frozen.gaps(range.clone());
        others.into_iter().all(|run| self.held.is_here(&self.cut, &run) && !self.held.dirty.touches(&run))
    }

    pub(super) fn done_frozen_read(&mut self, id: OpId, read: &mut FrozenRead, done: &Done) {
        self.frozen_reading.retain(|(reading, _)| *reading != id);
        read.over = Some(match done {
            Done::Failed(failure) => Err(*failure),
            _ => Ok(()),
        });
        self.unblock();
    }
}
