//! Scheduling: which item is fetched next and from which source, and which operations continue when it arrives or
//! fails.

use base::{Duration, Instant};

use crate::machine::fetch_queue::{Choice, Priority, State, Supply, Waiter, Want};
use crate::machine::operations::{Fetch, NOBODY};
use crate::machine::prefetch::expected::WANTS_EACH;
use crate::machine::state::{Core, Op};
use crate::machine::types::{Failure, Item, OpId};

/// Number of items at the front of the queue that are examined to find one for which a source is free.
const LOOKS_MAX: usize = 64;
/// Background filling requests a chunk only while fewer items than this are queued or in flight, of any priority.
const BACKGROUND_MAX: usize = 4;

impl Core {
    /// Wants a chunk for a read that waits for it.
    pub(in crate::machine) fn demand(&mut self, now: Instant, chunk: u64, waiter: OpId) {
        let waiter = self.waiter(now, waiter);
        self.supply.want_chunk(chunk, Priority::Demand, Some(waiter));
        self.supply.urge(chunk);
    }

    /// Operation `id` as a waiter that begins to wait now.
    pub(in crate::machine) fn waiter(&self, now: Instant, id: OpId) -> Waiter {
        Waiter { id, since: now, deadline: self.config.give_up.map(|after| now + after) }
    }

    /// The item for which operations have waited longest, and since when.
    #[must_use]
    pub(crate) fn longest_wait(&self) -> Option<(Item, Instant)> {
        let waits = |(item, want): (&Item, &Want)| {
            want.since.filter(|_| !want.waiters.is_empty()).map(|since| (since, *item))
        };
        self.supply.wants.iter().filter_map(waits).min().map(|(since, item)| (item, since))
    }

    /// Wants chunks ahead of need, unless they are local.
    pub(in crate::machine) fn read_ahead(&mut self, chunks: Vec<u64>) {
        for chunk in chunks {
            if !self.is_chunk_here(chunk) {
                self.supply.want_chunk(chunk, Priority::Ahead, None);
                self.supply.urge(chunk);
            }
        }
    }

    pub(in crate::machine) fn is_chunk_here(&self, chunk: u64) -> bool {
        self.held.is_here(&self.cut, &self.cut.chunk(chunk))
    }

