//! Spaces packets so that their bytes on the wire stay under a rate.

use base::{Duration, Instant};

/// A driver that wakes up late may catch up by at most this time, and at most this many bytes: the buffer of a switch
/// port must hold them.
const CATCH_UP_NS: u64 = 1_000_000;
const CATCH_UP_BYTES: u64 = 128 << 10;

/// Computes when the next packet may be sent.
#[derive(Debug)]
pub(super) struct Pacer {
    bits_per_second: u64,
    next: Instant,
    /// Time that was permitted and can no longer be used, because the link or the sender was slower than the rate.
    forfeited: Duration,
}

impl Pacer {
    pub(super) fn new(bits_per_second: u64) -> Self {
        Self { bits_per_second: bits_per_second.max(1), next: Instant::ZERO, forfeited: Duration::ZERO }
    }

    /// The earliest time for the next packet.
    pub(super) const fn ready_at(&self) -> Instant {
        self.next
    }

    /// Accounts for `wire_bytes` that are sent at `now`.
    pub(super) fn sent(&mut self, now: Instant, wire_bytes: u64) {
        let oldest = Instant(now.0.saturating_sub(self.takes(CATCH_UP_BYTES).min(CATCH_UP_NS)));
        if self.next != Instant::ZERO {
            self.forfeited += oldest.since(self.next);
        }
        self.next = self.next.max(oldest) + Duration::from_nanos(self.takes(wire_bytes));
    }

    /// Puts the next packet off by the time that `wire_bytes` take.
    pub(super) fn leave_room(&mut self, wire_bytes: u64) {
        self.next = self.next + Duration::from_nanos(self.takes(wire_bytes));
    }

    /// Nanoseconds that `bytes` take.
    fn takes(&self, bytes: u64) -> u64 {
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_second);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Sets the rate from now on.
    pub(super) fn set_rate(&mut self, bits_per_second: u64) {
        self.bits_per_second = bits_per_second.max(1);
    }

    /// The time that was forfeited since the last call.
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
    fn room_that_is_left_puts_the_next_packet_off_and_is_not_forfeited() {
        let mut pacer = Pacer::new(8_000_000);
        pacer.sent(Instant(1_000_000_000), 1000);
        pacer.take_forfeited();
        pacer.leave_room(3000);
        assert_eq!(pacer.ready_at(), Instant(1_003_000_000));
        pacer.sent(Instant(1_003_000_000), 1000);
        assert_eq!((pacer.ready_at(), pacer.take_forfeited()), (Instant(1_004_000_000), Duration::ZERO));
    }

    #[test]
    fn what_a_slow_driver_missed_is_forfeited_and_known() {
        let mut pacer = Pacer::new(8_000_000);
        pacer.sent(Instant(1_000_000_000), 1000);
        pacer.take_forfeited();
        // Sent 5 ms late: one of them may be caught up.
        pacer.sent(Instant(1_005_000_000), 1000);
        assert_eq!(pacer.take_forfeited(), Duration::from_millis(4));
        assert_eq!(pacer.ready_at(), Instant(1_005_000_000));
        assert_eq!(pacer.take_forfeited(), Duration::ZERO);
    }
}
