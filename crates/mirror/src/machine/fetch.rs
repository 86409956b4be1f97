//! Operations that need data from a source: reads, finding empty chunks, and the fetches themselves.

use base::limits::TREE_FANOUT;
use base::{Instant, RunSet};

use crate::machine::fetch_queue::{Priority, Supply};
use crate::machine::operations::{Fetch, FetchPhase, ITSELF, Learn, NOBODY, Read};
use crate::machine::state::Core;
use crate::machine::types::{Done, Failure, Io, Item, OpId, Record, Sectors, Step, Unread, overlaps};

/// Maximum number of nodes that one [`Learn`] waits for at the same time.
const LEARNS_MAX: usize = 64;

impl Core {
    /// A read demands the missing chunks and waits, until all of its range is local.
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
                // A running write makes this part local soon: wait for the write instead of fetching.
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

    /// Wants the nodes that are not known yet, and waits for at most [`LEARNS_MAX`] of them at a time.
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
                    // The node that has this chunk's leaf is known: continue with the first chunk of the next node.
                    Item::Chunk(_) => (chunk / TREE_FANOUT + 1) * TREE_FANOUT,
                };
            }
        }
        if waits > 0 { Step::Wait } else { Step::Over(Ok(())) }
    }

    /// A fetch gets its item, locks the range against writes, fills the chunk, and records what is clean now.
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

    /// The chunks that a fetch makes clean: the fetched chunk, or the empty chunks below a fetched node.
    fn became_clean(&self, fetch: &Fetch) -> Vec<std::ops::Range<u64>> {
        match fetch.item {
            Item::Chunk(chunk) => std::iter::once(chunk..chunk + 1).collect(),
            Item::Node(_) if fetch.tree != self.supply.tree => Vec::new(),
            Item::Node(place) => {
                let empty = Supply::empty_chunks(place, &fetch.empty, self.cut.chunks());
                let fresh = empty.iter().flat_map(|run| self.held.clean.gaps(run).collect::<Vec<_>>());
                // The local file may hold old bytes in a suspect chunk although the chunk is empty now. Its own
                // check clears it.
                fresh.flat_map(|run| self.held.suspect.gaps(run).collect::<Vec<_>>()).collect()
            }
        }
    }

    /// The sectors that a fetched chunk may be written to.
    fn fill_parts(&self, chunk: u64) -> Vec<Sectors> {
        let mut parts = RunSet::new();
        if self.held.clean.contains(&(chunk..chunk + 1)) {
            // Meanwhile the chunk was committed as a whole.
            return Vec::new();
        }
        let whole = self.cut.chunk(chunk);
        parts.insert(whole.clone());
        // The sectors in these three sets may be newer than the fetched content.
        self.held.dirty.within(whole.clone()).for_each(|run| parts.remove(run));
        self.held.frozen.within(whole.clone()).for_each(|run| parts.remove(run));
        self.held.kept.within(whole).for_each(|run| parts.remove(run));
        parts.iter().collect()
    }

    /// Blocks new writes to the range that is about to become clean, and waits until running writes to it have
    /// ended.
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
            // Writing to the local file or to the journal failed.
            (_, _) => {
                self.unlock(id);
                self.not_kept(fetch.item, fetch.priority);
                fetch.phase = FetchPhase::Over;
            }
        }
    }

    /// Continues after the check of a suspect chunk; `right` is the result.
    fn checked(&mut self, id: OpId, fetch: &mut Fetch, right: bool) {
        let Item::Chunk(chunk) = fetch.item else { return };
        if right {
            fetch.phase = FetchPhase::Record;
        } else if self.is_empty(chunk) {
            // The version has only zeros here, and no object to fetch: the fill clears the chunk.
            fetch.phase = FetchPhase::Fill;
        } else {
            // The chunk stays suspect until it is filled. As an absent chunk it would count as zeros where the
            // version has zeros, but the local file may have other bytes there.
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

    /// Ends a fetch whose item is local and recorded: updates the sets and wakes the operations that wait.
    fn landed(&mut self, id: OpId, fetch: &Fetch) {
        debug_assert!(
            self.locked.iter().any(|(locked, _)| *locked == id),
            "a range is locked until it is clean"
        );
        for run in self.became_clean(fetch) {
            let sectors = self.cut.sectors_of(run.clone());
            debug_assert!(
                !self.writing.iter().any(|(_, range)| overlaps(range, &sectors)),
                "no write is running in a range that becomes clean"
            );
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

    /// Adds a fetch to the counters.
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
                    // A read waited for it while it was in flight.
                    self.counters.used(unread);
                } else {
                    self.supply.unread.insert(chunk, unread);
                }
            }
            Priority::Background => self.counters.background_bytes += bytes,
        }
    }
}
