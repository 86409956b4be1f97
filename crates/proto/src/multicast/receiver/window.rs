//! The objects in full that a receiver requests next: as many as fit its free buffer, unless the server has announced
//! enough of them.

use crate::multicast::bits::ObjectSet;
use crate::multicast::wire::header::ObjectRange;
use crate::multicast::wire::report::{Cause, Lacking, NEED_OBJECTS_MAX, NeedRange};
use crate::multicast::wire::status::STATUS_RANGES_MAX;

/// Most runs of objects in one window.
const RUNS_MAX: usize = 256;

/// If the list of pending objects may be incomplete, this many of the window's objects in it are enough to wait for
/// the next list.
const CUT_LIST_MIN: u64 = 16;

/// The objects to request, in the order of sending.
#[derive(Debug)]
pub(super) struct Window {
    room: u64,
    /// All missing objects fit.
    takes_all: bool,
    count: u64,
    runs: Vec<NeedRange>,
}

impl Window {
    /// An empty window with room for `room` of the `lacked` objects.
    pub(super) fn new(room: u64, lacked: u64) -> Self {
        let room = room.min(NEED_OBJECTS_MAX);
        Self { room, takes_all: room >= lacked, count: 0, runs: Vec::new() }
    }

    /// Adds the objects of `open` within `start..end`, while there is room; `cause` says why an object is missing.
    pub(super) fn collect(&mut self, open: &ObjectSet, start: u64, end: u64, cause: impl Fn(u64) -> Cause) {
        let mut at = start;
        while self.count < self.room && self.runs.len() < RUNS_MAX {
            let Some(first) = open.next_from(at).filter(|&first| first < end) else { return };
            let why = cause(first);
            let behind = open.next_gap_from(first).min(end).min(first + self.room - self.count);
            let behind = (first + 1..behind).find(|&object| cause(object) != why).unwrap_or(behind);
            let count = u32::try_from(behind - first).expect("NEED_OBJECTS_MAX");
            self.runs.push(NeedRange { objects: ObjectRange { first, count }, cause: why, urgent: false });
            self.count += u64::from(count);
            at = behind;
        }
    }

    /// Whether to send the window to the server, given the objects that the server announced as pending: some of the
    /// window are not pending, and the pending ones cover less than half of it, so that an answer arrives before the
    /// server has nothing left to send. If all missing objects fit, any that is not pending is enough.
    pub(super) fn is_news(&self, pending: &[ObjectRange]) -> bool {
        let covered: u64 = self.runs.iter().map(|run| overlap(run.objects, pending)).sum();
        let half = self.count.div_ceil(2);
        // If the list is full, further objects may be pending for which it had no room.
        let is_cut = pending.len() == STATUS_RANGES_MAX;
        covered < self.count
            && if is_cut { covered < half.min(CUT_LIST_MIN) } else { self.takes_all || covered < half }
    }

    /// Adds the window's runs to `into`, as many as fit a NEED of `room` bytes.
    pub(super) fn write(&self, room: usize, into: &mut Lacking) {
        for run in &self.runs {
            into.whole.push(*run);
            if into.packet_bytes() > room {
                into.whole.pop();
                return;
            }
        }
    }
}

/// How many objects of `run` are in `ranges`, which are disjoint.
fn overlap(run: ObjectRange, ranges: &[ObjectRange]) -> u64 {
    ranges.iter().map(|range| range.end().min(run.end()).saturating_sub(range.first.max(run.first))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u32) -> ObjectRange {
        ObjectRange { first, count }
    }

    /// The window of a receiver that misses the objects `0..lacked` and has room for `room` of them.
    fn window(room: u64, lacked: u64) -> Window {
        let mut open = ObjectSet::new(1000);
        (0..lacked).for_each(|object| _ = open.insert(object));
        let mut window = Window::new(room, lacked);
        window.collect(&open, 0, 1000, |object| if object < 5 { Cause::Late } else { Cause::Lost });
        window
    }

    #[test]
    fn it_holds_as_many_as_there_is_room_for() {
        let mut lacking = Lacking::default();
        window(20, 100).write(1000, &mut lacking);
        let need = |objects, cause| NeedRange { objects, cause, urgent: false };
        assert_eq!(lacking.whole, [need(range(0, 5), Cause::Late), need(range(5, 15), Cause::Lost)]);
        assert!(!window(0, 100).is_news(&[]), "who has no room asks for nothing");
    }

    #[test]
    fn it_is_news_when_half_of_it_is_not_coming() {
        let window = window(20, 100);
        assert!(window.is_news(&[]));
        assert!(window.is_news(&[range(0, 9)]));
        assert!(!window.is_news(&[range(0, 10)]));
        assert!(!window.is_news(&[range(0, 5), range(10, 5)]));
    }

    #[test]
    fn the_end_is_asked_for_at_once() {
        let window = window(20, 20);
        assert!(window.is_news(&[range(0, 19)]));
        assert!(!window.is_news(&[range(0, 20)]));
    }

    #[test]
    fn a_need_fits_its_packet() {
        let mut open = ObjectSet::new(1000);
        (0..1000).step_by(2).for_each(|object| _ = open.insert(object));
        let mut window = Window::new(500, 500);
        window.collect(&open, 0, 1000, |_| Cause::Late);
        let mut lacking = Lacking::default();
        window.write(600, &mut lacking);
        assert!(!lacking.is_empty() && lacking.packet_bytes() <= 600);
    }
}
