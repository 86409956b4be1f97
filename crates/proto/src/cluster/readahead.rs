//! Which bytes a device reads before anybody asks for them: the read-ahead contexts of seed 002, section 3.2.
//!
//! A context is a stream of reads of one object, told by the object and by where its last read ended, never by who
//! reads: many readers of one object have a context each.

use std::ops::Range;
use std::time::Duration;

use base::Instant;

use super::ObjectId;

/// Most bytes that are read ahead of one stream.
const AHEAD_BYTES_MAX: u64 = 6 << 20;
/// A stream may skip so many bytes, or go back by so many to read on.
const SKIP_BYTES_MAX: u64 = 1 << 20;
/// A stream without a read for so long takes no share of the cache.
const ACTIVE: Duration = Duration::from_secs(30);
/// Contexts that are kept; the one that was unused for longest makes room.
const CONTEXTS_MAX: usize = 512;
/// Where the counter of a context stops: a window that doubles so often from 64 KiB is longer than the longest.
const USED_MAX: u8 = 7;

/// The contexts of a device.
#[derive(Debug)]
pub struct ReadAhead {
    cache_bytes: u64,
    contexts: Vec<Context>,
}

#[derive(Debug)]
struct Context {
    object: ObjectId,
    /// Where the last read ended.
    position: u64,
    /// How often the stream went on where it was expected to, up to [`USED_MAX`].
    used: u8,
    /// Up to where bytes were read, or read ahead.
    ahead: u64,
    at: Instant,
}

impl Context {
    fn is_stream(&self, now: Instant) -> bool {
        self.used > 0 && now.since(self.at) < ACTIVE
    }
}

impl ReadAhead {
    /// Contexts that share a cache of `cache_bytes`: each of N streams is read ahead by an N-th of it at most.
    #[must_use]
    pub fn new(cache_bytes: u64) -> Self {
        Self { cache_bytes, contexts: Vec::new() }
    }

    /// Somebody reads `range` of `object`, which has `length` bytes. Returns what to read ahead, if anything.
    pub fn read(
        &mut self,
        object: ObjectId,
        range: Range<u64>,
        length: u64,
        now: Instant,
    ) -> Option<Range<u64>> {
        // A reader may look at the beginning of what it then reads whole.
        let follows = |context: &Context| {
            context.object == object
                && range.start <= context.position + SKIP_BYTES_MAX
                && range.end > context.position
                && context.position.saturating_sub(range.start) <= SKIP_BYTES_MAX
        };
        let found = (0..self.contexts.len())
            .filter(|&place| follows(&self.contexts[place]))
            .max_by_key(|&place| self.contexts[place].position);
        let Some(place) = found else {
            self.begin(Context { object, position: range.end, used: 0, ahead: range.end, at: now });
            return None;
        };
        let context = &mut self.contexts[place];
        context.used = (context.used + 1).min(USED_MAX);
        context.position = range.end;
        context.at = now;
        context.ahead = context.ahead.max(range.end);
        let streams = self.contexts.iter().filter(|context| context.is_stream(now)).count() as u64;
        let context = &mut self.contexts[place];
        let wanted = (range.end - range.start).saturating_mul(1 << context.used);
        let window = wanted.min(AHEAD_BYTES_MAX).min(self.cache_bytes / streams.max(1));
        // In few long reads, not in many short ones.
        if context.ahead >= range.end + window.div_ceil(2) {
            return None;
        }
        let from = context.ahead;
        context.ahead = (range.end + window).min(length).max(from);
        (from < context.ahead).then_some(from..context.ahead)
    }

