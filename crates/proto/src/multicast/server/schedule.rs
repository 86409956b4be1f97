//! Which object is sent in full next: heads first, then ascending from the cursor, and only objects that a receiver
//! is missing. One bit per object records that it is wanted.

use std::collections::VecDeque;

use crate::multicast::bits::{ObjectSet, index};
use crate::multicast::wire::header::{ObjectRange, Shape};
use crate::multicast::wire::report::Cause;
use crate::multicast::wire::status::STATUS_RANGES_MAX;

/// Sequence of block 0 of an object that was never sent.
const NEVER: u64 = u64::MAX;
/// Most objects that go before all others because an application waits for them; further ones keep their place.
const URGENT_MAX: usize = 64;

/// The objects to be sent in full. An object is first *wanted*, then *planned*, then sent by a pass.
#[derive(Debug)]
pub(super) struct Schedule {
    heads: u64,
    objects: u64,
    /// Wanted, but not planned yet.
    wanted: ObjectSet,
    /// The same, but only by receivers in whose time these objects went out already: they are planned when no others
    /// are wanted.
    later: ObjectSet,
    /// Planned: to be sent in the order of the two queues below. Each is pinned in the cache.
    planned: ObjectSet,
    /// Heads and urgent objects.
    planned_heads: VecDeque<u64>,
    planned_data: VecDeque<u64>,
    /// Urgent objects that are not planned yet. They are planned before other objects, if they are still wanted then.
    urgent: VecDeque<u64>,
    /// The object from which planning continues.
    ahead: u64,
    /// The object from which sending continues.
    cursor: u64,
    /// Sequence of block 0 in the last pass over each object, or `NEVER`.
    pass_first: Vec<u64>,
    /// Wanted because a receiver's buffer was full, or because blocks were lost; objects in neither set are late.
    full: ObjectSet,
    lost: ObjectSet,
}

impl Schedule {
    pub(super) fn new(shape: &Shape) -> Self {
        let set = || ObjectSet::new(shape.objects);
        Self {
            heads: shape.heads,
            objects: shape.objects,
            wanted: set(),
            later: set(),
            planned: set(),
            planned_heads: VecDeque::new(),
            planned_data: VecDeque::new(),
            urgent: VecDeque::new(),
            ahead: shape.heads,
            cursor: shape.heads,
            pass_first: vec![NEVER; usize::try_from(shape.objects).expect("SESSION_OBJECTS_MAX")],
            full: set(),
            lost: set(),
        }
    }

    /// A receiver is missing `object` (of `blocks` blocks) in full, although all BLOCKs below `seen` had time to
    /// arrive. False if the object is wanted already, or if a part of its last pass is still in flight: the receiver
    /// will request the other part as blocks.
    pub(super) fn ask(&mut self, object: u64, blocks: u32, seen: u64, cause: Cause) -> bool {
        let first = self.pass_first[index(object)];
        let passed = first == NEVER || first + u64::from(blocks) <= seen;
        if self.later.remove(object) {
            return self.wanted.insert(object);
        }
        if self.is_pending(object) || !passed {
            return false;
        }
        self.wanted.insert(object);
        self.full.remove(object);
        self.lost.remove(object);
        match cause {
            Cause::Late => {}
            Cause::BufferFull => _ = self.full.insert(object),
            Cause::Lost => _ = self.lost.insert(object),
        }
        true
    }

    /// The same for a receiver in whose time the object went out already: it goes after what others want for the first
    /// time. Heads keep their place.
    pub(super) fn ask_again(&mut self, object: u64, blocks: u32, seen: u64, cause: Cause) -> bool {
        if self.later.contains(object) || !self.ask(object, blocks, seen, cause) {
            return false;
        }
        if object >= self.heads {
            self.wanted.remove(object);
            self.later.insert(object);
        }
        true
    }

    /// The sequence with which the last pass over `object` began; `None` if there was none.
    pub(super) fn last_pass(&self, object: u64) -> Option<u64> {
        Some(self.pass_first[index(object)]).filter(|&first| first != NEVER)
    }

    /// An application waits for `object`: if it is pending, it goes before the others now. True if its place changes.
    pub(super) fn urge(&mut self, object: u64) -> bool {
        if self.urgent.contains(&object) || self.planned_heads.contains(&object) {
            return false;
        }
        if self.planned_heads.len() + self.urgent.len() >= URGENT_MAX {
            return false;
        }
        if self.later.remove(object) {
            self.wanted.insert(object);
        }
        if self.wanted.contains(object) {
            self.urgent.push_back(object);
            return true;
        }
        let place = self.planned_data.iter().position(|&planned| planned == object);
        place.and_then(|place| self.planned_data.remove(place)).is_some_and(|object| {
            self.planned_heads.push_back(object);
            true
        })
    }

    /// Whether a pass over `object` was ever begun.
    pub(super) fn ever_went_out(&self, object: u64) -> bool {
        self.pass_first[index(object)] != NEVER
    }

