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

/// stub
#[derive(Debug, Clone, Copy)]
pub struct RateConfig {
    /// a
    pub initial: u64,
    /// b
    pub floor: u64,
    /// c
    pub ceiling: u64,
}
#[derive(Debug, Clone, Copy)]
pub(super) struct Feedback {
    pub receiver: super::report::ReceiverId,
    pub queue_us: u32,
    pub arrived: u64,
    pub lost: u64,
}
#[derive(Debug)]
pub(super) struct Rate {
    pacer: Pacer,
    bits: u64,
    loss: f64,
    last: std::collections::HashMap<super::report::ReceiverId, (u64, u64)>,
}
impl Rate {
    pub(super) fn new(_now: Instant, config: RateConfig) -> Self {
        Self {
            pacer: Pacer::new(Some(config.ceiling)),
            bits: config.ceiling,
            loss: 0.0,
            last: Default::default(),
        }
    }
    pub(super) fn ready_at(&self) -> Instant {
        self.pacer.ready_at()
    }
    pub(super) fn sent(&mut self, now: Instant, b: u64) {
        self.pacer.sent(now, b)
    }
    pub(super) fn feedback(&mut self, _now: Instant, f: &Feedback, _r: u32) {
        let _ = f.queue_us;
        let last = self.last.insert(f.receiver, (f.arrived, f.lost)).unwrap_or((0, 0));
        let (a, l) = (f.arrived.saturating_sub(last.0), f.lost.saturating_sub(last.1));
        if a + l > 20 {
            self.loss = self.loss * 0.9 + 0.1 * l as f64 / (a + l) as f64;
        }
    }
    pub(super) fn forget(&mut self, r: super::report::ReceiverId) {
        self.last.remove(&r);
    }
    pub(super) fn set_ceiling(&mut self, b: u64) {
        self.bits = b;
    }
    pub(super) fn bits_per_second(&self) -> u64 {
        self.bits
    }
    pub(super) fn run_blocks_max(&self, packet: u64, most: u16) -> u16 {
        ((self.bits / 8 / 1000 / packet).max(1).min(most as u64)) as u16
    }
    pub(super) fn loss_per_million(&self) -> u32 {
        (self.loss * 1e6) as u32
    }
}
