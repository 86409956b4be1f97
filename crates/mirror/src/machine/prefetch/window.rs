//! Limits the number of prefetches in flight: enough to fill the path to the sources, and few more. If many answers
//! meet at one switch port they overflow its queue (incast), and a connection that loses its last packets is silent
//! for 200 ms. The method is that of TCP Vegas (Brakmo, O'Malley, Peterson, SIGCOMM 1994): the time by which fetches
//! take longer than the quickest one shows how many of them wait in a queue.

use base::Duration;

/// Minimum number in flight: one in transfer, one being decoded, and two that follow.
const LEAST: usize = 4;
/// Target for the estimated number of fetches that wait in a queue. Below it the window grows, above it the window
/// shrinks.
const QUEUED: std::ops::RangeInclusive<u128> = 2..=4;
/// Fetch times of smaller objects tell nothing about the queue and are ignored.
const TELLING_BYTES: u32 = 32 << 10;
/// The quickest fetch of this and the previous epoch counts as the time without a queue. An epoch has this many
/// fetches.
const EPOCH: u32 = 1024;

/// See the module.
#[derive(Debug)]
pub(in crate::machine) struct Window {
    size: usize,
    quickest: [Duration; 2],
    seen: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self { size: LEAST, quickest: [Duration::from_nanos(u64::MAX); 2], seen: 0 }
    }
}

impl Window {
    /// How many prefetches may be in flight.
    pub(in crate::machine) fn size(&self) -> usize {
        self.size
    }

    /// Notes that the fetch of an object of `bytes` took `time` while `running` fetches were in flight. The window
    /// grows to at most `most`.
    pub(in crate::machine) fn took(&mut self, time: Duration, bytes: u32, running: usize, most: usize) {
        if bytes < TELLING_BYTES {
            return;
        }
        if self.seen == EPOCH {
            self.quickest = [self.quickest[1], time];
            self.seen = 0;
        }
        self.seen += 1;
        self.quickest[1] = self.quickest[1].min(time);
        let quickest = self.quickest[0].min(self.quickest[1]);
        let late = (time - quickest).as_nanos();
        // Vegas: of the fetches in flight, the share (time - quickest) / time is in a queue.
        let queued = running as u128 * late / time.as_nanos().max(1);
        // The window grows only if it was full: else it was not what limited the fetches.
        if queued < *QUEUED.start() && running >= self.size {
            self.size = (self.size + 1).min(most.max(LEAST));
        } else if queued > *QUEUED.end() {
            self.size = (self.size - 1).max(LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 16;
    const BYTES: u32 = 90_000;

    /// Fetches over a path with latency `way`, where each object occupies a shared link for `each`.
    fn steady(window: &mut Window, way: Duration, each: Duration) -> usize {
        for _ in 0..200 {
            let running = window.size();
            let count = u32::try_from(running).unwrap();
            window.took((way + each).max(each * count), BYTES, running, MOST);
        }
        window.size()
    }

    #[test]
    fn what_is_near_needs_few_and_what_is_far_as_many_as_there_may_be() {
        let each = Duration::from_micros(720);
        let mut window = Window::default();
        assert!(steady(&mut window, Duration::from_micros(100), each) <= 6);
        // The path changes: its latency is learned again.
        for _ in 0..2 * EPOCH {
            window.took(Duration::from_millis(11), BYTES, LEAST, MOST);
        }
        assert_eq!(steady(&mut window, Duration::from_millis(10), each), MOST);
    }

    #[test]
    fn small_objects_and_few_in_flight_say_nothing() {
        let mut window = Window::default();
        for _ in 0..100 {
            window.took(Duration::from_millis(1), 500, LEAST, MOST);
            window.took(Duration::from_millis(1), BYTES, 1, MOST);
        }
        assert_eq!(window.size(), LEAST);
    }
}
