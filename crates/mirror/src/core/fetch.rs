//! Operations that need what is far away: reads, learning what is empty, and the fetches themselves.

use base::Instant;
use base::limits::TREE_FANOUT;

use super::supply::{Priority, Supply, Unread};
use super::{Core, Done, Failure, Io, Item, Mutant, NodePlace, OpId, Record, Sectors, Step, overlaps};

/// A request for bytes.
pub(super) struct Read {
    range: Sectors,
    failure: Option<Failure>,
    over: bool,
    waited: bool,
}

impl Read {
    pub(super) fn new(range: Sectors) -> Self {
        Self { range, failure: None, over: false, waited: false }
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    pub(super) fn done(&mut self, done: &Done) {
        self.over = true;
        if let Done::Failed(failure) = done {
            self.failure = Some(*failure);
        }
    }
}

/// A request to know what is empty.
pub(super) struct Learn {
    range: Sectors,
    failure: Option<Failure>,
}

impl Learn {
    pub(super) fn new(range: Sectors) -> Self {
        Self { range, failure: None }
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }
}

/// An item on its way.
pub(super) struct Fetch {
    began: Instant,
    item: Item,
    source: usize,
    priority: Priority,
    phase: Phase,
    bytes: u32,
    empty: Vec<bool>,
    /// Which tree it is of.
    tree: u64,
}

/// Nodes that one request to learn waits for at once.
const LEARNS_MAX: usize = 64;
/// In the place of a source: what lies here is looked at.
pub(super) const NOBODY: usize = usize::MAX;
/// In the place of a source: it came by itself.
const ITSELF: usize = usize::MAX - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Get,
    /// Writes to the chunk end first, and others wait.
    Settle,
    /// What the local file has is held against the leaf.
    Check,
    Fill,
    Record,
    Over,
}

impl Fetch {
    pub(super) fn new(began: Instant, item: Item, source: usize, priority: Priority, tree: u64) -> Self {
        let phase = if source == NOBODY { Phase::Settle } else { Phase::Get };
        Self { began, item, source, priority, phase, bytes: 0, empty: Vec::new(), tree }
    }

    /// Of what came by itself: an object of `bytes`; of a node, which of its entries are `empty`.
    pub(super) fn arrived(
        item: Item,
        priority: Priority,
        tree: u64,
        bytes: u32,
        empty: Vec<bool>,
        unsettled: bool,
    ) -> Self {
        let phase = if unsettled && matches!(item, Item::Chunk(_)) { Phase::Fill } else { Phase::Settle };
        Self { phase, bytes, empty, ..Self::new(Instant::ZERO, item, ITSELF, priority, tree) }
    }
}

