//! Ports of a switch that bears them all: each sends one thing after the other at its rate, and so it receives.

use base::{Duration, Instant};

/// Bytes of a frame that carry something, and all of it on the wire: TCP over IPv4, with its gap.
const PAYLOAD_BYTES: u64 = 1448;
const FRAME_BYTES: u64 = 1538;

/// How long `bytes` take on a link of this rate.
pub(super) fn wire_time(bytes: u64, bits_per_second: u64) -> Duration {
    let wire = bytes.div_ceil(PAYLOAD_BYTES) * (FRAME_BYTES - PAYLOAD_BYTES) + bytes;
    Duration::from_nanos(wire * 8 * 1_000_000_000 / bits_per_second)
}

/// When a port is free again, each way.
#[derive(Debug, Clone, Copy)]
struct Port {
    sends: Instant,
    receives: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Network {
    bits_per_second: u64,
    one_way: Duration,
    ports: Vec<Port>,
    /// Until when a multicast has a part of each receiving port.
    shared_until: Instant,
    /// Bytes that were sent.
    pub bytes: u64,
}

impl Network {
    pub(super) fn new(ports: usize, bits_per_second: u64, round_trip: Duration) -> Self {
        let port = Port { sends: Instant::ZERO, receives: Instant::ZERO };
        Self {
            bits_per_second,
            one_way: round_trip / 2,
            ports: vec![port; ports],
            shared_until: Instant::ZERO,
            bytes: 0,
        }
    }

    /// A port sends `bytes`, behind what it sends already: when the first of them reaches another port.
    pub(super) fn depart(&mut self, now: Instant, from: usize, bytes: u64) -> Instant {
        self.bytes += bytes;
        let begins = now.max(self.ports[from].sends);
        self.ports[from].sends = begins + wire_time(bytes, self.bits_per_second);
        begins + self.one_way
    }

    /// `bytes` reach a port, the first of them now: when the last is through.
    pub(super) fn arrive(&mut self, now: Instant, to: usize, bytes: u64) -> Instant {
        // A multicast has half of the port.
        let share = if now < self.shared_until { 2 } else { 1 };
        let there = now.max(self.ports[to].receives) + wire_time(bytes, self.bits_per_second) * share;
        self.ports[to].receives = there;
        there
    }

    /// A word without weight.
    pub(super) fn word(&self, now: Instant) -> Instant {
        now + self.one_way
    }

    /// Multicasts things of these lengths from `from` to all, at half the rate: when each of them is there.
    pub(super) fn multicast(
        &mut self,
        now: Instant,
        from: usize,
        lengths: impl Iterator<Item = u64>,
    ) -> Vec<Instant> {
        let mut at = now.max(self.ports[from].sends);
        let there = lengths.map(|bytes| {
            self.bytes += bytes;
            at = at + wire_time(bytes, self.bits_per_second / 2);
            at + self.one_way
        });
        let there = there.collect();
        self.shared_until = at;
        there
    }
}
