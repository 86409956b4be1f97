//! Spaces packets so that their bytes on the wire stay under a rate.

use base::{Duration, Instant};

/// A driver that wakes up late may make up for so much time, but not by a burst that a switch's port can't hold.
const CATCH_UP_NS: u64 = 1_000_000;
const CATCH_UP_BYTES: u64 = 128 << 10;

/// Says when the next packet may go.
#[derive(Debug)]
pub(super) struct Pacer {
    bits_per_second: u64,
    next: Instant,
    /// Time that was given and will never be used: the link, or whoever sends, was slower than the rate.
    forfeited: Duration,
}

impl Pacer {
    pub(super) fn new(bits_per_second: u64) -> Self {
        Self { bits_per_second: bits_per_second.max(1), next: Instant::ZERO, forfeited: Duration::ZERO }
    }

    /// When the next packet may go.
    pub(super) const fn ready_at(&self) -> Instant {
        self.next
    }

    /// Books `wire_bytes` that go at `now`.
    pub(super) fn sent(&mut self, now: Instant, wire_bytes: u64) {
        let takes = |bytes: u64| {
            let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_second);
            u64::try_from(nanos).unwrap_or(u64::MAX)
        };
        let oldest = Instant(now.0.saturating_sub(takes(CATCH_UP_BYTES).min(CATCH_UP_NS)));
        if self.next != Instant::ZERO {
            self.forfeited += oldest.since(self.next);
        }
        self.next = self.next.max(oldest) + Duration::from_nanos(takes(wire_bytes));
    }

    /// From now on packets go at this rate.
    pub(super) fn set_rate(&mut self, bits_per_second: u64) {
        self.bits_per_second = bits_per_second.max(1);
    }

    /// How much time was forfeited since this was asked last.
    pub(super) fn take_forfeited(&mut self) -> Duration {
        std::mem::take(&mut self.forfeited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_cap_over_a_second() {
        let mut pacer = Pacer::new(8_000_000);
        let (mut now, mut sent) = (Instant(5_000_000_000), 0);
        let end = now + Duration::from_secs(1);
        while now < end {
            pacer.sent(now, 1000);
            sent += 1000;
            now = now.max(pacer.ready_at());
        }
        assert!((1_000_000..=1_002_000).contains(&sent), "{sent} bytes in a second at 1 MB/s");
    }

    #[test]
    fn what_a_slow_driver_missed_is_forfeited_and_known() {
        let mut pacer = Pacer::new(8_000_000);
        pacer.sent(Instant(1_000_000_000), 1000);
        pacer.take_forfeited();
        // Sent 5 ms after it might have been: one of them may be made up for.
        pacer.sent(Instant(1_005_000_000), 1000);
        assert_eq!(pacer.take_forfeited(), Duration::from_millis(4));
        assert_eq!(pacer.ready_at(), Instant(1_005_000_000));
        assert_eq!(pacer.take_forfeited(), Duration::ZERO);
    }
}
