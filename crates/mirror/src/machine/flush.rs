//! Flushes, generations (begin, end, reads of frozen sectors) and the rewriting of the journal: in which order data
//! and records become durable, and how a commit gets all sectors as of one moment.

use base::RunSet;

use crate::machine::operations::{Flush, FlushPhase, Freeze, FrozenRead, Rewrite, Thaw};
use crate::machine::state::Core;
use crate::machine::types::{Done, Failure, Io, OpId, Record, Sectors, Step, overlaps};

impl Core {
    /// A flush joins a round of syncing or begins one: it syncs the data, then writes a barrier.
    pub(in crate::machine) fn step_flush(&mut self, id: OpId, flush: &mut Flush) -> Step {
        match flush.phase {
            _ if self.broken => Step::Over(Err(Failure::Local)),
            FlushPhase::Wait if self.rounds.over >= flush.round => Step::Over(Ok(())),
            FlushPhase::Wait if self.rounds.running => {
                self.rounds.waiters.push(id);
                Step::Wait
            }
            FlushPhase::Wait => {
                self.rounds.begin();
                // Noted before the sync: a record that is appended during the sync may describe data that the sync
                // misses.
                let (upto, records) = (self.rounds.journal_end, self.rounds.records);
                flush.phase = FlushPhase::Data { upto, records };
                Step::Do(Io::SyncData)
            }
            FlushPhase::Data { .. } => Step::Do(Io::SyncData),
            FlushPhase::Barrier { upto, records } => {
                // If no record was added since the last barrier, the sync of the data is enough.
                if records > self.rounds.covered {
                    return Step::Do(Io::Barrier(upto));
                }
                self.round_over();
                Step::Over(Ok(()))
            }
        }
    }

    pub(in crate::machine) fn done_flush(&mut self, _id: OpId, flush: &mut Flush, done: &Done) {
        if let Done::Failed(_) = done {
            // After a failed sync the system may have dropped the data that it could not write: the state of the
            // file is unknown.
            self.broken = true;
            self.round_over();
            return;
        }
        match flush.phase {
            FlushPhase::Data { upto, records } => flush.phase = FlushPhase::Barrier { upto, records },
            FlushPhase::Barrier { records, .. } => {
                // `Rounds::appended` counted the barrier as a record, but it is none.
                self.rounds.records -= 1;
                debug_assert!(records <= self.rounds.records, "a barrier covers records that were appended");
                self.rounds.covered = records;
            }
            FlushPhase::Wait => {}
        }
    }

    fn round_over(&mut self) {
        let rounds = &mut self.rounds;
        debug_assert!(rounds.running && rounds.over < rounds.begun, "a round of syncing ends once");
        rounds.running = false;
        rounds.over = rounds.begun;
        if !self.broken {
            rounds.synced = rounds.running_written;
        }
        self.wakes.extend(rounds.waiters.drain(..));
    }

    /// Makes `id` the exclusive holder, which blocks new writes, and waits until no write is running. `None` once
    /// that is so.
    fn hold(&mut self, id: OpId) -> Option<Step> {
        if self.exclusive.holder.is_some_and(|holder| holder != id) {
            self.exclusive.waiters.push(id);
            return Some(Step::Wait);
        }
        self.exclusive.holder = Some(id);
        (!self.writing.is_empty()).then(|| self.wait_blocked(id))
    }

    fn release(&mut self) {
        (self.exclusive.holder, self.exclusive.replaces) = (None, false);
        self.wakes.extend(self.exclusive.waiters.drain(..));
        self.unblock();
    }

    pub(in crate::machine) fn step_freeze(&mut self, id: OpId, freeze: &mut Freeze) -> Step {
        if let Some(over) = freeze.over {
            return Step::Over(over);
        }
        // All running writes end first, so that the frozen sectors are the disk as of one moment.
        if let Some(wait) = self.hold(id) {
            return wait;
        }
        if !self.held.frozen.is_empty() || self.broken {
            self.release();
            return Step::Over(Err(if self.broken { Failure::Local } else { Failure::Busy }));
        }
        Step::Do(Io::Append(Record::Frozen))
    }

