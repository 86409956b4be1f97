//! What is wanted from far away, in which order, and from whom: one queue by priority for nodes and chunks, sources in
//! order with bounded fan-in, retries elsewhere, and a rest for sources that are dead or lie.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use base::{Duration, Instant};

use super::cast::Cast;
use super::expected::{Expected, WANTS_EACH};
use super::fetch::{Fetch, NOBODY};
use super::window::Window;
use super::{Config, Core, Failure, Item, Mutant, NodePlace, Op, OpId, RunSet};

/// Children of a node.
const FANOUT: u64 = base::limits::TREE_FANOUT;
/// Queued items that are looked at for one that a free source has not failed at.
const LOOKS_MAX: usize = 64;
/// First and longest rest of a source that could not be reached, and of an item that no source gave.
const REST_MIN: Duration = Duration::from_millis(50);
/// See [`REST_MIN`].
const REST_MAX: Duration = Duration::from_secs(1);
/// A source that lied so often in a row is not asked for [`LIAR_REST`].
const LIES_MAX: u32 = 3;
/// See [`LIES_MAX`].
const LIAR_REST: Duration = Duration::from_secs(30);
/// So often all sources are asked for an item that each of them has damaged, or lacks, before whoever waits hears of it: what
/// was wrong on its way only, or in a source that is being healed, may be right then.
const SPOILT_ROUNDS: u32 = 3;
/// Fetches in flight in the background, and with any others in flight or queued.
const BACKGROUND_MAX: usize = 4;

/// Most nodes that are fetched before anything below them is asked for: those of 64 GiB in chunks of 256 KiB, some 3 MB.
const NODES_AHEAD_MAX: u32 = 1024;

/// Why an item is fetched: the lower the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    /// Somebody waits.
    Demand,
    /// A stream is likely to come there.
    Ahead,
    /// Other machines read it when they started.
    Expected,
    /// Until the disk is local.
    Background,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// A chunk whose node is wanted first.
    NeedsNode,
    Queued,
    Running,
    /// No source gave it; until then.
    Resting(Instant),
}

pub(super) struct Want {
    pub(super) priority: Priority,
    pub(super) order: u64,
    pub(super) state: State,
    waiters: Vec<OpId>,
    /// Chunks that need this node.
    dependents: Vec<u64>,
    /// Sources that failed at it in this round, as bits.
    tried: u64,
    rounds: u32,
    /// Of the sources tried those that answered, and have it damaged or not at all.
    spoilt: u64,
    /// Rounds in a row in which all sources did.
    spoilt_rounds: u32,
    /// Since when somebody waits for it.
    since: Option<Instant>,
    /// When it fails for who waits.
    deadline: Option<Instant>,
    /// How it failed last.
    failure: Option<Failure>,
    /// It was left to come by itself.
    pub(super) left: bool,
    /// It was wished for as urgent.
    pub(super) urged: bool,
}

struct Source {
    running: usize,
    running_max: usize,
    failures: u32,
    lies: u32,
    rests_until: Instant,
}

/// See the module.
pub(super) struct Supply {
    height: u8,
    pub(super) wants: HashMap<Item, Want>,
    queue: BTreeSet<(Priority, u64, Item)>,
    pub(super) timers: BTreeSet<(Instant, Item)>,
    deadlines: BTreeSet<(Instant, Item)>,
    sources: Vec<Source>,
    /// How the last answer of a source failed, if it did: what those suffer from whose turn never came.
    failure: Option<Failure>,
    order: u64,
    pub(super) running: usize,
    pub(super) running_demand: usize,
    /// How many may be in flight that nobody waits for.
    pub(super) window: Window,
    /// Nodes that were opened.
    known: HashSet<NodePlace>,
    /// What comes by itself.
    pub(super) cast: Cast,
    /// Nodes of this tree that were asked for ahead.
    nodes_ahead: u32,
    /// Chunks that hold nothing but zeros in the base version.
    pub(super) empty: RunSet,
    /// Chunks that are expected to be read.
    pub(super) expected: Expected,
    /// Counts the trees that there were.
    pub(super) tree: u64,
    /// Where background filling is.
    cursor: u64,
    background_at: Instant,
    /// It waits for that time and nothing else.
    background_waits: bool,
    /// Chunks that were fetched before they were read.
    pub(super) unread: HashMap<u64, Unread>,
}

