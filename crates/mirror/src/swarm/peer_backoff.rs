//! Whether a disk asks other machines, or the server at once.
//!
//! A machine that is alone asks the server at once: the redirector would only say that nobody has anything. It learns
//! from the redirector's answers when that changes. A machine whose others are useless leaves them alone for a time.

use std::time::Duration;

use net::peer::News;

/// After so many answers in a row that nobody else is there, a machine is alone.
const ALONE_AFTER: u32 = 4;
/// After so many times in a row that objects did not come in time, members are left alone for [`SHUNNED`]; afterwards
/// again after each such time, until a member sends something.
const OVERDUE_MAX: u32 = 3;
/// What is overdue within this time counts once: many objects wait for one member that stalls.
const BURST: Duration = Duration::from_secs(1);
/// Doubled each time, up to `SHUNNED_MAX`.
const SHUNNED: Duration = Duration::from_secs(2);
const SHUNNED_MAX: Duration = Duration::from_secs(300);

/// See the module. Times count from any moment.
#[derive(Debug)]
pub(super) struct PeerBackoff {
    alone: bool,
    /// Answers in a row that nobody else is there.
    alone_said: u32,
    /// Times in a row that objects did not come in time, and until when more of them count as the same.
    overdue: u32,
    burst_until: Duration,
    /// How often members were shunned in a row.
    shunned: u32,
    shunned_until: Duration,
    counted: Counted,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    /// Objects that members did not send in time.
    pub(super) overdue: u64,
    /// How often members were left alone.
    pub(super) shunned: u64,
}

impl PeerBackoff {
    /// Whether others are there is what the server said.
    pub(super) fn new(others: bool) -> Self {
        Self {
            alone: !others,
            alone_said: 0,
            overdue: 0,
            burst_until: Duration::ZERO,
            shunned: 0,
            shunned_until: Duration::ZERO,
            counted: Counted::default(),
        }
    }

    /// Whether other machines are asked.
    pub(super) fn is_asked(&self, now: Duration) -> bool {
        !self.alone && now >= self.shunned_until
    }

    pub(super) fn counted(&self) -> Counted {
        self.counted
    }

    /// Something was noticed.
    pub(super) fn hear(&mut self, now: Duration, news: News) {
        match news {
            News::Alone => {
                self.alone_said += 1;
                self.alone |= self.alone_said >= ALONE_AFTER;
            }
            News::Others => (self.alone, self.alone_said) = (false, 0),
            News::Deaf => self.alone = true,
            News::Came => (self.overdue, self.shunned) = (0, 0),
            News::Overdue => {
                self.counted.overdue += 1;
                if now < self.burst_until || now < self.shunned_until {
                    return;
                }
                self.burst_until = now + BURST;
                self.overdue += 1;
                if self.overdue >= OVERDUE_MAX || self.shunned > 0 {
                    self.overdue = 0;
                    self.shunned_until = now + (SHUNNED * (1 << self.shunned.min(8))).min(SHUNNED_MAX);
                    self.shunned += 1;
                    self.counted.shunned += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_is_alone_asks_nobody_until_somebody_comes() {
        let mut backoff = PeerBackoff::new(false);
        assert!(!backoff.is_asked(at(0)));
        backoff.hear(at(0), News::Others);
        assert!(backoff.is_asked(at(0)));
        (0..3).for_each(|_| backoff.hear(at(1), News::Alone));
        assert!(backoff.is_asked(at(1)));
        backoff.hear(at(1), News::Alone);
        assert!(!backoff.is_asked(at(1)));
        let mut deaf = PeerBackoff::new(true);
        deaf.hear(at(0), News::Deaf);
        assert!(!deaf.is_asked(at(100)));
    }

    #[test]
    fn what_is_overdue_together_counts_once() {
        let mut backoff = PeerBackoff::new(true);
        (0..50).for_each(|_| backoff.hear(at(1), News::Overdue));
        assert!(backoff.is_asked(at(1)) && backoff.counted().overdue == 50);
        backoff.hear(at(2), News::Overdue);
        backoff.hear(at(3), News::Came);
        backoff.hear(at(3), News::Overdue);
        assert!(backoff.is_asked(at(3)), "a member has sent something between");
    }

    #[test]
    fn members_that_send_nothing_in_time_are_left_alone_for_longer_each_time() {
        let mut backoff = PeerBackoff::new(true);
        (1..=3).for_each(|second| backoff.hear(at(second), News::Overdue));
        // What was asked for before.
        backoff.hear(at(4), News::Overdue);
        assert!(!backoff.is_asked(at(4)) && backoff.is_asked(at(5)));
        backoff.hear(at(6), News::Overdue);
        assert!(!backoff.is_asked(at(9)) && backoff.is_asked(at(10)));
        assert_eq!(backoff.counted(), Counted { overdue: 5, shunned: 2 });
        backoff.hear(at(10), News::Came);
        backoff.hear(at(11), News::Overdue);
        assert!(backoff.is_asked(at(11)));
    }
}
