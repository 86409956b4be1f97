//! Limits what the receivers of multicast sessions get by unicast while a session sends. One host to which multicast
//! does not work would otherwise take the server's link from all others by its TCP connections. When no session has
//! anything to send, unicast is not limited.
//!
//! Unicast gets a tenth. If requests still wait, the server may have a faster link than its receivers: then unicast
//! gets more for a moment, and keeps it if multicast did not become slower (`headroom`).

use std::sync::Arc;
use std::time::Duration;

use net::multicast::budget::Budget;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// Unicast gets one part while multicast gets this many: together a tenth goes by unicast.
const MULTICAST_PARTS: u64 = 9;
/// What unicast did not use is kept for this time, so that a few objects at the end of a fetch need not wait.
const SAVED: Duration = Duration::from_secs(2);
/// How often a waiting request looks again: the session may have ended.
const STEP: Duration = Duration::from_millis(10);
/// Longest wait. A client gives up a request that is not answered for some seconds, and would send it again.
const PATIENCE: Duration = Duration::from_secs(4);

/// While requests wait, the rate of multicast is averaged over this time before more is tried, and while it is tried.
const LOOK: Duration = Duration::from_secs(1);
/// The first part of a trial does not count: the rates have to adapt.
const SETTLE: Duration = Duration::from_millis(250);
/// Multicast may lose this many percent to a trial. Its rate varies by two to three percent from second to second.
const LOSS_PERCENT: u64 = 5;
/// Time until the next trial after the first that cost multicast too much; doubled each time, up to the second one.
const REST: Duration = Duration::from_secs(8);
const REST_MAX: Duration = Duration::from_secs(128);
/// Unicast gets at most this many times its first part.
const TIMES_MAX: u32 = 64;

/// The limit for all receivers together.
pub(crate) struct UnicastShare {
    budget: Arc<Budget>,
    bucket: Mutex<Bucket>,
}

impl UnicastShare {
    /// The limit beside the sessions of `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bucket: Mutex::new(Bucket::new(Instant::now())) }
    }

    /// Waits until `bytes` may be sent, for at most `PATIENCE`. Requests are served in the order of their arrival.
    pub(crate) async fn wait_for(&self, bytes: u64) {
        if self.budget.rate() == 0 {
            return;
        }
        let begin = Instant::now();
        let mut bucket = self.bucket.lock().await;
        while !bucket.take(bytes, self.budget.rate(), Instant::now()) && begin.elapsed() < PATIENCE {
            sleep(STEP).await;
        }
    }
}

/// A token bucket, which fills in proportion to the rate of all sessions.
struct Bucket {
    /// Bytes that may be sent now. Below zero after an object that was larger.
    bytes: i64,
    filled_at: Instant,
    headroom: Headroom,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { bytes: 0, filled_at: now, headroom: Headroom::new(now) }
    }

    /// Takes `bytes` if there are any left at `now`, while the sessions send at `rate` bits per second. True if the
    /// object may be sent.
    fn take(&mut self, bytes: u64, rate: u64, now: Instant) -> bool {
        if rate == 0 {
            return true;
        }
        let per_second = u128::from(rate / 8 / MULTICAST_PARTS) * u128::from(self.headroom.times);
        let in_time =
            |time: Duration| i64::try_from(per_second * time.as_micros() / 1_000_000).unwrap_or(i64::MAX);
        let most = in_time(SAVED);
        self.bytes = self.bytes.saturating_add(in_time(now - self.filled_at)).min(most);
        self.filled_at = now;
        let may = self.bytes > 0;
        if may {
            self.bytes = self.bytes.saturating_sub_unsigned(bytes);
        }
        self.headroom.observe(rate, !may, now);
        may
    }
}

/// Finds how much unicast the server's link carries beside multicast: as long as requests wait, unicast gets twice as
/// much for [`LOOK`], and keeps it if multicast did not become slower.
struct Headroom {
    /// How many times its first part unicast gets now.
    times: u32,
    phase: Phase,
    rest: Duration,
    mean: Mean,
    /// A request had to wait since `mean` began.
    waited: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Measures multicast's rate.
    Before,
    /// Unicast gets twice as much since multicast's rate was measured as `before`.
    Trial { before: u64 },
    /// The last trial cost multicast too much. No other one begins before `until`.
    Rest { until: Instant },
}

impl Headroom {
    fn new(now: Instant) -> Self {
        Self { times: 1, phase: Phase::Before, rest: REST, mean: Mean::from(now), waited: false }
    }

