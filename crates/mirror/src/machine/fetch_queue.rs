//! The queue of wanted nodes and chunks, ordered by priority, and the state of each source. The number of requests
//! to a source is limited; a failed item is retried at other sources; a source that is dead or sends damaged objects
//! is not asked for some time ("rests").

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use base::{Duration, Instant, RunSet};

use crate::machine::multicast_wishes::MulticastWishes;
use crate::machine::prefetch::expected::Expected;
use crate::machine::prefetch::window::Window;
use crate::machine::types::{Config, Failure, Item, NodePlace, OpId, Unread};

/// Entries of a node.
const FANOUT: u64 = base::limits::TREE_FANOUT;
/// First pause after a source could not be reached, or after no source delivered an item. It doubles up to
/// [`REST_MAX`].
const REST_MIN: Duration = Duration::from_millis(50);
/// See [`REST_MIN`].
const REST_MAX: Duration = Duration::from_secs(1);
/// A source that sent this many damaged objects in a row is not asked for [`LIAR_REST`].
const LIES_MAX: u32 = 3;
/// See [`LIES_MAX`].
const LIAR_REST: Duration = Duration::from_secs(30);
/// If every source has an item damaged, or lacks it, all are asked this many times before the waiting operations
/// fail: damage during transfer, or in a source that is being repaired, may be gone by then.
const SPOILT_ROUNDS: u32 = 3;

/// Maximum number of nodes that are fetched before anything below them is needed. They cover 64 GiB in chunks of 256
/// KiB and have about 3 MB.
const NODES_AHEAD_MAX: u32 = 1024;

/// Why an item is fetched. The lowest value is fetched first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::machine) enum Priority {
    /// A read waits for it.
    Demand,
    /// A stream of reads will probably reach it.
    Ahead,
    /// Other machines read it when they started.
    Expected,
    /// Background filling, until the whole disk is local.
    Background,
}

/// The state of a wanted item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine) enum State {
    /// A chunk whose node must be fetched first.
    NeedsNode,
    Queued,
    Running,
    /// No source delivered it, or it was left to multicast: it is not requested before this time.
    Resting(Instant),
}

/// A wanted item: its place in the queue, who waits for it, and what was tried.
pub(in crate::machine) struct Want {
    pub(in crate::machine) priority: Priority,
    pub(in crate::machine) order: u64,
    pub(in crate::machine) state: State,
    pub(in crate::machine) waiters: Vec<OpId>,
    /// Chunks that need this node.
    pub(in crate::machine) dependents: Vec<u64>,
    /// Sources that failed to deliver it in this round, one bit per source.
    pub(in crate::machine) tried: u64,
    pub(in crate::machine) rounds: u32,
    /// Of `tried`: sources that answered, but have the item damaged or not at all.
    pub(in crate::machine) spoilt: u64,
    /// Number of rounds in a row in which that was so for all sources.
    pub(in crate::machine) spoilt_rounds: u32,
    /// Since when an operation waits for it.
    pub(in crate::machine) since: Option<Instant>,
    /// When the operations that wait for it fail.
    pub(in crate::machine) deadline: Option<Instant>,
    /// How it failed last.
    pub(in crate::machine) failure: Option<Failure>,
    /// It was already left to multicast once; it is not left a second time.
    pub(in crate::machine) left: bool,
    /// An urgent wish for it was queued for the multicast session.
    pub(in crate::machine) urged: bool,
}

pub(in crate::machine) struct Source {
    pub(in crate::machine) running: usize,
    pub(in crate::machine) running_max: usize,
    pub(in crate::machine) failures: u32,
    pub(in crate::machine) lies: u32,
    pub(in crate::machine) rests_until: Instant,
}

/// See the module.
pub(in crate::machine) struct Supply {
    pub(in crate::machine) height: u8,
    pub(in crate::machine) wants: HashMap<Item, Want>,
    pub(in crate::machine) queue: BTreeSet<(Priority, u64, Item)>,
    pub(in crate::machine) timers: BTreeSet<(Instant, Item)>,
    pub(in crate::machine) deadlines: BTreeSet<(Instant, Item)>,
    pub(in crate::machine) sources: Vec<Source>,
    /// How the last answer of any source failed, if it did. It explains the failure of an item that was never
    /// requested before its deadline.
    pub(in crate::machine) failure: Option<Failure>,
    pub(in crate::machine) order: u64,
    pub(in crate::machine) running: usize,
    pub(in crate::machine) running_demand: usize,
    /// How many fetches may be in flight that no read waits for.
    pub(in crate::machine) window: Window,
    /// Nodes whose content is known.
    pub(in crate::machine) known: HashSet<NodePlace>,
    /// What is left to multicast.
    pub(in crate::machine) multicast: MulticastWishes,
    /// Number of nodes of this tree that were requested ahead of need.
    pub(in crate::machine) nodes_ahead: u32,
    /// Chunks that hold nothing but zeros in the base version.
    pub(in crate::machine) empty: RunSet,
    /// Chunks that are expected to be read.
    pub(in crate::machine) expected: Expected,
    /// Number of the current tree: it grows with each new base.
    pub(in crate::machine) tree: u64,
    /// The next chunk for background filling.
    pub(in crate::machine) cursor: u64,
    /// When background filling may request its next chunk.
    pub(in crate::machine) background_at: Instant,
    /// Background filling waits only for `background_at`.
    pub(in crate::machine) background_waits: bool,
    /// Chunks that were fetched before they were read.
    pub(in crate::machine) unread: HashMap<u64, Unread>,
}

