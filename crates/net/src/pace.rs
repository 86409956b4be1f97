//! A limit of bytes per second that several threads keep together: of what a machine sends to others, of what a disk
//! is read or written.

use std::time::Duration;

use base::Instant;
use parking_lot::Mutex;

use crate::clock::{Clock, Stop};

/// Lets so many bytes per second pass.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: u64,
    clock: Clock,
    /// When what was let through has passed at that rate.
    free_at: Mutex<Instant>,
    over: Stop,
}

impl Pace {
    /// A limit from 1 byte per second on.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        let (clock, free_at) = (Clock::start(), Mutex::new(Instant::ZERO));
        Self { bytes_per_second: bytes_per_second.max(1), clock, free_at, over: Stop::new() }
    }

    /// Waits until `bytes` more may pass. Those who wait go in turn.
    pub fn wait(&self, bytes: usize) {
        let now = self.clock.now();
        self.over.pause(self.turn(now, bytes));
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        self.over.stop();
    }

    /// Lets `bytes` through, after so much time.
    fn turn(&self, now: Instant, bytes: usize) -> Duration {
        let mut free_at = self.free_at.lock();
        let turn = now.max(*free_at);
        let micros = (bytes as u64).saturating_mul(1_000_000) / self.bytes_per_second;
        *free_at = turn + Duration::from_micros(micros);
        turn.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_send_no_more_than_the_limit_and_what_was_left_unused_is_lost() {
        let (pace, at) = (Pace::new(1_000_000), |ms| Instant::ZERO + Duration::from_millis(ms));
        let turns = |ms, count| (0..count).map(|_| pace.turn(at(ms), 50_000).as_millis()).collect::<Vec<_>>();
        assert_eq!(turns(0, 3), [0, 50, 100]);
        assert_eq!(turns(100, 2), [50, 100]);
        assert_eq!(turns(900, 2), [0, 50], "no burst after a pause");
    }
}