    /// Whether block `block` of the last pass over `object` was sent before sequence `seen`.
    pub(super) fn has_passed(&self, object: u64, block: u32, seen: u64) -> bool {
        let first = self.pass_first[index(object)];
        first != NEVER && first + u64::from(block) < seen
    }

    /// Whether the object will be sent in full: it is wanted or planned.
    pub(super) fn is_pending(&self, object: u64) -> bool {
        self.wanted.contains(object) || self.later.contains(object) || self.planned.contains(object)
    }

    /// Whether no object is wanted or planned.
    pub(super) const fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.later.is_empty() && self.planned.is_empty()
    }

    /// Moves the next wanted object to the plan, and returns it.
    pub(super) fn plan(&mut self) -> Option<u64> {
        let head = self.wanted.next_from(0).filter(|&head| head < self.heads);
        let first = head.or_else(|| self.next_urgent());
        let object = first.or_else(|| self.next_data())?;
        self.wanted.remove(object);
        self.later.remove(object);
        let is_new = self.planned.insert(object);
        debug_assert!(is_new, "an object is wanted or planned, not both");
        if first.is_some() {
            self.planned_heads.push_back(object);
        } else {
            self.ahead = (object + 1).max(self.heads);
            self.planned_data.push_back(object);
        }
        Some(object)
    }

    fn next_urgent(&mut self) -> Option<u64> {
        std::iter::from_fn(|| self.urgent.pop_front()).find(|&object| self.wanted.contains(object))
    }

    fn next_data(&self) -> Option<u64> {
        let wanted = self.wanted.next_from(self.ahead).or_else(|| self.wanted.next_from(self.heads));
        let later = || self.later.next_from(self.ahead).or_else(|| self.later.next_from(self.heads));
        wanted.or_else(later)
    }

    /// Whether a head or an urgent object waits to be planned while fewer than `most` of them are planned.
    pub(super) fn hurries_heads(&self, most: usize) -> bool {
        let waits = self.wanted.next_from(0).is_some_and(|object| object < self.heads);
        (waits || !self.urgent.is_empty()) && self.planned_heads.len() < most
    }

    /// The first planned head or urgent object, and the first planned one of the others.
    pub(super) fn fronts(&self) -> (Option<u64>, Option<u64>) {
        (self.planned_heads.front().copied(), self.planned_data.front().copied())
    }

    /// Removes the first object of a queue from the plan. Only objects of `planned_data` move the cursor, so urgent
    /// ones do not make the stream skip the objects before them.
    pub(super) fn take(&mut self, object: u64) {
        if self.planned_heads.front() == Some(&object) {
            self.planned_heads.pop_front();
        } else if self.planned_data.front() == Some(&object) {
            self.planned_data.pop_front();
            self.cursor = object.max(self.heads);
        }
        let was_planned = self.planned.remove(object);
        debug_assert!(was_planned, "only planned objects are sent in full");
    }

    /// A pass over `object` begins with this sequence. Returns why the object is sent again, if it was sent before.
    pub(super) fn begin_pass(&mut self, object: u64, sequence: u64) -> Option<Cause> {
        let again = std::mem::replace(&mut self.pass_first[index(object)], sequence) != NEVER;
        let (full, lost) = (self.full.remove(object), self.lost.remove(object));
        again.then_some(if full {
            Cause::BufferFull
        } else if lost {
            Cause::Lost
        } else {
            Cause::Late
        })
    }

    /// The object from which sending continues.
    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Drops all requests, since no receiver is left. Planned objects are still sent.
    pub(super) fn forget(&mut self) {
        self.wanted = ObjectSet::new(self.objects);
        self.later = ObjectSet::new(self.objects);
        self.urgent.clear();
    }

    /// The pending objects in the order of sending, as many as fit into a STATUS.
    pub(super) fn pending(&self) -> Vec<ObjectRange> {
        let mut ranges = Ranges::default();
        let planned = self.planned_heads.iter().chain(&self.planned_data);
        if !planned.copied().all(|object| ranges.push(object, 1)) {
            return ranges.list;
        }
        let (rest, round) = ((self.ahead, self.objects), (self.heads, self.ahead));
        let (wanted, later) = (&self.wanted, &self.later);
        let parts =
            [(wanted, (0, self.heads)), (wanted, rest), (wanted, round), (later, rest), (later, round)];
        for (set, (start, end)) in parts {
            let mut at = start;
            while let Some(first) = set.next_from(at).filter(|&first| first < end) {
                at = set.next_gap_from(first).min(end);
                if !ranges.push(first, at - first) {
                    return ranges.list;
                }
            }
        }
        ranges.list
    }
}

/// Collects runs of objects in the order of sending, and joins adjacent ones.
#[derive(Default)]
struct Ranges {
    list: Vec<ObjectRange>,
}

