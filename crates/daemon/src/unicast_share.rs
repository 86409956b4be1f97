//! Limits what the receivers of multicast sessions get by unicast while a session sends. One host to which multicast
//! does not work would otherwise take the server's link from all others by its TCP connections. When no session has
//! anything to send, unicast is not limited.

use std::sync::Arc;
use std::time::Duration;

use net::multicast::budget::Budget;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// Unicast gets one part while multicast gets this many: together a sixteenth goes by unicast, which costs the others
/// less than a tenth of their time, the saved bytes below included.
const MULTICAST_PARTS: u64 = 15;
/// What unicast did not use is kept for this time, so that a few objects at the end of a fetch need not wait.
const SAVED: Duration = Duration::from_secs(2);
/// How often a waiting request looks again: the session may have ended.
const STEP: Duration = Duration::from_millis(10);
/// Longest wait. A client gives up a request that is not answered for some seconds, and would send it again.
const PATIENCE: Duration = Duration::from_secs(4);

/// The limit for all receivers together.
pub(crate) struct UnicastShare {
    budget: Arc<Budget>,
    bucket: Mutex<Bucket>,
}

impl UnicastShare {
    /// The limit beside the sessions of `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bucket: Mutex::new(Bucket { bytes: 0, filled_at: Instant::now() }) }
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
        self.budget.count_answer(bytes);
    }
}

/// A token bucket, which fills in proportion to the rate of all sessions.
struct Bucket {
    /// Bytes that may be sent now. Below zero after an object that was larger.
    bytes: i64,
    filled_at: Instant,
}

impl Bucket {
    /// Takes `bytes` if there are any left at `now`, while the sessions send at `rate` bits per second. True if the
    /// object may be sent.
    fn take(&mut self, bytes: u64, rate: u64, now: Instant) -> bool {
        if rate == 0 {
            return true;
        }
        let per_second = u128::from(rate / 8 / MULTICAST_PARTS);
        let in_time =
            |time: Duration| i64::try_from(per_second * time.as_micros() / 1_000_000).unwrap_or(i64::MAX);
        let most = in_time(SAVED);
        self.bytes = self.bytes.saturating_add(in_time(now - self.filled_at)).min(most);
        self.filled_at = now;
        let may = self.bytes > 0;
        if may {
            self.bytes = self.bytes.saturating_sub_unsigned(bytes);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixteenth_goes_by_unicast_and_all_of_it_when_no_session_sends() {
        const RATE: u64 = 150_000_000;
        const OBJECT: u64 = 90_000;
        let begin = Instant::now();
        let mut bucket = Bucket { bytes: 0, filled_at: begin };
        let mut sent = 0;
        for millis in 0..60_000 {
            let now = begin + Duration::from_millis(millis);
            sent += if bucket.take(OBJECT, RATE, now) { OBJECT } else { 0 };
        }
        let share = RATE / 15 / 8 * 60;
        assert!((share..share + 2 * OBJECT).contains(&sent), "{sent} bytes instead of {share}");
        // What was not used for a long time is not all kept.
        let later = begin + Duration::from_secs(1000);
        let burst = (0..).take_while(|_| bucket.take(OBJECT, RATE, later)).count() as u64 * OBJECT;
        assert!(burst <= RATE / 15 / 8 * 2 + OBJECT, "{burst} bytes at once");
        assert!((0..1000).all(|_| bucket.take(OBJECT, 0, later)));
    }
}
