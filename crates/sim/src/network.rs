//! The network: a switch, and one link per receiver with delay, jitter, a rate, a queue, loss, duplication, damage,
//! and partitions.

use base::{Chance, Duration, Instant};

/// One receiver's link.
#[derive(Debug, Clone)]
pub struct Link {
    /// One way.
    pub delay: Duration,
    /// Each packet takes up to so much more: packets overtake each other.
    pub jitter: Duration,
    /// Of the switch's port towards the receiver.
    pub bits_per_second: u64,
    /// Room for packets that wait for that port.
    pub queue_bytes: u64,
    /// Lost at random, of a million, in each direction.
    pub loss_per_million: u32,
    /// Delivered twice, of a million.
    pub duplicate_per_million: u32,
    /// Delivered with a flipped bit, of a million.
    pub damage_per_million: u32,
    /// No packet passes in either direction.
    pub cut: bool,
    port_free_at: Instant,
}

/// When copies of a packet arrive, and whether damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// With a flipped bit.
    pub damaged: bool,
}

impl Link {
    /// A link without faults.
    #[must_use]
    pub const fn new(delay: Duration, bits_per_second: u64, queue_bytes: u64) -> Self {
        Self {
            delay,
            jitter: Duration::ZERO,
            bits_per_second,
            queue_bytes,
            loss_per_million: 0,
            duplicate_per_million: 0,
            damage_per_million: 0,
            cut: false,
            port_free_at: Instant::ZERO,
        }
    }

    /// When a packet of `bytes` that the server sends now has left the switch's port; `None` if its queue is full.
    pub(crate) fn through_port(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let bytes = bytes as u64;
        let waiting = self.port_free_at.since(now).as_nanos() as u64;
        let waiting_bytes = waiting.saturating_mul(self.bits_per_second / 8) / 1_000_000_000;
        if waiting_bytes + bytes > self.queue_bytes {
            return None;
        }
        self.port_free_at =
            self.port_free_at.max(now) + Duration::from_nanos(bytes * 8_000_000_000 / self.bits_per_second);
        Some(self.port_free_at)
    }

    /// What becomes of a packet of `bytes` that the server sends now: no, one or two arrivals.
    pub fn down(&mut self, now: Instant, bytes: usize, chance: &mut Chance) -> [Option<Arrival>; 2] {
        if self.cut || chance.hits(self.loss_per_million) || self.through_port(now, bytes).is_none() {
            return [None, None];
        }
        let twice = self.duplicate_per_million > 0 && chance.hits(self.duplicate_per_million);
        let first = self.arrival(self.port_free_at, chance);
        [Some(first), twice.then(|| self.arrival(self.port_free_at, chance))]
    }

    /// What becomes of a packet that the receiver sends now.
    pub fn up(&self, now: Instant, chance: &mut Chance) -> Option<Arrival> {
        (!self.cut && !chance.hits(self.loss_per_million)).then(|| self.arrival(now, chance))
    }

    fn arrival(&self, sent: Instant, chance: &mut Chance) -> Arrival {
        let jitter = chance.below(self.jitter.as_nanos() as u64 + 1);
        let damaged = self.damage_per_million > 0 && chance.hits(self.damage_per_million);
        Arrival { at: sent + self.delay + Duration::from_nanos(jitter), damaged }
    }
}