/// Who waits for an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) id: OpId,
    pub(super) since: Instant,
    /// When the waiter gives up.
    pub(super) deadline: Option<Instant>,
}

/// A chunk that was fetched before it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    /// Bytes of its object.
    pub(super) bytes: u32,
    /// Whether it came because other machines read it.
    pub(super) expected: bool,
}

impl Supply {
    pub(super) fn new(config: &Config, height: u8) -> Self {
        let source = |&running_max: &usize| Source {
            running: 0,
            running_max,
            failures: 0,
            lies: 0,
            rests_until: Instant::ZERO,
        };
        Self {
            height,
            wants: HashMap::new(),
            queue: BTreeSet::new(),
            timers: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            sources: config.sources.iter().map(source).collect(),
            failure: None,
            order: 0,
            running: 0,
            running_demand: 0,
            window: Window::default(),
            known: HashSet::new(),
            cast: Cast::default(),
            nodes_ahead: 0,
            empty: RunSet::new(),
            expected: Expected::default(),
            tree: 0,
            cursor: 0,
            background_at: Instant::ZERO,
            background_waits: false,
            unread: HashMap::new(),
        }
    }

    /// What has to be fetched next on the way to `chunk`: the highest node that is not known, or the chunk.
    pub(super) fn next_item(&self, chunk: u64) -> Item {
        let place = |level: u8| NodePlace { level, number: chunk / FANOUT.pow(u32::from(level) + 1) };
        let unknown = (0..self.height).take_while(|&level| !self.known.contains(&place(level))).last();
        unknown.map_or(Item::Chunk(chunk), |level| Item::Node(place(level)))
    }

    /// The chunks below a node.
    pub(super) fn span(place: NodePlace, count: u64) -> Range<u64> {
        let each = FANOUT.pow(u32::from(place.level) + 1);
        (place.number * each).min(count)..((place.number + 1) * each).min(count)
    }

    /// The chunks of a node's entries that are `empty`, and of those behind its last.
    pub(super) fn empty_chunks(place: NodePlace, empty: &[bool], count: u64) -> RunSet {
        let span = Self::span(place, count);
        let each = FANOUT.pow(u32::from(place.level));
        let entries = (0..FANOUT).zip(empty.iter().copied().chain(std::iter::repeat(true)));
        let runs = entries.filter(|(_, empty)| *empty).map(|(slot, _)| {
            let first = (span.start + slot * each).min(span.end);
            first..(first + each).min(span.end)
        });
        runs.collect()
    }

    pub(super) fn enqueue(&mut self, item: Item) {
        let Some(want) = self.wants.get_mut(&item) else { return };
        want.state = State::Queued;
        self.queue.insert((want.priority, want.order, item));
    }

    pub(super) fn take_from_queue(&mut self, item: Item) {
        if let Some(want) = self.wants.get(&item) {
            self.queue.remove(&(want.priority, want.order, item));
        }
    }

    /// Wants `item`; true if that is new.
    pub(super) fn want(&mut self, item: Item, priority: Priority) -> bool {
        if let Some(want) = self.wants.get(&item) {
            if priority < want.priority {
                let queued = want.state == State::Queued;
                self.take_from_queue(item);
                let want = self.wants.get_mut(&item).expect("it was just there");
                (want.priority, want.spoilt_rounds) = (priority, 0);
                if queued {
                    self.enqueue(item);
                }
            }
            return false;
        }
        self.order += 1;
        let want = Want {
            priority,
            order: self.order,
            state: State::Queued,
            waiters: Vec::new(),
            dependents: Vec::new(),
            tried: 0,
            rounds: 0,
            spoilt: 0,
            spoilt_rounds: 0,
            since: None,
            deadline: None,
            failure: None,
            left: false,
            urged: false,
        };
        self.wants.insert(item, want);
        true
    }

    /// Wants what comes next on the way to `chunk`, which is wanted itself.
    fn want_next(&mut self, chunk: u64, priority: Priority) {
        match self.next_item(chunk) {
            Item::Chunk(_) => self.enqueue(Item::Chunk(chunk)),
            node @ Item::Node(_) => {
                if self.want(node, priority) {
                    self.enqueue(node);
                }
                let want = self.wants.get_mut(&node).expect("it is wanted");
                if !want.dependents.contains(&chunk) {
                    want.dependents.push(chunk);
                }
                self.wants.get_mut(&Item::Chunk(chunk)).expect("it is wanted").state = State::NeedsNode;
            }
        }
    }

