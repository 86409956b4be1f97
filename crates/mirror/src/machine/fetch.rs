//! Operations that need what is far away: reads, learning what is empty, and the fetches themselves.

use base::limits::TREE_FANOUT;
use base::{Instant, RunSet};

use crate::machine::fetch_queue::{Priority, Supply};
use crate::machine::operations::{Fetch, FetchPhase, ITSELF, Learn, NOBODY, Read};
use crate::machine::state::Core;
use crate::machine::types::{Done, Failure, Io, Item, OpId, Record, Sectors, Step, Unread, overlaps};

/// Nodes that one request to learn waits for at once.
const LEARNS_MAX: usize = 64;

impl Core {
    pub(in crate::machine) fn step_read(&mut self, now: Instant, id: OpId, read: &mut Read) -> Step {
        if let Some(failure) = read.failure {
            return Step::Over(Err(failure));
        }
        if read.over {
            return Step::Over(Ok(()));
        }
        let missing = self.held.missing(&self.cut, &read.range);
        if missing.is_empty() {
            return Step::Do(Io::Read(read.range.clone()));
        }
        let mut blocked = false;
        let mut demanded = None;
        for run in missing.iter() {
            for chunk in self.cut.chunks_of(&run) {
                let sectors = self.cut.chunk(chunk);
                let part = run.start.max(sectors.start)..run.end.min(sectors.end);
                // What is being written is here in a moment.
                if self.writing.iter().any(|(_, range)| range.start <= part.start && part.end <= range.end) {
                    blocked = true;
                } else if demanded != Some(chunk) {
                    demanded = Some(chunk);
                    self.demand(now, chunk, id);
                    self.counters.demanded_chunks += u64::from(!read.waited);
                }
            }
        }
        read.waited = true;
        if blocked {
            self.blocked.push(id);
        }
        Step::Wait
    }

    pub(in crate::machine) fn step_learn(&mut self, now: Instant, id: OpId, learn: &mut Learn) -> Step {
        if let Some(failure) = learn.failure {
            return Step::Over(Err(failure));
        }
        let waiter = self.waiter(now, id);
        let mut waits = 0;
        let unknown: Vec<_> = self.held.clean.gaps(self.cut.chunks_of(&learn.range)).collect();
        for gap in unknown {
            let mut chunk = gap.start;
            while chunk < gap.end && waits < LEARNS_MAX {
                let item = self.supply.next_item(chunk);
                if let Item::Node(place) = item {
                    self.supply.want_node(place, waiter);
                    waits += 1;
                }
                chunk = match item {
                    Item::Node(place) => Supply::span(place, self.cut.chunks()).end,
                    Item::Chunk(_) => (chunk / TREE_FANOUT + 1) * TREE_FANOUT,
                };
            }
        }
        if waits > 0 { Step::Wait } else { Step::Over(Ok(())) }
    }

    pub(in crate::machine) fn step_fetch(&mut self, now: Instant, id: OpId, fetch: &mut Fetch) -> Step {
        match (fetch.phase, fetch.item) {
            (FetchPhase::Over, _) => Step::Over(Ok(())),
            (FetchPhase::Check, Item::Chunk(chunk)) => Step::Do(Io::Check(chunk)),
            (FetchPhase::Check | FetchPhase::Get, item) => Step::Do(Io::Fetch { item, source: fetch.source }),
            (FetchPhase::Lock, _) => self.lock_range(now, id, fetch),
            (FetchPhase::Fill, Item::Chunk(chunk)) => {
                let parts = self.fill_parts(chunk);
                if parts.is_empty() {
                    fetch.phase = FetchPhase::Record;
                    return self.step_fetch(now, id, fetch);
                }
                Step::Do(Io::Fill { chunk, parts })
            }
            (FetchPhase::Fill | FetchPhase::Record, _) => {
                let clean = self.became_clean(fetch);
                if clean.is_empty() {
                    self.landed(id, fetch);
                    return Step::Over(Ok(()));
                }
                if self.exclusive.holds_records() {
                    return self.wait_blocked(id);
                }
                Step::Do(Io::Append(Record::Clean(clean)))
            }
        }
    }

    /// The chunks that a fetch makes clean.
    fn became_clean(&self, fetch: &Fetch) -> Vec<std::ops::Range<u64>> {
        match fetch.item {
            Item::Chunk(chunk) => std::iter::once(chunk..chunk + 1).collect(),
            Item::Node(_) if fetch.tree != self.supply.tree => Vec::new(),
            Item::Node(place) => {
                let empty = Supply::empty_chunks(place, &fetch.empty, self.cut.chunks());
                let fresh = empty.iter().flat_map(|run| self.held.clean.gaps(run).collect::<Vec<_>>());
                // What must be checked may hold something: it is cleared by itself.
                fresh.flat_map(|run| self.held.suspect.gaps(run).collect::<Vec<_>>()).collect()
            }
        }
    }

    /// The sectors that a fetched chunk may be written to.
    fn fill_parts(&self, chunk: u64) -> Vec<Sectors> {
        let mut parts = RunSet::new();
        if self.held.clean.contains(&(chunk..chunk + 1)) {
            // It was committed as a whole meanwhile.
            return Vec::new();
        }
        let whole = self.cut.chunk(chunk);
        parts.insert(whole.clone());
        self.held.dirty.within(whole.clone()).for_each(|run| parts.remove(run));
        self.held.frozen.within(whole.clone()).for_each(|run| parts.remove(run));
        self.held.kept.within(whole).for_each(|run| parts.remove(run));
        parts.iter().collect()
    }

