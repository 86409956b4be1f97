//! The rate: a cap only. The next form follows what the network delivers.

use base::{Duration, Instant};

/// A driver that wakes up late may make up for so much time, but not by a burst that a switch's port can't hold.
const CATCH_UP_NS: u64 = 1_000_000;
const CATCH_UP_BYTES: u64 = 128 << 10;

/// Spaces packets so that their bytes on the wire stay under a cap.
#[derive(Debug)]
pub(super) struct Pacer {
    bits_per_second: Option<u64>,
    next: Instant,
}

impl Pacer {
    pub(super) fn new(bits_per_second: Option<u64>) -> Self {
        Self { bits_per_second: bits_per_second.map(|rate| rate.max(1)), next: Instant::ZERO }
    }

    /// When the next packet may go.
    pub(super) const fn ready_at(&self) -> Instant {
        self.next
    }

    /// Books `wire_bytes` that go at `now`.
    pub(super) fn sent(&mut self, now: Instant, wire_bytes: u64) {
        let Some(rate) = self.bits_per_second else { return };
        let takes = |bytes: u64| {
            u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
        };
        let oldest = Instant(now.0.saturating_sub(takes(CATCH_UP_BYTES).min(CATCH_UP_NS)));
        self.next = self.next.max(oldest) + Duration::from_nanos(takes(wire_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_cap_over_a_second() {
        let mut pacer = Pacer::new(Some(8_000_000));
        let (mut now, mut sent) = (Instant(5_000_000_000), 0);
        let end = now + Duration::from_secs(1);
        while now < end {
            pacer.sent(now, 1000);
            sent += 1000;
            now = now.max(pacer.ready_at());
        }
        assert!((1_000_000..=1_002_000).contains(&sent), "{sent} bytes in a second at 1 MB/s");
    }
}