    /// Whether the chunk is on its way, or about to be.
    pub(super) fn is_wanted(&self, chunk: u64) -> bool {
        self.wants.contains_key(&Item::Chunk(chunk))
    }

    /// Whether somebody waits for the chunk that is on its way.
    pub(super) fn is_demanded(&self, chunk: u64) -> bool {
        self.wants.get(&Item::Chunk(chunk)).is_some_and(|want| want.priority == Priority::Demand)
    }

    /// Wants `chunk`, for `waiter` if there is one.
    pub(super) fn want_chunk(&mut self, chunk: u64, priority: Priority, waiter: Option<Waiter>) {
        let item = Item::Chunk(chunk);
        let fresh = self.want(item, priority);
        if let Some(waiter) = waiter {
            self.wait_for(item, waiter);
        }
        if fresh || self.wants.get(&item).is_some_and(|want| want.state == State::NeedsNode) {
            self.want_next(chunk, priority);
        }
    }

    /// Wants a node that can be named, for `waiter`.
    pub(super) fn want_node(&mut self, place: NodePlace, waiter: Waiter) {
        let item = Item::Node(place);
        if self.want(item, Priority::Demand) {
            self.enqueue(item);
        }
        self.wait_for(item, waiter);
    }

    /// Why the item is wanted whose turn is next.
    pub(super) fn next_priority(&self) -> Option<Priority> {
        self.queue.first().map(|(priority, ..)| *priority)
    }

    /// Wants the nodes below that of `place`, whose entries are `empty` or not: they are small, and each would else cost who
    /// reads below it a round trip of its own.
    pub(super) fn want_nodes_below(&mut self, place: NodePlace, empty: &[bool]) {
        let Some(level) = place.level.checked_sub(1) else { return };
        for (slot, _) in (0..).zip(empty).filter(|(_, empty)| !**empty) {
            let below = NodePlace { level, number: place.number * FANOUT + slot };
            if self.nodes_ahead == NODES_AHEAD_MAX || self.known.contains(&below) {
                continue;
            }
            self.nodes_ahead += 1;
            if self.want(Item::Node(below), Priority::Ahead) {
                self.enqueue(Item::Node(below));
            }
        }
    }

    fn wait_for(&mut self, item: Item, waiter: Waiter) {
        let Waiter { id, since, deadline } = waiter;
        let want = self.wants.get_mut(&item).expect("it is wanted");
        if want.waiters.is_empty() {
            // Who begins to wait has sources asked anew.
            want.spoilt_rounds = 0;
        }
        if !want.waiters.contains(&id) {
            want.waiters.push(id);
        }
        want.since.get_or_insert(since);
        if let (None, Some(deadline)) = (want.deadline, deadline) {
            want.deadline = Some(deadline);
            self.deadlines.insert((deadline, item));
        }
    }

    /// Takes the want of `item` off: whoever waited for it, and the chunks that needed it.
    fn remove(&mut self, item: Item) -> (Vec<OpId>, Vec<u64>) {
        self.take_from_queue(item);
        let Some(want) = self.wants.remove(&item) else { return Default::default() };
        if let State::Resting(until) = want.state {
            self.timers.remove(&(until, item));
        }
        if let Some(deadline) = want.deadline {
            self.deadlines.remove(&(deadline, item));
        }
        (want.waiters, want.dependents)
    }

    /// The source to ask for `item` now; or when there may be one.
    fn source_for(&mut self, now: Instant, item: Item, mutant: Mutant) -> Choice {
        let want = self.wants.get_mut(&item).expect("it is wanted");
        let (mut busy, mut earliest, mut liar) = (false, None::<Instant>, None);
        for (index, source) in self.sources.iter().enumerate() {
            if want.tried & (1 << index) != 0 {
                continue;
            }
            let rests = source.rests_until > now;
            if rests && source.lies < LIES_MAX {
                earliest = Some(earliest.map_or(source.rests_until, |at| at.min(source.rests_until)));
            } else if source.running >= source.running_max {
                busy = true;
            } else if rests {
                liar = liar.or(Some(index));
            } else {
                return Choice::Ask(index);
            }
        }
        if busy {
            return Choice::Busy;
        }
        // A liar rests so that others are asked, not so that nobody is.
        if let (Some(liar), None) = (liar, earliest) {
            return Choice::Ask(liar);
        }
        // All that were not tried rest, or all were tried: another round.
        let all_answered = match Mutant::BelievesOne.is(mutant) {
            true => want.spoilt > 0,
            false => want.spoilt.count_ones() as usize == self.sources.len(),
        };
        want.spoilt_rounds =
            if all_answered && !self.sources.is_empty() { want.spoilt_rounds + 1 } else { 0 };
        (want.tried, want.spoilt) = (0, 0);
        want.rounds += 1;
        if want.spoilt_rounds >= SPOILT_ROUNDS {
            return Choice::Spoilt;
        }
        let pause = (REST_MIN * 2u32.saturating_pow(want.rounds.min(8))).min(REST_MAX);
        Choice::Rest(earliest.unwrap_or(now + pause))
    }

