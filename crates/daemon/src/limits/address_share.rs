//! Limits what one address gets by unicast, outside sessions, and what all of them get, while a session sends. Whoever
//! may read could otherwise open many connections, and take the server's link from the receivers of the session.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use net::multicast::budget::Budget;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::bucket::Bucket;

/// An address gets one part while the sessions send this many.
const SESSION_PARTS: u64 = 3;
/// All addresses together get one part while the sessions send this many: at most half of the link.
const TOTAL_PARTS: u64 = 1;
/// What an address gets in any case, in bits per second.
const RATE_MIN: u64 = 10_000_000;
/// What an address did not use is kept for this time.
const SAVED: Duration = Duration::from_millis(500);
/// Longest time until an answer looks again: the session may have ended.
const STEP: Duration = Duration::from_millis(50);
/// Most addresses that are remembered.
const ADDRESSES_MAX: usize = 4096;

/// The limits of all addresses.
pub(crate) struct AddressShare {
    budget: Arc<Budget>,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    total: Option<Bucket>,
    addresses: HashMap<IpAddr, Bucket>,
}

impl AddressShare {
    /// The limits beside the sessions of `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, buckets: Mutex::default() }
    }

    /// Takes `bytes` for `address` at `now`; or returns how long to wait before it is asked again.
    pub(crate) fn take(&self, address: IpAddr, bytes: usize, now: Instant) -> Result<(), Duration> {
        let sessions = self.budget.rate();
        if sessions == 0 || address.is_loopback() {
            return Ok(());
        }
        self.buckets.lock().take(address, bytes, sessions, now)?;
        self.budget.count_answer(bytes as u64);
        Ok(())
    }
}

impl Buckets {
    /// Takes `bytes` for `address` while the sessions send `sessions` bits per second.
    fn take(&mut self, address: IpAddr, bytes: usize, sessions: u64, now: Instant) -> Result<(), Duration> {
        let Self { total, addresses } = self;
        if addresses.len() >= ADDRESSES_MAX {
            addresses.retain(|_, bucket| now.duration_since(bucket.filled_at()) < SAVED);
        }
        let bytes_per_second = |parts: u64| (sessions / parts).max(RATE_MIN) / 8;
        let own = addresses.entry(address.to_canonical()).or_insert(Bucket::new(now));
        fill(own, bytes_per_second(SESSION_PARTS), now)?;
        let total = total.get_or_insert(Bucket::new(now));
        fill(total, bytes_per_second(TOTAL_PARTS), now)?;
        own.take(bytes as u64);
        total.take(bytes as u64);
        Ok(())
    }
}

/// Fills the bucket; or returns how long to wait, if it is still empty.
fn fill(bucket: &mut Bucket, bytes_per_second: u64, now: Instant) -> Result<(), Duration> {
    let bytes = bucket.fill(bytes_per_second, SAVED, now);
    if bytes < 0 {
        let missing = bytes.unsigned_abs().saturating_mul(1_000_000) / bytes_per_second.max(1);
        return Err(Duration::from_micros(missing).clamp(Duration::from_millis(1), STEP));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSIONS: u64 = 96_000_000;

    /// Bytes for `addresses` addresses in 30 seconds, in which each asks 150 times a millisecond.
    fn sent_to(addresses: u8) -> u64 {
        const PIECE: usize = 64 << 10;
        let (begin, mut buckets, mut sent) = (Instant::now(), Buckets::default(), 0);
        for millis in 0..30_000 {
            let now = begin + Duration::from_millis(millis);
            for ask in 0..150_u8 {
                let address = IpAddr::from([10, 0, 0, ask % addresses]);
                match buckets.take(address, PIECE, SESSIONS, now) {
                    Ok(()) => sent += PIECE as u64,
                    Err(wait) => assert!((Duration::from_millis(1)..=STEP).contains(&wait)),
                }
            }
        }
        sent
    }

    #[test]
    fn an_address_gets_a_third_of_the_sessions_rate_however_many_ask_and_all_get_as_much_as_the_sessions() {
        let second = SESSIONS / 8;
        for (addresses, share) in [(1, second * 10), (2, second * 20), (3, second * 30), (50, second * 30)] {
            let sent = sent_to(addresses);
            assert!(sent.abs_diff(share) < second, "{sent} bytes instead of {share} to {addresses}");
        }
    }

    #[test]
    fn nothing_is_limited_without_a_session_and_addresses_are_forgotten() {
        let budget = Budget::new(None, 1_000_000);
        let share = AddressShare::new(budget);
        let (address, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        assert!((0..1000).all(|_| share.take(address, 1 << 20, now).is_ok()));
        assert!(share.buckets.lock().addresses.is_empty());
    }
}
