//! How much the server may answer by unicast while sessions send on an interface.
//!
//! The base is a fixed part of what the sessions send, so that a host to which multicast does not work costs the others
//! little (the server's daemon has the number). If the interface is not full, more may cost nothing: the answers may go
//! through a link that the sessions do not use. Nothing shows that in advance, so it is tried. As long as the answers
//! use most of what they may, the limit is doubled every half second; if the sessions send a twentieth less after that,
//! it is halved again, and stays for 4 s. While the interface is full, only the base is allowed.

use base::{Duration, Instant};

use super::shares::Shares;

/// Time over which the sessions are measured.
const ROUND: Duration = Duration::from_millis(500);
/// After a trial that cost the sessions something, the next one waits.
const REST: Duration = Duration::from_secs(4);
/// The sessions may send one part in `COST_PARTS` less after the limit was doubled.
const COST_PARTS: u64 = 20;
/// The limit is at most the base times this.
const TIMES_MAX: u64 = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Beside {
    /// The limit is the base times this: a power of two.
    times: u64,
    round: Option<Round>,
    /// What the sessions sent before the limit was doubled, in bits per second.
    before: Option<u64>,
    rest_until: Option<Instant>,
}

/// What the windows of a round showed.
#[derive(Debug, Clone, Copy)]
struct Round {
    from: Instant,
    windows: u64,
    full: u64,
    multicast: u64,
    answers: u64,
}

impl Default for Beside {
    fn default() -> Self {
        Self { times: 1, round: None, before: None, rest_until: None }
    }
}

impl Beside {
    /// The limit is the base times this.
    pub(super) fn times(&self) -> u64 {
        self.times
    }

    /// Takes what a window showed that ended at `now`. `allowed`: the present limit in bits per second.
    pub(super) fn window(&mut self, now: Instant, shares: &Shares, allowed: u64) {
        let fresh = Round { from: now, windows: 0, full: 0, multicast: 0, answers: 0 };
        let round = self.round.get_or_insert(fresh);
        round.windows += 1;
        round.full += u64::from(shares.full);
        round.multicast += shares.multicast;
        round.answers += shares.answers;
        if now.since(round.from) < ROUND {
            return;
        }
        let round = std::mem::replace(round, fresh);
        let (multicast, answers) = (round.multicast / round.windows, round.answers / round.windows);
        if 2 * round.full >= round.windows {
            (self.times, self.before) = (1, None);
            return;
        }
        if self.before.take().is_some_and(|before| multicast < before - before / COST_PARTS) {
            self.times = (self.times / 2).max(1);
            self.rest_until = Some(now + REST);
        } else if answers > allowed / 2 && self.rest_until.is_none_or(|until| now >= until) {
            self.times = (2 * self.times).min(TIMES_MAX);
            self.before = Some(multicast);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 6_000_000;

    /// Runs for some seconds from `from`. `multicast` tells what the sessions send beside so much unicast. Returns what
    /// the answers get in the end, if they could use `wants`.
    fn run(
        beside: &mut Beside,
        from: u64,
        seconds: u64,
        wants: u64,
        full: bool,
        multicast: fn(u64) -> u64,
    ) -> u64 {
        let mut answers = 0;
        for window in 0..5 * seconds {
            let now = Instant::ZERO + Duration::from_millis(1000 * from + 200 * window);
            answers = wants.min(BASE * beside.times());
            let multicast = multicast(answers);
            let total = multicast + answers;
            let shares = Shares { total, multicast, answers, others: 0, full, queue: Duration::ZERO };
            beside.window(now, &shares, BASE * beside.times());
        }
        answers
    }

    #[test]
    fn a_link_with_room_gives_the_answers_what_they_want() {
        assert_eq!(run(&mut Beside::default(), 1, 10, 50_000_000, false, |_| 90_000_000), 50_000_000);
    }

    #[test]
    fn answers_that_cost_the_sessions_something_keep_to_the_base() {
        let mut beside = Beside::default();
        let shared = |answers: u64| 100_000_000 - answers;
        assert!(run(&mut beside, 1, 20, 50_000_000, false, shared) <= 2 * BASE);
        let times = beside.times();
        assert!(times <= 2, "{times}");
    }

    #[test]
    fn a_full_link_allows_the_base_only() {
        let mut beside = Beside::default();
        run(&mut beside, 1, 10, 50_000_000, false, |_| 90_000_000);
        assert_eq!(run(&mut beside, 11, 3, 50_000_000, true, |_| 90_000_000), BASE);
    }
}