    /// Lets writes to what is about to become clean end, and keeps others out.
    fn lock_range(&mut self, now: Instant, id: OpId, fetch: &mut Fetch) -> Step {
        let sectors = self.sectors_of(fetch.item);
        if !self.locked.iter().any(|(locked, _)| *locked == id) {
            self.locked.push((id, sectors.clone()));
        }
        if self.writing.iter().any(|(_, range)| overlaps(range, &sectors)) {
            return self.wait_blocked(id);
        }
        fetch.phase = match fetch.item {
            Item::Chunk(_) if fetch.source == NOBODY => FetchPhase::Check,
            Item::Chunk(_) => FetchPhase::Fill,
            Item::Node(_) => FetchPhase::Record,
        };
        self.step_fetch(now, id, fetch)
    }

    fn sectors_of(&self, item: Item) -> Sectors {
        match item {
            Item::Chunk(chunk) => self.cut.chunk(chunk),
            Item::Node(place) => self.cut.sectors_of(Supply::span(place, self.cut.chunks())),
        }
    }

    pub(in crate::machine) fn done_fetch(&mut self, now: Instant, id: OpId, fetch: &mut Fetch, done: Done) {
        match (fetch.phase, done) {
            (FetchPhase::Get, Done::Failed(failure)) => {
                self.answered(now, fetch.source, Err(failure));
                self.failed(fetch.item, fetch.priority, fetch.source, failure);
                fetch.phase = FetchPhase::Over;
            }
            (FetchPhase::Get, Done::Chunk(bytes)) => {
                let (time, most) = (now.since(fetch.began), self.ahead_max());
                self.supply.window.took(time, bytes, self.supply.running, most);
                self.answered(now, fetch.source, Ok(()));
                if fetch.priority == Priority::Demand {
                    self.neighbours.took(time);
                }
                (fetch.bytes, fetch.phase) = (bytes, FetchPhase::Lock);
            }
            (FetchPhase::Get, Done::Node { empty, bytes }) => {
                self.answered(now, fetch.source, Ok(()));
                (fetch.bytes, fetch.empty, fetch.phase) = (bytes, empty, FetchPhase::Lock);
            }
            (FetchPhase::Check, done) => self.checked(id, fetch, done == Done::Checked(true)),
            (FetchPhase::Fill, Done::Well) => fetch.phase = FetchPhase::Record,
            (FetchPhase::Record, Done::Appended(_)) => {
                self.landed(id, fetch);
                fetch.phase = FetchPhase::Over;
            }
            // The local file or the journal failed.
            (_, _) => {
                self.unlock(id);
                self.not_kept(fetch.item, fetch.priority);
                fetch.phase = FetchPhase::Over;
            }
        }
    }

    /// A chunk that was clean before a power cut is right, or is not.
    fn checked(&mut self, id: OpId, fetch: &mut Fetch, right: bool) {
        let Item::Chunk(chunk) = fetch.item else { return };
        if right {
            fetch.phase = FetchPhase::Record;
        } else if self.is_empty(chunk) {
            // No source has it: it is cleared.
            fetch.phase = FetchPhase::Fill;
        } else {
            // Suspect it stays until it is filled: as an absent chunk it would count as zeros where the version has
            // zeros.
            self.wrong.insert(chunk..chunk + 1);
            self.unlock(id);
            self.failed(fetch.item, fetch.priority, NOBODY, Failure::Missing);
            fetch.phase = FetchPhase::Over;
        }
    }

    fn unlock(&mut self, id: OpId) {
        self.locked.retain(|(locked, _)| *locked != id);
        self.unblock();
    }

    /// What was fetched is here.
    fn landed(&mut self, id: OpId, fetch: &Fetch) {
        for run in self.became_clean(fetch) {
            let sectors = self.cut.sectors_of(run.clone());
            self.held.kept.remove(sectors);
            self.held.suspect.remove(run.clone());
            self.held.clean.insert(run);
        }
        self.book(fetch);
        if let Item::Node(place) = fetch.item
            && fetch.tree == self.supply.tree
        {
            self.supply.learn(place);
            let empty = Supply::empty_chunks(place, &fetch.empty, self.cut.chunks());
            self.supply.empty.extend(&empty);
            if self.config.ahead_chunks_max > 0 {
                self.supply.want_nodes_below(place, &fetch.empty);
            }
        }
        self.fetched(fetch.item, fetch.priority);
        self.unlock(id);
    }

    fn book(&mut self, fetch: &Fetch) {
        let bytes = u64::from(fetch.bytes);
        self.counters.arrived_bytes += if fetch.source == ITSELF { bytes } else { 0 };
        let Item::Chunk(chunk) = fetch.item else {
            self.counters.node_bytes += bytes;
            return;
        };
        self.neighbours.came(chunk, fetch.bytes);
        match fetch.priority {
            Priority::Demand => self.counters.demanded_bytes += bytes,
            Priority::Ahead | Priority::Expected => {
                let expected = fetch.priority == Priority::Expected && self.is_foretold(chunk);
                let unread = Unread { bytes: fetch.bytes, expected };
                self.counters.prefetched(unread);
                if self.supply.is_demanded(chunk) {
                    // It was read on its way.
                    self.counters.used(unread);
                } else {
                    self.supply.unread.insert(chunk, unread);
                }
            }
            Priority::Background => self.counters.background_bytes += bytes,
        }
    }
}