    /// Queues prefetches: bets on neighbours, chunks that other machines read, and background filling.
    fn feed(&mut self, now: Instant) {
        self.judge_expected(now);
        self.place_bets(now);
        if self.supply.multicast.holds_back() {
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
                // `max(now)`: the time in which demanded chunks went first is not made up for.
                self.supply.background_at = now.max(self.supply.background_at) + pause;
            }
        }
        self.supply.background_waits =
            each_second > 0 && now < self.supply.background_at && self.supply.cursor < count;
    }

    /// Begins the next fetch. `None` if nothing is wanted, or no source is free.
    pub(in crate::machine) fn next_fetch(&mut self, now: Instant) -> Option<OpId> {
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
                    // Since it was queued, the chunk was committed as a whole, or turned out to be empty.
                    self.wakes.extend(supply.remove(item).0);
                    return self.next_fetch(now);
                }
                if supply.next_item(chunk) != item {
                    // The tree has changed since the chunk was queued, so its nodes come first again.
                    supply.take_from_queue(item);
                    supply.want_next(chunk, priority);
                    return self.next_fetch(now);
                }
            }
            // The queue is sorted by priority, so no demanded item follows this one.
            if priority != Priority::Demand && supply.running - supply.running_demand >= ahead_max {
                return None;
            }
            // A suspect chunk is in the local file: no source is asked before the check has failed, and none at all
            // if the chunk is empty in the version.
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
                None => supply.source_for(now, item),
            };
            match choice {
                // The item stays in the queue, and a later one may have a free source.
                Choice::Busy => {}
                Choice::Rest(until) => {
                    supply.take_from_queue(item);
                    supply.wants.get_mut(&item).expect("it is queued").state = State::Resting(until);
                    supply.timers.insert((until, item));
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

    /// Maximum number of fetches in flight that no read waits for.
    pub(in crate::machine) fn ahead_max(&self) -> usize {
        self.config.fetches_max.saturating_sub(self.config.demand_reserve)
    }

    fn start(&mut self, now: Instant, item: Item, source: usize, priority: Priority) -> OpId {
        let supply = &mut self.supply;
        supply.take_from_queue(item);
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

    /// Records the answer of a source, for its rest and for the counters.
    pub(in crate::machine) fn answered(&mut self, now: Instant, source: usize, result: Result<(), Failure>) {
        self.supply.judge(now, source, result);
        match result {
            Err(Failure::Damaged) => {
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

    /// Ends a successful fetch: wakes the waiting operations, and continues with the chunks that needed this node.
    pub(in crate::machine) fn fetched(&mut self, item: Item, priority: Priority) {
        self.stop_running(priority);
        let (waiters, mut dependents) = self.supply.remove(item);
        self.wakes.extend(waiters);
        if let Item::Node(place) = item {
            // By multicast a node can arrive before those above it, which these chunks need no more.
            dependents.extend(self.supply.take_dependents_above(place, self.cut.chunks()));
        }
        for chunk in dependents {
            self.go_on_to(chunk);
        }
    }

    /// Continues with `chunk` if it waited for a node.
    fn go_on_to(&mut self, chunk: u64) {
        let Some(priority) = self.supply.needs_node(chunk) else { return };
        if self.is_chunk_here(chunk) {
            let (waiters, _) = self.supply.remove(Item::Chunk(chunk));
            self.wakes.extend(waiters);
        } else {
            self.supply.want_next(chunk, priority);
        }
    }

    /// Ends a fetch whose item could not be written to the local medium: the waiting operations fail.
    pub(in crate::machine) fn not_kept(&mut self, item: Item, priority: Priority) {
        self.stop_running(priority);
        self.drop_want(item, Failure::Local);
    }

    /// All sources were asked, and none has the item undamaged: the waiting operations fail.
    fn give_up_spoilt(&mut self, item: Item) {
        let failure = self.supply.wants.get(&item).and_then(|want| want.failure);
        self.drop_want(item, failure.unwrap_or(Failure::Missing));
    }

    /// Removes the want of `item` and of the chunks that need it. All operations that wait for them fail.
    fn drop_want(&mut self, item: Item, failure: Failure) {
        let (mut waiters, dependents) = self.supply.remove(item);
        for chunk in dependents {
            if self.supply.needs_node(chunk).is_some() && self.supply.next_item(chunk) == item {
                waiters.extend(self.supply.remove(Item::Chunk(chunk)).0);
            } else {
                self.go_on_to(chunk);
            }
        }
        self.fail(waiters, failure);
    }

    /// Ends a fetch that failed at `source`: the item is queued again, for the other sources.
    pub(in crate::machine) fn failed(
        &mut self,
        item: Item,
        priority: Priority,
        source: usize,
        failure: Failure,
    ) {
        self.stop_running(priority);
        let Some(want) = self.supply.wants.get_mut(&item) else { return };
        want.failure = Some(failure);
        // `tried` has 64 bits; `NOBODY`, for a failed check, is above that.
        if source < 64 {
            want.tried |= 1 << source;
            if matches!(failure, Failure::Damaged | Failure::Missing) {
                want.spoilt |= 1 << source;
            }
        }
        // A node for which nothing waits is not retried: it may belong to an old tree.
        let idle = matches!(item, Item::Node(_)) && want.waiters.is_empty() && want.dependents.is_empty();
        if idle {
            self.supply.remove(item);
        } else {
            self.supply.enqueue(item);
        }
    }

    pub(in crate::machine) fn next_timeout(&self) -> Option<Instant> {
        let timer = self.supply.timers.first().map(|(at, _)| *at);
        let deadline = self.supply.deadlines.first().map(|(at, _)| *at);
        let background = self.supply.background_waits.then_some(self.supply.background_at);
        [timer, deadline, background, self.neighbours.due].into_iter().flatten().min()
    }

    /// Handles expired timers: queues items whose rest is over, and fails operations whose deadline has passed.
    pub(in crate::machine) fn pass_time(&mut self, now: Instant) {
        while let Some(&(at, item)) = self.supply.timers.first().filter(|(at, _)| *at <= now) {
            self.supply.timers.remove(&(at, item));
            self.supply.enqueue(item);
        }
        while let Some(&(at, item)) = self.supply.deadlines.first().filter(|(at, _)| *at <= now) {
            self.supply.deadlines.remove(&(at, item));
            self.give_up(item);
        }
    }

    /// The operations that wait for `item` have reached their deadline and fail. The item stays wanted: it may still
    /// arrive.
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

    /// Makes waiting reads and learn requests fail, and wakes them.
    pub(in crate::machine) fn fail(&mut self, waiters: Vec<OpId>, failure: Failure) {
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