    /// A source answered, or did not.
    fn judge(&mut self, now: Instant, source: usize, result: Result<(), Failure>) {
        let Some(source) = self.sources.get_mut(source) else { return };
        source.running -= 1;
        self.failure = result.err();
        match result {
            // Whoever gives something good need not rest, whatever was before.
            Ok(()) => (source.failures, source.lies, source.rests_until) = (0, 0, now),
            Err(Failure::Dead) => {
                source.failures += 1;
                let rest = REST_MIN * 2u32.saturating_pow(source.failures.min(8) - 1);
                source.rests_until = now + rest.min(REST_MAX);
            }
            Err(Failure::Lies) => {
                source.lies += 1;
                if source.lies >= LIES_MAX {
                    source.rests_until = now + LIAR_REST;
                }
            }
            Err(_) => {}
        }
    }

    /// The nodes are of another tree now.
    pub(super) fn forget_nodes(&mut self) {
        self.tree += 1;
        self.nodes_ahead = 0;
        self.known.clear();
        self.empty = RunSet::new();
    }

    pub(super) fn learn(&mut self, place: NodePlace) {
        self.known.insert(place);
    }

    pub(super) fn knows(&self, place: NodePlace) -> bool {
        self.known.contains(&place)
    }
}

enum Choice {
    Ask(usize),
    Busy,
    Rest(Instant),
    /// Nobody: all sources have it damaged, or lack it.
    Spoilt,
}

impl Core {
    /// Wants a chunk for a read that waits.
    pub(super) fn demand(&mut self, now: Instant, chunk: u64, waiter: OpId) {
        let waiter = self.waiter(now, waiter);
        self.supply.want_chunk(chunk, Priority::Demand, Some(waiter));
        self.supply.urge(chunk);
    }

    /// The operation `id`, which waits from now on.
    pub(super) fn waiter(&self, now: Instant, id: OpId) -> Waiter {
        Waiter { id, since: now, deadline: self.config.give_up.map(|after| now + after) }
    }

    /// What is waited for longest of all that somebody waits for, and since when.
    #[must_use]
    pub fn longest_wait(&self) -> Option<(Item, Instant)> {
        let waits = |(item, want): (&Item, &Want)| {
            want.since.filter(|_| !want.waiters.is_empty()).map(|since| (since, *item))
        };
        self.supply.wants.iter().filter_map(waits).min().map(|(since, item)| (item, since))
    }

    pub(super) fn read_ahead(&mut self, chunks: Vec<u64>) {
        for chunk in chunks {
            if !self.is_chunk_here(chunk) {
                self.supply.want_chunk(chunk, Priority::Ahead, None);
                self.supply.urge(chunk);
            }
        }
    }

    pub(super) fn is_chunk_here(&self, chunk: u64) -> bool {
        self.held.is_here(&self.cut, &self.cut.chunk(chunk))
    }

    /// Sees that something is queued of what nobody asked for yet.
    fn feed(&mut self, now: Instant) {
        self.judge_expected(now);
        self.place_bets(now);
        if self.supply.cast.holds_back() {
            self.supply.background_waits = false;
            return self.wish_expected(now);
        }
        let idle = |supply: &Supply, most: usize| supply.queue.len() + supply.running < most;
        while idle(&self.supply, self.config.fetches_max)
            && self.supply.wants.len() < WANTS_EACH * self.config.fetches_max
            && let Some(chunk) = self.supply.expected.next(now)
        {
            if !self.is_chunk_here(chunk) {
                self.supply.want_chunk(chunk, Priority::Expected, None);
            }
        }
        let each_second = u64::from(self.config.background_per_second);
        let count = self.cut.chunks();
        while each_second > 0
            && now >= self.supply.background_at
            && self.supply.running_demand == 0
            && idle(&self.supply, BACKGROUND_MAX)
            && self.supply.cursor < count
        {
            let Some(gap) = self.held.clean.gaps(self.supply.cursor..count).next() else {
                self.supply.cursor = count;
                break;
            };
            self.supply.cursor = gap.start + 1;
            if !self.is_chunk_here(gap.start) {
                self.supply.want_chunk(gap.start, Priority::Background, None);
                let pause = Duration::from_nanos(1_000_000_000 / each_second);
                // What was not used of the rate while demand came first is not made up for.
                self.supply.background_at = now.max(self.supply.background_at) + pause;
            }
        }
        self.supply.background_waits =
            each_second > 0 && now < self.supply.background_at && self.supply.cursor < count;
    }

