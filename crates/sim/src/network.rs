//! The simulated network: a switch, and one link per receiver with delay, jitter, a rate, a queue, loss, duplication,
//! damage, and partitions.

use base::{Chance, Duration, Instant};

/// One receiver's link.
#[derive(Debug, Clone)]
pub struct Link {
    /// Delay in one direction.
    pub delay: Duration,
    /// Maximum additional delay of a packet, drawn at random, so that packets overtake each other.
    pub jitter: Duration,
    /// Rate of the switch's port towards the receiver.
    pub bits_per_second: u64,
    /// Capacity of that port's queue.
    pub queue_bytes: u64,
    /// Packets lost at random, per million, in each direction.
    pub loss_per_million: u32,
    /// Packets delivered twice, per million.
    pub duplicate_per_million: u32,
    /// Packets delivered with a flipped bit, per million.
    pub damage_per_million: u32,
    /// Whether all packets are dropped, in both directions.
    pub cut: bool,
    port_free_at: Instant,
}

/// When a copy of a packet arrives, and whether it is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Time of arrival.
    pub at: Instant,
    /// Whether a bit is flipped.
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

    /// Returns when a packet of `bytes`, sent by the server now, has left the switch's port; `None` if its queue is
    /// full.
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

    /// Returns the arrivals of a packet of `bytes` that the server sends now: none, one or two.
    pub fn down(&mut self, now: Instant, bytes: usize, chance: &mut Chance) -> [Option<Arrival>; 2] {
        if self.cut || chance.hits(self.loss_per_million) || self.through_port(now, bytes).is_none() {
            return [None, None];
        }
        let twice = self.duplicate_per_million > 0 && chance.hits(self.duplicate_per_million);
        let first = self.arrival(self.port_free_at, chance);
        [Some(first), twice.then(|| self.arrival(self.port_free_at, chance))]
    }

    /// Returns the arrival of a packet that the receiver sends now; `None` if it is lost.
    pub fn up(&self, now: Instant, chance: &mut Chance) -> Option<Arrival> {
        (!self.cut && !chance.hits(self.loss_per_million)).then(|| self.arrival(now, chance))
    }

    fn arrival(&self, sent: Instant, chance: &mut Chance) -> Arrival {
        let jitter = chance.below(self.jitter.as_nanos() as u64 + 1);
        let damaged = self.damage_per_million > 0 && chance.hits(self.damage_per_million);
        Arrival { at: sent + self.delay + Duration::from_nanos(jitter), damaged }
    }
}
