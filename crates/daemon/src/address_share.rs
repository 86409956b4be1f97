//! Limits what one address gets by unicast, outside sessions, while a session sends. Whoever may read could otherwise
//! open many connections, and take the server's link from the receivers of the session.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use net::multicast::budget::Budget;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::crowd::place_of;

/// An address gets one part while the sessions send this many.
const SESSION_PARTS: u64 = 3;
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
    buckets: Mutex<HashMap<IpAddr, Bucket>>,
}

/// What an address may get now, in bytes; below zero after a piece that was larger.
#[derive(Clone, Copy)]
struct Bucket {
    bytes: i64,
    filled_at: Instant,
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
        let mut buckets = self.buckets.lock();
        if buckets.len() >= ADDRESSES_MAX {
            buckets.retain(|_, bucket| now.duration_since(bucket.filled_at) < SAVED);
        }
        let bucket = buckets.entry(place_of(address)).or_insert(Bucket { bytes: 0, filled_at: now });
        bucket.take(bytes, (sessions / SESSION_PARTS).max(RATE_MIN) / 8, now)?;
        self.budget.count_answer(bytes as u64);
        Ok(())
    }
}

impl Bucket {
    fn take(&mut self, bytes: usize, bytes_per_second: u64, now: Instant) -> Result<(), Duration> {
        let in_time = |time: Duration| {
            i64::try_from(u128::from(bytes_per_second) * time.as_micros() / 1_000_000).unwrap_or(i64::MAX)
        };
        let filled = self.bytes.saturating_add(in_time(now.duration_since(self.filled_at)));
        (self.bytes, self.filled_at) = (filled.min(in_time(SAVED)), now);
        if self.bytes < 0 {
            let missing = self.bytes.unsigned_abs().saturating_mul(1_000_000) / bytes_per_second.max(1);
            return Err(Duration::from_micros(missing).clamp(Duration::from_millis(1), STEP));
        }
        self.bytes = self.bytes.saturating_sub_unsigned(bytes as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_a_third_of_the_sessions_rate_however_many_ask() {
        const PIECE: usize = 64 << 10;
        let begin = Instant::now();
        let mut bucket = Bucket { bytes: 0, filled_at: begin };
        let rate = 96_000_000 / SESSION_PARTS / 8;
        let mut sent = 0;
        for millis in 0..30_000 {
            let now = begin + Duration::from_millis(millis);
            for _ in 0..150 {
                match bucket.take(PIECE, rate, now) {
                    Ok(()) => sent += PIECE as u64,
                    Err(wait) => assert!((Duration::from_millis(1)..=STEP).contains(&wait)),
                }
            }
        }
        let share = rate * 30;
        assert!(sent.abs_diff(share) < rate, "{sent} bytes instead of {share}");
    }

    #[test]
    fn nothing_is_limited_without_a_session_and_addresses_are_forgotten() {
        let budget = Budget::new(None, 1_000_000);
        let share = AddressShare::new(budget);
        let (address, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        assert!((0..1000).all(|_| share.take(address, 1 << 20, now).is_ok()));
        assert!(share.buckets.lock().is_empty());
    }
}