    pub(super) fn next_fetch(&mut self, now: Instant) -> Option<OpId> {
        self.feed(now);
        let ahead_max = self.ahead_max().min(self.supply.window.size());
        let supply = &mut self.supply;
        if supply.running >= self.config.fetches_max {
            return None;
        }
        let queued: Vec<_> = supply.queue.iter().take(LOOKS_MAX).copied().collect();
        for (priority, _, item) in queued {
            if let Item::Chunk(chunk) = item {
                if self.held.clean.contains(&(chunk..chunk + 1)) {
                    // It was committed as a whole, or turned out to be empty, since it was queued.
                    self.wakes.extend(supply.remove(item).0);
                    return self.next_fetch(now);
                }
                if supply.next_item(chunk) != item {
                    // The tree is another one since it was queued.
                    supply.take_from_queue(item);
                    supply.want_next(chunk, priority);
                    return self.next_fetch(now);
                }
            }
            if priority != Priority::Demand && supply.running - supply.running_demand >= ahead_max {
                return None;
            }
            // A chunk that has to be checked is here: nobody is asked for it yet, and for an empty one never.
            let check = match item {
                Item::Chunk(chunk) => {
                    let one = chunk..chunk + 1;
                    let open = !self.wrong.contains(&one) || supply.empty.contains(&one);
                    self.held.suspect.contains(&one) && open
                }
                Item::Node(_) => false,
            };
            let left = if check { None } else { supply.left_until(now, item) };
            let choice = match left {
                _ if check => Choice::Ask(NOBODY),
                Some(until) => Choice::Rest(until),
                None => supply.source_for(now, item, self.config.mutant),
            };
            match choice {
                Choice::Busy => {}
                Choice::Rest(until) => {
                    supply.take_from_queue(item);
                    supply.wants.get_mut(&item).expect("it is queued").state = State::Resting(until);
                    if left.is_none() || !Mutant::LeavesForEver.is(self.config.mutant) {
                        supply.timers.insert((until, item));
                    }
                }
                Choice::Ask(source) => return Some(self.start(now, item, source, priority)),
                Choice::Spoilt => {
                    self.give_up_spoilt(item);
                    return self.next_fetch(now);
                }
            }
        }
        None
    }

    /// Most fetches in flight that nobody waits for.
    pub(super) fn ahead_max(&self) -> usize {
        self.config.fetches_max.saturating_sub(self.config.demand_reserve)
    }

    fn start(&mut self, now: Instant, item: Item, source: usize, priority: Priority) -> OpId {
        let supply = &mut self.supply;
        if !Mutant::FetchesTwice.is(self.config.mutant) {
            supply.take_from_queue(item);
        }
        supply.wants.get_mut(&item).expect("it is queued").state = State::Running;
        supply.running += 1;
        supply.running_demand += usize::from(priority == Priority::Demand);
        if priority == Priority::Demand {
            self.neighbours.demanded(now);
        }
        if let Some(source) = supply.sources.get_mut(source) {
            source.running += 1;
        }
        let tree = self.supply.tree;
        self.enter(Op::Fetch(Fetch::new(now, item, source, priority, tree)))
    }

    /// The source of a fetch has answered.
    pub(super) fn answered(&mut self, now: Instant, source: usize, result: Result<(), Failure>) {
        self.supply.judge(now, source, result);
        match result {
            Err(Failure::Lies) => {
                (self.counters.lies, self.counters.retries) =
                    (self.counters.lies + 1, self.counters.retries + 1)
            }
            Err(_) => self.counters.retries += 1,
            Ok(()) => {}
        }
    }