    pub(in crate::machine) fn done_freeze(&mut self, _id: OpId, freeze: &mut Freeze, done: &Done) {
        debug_assert!(self.writing.is_empty(), "no write is half done at the moment of a generation");
        freeze.over = Some(match done {
            Done::Failed(failure) => {
                self.broken = true;
                Err(*failure)
            }
            _ => {
                self.held.freeze();
                self.rounds.wrote();
                self.copied = RunSet::new();
                Ok(())
            }
        });
        self.release();
    }

    /// Waits for running writes, appends the record that ends the generation (or changes the base), and flushes.
    pub(in crate::machine) fn step_thaw(&mut self, id: OpId, thaw: &mut Thaw) -> Step {
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

    pub(in crate::machine) fn done_thaw(&mut self, id: OpId, thaw: &mut Thaw, done: &Done) {
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
            _ => self.held.abandon(),
        }
        self.copied = RunSet::new();
        self.rounds.wrote();
        thaw.flush = Some(self.rounds.flush());
        self.release();
    }

    /// Syncs the data, waits for appends in flight, and replaces the journal. It counts as a round of syncing.
    pub(in crate::machine) fn step_rewrite(&mut self, id: OpId, rewrite: &mut Rewrite) -> Step {
        if rewrite.over {
            return Step::Over(Ok(()));
        }
        if let Some(wait) = self.hold(id) {
            return wait;
        }
        if !rewrite.begun {
            // A barrier names an offset of the old journal and must not be appended to the new one: wait for the
            // running flush.
            if self.rounds.running {
                self.rounds.waiters.push(id);
                return Step::Wait;
            }
            self.rounds.begin();
            rewrite.begun = true;
        }
        if !rewrite.synced {
            return Step::Do(Io::SyncData);
        }
        // A record that is still being appended to the old journal would be missing in the new one, and its end
        // offset would be wrong there. So wait for such records, and hold back new ones.
        self.exclusive.replaces = true;
        if !self.appending.is_empty() {
            return self.wait_blocked(id);
        }
        Step::Do(Io::Rewrite)
    }