    /// Notes that multicast sends at `rate` bits per second at `now`. `waits` says that a request has to wait.
    fn observe(&mut self, rate: u64, waits: bool, now: Instant) {
        if now.saturating_duration_since(self.mean.last) > LOOK {
            // Nobody requested anything for a while: what was measured is out of date.
            *self = Self { rest: self.rest, ..Self::new(now) };
        }
        self.mean.add(rate, now);
        self.waited |= waits;
        let Some(mean) = self.mean.over(LOOK) else { return };
        let again = |this: &mut Self, phase| {
            (this.phase, this.mean, this.waited) = (phase, Mean::from(now), false);
        };
        match self.phase {
            Phase::Before if self.waited && self.times < TIMES_MAX => {
                self.times *= 2;
                again(self, Phase::Trial { before: mean });
                self.mean.from = now + SETTLE;
            }
            Phase::Trial { before } if mean < before / 100 * (100 - LOSS_PERCENT) => {
                self.times /= 2;
                again(self, Phase::Rest { until: now + self.rest });
                self.rest = (self.rest * 2).min(REST_MAX);
            }
            Phase::Rest { until } if now < until => {}
            Phase::Before | Phase::Trial { .. } | Phase::Rest { .. } => again(self, Phase::Before),
        }
    }
}

/// The mean of a rate over time.
struct Mean {
    from: Instant,
    last: Instant,
    /// Bits, times 10^6.
    sum: u128,
    micros: u128,
}

impl Mean {
    fn from(now: Instant) -> Self {
        Self { from: now, last: now, sum: 0, micros: 0 }
    }

    fn add(&mut self, rate: u64, now: Instant) {
        let micros = now.saturating_duration_since(self.last.max(self.from)).as_micros();
        self.sum += u128::from(rate) * micros;
        self.micros += micros;
        self.last = now;
    }

    /// The mean, if it was measured over at least `time`.
    fn over(&self, time: Duration) -> Option<u64> {
        let mean = self.sum.checked_div(self.micros).filter(|_| self.micros >= time.as_micros())?;
        u64::try_from(mean).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests objects of 90 kB without a pause, while multicast sends at `multicast` of the rate that unicast may
    /// use. Returns the mean rates of unicast and multicast over the second half of the time.
    fn request(seconds: u64, bucket: &mut Bucket, multicast: impl Fn(u64) -> u64) -> (u64, u64) {
        const OBJECT: u64 = 90_000;
        let begin = bucket.filled_at;
        let (mut rate, mut sent, mut by_multicast) = (multicast(0), 0, 0);
        for millis in 0..seconds * 1000 {
            rate = multicast(rate / MULTICAST_PARTS * u64::from(bucket.headroom.times));
            let may = bucket.take(OBJECT, rate, begin + Duration::from_millis(millis));
            if millis >= seconds * 500 {
                sent += if may { OBJECT * 8 } else { 0 };
                by_multicast += rate / 1000;
            }
        }
        (sent * 2 / seconds, by_multicast * 2 / seconds)
    }

    #[test]
    fn a_full_link_gives_a_tenth_and_a_link_with_room_gives_what_it_has() {
        const LINK: u64 = 100_000_000;
        let mut bucket = Bucket::new(Instant::now());
        let (unicast, multicast) = request(400, &mut bucket, |unicast| LINK.saturating_sub(unicast));
        assert!((9_000_000..13_000_000).contains(&unicast), "{unicast}");
        assert!(multicast > 85_000_000, "{multicast}");

        // The ports of the receivers are slower than the server's link by a factor of ten.
        let mut bucket = Bucket::new(Instant::now());
        let (unicast, multicast) =
            request(40, &mut bucket, |unicast| (10 * LINK).saturating_sub(unicast).min(LINK));
        assert!(unicast > 3 * LINK && multicast > 95_000_000, "{unicast} beside {multicast}");
    }

    #[test]
    fn what_was_not_used_is_not_all_kept_and_nothing_is_limited_when_no_session_sends() {
        const RATE: u64 = 90_000_000;
        const OBJECT: u64 = 90_000;
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        // What was not used for a long time is not all kept.
        let later = begin + Duration::from_secs(1000);
        let burst = (0..).take_while(|_| bucket.take(OBJECT, RATE, later)).count() as u64 * OBJECT;
        assert!(burst <= RATE / 9 / 8 * 2 + OBJECT, "{burst} bytes at once");
        assert!((0..1000).all(|_| bucket.take(OBJECT, 0, later)));
    }
}
