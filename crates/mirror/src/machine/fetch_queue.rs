//! What is wanted from far away, in which order, and from whom: one queue by priority for nodes and chunks, sources in
//! order with bounded fan-in, retries elsewhere, and a rest for sources that are dead or lie.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use base::{Duration, Instant, RunSet};

use crate::machine::multicast_wishes::MulticastWishes;
use crate::machine::prefetch::expected::Expected;
use crate::machine::prefetch::window::Window;
use crate::machine::types::{Config, Failure, Item, NodePlace, OpId, Unread};

/// Children of a node.
const FANOUT: u64 = base::limits::TREE_FANOUT;
/// First and longest rest of a source that could not be reached, and of an item that no source gave.
const REST_MIN: Duration = Duration::from_millis(50);
/// See [`REST_MIN`].
const REST_MAX: Duration = Duration::from_secs(1);
/// A source that lied so often in a row is not asked for [`LIAR_REST`].
const LIES_MAX: u32 = 3;
/// See [`LIES_MAX`].
const LIAR_REST: Duration = Duration::from_secs(30);
/// So often all sources are asked for an item that each of them has damaged, or lacks, before whoever waits hears of
/// it: what was wrong on its way only, or in a source that is being healed, may be right then.
const SPOILT_ROUNDS: u32 = 3;

/// Most nodes that are fetched before anything below them is asked for: those of 64 GiB in chunks of 256 KiB, some 3
/// MB.
const NODES_AHEAD_MAX: u32 = 1024;

/// Why an item is fetched: the lower the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::machine) enum Priority {
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
pub(in crate::machine) enum State {
    /// A chunk whose node is wanted first.
    NeedsNode,
    Queued,
    Running,
    /// No source gave it; until then.
    Resting(Instant),
}

pub(in crate::machine) struct Want {
    pub(in crate::machine) priority: Priority,
    pub(in crate::machine) order: u64,
    pub(in crate::machine) state: State,
    pub(in crate::machine) waiters: Vec<OpId>,
    /// Chunks that need this node.
    pub(in crate::machine) dependents: Vec<u64>,
    /// Sources that failed at it in this round, as bits.
    pub(in crate::machine) tried: u64,
    pub(in crate::machine) rounds: u32,
    /// Of the sources tried those that answered, and have it damaged or not at all.
    pub(in crate::machine) spoilt: u64,
    /// Rounds in a row in which all sources did.
    pub(in crate::machine) spoilt_rounds: u32,
    /// Since when somebody waits for it.
    pub(in crate::machine) since: Option<Instant>,
    /// When it fails for who waits.
    pub(in crate::machine) deadline: Option<Instant>,
    /// How it failed last.
    pub(in crate::machine) failure: Option<Failure>,
    /// It was left to come by itself.
    pub(in crate::machine) left: bool,
    /// It was wished for as urgent.
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
    /// How the last answer of a source failed, if it did: what those suffer from whose turn never came.
    pub(in crate::machine) failure: Option<Failure>,
    pub(in crate::machine) order: u64,
    pub(in crate::machine) running: usize,
    pub(in crate::machine) running_demand: usize,
    /// How many may be in flight that nobody waits for.
    pub(in crate::machine) window: Window,
    /// Nodes that were opened.
    pub(in crate::machine) known: HashSet<NodePlace>,
    /// What comes by itself.
    pub(in crate::machine) multicast: MulticastWishes,
    /// Nodes of this tree that were asked for ahead.
    pub(in crate::machine) nodes_ahead: u32,
    /// Chunks that hold nothing but zeros in the base version.
    pub(in crate::machine) empty: RunSet,
    /// Chunks that are expected to be read.
    pub(in crate::machine) expected: Expected,
    /// Counts the trees that there were.
    pub(in crate::machine) tree: u64,
    /// Where background filling is.
    pub(in crate::machine) cursor: u64,
    pub(in crate::machine) background_at: Instant,
    /// It waits for that time and nothing else.
    pub(in crate::machine) background_waits: bool,
    /// Chunks that were fetched before they were read.
    pub(in crate::machine) unread: HashMap<u64, Unread>,
}

/// Who waits for an item.
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

    /// What has to be fetched next on the way to `chunk`: the highest node that is not known, or the chunk.
    pub(in crate::machine) fn next_item(&self, chunk: u64) -> Item {
        let place = |level: u8| NodePlace { level, number: chunk / FANOUT.pow(u32::from(level) + 1) };
        let unknown = (0..self.height).take_while(|&level| !self.known.contains(&place(level))).last();
        unknown.map_or(Item::Chunk(chunk), |level| Item::Node(place(level)))
    }

    /// The chunks below a node.
    pub(in crate::machine) fn span(place: NodePlace, count: u64) -> Range<u64> {
        let each = FANOUT.pow(u32::from(place.level) + 1);
        (place.number * each).min(count)..((place.number + 1) * each).min(count)
    }

    /// The chunks of a node's entries that are `empty`, and of those behind its last.
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

    /// Wants `item`; true if that is new.
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

    /// Wants what comes next on the way to `chunk`, which is wanted itself.
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

    /// Whether the chunk is on its way, or about to be.
    pub(in crate::machine) fn is_wanted(&self, chunk: u64) -> bool {
        self.wants.contains_key(&Item::Chunk(chunk))
    }

    /// Whether somebody waits for the chunk that is on its way.
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
        if fresh || self.wants.get(&item).is_some_and(|want| want.state == State::NeedsNode) {
            self.want_next(chunk, priority);
        }
    }

    /// Wants a node that can be named, for `waiter`.
    pub(in crate::machine) fn want_node(&mut self, place: NodePlace, waiter: Waiter) {
        let item = Item::Node(place);
        if self.want(item, Priority::Demand) {
            self.enqueue(item);
        }
        self.wait_for(item, waiter);
    }

    /// Why the item is wanted whose turn is next.
    pub(in crate::machine) fn next_priority(&self) -> Option<Priority> {
        self.queue.first().map(|(priority, ..)| *priority)
    }

    /// Wants the nodes below that of `place`, whose entries are `empty` or not: they are small, and each would else
    /// cost who reads below it a round trip of its own.
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

    pub(in crate::machine) fn wait_for(&mut self, item: Item, waiter: Waiter) {
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

    /// The source to ask for `item` now; or when there may be one.
    pub(in crate::machine) fn source_for(&mut self, now: Instant, item: Item) -> Choice {
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
        let all_answered = want.spoilt.count_ones() as usize == self.sources.len();
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
    pub(in crate::machine) fn judge(&mut self, now: Instant, source: usize, result: Result<(), Failure>) {
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
            Err(Failure::Damaged) => {
                source.lies += 1;
                if source.lies >= LIES_MAX {
                    source.rests_until = now + LIAR_REST;
                }
            }
            Err(_) => {}
        }
    }

    /// The nodes are of another tree now.
    pub(in crate::machine) fn forget_nodes(&mut self) {
        self.tree += 1;
        self.nodes_ahead = 0;
        self.known.clear();
        self.empty = RunSet::new();
    }

    pub(in crate::machine) fn learn(&mut self, place: NodePlace) {
        self.known.insert(place);
    }

    pub(in crate::machine) fn knows(&self, place: NodePlace) -> bool {
        self.known.contains(&place)
    }
}

/// Whom to ask for an item.
pub(in crate::machine) enum Choice {
    Ask(usize),
    Busy,
    Rest(Instant),
    /// Nobody: all sources have it damaged, or lack it.
    Spoilt,
}