    fn stop_running(&mut self, priority: Priority) {
        self.supply.running -= 1;
        self.supply.running_demand -= usize::from(priority == Priority::Demand);
    }

    /// A fetch is over and brought what was wanted.
    pub(super) fn fetched(&mut self, item: Item, priority: Priority) {
        self.stop_running(priority);
        let (waiters, dependents) = self.supply.remove(item);
        self.wakes.extend(waiters);
        for chunk in dependents {
            let want = self.supply.wants.get(&Item::Chunk(chunk));
            let Some(want) = want.filter(|want| want.state == State::NeedsNode) else { continue };
            let priority = want.priority;
            if self.is_chunk_here(chunk) {
                let (waiters, _) = self.supply.remove(Item::Chunk(chunk));
                self.wakes.extend(waiters);
            } else {
                self.supply.want_next(chunk, priority);
            }
        }
    }

    /// A fetch is over and what it brought could not be kept: who waits hears of it.
    pub(super) fn not_kept(&mut self, item: Item, priority: Priority) {
        self.stop_running(priority);
        self.drop_want(item, Failure::Local);
    }

    /// All sources were asked, and none has the item undamaged: waiting does not help who waits.
    fn give_up_spoilt(&mut self, item: Item) {
        let failure = self.supply.wants.get(&item).and_then(|want| want.failure);
        self.drop_want(item, failure.unwrap_or(Failure::Missing));
    }

    /// The item is not wanted any more, nor is what needs it: who waits hears of it.
    fn drop_want(&mut self, item: Item, failure: Failure) {
        let (mut waiters, dependents) = self.supply.remove(item);
        for chunk in dependents {
            waiters.extend(self.supply.remove(Item::Chunk(chunk)).0);
        }
        self.fail(waiters, failure);
    }

    /// A fetch is over and brought nothing.
    pub(super) fn failed(&mut self, item: Item, priority: Priority, source: usize, failure: Failure) {
        self.stop_running(priority);
        let never = self.has(Mutant::NeverRetries);
        let Some(want) = self.supply.wants.get_mut(&item) else { return };
        want.failure = Some(failure);
        if source < 64 {
            want.tried |= 1 << source;
            if matches!(failure, Failure::Lies | Failure::Missing) {
                want.spoilt |= 1 << source;
            }
        }
        // A node that was fetched ahead may be of a tree that is gone.
        let idle = matches!(item, Item::Node(_)) && want.waiters.is_empty() && want.dependents.is_empty();
        if idle {
            self.supply.remove(item);
        } else if !never {
            self.supply.enqueue(item);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let timer = self.supply.timers.first().map(|(at, _)| *at);
        let deadline = self.supply.deadlines.first().map(|(at, _)| *at);
        let background = self.supply.background_waits.then_some(self.supply.background_at);
        [timer, deadline, background, self.neighbours.due].into_iter().flatten().min()
    }

    pub(super) fn pass_time(&mut self, now: Instant) {
        while let Some(&(at, item)) = self.supply.timers.first().filter(|(at, _)| *at <= now) {
            self.supply.timers.remove(&(at, item));
            self.supply.enqueue(item);
        }
        while let Some(&(at, item)) = self.supply.deadlines.first().filter(|(at, _)| *at <= now) {
            self.supply.deadlines.remove(&(at, item));
            self.give_up(item);
        }
    }

    /// Who waits for `item` has waited long enough. It stays wanted: it may come yet.
    fn give_up(&mut self, item: Item) {
        let mut waiters = Vec::new();
        let next = match item {
            Item::Chunk(chunk) => self.supply.next_item(chunk),
            Item::Node(_) => item,
        };
        let failure = self.supply.wants.get(&next).and_then(|want| want.failure).or(self.supply.failure);
        let failure = failure.unwrap_or(Failure::Dead);
        if let Some(want) = self.supply.wants.get_mut(&item) {
            (want.deadline, want.since) = (None, None);
            waiters = std::mem::take(&mut want.waiters);
        }
        self.fail(waiters, failure);
    }

    pub(super) fn fail(&mut self, waiters: Vec<OpId>, failure: Failure) {
        for waiter in waiters {
            if let Some(op) = self.ops.get_mut(&waiter) {
                match op {
                    Op::Read(read) => read.fail(failure),
                    Op::Learn(learn) => learn.fail(failure),
                    _ => {}
                }
                self.wakes.push_back(waiter);
            }
        }
    }
}
