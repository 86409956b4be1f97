//! What a receiver asks for next: whole objects, as many as it has room for, unless the server said that enough of
//! them are coming.

use super::bits::ObjectSet;
use super::report::{Cause, Lacking, NEED_OBJECTS_MAX, NeedRange};
use super::status::ObjectRange;

/// Most runs that are looked at.
const RUNS_MAX: usize = 256;

/// Objects to ask for, in the order of sending.
#[derive(Debug)]
pub(super) struct Window {
    room: u64,
    /// Everything that is lacked fits.
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

    /// Adds those of `open` in `start..end` while there is room.
    pub(super) fn collect(&mut self, open: &ObjectSet, start: u64, end: u64, cause: impl Fn(u64) -> Cause) {
        let mut at = start;
        while self.count < self.room && self.runs.len() < RUNS_MAX {
            let Some(first) = open.next_from(at).filter(|&first| first < end) else { return };
            let why = cause(first);
            let behind = open.next_gap_from(first).min(end).min(first + self.room - self.count);
            let behind = (first + 1..behind).find(|&object| cause(object) != why).unwrap_or(behind);
            let count = u32::try_from(behind - first).expect("NEED_OBJECTS_MAX");
            self.runs.push(NeedRange { objects: ObjectRange { first, count }, cause: why });
            self.count += u64::from(count);
            at = behind;
        }
    }

    /// Whether the server should hear of it, given what it said is pending: something is lacked that is not pending,
    /// and what is pending covers less than half of the window, so that there is time for an answer before the
    /// server runs dry. The end of the image is asked for at once.
    pub(super) fn is_news(&self, pending: &[ObjectRange]) -> bool {
        let covered: u64 = self.runs.iter().map(|run| overlap(run.objects, pending)).sum();
        covered < self.count && (self.takes_all || covered < self.count.div_ceil(2))
    }

    /// Writes it into a NEED of at most `room` bytes.
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