    pub(in crate::machine) fn done_rewrite(&mut self, _id: OpId, rewrite: &mut Rewrite, done: &Done) {
        match done {
            Done::Well if !rewrite.synced => rewrite.synced = true,
            Done::Appended(end) => {
                debug_assert!(self.appending.is_empty(), "no record is on its way into the old journal");
                // The new journal was synced: all that it says is durable.
                self.rounds.records -= 1;
                self.rounds.covered = self.rounds.records;
                self.rounds.journal_end = *end;
                // If the new journal is almost as long as the limit, the limit grows. Else a rewrite would follow at
                // once.
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

    /// Reads frozen sectors from the side file if they were copied there, else from the local file.
    pub(in crate::machine) fn step_frozen_read(&mut self, id: OpId, read: &mut FrozenRead) -> Step {
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
        let copied: Vec<Sectors> = self.copied.within(read.range.clone()).collect();
        let here = copied.iter().cloned().collect::<RunSet>().gaps(read.range.clone()).collect();
        Step::Do(Io::ReadFrozen { copied, here })
    }

    /// Whether all of `range` still has the bytes from the begin of the generation, in place or in the side file.
    fn is_as_frozen(&self, range: &Sectors) -> bool {
        let others = self.held.frozen.gaps(range.clone());
        others.into_iter().all(|run| self.held.is_here(&self.cut, &run) && !self.held.dirty.touches(&run))
    }

    pub(in crate::machine) fn done_frozen_read(&mut self, id: OpId, read: &mut FrozenRead, done: &Done) {
        self.frozen_reading.retain(|(reading, _)| *reading != id);
        read.over = Some(match done {
            Done::Failed(failure) => Err(*failure),
            _ => Ok(()),
        });
        self.unblock();
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::types::{Config, Cut, Item, NodePlace, Request};
    use base::Instant;

    use super::*;
    use crate::machine::Held;

    const NOW: Instant = Instant::ZERO;
    const JOURNAL_BYTES: u64 = 1000;

    fn core(held: Held) -> Core {
        let cut = Cut { size_sectors: 64, chunk_sectors: 16, height: 1 };
        Core::new(cut, Config::of_tests(JOURNAL_BYTES), held, 100)
    }

    /// Reports `done` for the last step of `id`, and returns its next step.
    fn go_on(core: &mut Core, id: OpId, done: Done) -> Step {
        core.done(NOW, id, done);
        core.step(NOW, id)
    }

    fn flush_that_syncs(core: &mut Core) -> OpId {
        let write = core.submit(Request::Write { range: 0..1, durable: false });
        assert_eq!(core.step(NOW, write), Step::Do(Io::Write(0..1)));
        assert!(matches!(go_on(core, write, Done::Well), Step::Do(Io::Append(_))));
        assert_eq!(go_on(core, write, Done::Appended(200)), Step::Over(Ok(())));
        let flush = core.submit(Request::Flush);
        assert_eq!(core.step(NOW, flush), Step::Do(Io::SyncData));
        flush
    }

    #[test]
    fn a_flush_covers_the_generation_that_began_before_it() {
        let mut core = core(Held::default());
        let first = flush_that_syncs(&mut core);
        let freeze = core.submit(Request::Freeze);
        assert_eq!(core.step(NOW, freeze), Step::Do(Io::Append(Record::Frozen)));
        assert_eq!(go_on(&mut core, freeze, Done::Appended(300)), Step::Over(Ok(())));
        let flush = core.submit(Request::Flush);
        assert_eq!(core.step(NOW, flush), Step::Wait);
        assert_eq!(go_on(&mut core, first, Done::Well), Step::Do(Io::Barrier(200)));
        assert_eq!(go_on(&mut core, first, Done::Appended(400)), Step::Over(Ok(())));
        // The round that was running began before the generation, so it does not cover it.
        assert_eq!(core.poll_wake(), Some(flush));
        assert_eq!(core.step(NOW, flush), Step::Do(Io::SyncData));
        assert_eq!(go_on(&mut core, flush, Done::Well), Step::Do(Io::Barrier(400)));
        assert_eq!(go_on(&mut core, flush, Done::Appended(500)), Step::Over(Ok(())));
    }

    #[test]
    fn the_journal_is_replaced_when_no_record_is_on_its_way_to_it() {
        let mut core = core(Held::default());
        let [one, other] = [0, 20].map(|at| {
            let read = core.submit(Request::Read(at..at + 1));
            assert_eq!(core.step(NOW, read), Step::Wait);
            read
        });
        let node = core.poll_begin(NOW).expect("the leaves are not known");
        let place = Item::Node(NodePlace { level: 0, number: 0 });
        assert_eq!(core.step(NOW, node), Step::Do(Io::Fetch { item: place, source: 0 }));
        let opened = Done::Node { empty: vec![false; 4], bytes: 100 };
        assert_eq!(go_on(&mut core, node, opened), Step::Over(Ok(())));
        let fetches = [(); 2].map(|()| core.poll_begin(NOW).expect("two chunks are wanted"));
        for fetch in fetches {
            assert!(matches!(core.step(NOW, fetch), Step::Do(Io::Fetch { .. })));
            assert!(matches!(go_on(&mut core, fetch, Done::Chunk(10)), Step::Do(Io::Fill { .. })));
        }
        assert!(matches!(go_on(&mut core, fetches[0], Done::Well), Step::Do(Io::Append(_))));
        // Meanwhile a write makes the journal longer than its limit.
        let write = core.submit(Request::Write { range: 40..41, durable: false });
        assert_eq!(core.step(NOW, write), Step::Do(Io::Write(40..41)));
        assert!(matches!(go_on(&mut core, write, Done::Well), Step::Do(Io::Append(_))));
        assert_eq!(go_on(&mut core, write, Done::Appended(JOURNAL_BYTES + 1)), Step::Over(Ok(())));
        let rewrite = core.poll_begin(NOW).expect("the journal is long");
        assert_eq!(core.step(NOW, rewrite), Step::Do(Io::SyncData));
        assert_eq!(go_on(&mut core, rewrite, Done::Well), Step::Wait);
        assert_eq!(go_on(&mut core, fetches[1], Done::Well), Step::Wait);
        assert_eq!(go_on(&mut core, fetches[0], Done::Appended(JOURNAL_BYTES + 40)), Step::Over(Ok(())));
        let woken: Vec<OpId> = std::iter::from_fn(|| core.poll_wake()).collect();
        assert!(woken.contains(&one) && woken.contains(&rewrite), "{woken:?}");
        assert_eq!(core.step(NOW, rewrite), Step::Do(Io::Rewrite));
        assert_eq!(core.step(NOW, fetches[1]), Step::Wait);
        assert_eq!(go_on(&mut core, rewrite, Done::Appended(300)), Step::Over(Ok(())));
        assert!(std::iter::from_fn(|| core.poll_wake()).any(|woken| woken == fetches[1]));
        assert!(matches!(core.step(NOW, fetches[1]), Step::Do(Io::Append(_))));
        assert_eq!(go_on(&mut core, fetches[1], Done::Appended(340)), Step::Over(Ok(())));
        assert!(std::iter::from_fn(|| core.poll_wake()).any(|woken| woken == other));
        assert_eq!(core.rounds.journal_bytes(), 340);
    }

    #[test]
    fn a_wrong_chunk_is_cleared_although_the_tree_changed_while_it_was_checked() {
        let held = Held { suspect: std::iter::once(0..1).collect(), ..Held::default() };
        let mut core = core(held);
        let read = core.submit(Request::Read(0..1));
        assert_eq!(core.step(NOW, read), Step::Wait);
        let opens = |core: &mut Core, empty: bool| {
            let node = core.poll_begin(NOW).expect("the leaves are not known");
            assert!(matches!(core.step(NOW, node), Step::Do(Io::Fetch { item: Item::Node(_), .. })));
            (node, go_on(core, node, Done::Node { empty: vec![empty; 4], bytes: 100 }))
        };
        assert_eq!(opens(&mut core, false).1, Step::Over(Ok(())));
        let checks = |core: &mut Core| {
            let check = core.poll_begin(NOW).expect("the chunk has to be checked");
            assert_eq!(core.step(NOW, check), Step::Do(Io::Check(0)));
            check
        };
        let check = checks(&mut core);
        let rebase = core.submit(Request::Rebase);
        assert_eq!(core.step(NOW, rebase), Step::Do(Io::Append(Record::Rebased)));
        assert_eq!(go_on(&mut core, rebase, Done::Appended(200)), Step::Do(Io::SyncData));
        assert_eq!(go_on(&mut core, check, Done::Checked(false)), Step::Over(Ok(())));
        // In the new tree the chunk is empty, but the local file still has bytes there.
        let (node, step) = opens(&mut core, true);
        assert_eq!(step, Step::Do(Io::Append(Record::Clean(std::iter::once(1..4).collect()))));
        assert_eq!(go_on(&mut core, node, Done::Appended(300)), Step::Over(Ok(())));
        let check = checks(&mut core);
        let cleared = Io::Fill { chunk: 0, parts: std::iter::once(0..16).collect() };
        assert_eq!(go_on(&mut core, check, Done::Checked(false)), Step::Do(cleared));
        let clean = Record::Clean(std::iter::once(0..1).collect());
        assert_eq!(go_on(&mut core, check, Done::Well), Step::Do(Io::Append(clean)));
        assert_eq!(go_on(&mut core, check, Done::Appended(340)), Step::Over(Ok(())));
        assert_eq!(core.step(NOW, read), Step::Do(Io::Read(0..1)));
    }
}
