//! Multicast: a session delivers nodes and chunks without a request for each. While the core relies on a session, it
//! asks sources only for items that the session did not deliver in time.

use base::Instant;

use crate::machine::fetch_queue::{Priority, State, Supply};
use crate::machine::multicast_wishes::{ChunkWish, Expectation};
use crate::machine::operations::Fetch;
use crate::machine::state::{Core, Op};
use crate::machine::types::{Done, Item, OpId};

impl Supply {
    /// Called when it is the turn of `item` to be fetched. If it should be left to multicast first: until when. This
    /// happens once per want.
    pub(in crate::machine) fn left_until(&mut self, now: Instant, item: Item) -> Option<Instant> {
        let Expectation::Everything(patience) = self.multicast.expectation else { return None };
        let want = self.wants.get_mut(&item)?;
        (!std::mem::replace(&mut want.left, true)).then_some(now + patience)
    }

    /// Tells the multicast session that `chunk` is urgent: a read waits for it or will need it soon. Once per want.
    pub(in crate::machine) fn urge(&mut self, chunk: u64) {
        if let Some(want) = self.wants.get_mut(&Item::Chunk(chunk))
            && want.state != State::Running
            && !want.urged
        {
            want.urged = self.multicast.wish(chunk, true);
        }
    }

    /// Queues all items again that were left to multicast.
    fn release_left(&mut self) {
        let left = self.wants.iter().filter_map(|(item, want)| match want.state {
            State::Resting(until) if want.left => Some((until, *item)),
            _ => None,
        });
        for (until, item) in left.collect::<Vec<_>>() {
            self.timers.remove(&(until, item));
            self.enqueue(item);
        }
    }

    /// `item` arrived by multicast: no source is asked for it any more. Returns the priority with which it is
    /// wanted; `None` if it is already being fetched from a source.
    fn arrives(&mut self, item: Item) -> Option<Priority> {
        let want = self.wants.get(&item);
        if want.is_some_and(|want| want.state == State::Running) {
            return None;
        }
        if let Some(State::Resting(until)) = want.map(|want| want.state) {
            self.timers.remove(&(until, item));
        }
        // If nothing wanted the item, it is wanted from now on, so that its fetch ends like any other.
        self.want(item, Priority::Expected);
        self.take_from_queue(item);
        let want = self.wants.get_mut(&item).expect("it is wanted");
        want.state = State::Running;
        let priority = want.priority;
        self.running += 1;
        self.running_demand += usize::from(priority == Priority::Demand);
        Some(priority)
    }
}

impl Core {
    /// Sets how far the core relies on multicast from now on. If it relied on it before and does not any more, the
    /// items that were left to multicast are fetched at once: [`Self::poll_begin`] returns the fetches.
    pub fn expect_multicast(&mut self, expectation: Expectation) {
        let before = std::mem::replace(&mut self.supply.multicast.expectation, expectation);
        match (before, expectation) {
            (Expectation::Everything(_), Expectation::Everything(_)) => {}
            (_, Expectation::Everything(_)) => {
                let wanted = self.supply.wants.iter().filter(|(_, want)| want.state != State::Running);
                let chunks = wanted.filter_map(|(item, want)| match item {
                    Item::Chunk(chunk) => Some((want.priority, want.order, *chunk)),
                    Item::Node(_) => None,
                });
                let mut chunks: Vec<_> = chunks.collect();
                chunks.sort_unstable();
                chunks.iter().for_each(|&(priority, _, chunk)| {
                    self.supply.multicast.wish(chunk, priority <= Priority::Ahead);
                });
            }
            (Expectation::Everything(_), _) => {
                self.supply.multicast.wishes.clear();
                self.supply.release_left();
            }
            _ => {}
        }
    }

    /// Wishes for the chunks that are expected to be read, too.
    pub(in crate::machine) fn wish_expected(&mut self, now: Instant) {
        while matches!(self.supply.multicast.expectation, Expectation::Everything(_))
            && self.supply.multicast.has_room()
            && let Some(chunk) = self.supply.expected.next(now)
        {
            if !self.is_chunk_here(chunk) {
                self.supply.multicast.wish(chunk, false);
            }
        }
    }

    /// The session will not deliver `chunk`, which was wished for: it is fetched from a source unless it is local.
    pub(crate) fn fetch_instead(&mut self, chunk: u64) {
        if self.is_chunk_here(chunk) {
            return;
        }
        self.supply.want_chunk(chunk, Priority::Expected, None);
        let item = Item::Chunk(chunk);
        let Some(want) = self.supply.wants.get_mut(&item) else { return };
        let was_left = std::mem::replace(&mut want.left, true);
        if let State::Resting(until) = want.state
            && was_left
        {
            self.supply.timers.remove(&(until, item));
            self.supply.enqueue(item);
        }
    }