impl Ranges {
    /// Adds a run; false if the list is full.
    fn push(&mut self, first: u64, count: u64) -> bool {
        let count = u32::try_from(count).expect("SESSION_OBJECTS_MAX");
        let full = self.list.len() == STATUS_RANGES_MAX;
        match self.list.last_mut() {
            Some(last) if last.end() == first => last.count += count,
            _ if full => return false,
            _ => self.list.push(ObjectRange { first, count }),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 100, heads: 3, block_bytes: 512 };

    fn schedule(wanted: impl IntoIterator<Item = u64>) -> Schedule {
        let mut schedule = Schedule::new(&SHAPE);
        wanted.into_iter().for_each(|object| assert!(schedule.ask(object, 10, 0, Cause::Late)));
        schedule
    }

    /// Plans and sends everything, ten blocks per object from `sequence` on, and returns the order.
    fn send_all(schedule: &mut Schedule, mut sequence: u64) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(object) = schedule.plan() {
            schedule.take(object);
            schedule.begin_pass(object, sequence);
            sequence += 10;
            order.push(object);
        }
        order
    }

    #[test]
    fn heads_go_first_then_ascending_from_the_cursor_and_round() {
        let mut schedule = schedule([50, 60]);
        assert_eq!(send_all(&mut schedule, 0), [50, 60]);
        for object in [70, 2, 60, 10, 0] {
            assert!(schedule.ask(object, 10, 20, Cause::Late), "{object}");
        }
        assert_eq!(send_all(&mut schedule, 20), [0, 2, 70, 10, 60]);
    }

    #[test]
    fn what_is_wanted_again_goes_last_unless_somebody_wants_it_for_the_first_time() {
        let mut schedule = schedule(10..13);
        assert_eq!(send_all(&mut schedule, 0), [10, 11, 12]);
        for object in [0, 10, 11] {
            assert!(schedule.ask_again(object, 10, 100, Cause::Lost));
            assert!(!schedule.ask_again(object, 10, 100, Cause::Lost) && schedule.is_pending(object));
        }
        assert!([40, 41, 11].into_iter().all(|object| schedule.ask(object, 10, 100, Cause::Late)));
        assert!(!schedule.ask(11, 10, 100, Cause::Late));
        assert_eq!(send_all(&mut schedule, 100), [0, 40, 41, 11, 10]);
        assert!(schedule.is_empty());
    }

    #[test]
    fn what_somebody_waits_for_goes_before_the_others_wherever_it_stands() {
        let mut schedule = schedule(10..80);
        assert_eq!((schedule.plan(), schedule.plan(), schedule.plan()), (Some(10), Some(11), Some(12)));
        assert!(schedule.urge(70) && schedule.urge(12) && !schedule.urge(70) && !schedule.urge(5));
        assert!(schedule.hurries_heads(2));
        let range = |first, count| ObjectRange { first, count };
        assert_eq!(schedule.plan(), Some(70));
        let pending = [range(12, 1), range(70, 1), range(10, 2), range(13, 57), range(71, 9)];
        assert_eq!(schedule.pending(), pending);
        assert_eq!(schedule.fronts(), (Some(12), Some(10)));
        [12, 70].into_iter().for_each(|object| schedule.take(object));
        assert_eq!(
            (schedule.cursor(), schedule.fronts()),
            (3, (None, Some(10))),
            "the stream goes on where it was"
        );
        assert_eq!(send_all(&mut schedule, 0)[..2], [13, 14]);
    }

    #[test]
    fn what_is_on_its_way_is_not_wanted_again() {
        let mut schedule = schedule([5]);
        assert!(!schedule.ask(5, 10, 0, Cause::Late), "wanted already");
        assert_eq!(schedule.plan(), Some(5));
        assert!(!schedule.ask(5, 10, 0, Cause::Late), "planned");
        schedule.take(5);
        assert_eq!(schedule.begin_pass(5, 100), None);
        for seen in [0, 100, 105, 109] {
            assert!(!schedule.ask(5, 10, seen, Cause::Lost), "seen {seen}");
        }
        assert!(schedule.has_passed(5, 4, 105) && !schedule.has_passed(5, 5, 105));
        assert!(schedule.ask(5, 10, 110, Cause::Lost));
        assert_eq!(schedule.plan(), Some(5));
        assert_eq!(schedule.begin_pass(5, 200), Some(Cause::Lost));
    }

    #[test]
    fn pending_lists_the_plan_and_then_what_is_wanted_in_order() {
        let mut schedule = schedule((40..50).chain([0, 90]));
        let range = |first, count| ObjectRange { first, count };
        assert_eq!(schedule.pending(), [range(0, 1), range(40, 10), range(90, 1)]);
        assert_eq!((schedule.plan(), schedule.plan()), (Some(0), Some(40)));
        assert_eq!(schedule.pending(), [range(0, 1), range(40, 10), range(90, 1)]);
        assert!(schedule.ask(20, 10, 0, Cause::Late));
        assert_eq!(schedule.pending(), [range(0, 1), range(40, 10), range(90, 1), range(20, 1)]);
    }

    #[test]
    fn pending_is_bounded() {
        let schedule = schedule((3..100).step_by(2));
        assert_eq!(schedule.pending().len(), STATUS_RANGES_MAX);
    }
}