    fn begin(&mut self, context: Context) {
        if self.contexts.len() < CONTEXTS_MAX {
            self.contexts.push(context);
        } else if let Some(oldest) = self.contexts.iter_mut().min_by_key(|context| context.at) {
            *oldest = context;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const LENGTH: u64 = 1 << 30;

    fn object(number: u64) -> ObjectId {
        ObjectId { group: 7, number }
    }

    /// Reads in order, each as long as `bytes`; what was read ahead each time.
    fn stream(ahead: &mut ReadAhead, number: u64, bytes: u64, reads: u64) -> Vec<Option<Range<u64>>> {
        (0..reads)
            .map(|read| ahead.read(object(number), read * bytes..(read + 1) * bytes, LENGTH, Instant(read)))
            .collect()
    }

    #[test]
    fn the_second_read_in_order_begins_a_window_that_grows() {
        let mut ahead = ReadAhead::new(LENGTH);
        let got = stream(&mut ahead, 1, 64 * KIB, 4);
        assert_eq!(
            got,
            [
                None,
                Some(128 * KIB..256 * KIB),
                // 256 KiB ahead of 192 KiB.
                Some(256 * KIB..448 * KIB),
                Some(448 * KIB..768 * KIB),
            ]
        );
        let later = stream(&mut ReadAhead::new(LENGTH), 1, 64 * KIB, 200);
        let longest = later.into_iter().flatten().map(|range| range.end - range.start).max();
        assert!(longest.is_some_and(|bytes| (AHEAD_BYTES_MAX / 2..=AHEAD_BYTES_MAX).contains(&bytes)));
    }

    #[test]
    fn reads_out_of_order_get_nothing() {
        let mut ahead = ReadAhead::new(LENGTH);
        for place in [900, 20, 500, 3, 700, 100] {
            let range = place * MIB..place * MIB + 64 * KIB;
            assert_eq!(ahead.read(object(1), range, LENGTH, Instant::ZERO), None);
        }
        assert_eq!(ahead.read(object(2), 20 * MIB..21 * MIB, LENGTH, Instant::ZERO), None, "another object");
    }

    #[test]
    fn a_stream_may_skip_a_little() {
        let mut ahead = ReadAhead::new(LENGTH);
        assert_eq!(ahead.read(object(1), 0..MIB, LENGTH, Instant::ZERO), None);
        let skipped = ahead.read(object(1), 2 * MIB..3 * MIB, LENGTH, Instant::ZERO);
        assert_eq!(skipped, Some(3 * MIB..5 * MIB));
        assert_eq!(ahead.read(object(1), 4 * MIB + 1..5 * MIB, LENGTH, Instant::ZERO), None, "too far");
    }

    #[test]
    fn a_look_at_the_beginning_of_the_next_read_breaks_no_stream() {
        let mut ahead = ReadAhead::new(LENGTH);
        assert_eq!(ahead.read(object(1), 0..MIB, LENGTH, Instant::ZERO), None);
        ahead.read(object(1), MIB..MIB + 4 * KIB, LENGTH, Instant::ZERO);
        let whole = ahead.read(object(1), MIB..2 * MIB, LENGTH, Instant::ZERO);
        assert_eq!(whole, Some(2 * MIB..6 * MIB));
        assert_eq!(ahead.contexts.len(), 1);
    }

    #[test]
    fn two_readers_of_one_object_are_two_streams() {
        let mut ahead = ReadAhead::new(LENGTH);
        for start in [0, 500 * MIB] {
            assert_eq!(ahead.read(object(1), start..start + MIB, LENGTH, Instant::ZERO), None);
        }
        for start in [0, 500 * MIB] {
            let second = start + MIB..start + 2 * MIB;
            let wanted = Some(second.end..second.end + 2 * MIB);
            assert_eq!(ahead.read(object(1), second, LENGTH, Instant::ZERO), wanted);
        }
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        let mut ahead = ReadAhead::new(LENGTH);
        assert_eq!(ahead.read(object(1), 0..MIB, 3 * MIB, Instant::ZERO), None);
        assert_eq!(ahead.read(object(1), MIB..2 * MIB, 3 * MIB, Instant::ZERO), Some(2 * MIB..3 * MIB));
        assert_eq!(ahead.read(object(1), 2 * MIB..3 * MIB, 3 * MIB, Instant::ZERO), None);
    }

    #[test]
    fn a_stream_that_ended_leaves_its_share_to_others() {
        let mut ahead = ReadAhead::new(8 * MIB);
        for number in 0..8 {
            stream(&mut ahead, number, MIB, 3);
        }
        let range = |read: u64| read * MIB..(read + 1) * MIB;
        let crowded = ahead.read(object(7), range(3), LENGTH, Instant(3)).unwrap();
        assert_eq!(crowded, 4 * MIB..5 * MIB);
        let later = Instant(3) + ACTIVE;
        let alone = ahead.read(object(7), range(4), LENGTH, later).unwrap();
        assert_eq!(alone, 5 * MIB..11 * MIB);
    }

    proptest! {
        /// Whatever is read: what is read ahead lies behind what was read, inside the object and within the stream's
        /// share, is never read ahead twice in one stream, and contexts do not pile up.
        #[test]
        fn bounds_hold(
            reads in prop::collection::vec((0u64..4, 0u64..64, 1u64..32, 0u64..3), 1..2000),
            cache_bytes in 0u64..(64 << 20),
        ) {
            let mut ahead = ReadAhead::new(cache_bytes);
            let mut now = Instant::ZERO;
            for (number, from, units, seconds) in reads {
                now = now + Duration::from_secs(seconds);
                let (from, length) = (from * 256 * KIB, 12 * MIB);
                let to = (from + units * 64 * KIB).min(length.max(from + 1));
                if let Some(range) = ahead.read(object(number), from..to, length, now) {
                    prop_assert!(range.start >= to && range.start < range.end && range.end <= length);
                    prop_assert!(range.end <= to + AHEAD_BYTES_MAX.min(cache_bytes));
                }
                prop_assert!(ahead.contexts.len() <= CONTEXTS_MAX);
            }
        }
    }
}