impl Core {
    pub(super) fn step_read(&mut self, now: Instant, id: OpId, read: &mut Read) -> Step {
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

    pub(super) fn step_learn(&mut self, now: Instant, id: OpId, learn: &mut Learn) -> Step {
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

    pub(super) fn step_fetch(&mut self, now: Instant, id: OpId, fetch: &mut Fetch) -> Step {
        match (fetch.phase, fetch.item) {
            (Phase::Over, _) => Step::Over(Ok(())),
            (Phase::Check, Item::Chunk(chunk)) => Step::Do(Io::Check(chunk)),
            (Phase::Check | Phase::Get, item) => Step::Do(Io::Fetch { item, source: fetch.source }),
            (Phase::Settle, _) => self.settle(now, id, fetch),
            (Phase::Fill, Item::Chunk(chunk)) => {
                let parts = self.fill_parts(chunk);
                if parts.is_empty() {
                    fetch.phase = Phase::Record;
                    return self.step_fetch(now, id, fetch);
                }
                Step::Do(Io::Fill { chunk, parts })
            }
            (Phase::Fill | Phase::Record, _) => {
                let clean = self.became_clean(fetch);
                if clean.is_empty() {
                    self.settled(id, fetch);
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
        let mut parts = super::RunSet::new();
        if self.held.clean.contains(&(chunk..chunk + 1)) {
            // It was committed as a whole meanwhile.
            return Vec::new();
        }
        let whole = self.cut.chunk(chunk);
        parts.insert(whole.clone());
        if !self.has(Mutant::FillsOverDirty) {
            self.held.dirty.within(whole.clone()).for_each(|run| parts.remove(run));
            self.held.frozen.within(whole.clone()).for_each(|run| parts.remove(run));
        }
        if !self.has(Mutant::FillsOverKept) {
            self.held.kept.within(whole).for_each(|run| parts.remove(run));
        }
        parts.iter().collect()
    }

    /// Lets writes to what is about to become clean end, and keeps others out.
    fn settle(&mut self, now: Instant, id: OpId, fetch: &mut Fetch) -> Step {
        let sectors = self.sectors_of(fetch.item);
        if !self.settling.iter().any(|(settling, _)| *settling == id) {
            self.settling.push((id, sectors.clone()));
        }
        let waits = self.writing.iter().any(|(_, range)| overlaps(range, &sectors));
        if waits && !self.has(Mutant::WritesIntoFill) {
            return self.wait_blocked(id);
        }
        fetch.phase = match fetch.item {
            Item::Chunk(_) if fetch.source == NOBODY => Phase::Check,
            Item::Chunk(_) if self.has(Mutant::CleanBeforeFill) => Phase::Record,
            Item::Chunk(_) => Phase::Fill,
            Item::Node(_) => Phase::Record,
        };
        self.step_fetch(now, id, fetch)
    }

    fn sectors_of(&self, item: Item) -> Sectors {
        match item {
            Item::Chunk(chunk) => self.cut.chunk(chunk),
            Item::Node(place) => self.cut.sectors_of(Supply::span(place, self.cut.chunks())),
        }
    }

    pub(super) fn done_fetch(&mut self, now: Instant, id: OpId, fetch: &mut Fetch, done: Done) {
        match (fetch.phase, done) {
            (Phase::Get, Done::Failed(failure)) => {
                self.answered(now, fetch.source, Err(failure));
                self.failed(fetch.item, fetch.priority, fetch.source, failure);
                fetch.phase = Phase::Over;
            }
            (Phase::Get, Done::Chunk(bytes)) => {
                let (time, most) = (now.since(fetch.began), self.ahead_max());
                self.supply.window.took(time, bytes, self.supply.running, most);
                self.answered(now, fetch.source, Ok(()));
                if fetch.priority == Priority::Demand {
                    self.neighbours.took(time);
                }
                (fetch.bytes, fetch.phase) = (bytes, Phase::Settle);
            }
            (Phase::Get, Done::Node { empty, bytes }) => {
                self.answered(now, fetch.source, Ok(()));
                (fetch.bytes, fetch.empty, fetch.phase) = (bytes, empty, Phase::Settle);
            }
            (Phase::Check, done) => self.checked(id, fetch, done == Done::Checked(true)),
            (Phase::Fill, Done::Well) => fetch.phase = Phase::Record,
            (Phase::Record, Done::Appended(_)) => {
                self.settled(id, fetch);
                fetch.phase = Phase::Over;
            }
            // The local file or the journal failed.
            (_, _) => {
                self.unsettle(id);
                self.not_kept(fetch.item, fetch.priority);
                fetch.phase = Phase::Over;
            }
        }
    }

    /// A chunk that was clean before a power cut is right, or is not.
    fn checked(&mut self, id: OpId, fetch: &mut Fetch, right: bool) {
        let Item::Chunk(chunk) = fetch.item else { return };
        if right {
            fetch.phase = Phase::Record;
        } else if self.is_empty(chunk) {
            // No source has it: it is cleared.
            fetch.phase = Phase::Fill;
        } else {
            // Suspect it stays until it is filled: as an absent chunk it would count as zeros where the version has zeros.
            self.wrong.insert(chunk..chunk + 1);
            self.unsettle(id);
            self.failed(fetch.item, fetch.priority, NOBODY, Failure::Missing);
            fetch.phase = Phase::Over;
        }
    }

    fn unsettle(&mut self, id: OpId) {
        self.settling.retain(|(settling, _)| *settling != id);
        self.unblock();
    }

    /// What was fetched is here.
    fn settled(&mut self, id: OpId, fetch: &Fetch) {
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
        self.unsettle(id);
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

/// Where a node stands over which entry of its parent: used by drivers to find it.
impl NodePlace {
    /// The node above, and which of its entries this is. `None` for the root of a tree of this height.
    #[must_use]
    pub fn parent(self, height: u8) -> Option<(Self, usize)> {
        let fanout = base::limits::TREE_FANOUT;
        let slot = usize::try_from(self.number % fanout).expect("below the fan-out");
        (self.level + 1 < height)
            .then_some((Self { level: self.level + 1, number: self.number / fanout }, slot))
    }
}
