//! Spaces packets so that their bytes on the wire stay under a rate.

use base::{Duration, Instant};

/// A driver that wakes up late may catch up by at most this time, and at most this many bytes: the buffer of a switch
/// port must hold them.
const CATCH_UP_NS: u64 = 1_000_000;
const CATCH_UP_BYTES: u64 = 128 << 10;
/// One whose processor is busy wakes up late again and again, and would send less and less. It may catch up by as much
/// as it was late, within these bounds. If a buffer on the way is too small for that, losses lower the rate.
const LATE_NS_MAX: u64 = 100_000_000;
const LATE_BYTES: u64 = 256 << 10;
/// What is known of lateness fades by one part in `FADE` of the time that passes.
const FADE: u64 = 16;

/// Computes when the next packet may be sent.
#[derive(Debug)]
pub(super) struct Pacer {
    bits_per_second: u64,
    next: Instant,
    /// Time that was permitted and can no longer be used, because the link or the sender was slower than the rate.
    forfeited: Duration,
    late: Lateness,
}

/// How late the driver wakes up, since its processor has other work.
#[derive(Debug, Default)]
struct Lateness {
    ns: u64,
    at: Instant,
    /// Something else kept it from sending: the link, or what it is to send.
    excused: bool,
}

impl Lateness {
    /// Something that was due at `due` is sent at `now`.
    fn sent(&mut self, now: Instant, due: Instant) {
        let by = if std::mem::take(&mut self.excused) { 0 } else { nanos(now.since(due)) };
        let faded = self.ns.saturating_sub(nanos(now.since(self.at)) / FADE);
        (self.ns, self.at) = (faded.max(by.min(LATE_NS_MAX)), now);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Pacer {
    pub(super) fn new(bits_per_second: u64) -> Self {
        Self {
            bits_per_second: bits_per_second.max(1),
            next: Instant::ZERO,
            forfeited: Duration::ZERO,
            late: Lateness::default(),
        }
    }

    /// The earliest time for the next packet.
    pub(super) const fn ready_at(&self) -> Instant {
        self.next
    }

    /// Accounts for `wire_bytes` that are sent at `now`.
    pub(super) fn sent(&mut self, now: Instant, wire_bytes: u64) {
        if self.next != Instant::ZERO {
            self.late.sent(now, self.next);
        }
        let oldest = Instant(now.0.saturating_sub(self.catch_up_ns()));
        if self.next != Instant::ZERO {
            self.forfeited += oldest.since(self.next);
        }
        self.next = self.next.max(oldest) + Duration::from_nanos(self.takes(wire_bytes));
    }

    /// The time that may be caught up, in nanoseconds.
    fn catch_up_ns(&self) -> u64 {
        let usual = self.takes(CATCH_UP_BYTES).min(CATCH_UP_NS);
        usual.max(self.takes(LATE_BYTES).min(self.late.ns))
    }

    /// The link or the source of data, not the driver, was not ready for what is due.
    pub(super) fn excuse(&mut self) {
        self.late.excused = true;
    }

    /// How late the driver woke up at most, lately.
    pub(super) fn lateness(&self) -> Duration {
        Duration::from_nanos(self.late.ns)
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
    fn a_driver_that_wakes_up_late_catches_up_within_bounds() {
        let mut pacer = Pacer::new(8_000_000);
        pacer.sent(Instant(1_000_000_000), 1000);
        pacer.take_forfeited();
        // Sent 20 ms late: all of it is caught up.
        pacer.sent(Instant(1_020_000_000), 1000);
        assert_eq!(pacer.ready_at(), Instant(1_001_000_000));
        assert_eq!((pacer.take_forfeited(), pacer.lateness()), (Duration::ZERO, Duration::from_millis(20)));
        // No more than a buffer may hold.
        pacer.sent(Instant(61_000_000_000), 1000);
        assert_eq!(pacer.lateness(), Duration::from_millis(100));
        assert_eq!(pacer.ready_at(), Instant(60_901_000_000));
        // If there was nothing to send, it was not late, and what was is forgotten.
        pacer.excuse();
        pacer.sent(Instant(63_000_000_000), 1000);
        assert_eq!(pacer.lateness(), Duration::ZERO);
        assert_eq!(pacer.ready_at(), Instant(63_000_000_000));
    }

    #[test]
    fn what_a_slow_link_missed_is_forfeited_and_known() {
        let mut pacer = Pacer::new(8_000_000);
        pacer.sent(Instant(1_000_000_000), 1000);
        pacer.take_forfeited();
        // Sent 4 ms late: one of them may be caught up.
        pacer.excuse();
        pacer.sent(Instant(1_005_000_000), 1000);
        assert_eq!(pacer.take_forfeited(), Duration::from_millis(4));
        assert_eq!(pacer.ready_at(), Instant(1_005_000_000));
        assert_eq!(pacer.take_forfeited(), Duration::ZERO);
    }
}