    /// The next chunk that the multicast session should deliver.
    pub fn poll_wish(&mut self) -> Option<ChunkWish> {
        self.supply.multicast.wishes.pop_front()
    }

    /// Whether [`Self::poll_wish`] would return a chunk.
    #[must_use]
    pub(crate) fn has_wishes(&self) -> bool {
        !self.supply.multicast.wishes.is_empty()
    }

    /// Whether the content of the node at this place is known.
    #[must_use]
    pub fn knows(&self, place: super::NodePlace) -> bool {
        self.supply.knows(place)
    }

    /// `item` arrived by multicast; it was verified and decoded, and `came` describes it. Returns an operation,
    /// which is like a fetch that already has its answer, and must be driven like any other. `None` if the item is
    /// not needed or is already being fetched.
    pub fn arrived(&mut self, item: Item, came: Done) -> Option<OpId> {
        let is_needed = match item {
            Item::Chunk(chunk) => {
                !self.is_chunk_here(chunk)
                    && !self.held.suspect.contains(&(chunk..chunk + 1))
                    && self.supply.next_item(chunk) == item
            }
            Item::Node(place) => !self.supply.knows(place),
        };
        let (bytes, empty) = match came {
            Done::Chunk(bytes) if is_needed => (bytes, Vec::new()),
            Done::Node { empty, bytes } if is_needed => (bytes, empty),
            _ => return None,
        };
        let priority = self.supply.arrives(item)?;
        Some(self.enter(Op::Fetch(Fetch::arrived(item, priority, self.supply.tree, bytes, empty))))
    }
}

#[cfg(test)]
mod tests {
    use base::Instant;

    use crate::machine::{Config, Core, Cut, Done, Failure, Held, Io, Item, NodePlace, Request, Step};

    const NOW: Instant = Instant::ZERO;
    const ROOT: Item = Item::Node(NodePlace { level: 1, number: 0 });
    const LEAF: Item = Item::Node(NodePlace { level: 0, number: 0 });

    #[test]
    fn a_read_whose_leaf_arrives_does_not_wait_for_the_node_above_it() {
        let cut = Cut { size_sectors: 300 * 8, chunk_sectors: 8, height: 2 };
        let mut core = Core::new(cut, Config::of_tests(1000), Held::default(), 100);
        let [near, far] = [0, 256].map(|chunk| {
            let read = core.submit(Request::Read(chunk * 8..chunk * 8 + 1));
            assert_eq!(core.step(NOW, read), Step::Wait);
            read
        });
        let root = core.poll_begin(NOW).expect("no node is known");
        let asks_for = |item| Step::Do(Io::Fetch { item, source: 0 });
        assert_eq!(core.step(NOW, root), asks_for(ROOT));
        let leaf = core.arrived(LEAF, Done::Node { empty: vec![false; 256], bytes: 100 });
        assert_eq!(core.step(NOW, leaf.expect("it is needed")), Step::Over(Ok(())));
        let chunk = core.poll_begin(NOW).expect("the leaf of one chunk is known");
        assert_eq!(core.step(NOW, chunk), asks_for(Item::Chunk(0)));
        // The source has the node above damaged: what needs it fails, what does not goes on.
        let (mut now, mut asked) = (NOW, Some(root));
        while core.poll_wake().inspect(|&woken| assert_eq!(woken, far)).is_none() {
            if let Some(root) = asked {
                core.done(now, root, Done::Failed(Failure::Damaged));
                assert_eq!(core.step(now, root), Step::Over(Ok(())));
            }
            asked = core.poll_begin(now);
            match asked {
                Some(root) => assert_eq!(core.step(now, root), asks_for(ROOT)),
                None => {
                    now = core.poll_timeout().unwrap_or(now);
                    core.handle_timeout(now);
                }
            }
        }
        assert_eq!(core.step(now, far), Step::Over(Err(Failure::Damaged)));
        core.done(now, chunk, Done::Chunk(10));
        let fill = Io::Fill { chunk: 0, parts: std::iter::once(0..8).collect() };
        assert_eq!(core.step(now, chunk), Step::Do(fill));
        core.done(now, chunk, Done::Well);
        assert!(matches!(core.step(now, chunk), Step::Do(Io::Append(_))));
        core.done(now, chunk, Done::Appended(200));
        assert_eq!(core.step(now, chunk), Step::Over(Ok(())));
        assert_eq!(core.step(now, near), Step::Do(Io::Read(0..1)));
    }
}