/// An operation that waits for an item.
#[derive(Debug, Clone, Copy)]
pub(in crate::machine) struct Waiter {
    pub(in crate::machine) id: OpId,
    pub(in crate::machine) since: Instant,
    /// When the waiter gives up.
    pub(in crate::machine) deadline: Option<Instant>,
}

impl Supply {
    pub(in crate::machine) fn new(config: &Config, height: u8) -> Self {
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
            multicast: MulticastWishes::default(),
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

    /// The item to fetch next in order to get `chunk`: the highest node on its path that is not known, or the chunk
    /// itself.
    pub(in crate::machine) fn next_item(&self, chunk: u64) -> Item {
        let place = |level: u8| NodePlace { level, number: chunk / FANOUT.pow(u32::from(level) + 1) };
        let unknown = (0..self.height).take_while(|&level| !self.known.contains(&place(level))).last();
        unknown.map_or(Item::Chunk(chunk), |level| Item::Node(place(level)))
    }

    /// The chunks below a node, of a disk with `count` chunks.
    pub(in crate::machine) fn span(place: NodePlace, count: u64) -> Range<u64> {
        let each = FANOUT.pow(u32::from(place.level) + 1);
        (place.number * each).min(count)..((place.number + 1) * each).min(count)
    }

    /// The chunks below the node's `empty` entries, and below the entries that the node does not have.
    pub(in crate::machine) fn empty_chunks(place: NodePlace, empty: &[bool], count: u64) -> RunSet {
        let span = Self::span(place, count);
        let each = FANOUT.pow(u32::from(place.level));
        let entries = (0..FANOUT).zip(empty.iter().copied().chain(std::iter::repeat(true)));
        let runs = entries.filter(|(_, empty)| *empty).map(|(slot, _)| {
            let first = (span.start + slot * each).min(span.end);
            first..(first + each).min(span.end)
        });
        runs.collect()
    }

    pub(in crate::machine) fn enqueue(&mut self, item: Item) {
        let Some(want) = self.wants.get_mut(&item) else { return };
        want.state = State::Queued;
        self.queue.insert((want.priority, want.order, item));
    }

    pub(in crate::machine) fn take_from_queue(&mut self, item: Item) {
        if let Some(want) = self.wants.get(&item) {
            self.queue.remove(&(want.priority, want.order, item));
        }
    }

    /// Adds `item` to the wanted items, or raises its priority. True if it is new; the caller then queues it.
    pub(in crate::machine) fn want(&mut self, item: Item, priority: Priority) -> bool {
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

    /// Wants the next item on the path to `chunk`, which must be wanted already.
    pub(in crate::machine) fn want_next(&mut self, chunk: u64, priority: Priority) {
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

    /// Whether the chunk is being fetched or waits for that.
    pub(in crate::machine) fn is_wanted(&self, chunk: u64) -> bool {
        self.wants.contains_key(&Item::Chunk(chunk))
    }

    /// The priority of a wanted chunk, if a node must be fetched first.
    pub(in crate::machine) fn needs_node(&self, chunk: u64) -> Option<Priority> {
        let want = self.wants.get(&Item::Chunk(chunk));
        want.filter(|want| want.state == State::NeedsNode).map(|want| want.priority)
    }

    /// Removes the chunks below the node at `place`, of a disk with `count` chunks, from the nodes above it that they
    /// waited for.
    pub(in crate::machine) fn take_dependents_above(&mut self, place: NodePlace, count: u64) -> Vec<u64> {
        let below = Self::span(place, count);
        let mut taken = Vec::new();
        let mut above = place;
        while above.level + 1 < self.height {
            above = NodePlace { level: above.level + 1, number: above.number / FANOUT };
            if let Some(want) = self.wants.get_mut(&Item::Node(above)) {
                taken.extend(want.dependents.extract_if(.., |chunk| below.contains(chunk)));
            }
        }
        taken
    }

    /// Whether a read waits for the chunk.
    pub(in crate::machine) fn is_demanded(&self, chunk: u64) -> bool {
        self.wants.get(&Item::Chunk(chunk)).is_some_and(|want| want.priority == Priority::Demand)
    }

    /// Wants `chunk`, for `waiter` if there is one.
    pub(in crate::machine) fn want_chunk(&mut self, chunk: u64, priority: Priority, waiter: Option<Waiter>) {
        let item = Item::Chunk(chunk);
        let fresh = self.want(item, priority);
        if let Some(waiter) = waiter {
            self.wait_for(item, waiter);
        }
        // A chunk that needs a node passes its priority on to that node.
        if fresh || self.wants.get(&item).is_some_and(|want| want.state == State::NeedsNode) {
            self.want_next(chunk, priority);
        }
    }

    /// Wants a node, for `waiter`. Its parent must be known.
    pub(in crate::machine) fn want_node(&mut self, place: NodePlace, waiter: Waiter) {
        let item = Item::Node(place);
        if self.want(item, Priority::Demand) {
            self.enqueue(item);
        }
        self.wait_for(item, waiter);
    }

    /// The priority of the first item in the queue.
    pub(in crate::machine) fn next_priority(&self) -> Option<Priority> {
        self.queue.first().map(|(priority, ..)| *priority)
    }

    /// Wants the children of node `place`; `empty` says which of its entries need none. Nodes are small, and without
    /// this each would cost a read below it one more round trip.
    pub(in crate::machine) fn want_nodes_below(&mut self, place: NodePlace, empty: &[bool]) {
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

    /// Adds `waiter` to the operations that wait for `item`, which must be wanted.
    pub(in crate::machine) fn wait_for(&mut self, item: Item, waiter: Waiter) {
        let Waiter { id, since, deadline } = waiter;
        let want = self.wants.get_mut(&item).expect("it is wanted");
        if want.waiters.is_empty() {
            // A new waiter gets all rounds of retries.
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

    /// Removes the want of `item`. Returns the operations that waited for it and the chunks that needed it.
    pub(in crate::machine) fn remove(&mut self, item: Item) -> (Vec<OpId>, Vec<u64>) {
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

    /// The source to ask for `item` now, or the reason why there is none.
    pub(in crate::machine) fn source_for(&mut self, now: Instant, item: Item) -> Choice {
        let want = self.wants.get_mut(&item).expect("it is wanted");
        let (mut busy, mut earliest, mut liar) = (false, None::<Instant>, None);
        for (index, source) in self.sources.iter().enumerate() {
            // Each source is asked once per round.
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
        // A source that sent damaged objects rests so that others are preferred. If no other is left, it is asked.
        if let (Some(liar), None) = (liar, earliest) {
            return Choice::Ask(liar);
        }
        // All sources that were not tried rest, or all were tried: a new round begins.
        let all_answered = want.spoilt.count_ones() as usize == self.sources.len();
        want.spoilt_rounds =
            if all_answered && !self.sources.is_empty() { want.spoilt_rounds + 1 } else { 0 };
        (want.tried, want.spoilt) = (0, 0);
        want.rounds += 1;
        if want.spoilt_rounds >= SPOILT_ROUNDS {
            return Choice::Spoilt;
        }
        // Exponential backoff; after 8 doublings it is past `REST_MAX` in any case.
        let pause = (REST_MIN * 2u32.saturating_pow(want.rounds.min(8))).min(REST_MAX);
        Choice::Rest(earliest.unwrap_or(now + pause))
    }

    /// Records how a request to `source` ended, and sets its rest.
    pub(in crate::machine) fn judge(&mut self, now: Instant, source: usize, result: Result<(), Failure>) {
        let Some(source) = self.sources.get_mut(source) else { return };
        source.running -= 1;
        self.failure = result.err();
        match result {
            // One good answer is enough to end a rest.
            Ok(()) => (source.failures, source.lies, source.rests_until) = (0, 0, now),
            Err(Failure::Dead) => {
                source.failures += 1;
                let rest = REST_MIN * 2u32.saturating_pow(source.failures.min(8) - 1);
                source.rests_until = now + rest.min(REST_MAX);
            }
            Err(Failure::Damaged) => {
                source.lies += 1;
                if source.lies >= LIES_MAX {
                    source.rests_until = now + LIAR_REST;
                }
            }
            Err(_) => {}
        }
    }

    /// Forgets all nodes: the base, and so the tree, has changed.
    pub(in crate::machine) fn forget_nodes(&mut self) {
        self.tree += 1;
        self.nodes_ahead = 0;
        self.known.clear();
        self.empty = RunSet::new();
    }

    /// Notes that the content of a node is known.
    pub(in crate::machine) fn learn(&mut self, place: NodePlace) {
        self.known.insert(place);
    }

    pub(in crate::machine) fn knows(&self, place: NodePlace) -> bool {
        self.known.contains(&place)
    }
}

/// The result of choosing a source for an item.
pub(in crate::machine) enum Choice {
    Ask(usize),
    Busy,
    Rest(Instant),
    /// All sources have it damaged, or lack it.
    Spoilt,
}
