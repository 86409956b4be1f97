//! Limits what the receivers of multicast sessions get by unicast while a session sends. One host to which multicast
//! does not work would otherwise take the server's link from all others by its TCP connections. When no session has
//! anything to send, unicast is not limited.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use net::api::ProblemKind;
use net::multicast::budget::Budget;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::limits::bucket::Bucket;
use crate::limits::per_address::Shares;
use crate::problem::Failure;

/// What unicast did not use is kept for this time, so that a few objects at the end of a fetch need not wait.
const SAVED: Duration = Duration::from_millis(250);
/// Lowest rate of one answer, in bits per second: even beside a slow session an object takes less than a second.
const PACE_MIN: u64 = 4_000_000;
/// How often a waiting request looks again: the session may have ended.
const STEP: Duration = Duration::from_millis(10);
/// Longest wait. After it the client is told to ask again, before it gives up by itself.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests of one address that wait in turn with those of the others. A receiver has two connections.
const TURNS_OF_ADDRESS: u32 = 2;

/// The limit for all receivers together.
pub(crate) struct UnicastShare {
    budget: Arc<Budget>,
    bucket: Mutex<Bucket>,
    turns: Shares,
}

impl UnicastShare {
    /// The limit beside the sessions of `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let bucket = Mutex::new(Bucket::new(Instant::now()));
        Self { budget, bucket, turns: Shares::default() }
    }

    /// Waits until `bytes` may be sent to `address`. Addresses take turns. `Unavailable` if it takes too long.
    pub(crate) async fn wait_for(&self, address: IpAddr, bytes: u64) -> Result<(), Failure> {
        if self.budget.rate() == 0 {
            return Ok(());
        }
        let allowed = async {
            let _turn = self.turns.take(address, TURNS_OF_ADDRESS, 1).await;
            let mut bucket = self.bucket.lock().await;
            while !take(&mut bucket, bytes, self.rate(), Instant::now()) {
                sleep(STEP).await;
            }
        };
        let busy =
            |_| Failure::new(ProblemKind::Unavailable, "many machines fetch beside a multicast session");
        timeout(PATIENCE, allowed).await.map_err(busy)?;
        self.budget.count_answer(bytes);
        Ok(())
    }

    /// How fast one answer is sent, in bits per second; `None`: as fast as it goes. An object that is sent at once
    /// would fill the link's queue.
    pub(crate) fn pace(&self) -> Option<u64> {
        self.rate().map(paced)
    }

    /// What is left for unicast, in bits per second; `None` if no session sends.
    fn rate(&self) -> Option<u64> {
        (self.budget.rate() > 0).then(|| self.budget.answer_rate())
    }
}

fn paced(rate: u64) -> u64 {
    rate.max(PACE_MIN)
}

/// Takes `bytes` if there are any left at `now`, and `rate` bits per second are left for unicast; `None` if there is no
/// limit. True if the object may be sent.
fn take(bucket: &mut Bucket, bytes: u64, rate: Option<u64>, now: Instant) -> bool {
    let Some(rate) = rate else { return true };
    let may = bucket.fill(rate / 8, SAVED, now) > 0;
    if may {
        bucket.take(bytes);
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_beside_the_slowest_session_arrives_within_a_second() {
        assert!(u64::from(base::limits::CHUNK_BYTES_DEFAULT) * 8 < paced(0));
        assert_eq!(paced(2 * PACE_MIN), 2 * PACE_MIN);
    }

    #[test]
    fn the_rate_is_kept_and_there_is_none_when_no_session_sends() {
        const RATE: u64 = 10_000_000;
        const OBJECT: u64 = 90_000;
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        let mut sent = 0;
        for millis in 0..60_000 {
            let now = begin + Duration::from_millis(millis);
            sent += if take(&mut bucket, OBJECT, Some(RATE), now) { OBJECT } else { 0 };
        }
        let share = RATE / 8 * 60;
        assert!((share..share + 2 * OBJECT).contains(&sent), "{sent} bytes instead of {share}");
        // What was not used for a long time is not all kept.
        let later = begin + Duration::from_secs(1000);
        let burst =
            (0..).take_while(|_| take(&mut bucket, OBJECT, Some(RATE), later)).count() as u64 * OBJECT;
        assert!(burst <= RATE / 8 / 4 + OBJECT, "{burst} bytes at once");
        assert!((0..1000).all(|_| take(&mut bucket, OBJECT, None, later)));
    }
}
