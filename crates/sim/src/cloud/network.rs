//! The network of a cloud: ports of a switch that can serve all of them at full rate. Each port sends and receives
//! one object after the other at its rate.

use base::{Duration, Instant};

/// Payload of a full frame, and its size on the wire: TCP over IPv4 with the inter-frame gap.
const PAYLOAD_BYTES: u64 = 1448;
const FRAME_BYTES: u64 = 1538;

/// Time that `bytes` take on a link of this rate.
pub(super) fn wire_time(bytes: u64, bits_per_second: u64) -> Duration {
    let wire = bytes.div_ceil(PAYLOAD_BYTES) * (FRAME_BYTES - PAYLOAD_BYTES) + bytes;
    Duration::from_nanos(wire * 8 * 1_000_000_000 / bits_per_second)
}

/// When a port is free again, in each direction.
#[derive(Debug, Clone, Copy)]
struct Port {
    sends: Instant,
    receives: Instant,
}

/// The ports.
#[derive(Debug)]
pub(super) struct Network {
    bits_per_second: u64,
    one_way: Duration,
    ports: Vec<Port>,
    /// Until when a multicast uses a part of each receiving port.
    shared_until: Instant,
    /// Total bytes sent.
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

    /// A port sends `bytes` after everything queued before. Returns when the first of them reaches another port.
    pub(super) fn depart(&mut self, now: Instant, from: usize, bytes: u64) -> Instant {
        self.bytes += bytes;
        let begins = now.max(self.ports[from].sends);
        self.ports[from].sends = begins + wire_time(bytes, self.bits_per_second);
        begins + self.one_way
    }

    /// `bytes` start to arrive at a port now. Returns when the last of them has arrived.
    pub(super) fn arrive(&mut self, now: Instant, to: usize, bytes: u64) -> Instant {
        // A multicast uses half of the port.
        let share = if now < self.shared_until { 2 } else { 1 };
        let there = now.max(self.ports[to].receives) + wire_time(bytes, self.bits_per_second) * share;
        self.ports[to].receives = there;
        there
    }

    /// Arrival of a small message, whose length is ignored.
    pub(super) fn word(&self, now: Instant) -> Instant {
        now + self.one_way
    }

    /// Multicasts objects of these lengths from `from` to all ports, at half the rate. Returns when each of them has
    /// arrived.
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
