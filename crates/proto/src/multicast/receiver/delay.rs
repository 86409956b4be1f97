//! Measures at the receiver how long packets wait in queues, from the server's timestamps.
//!
//! The clocks of server and receiver are not synchronised, so only differences count: the minimum of arrival time
//! minus timestamp stands for a path without queues, and what exceeds it is waiting time. Clocks drift by 100 ppm at
//! most (quartz of a PC), so the minimum rises by a little more than that, until a packet that did not wait sets it
//! again.

use base::{Duration, Instant};

use crate::multicast::clock::micros;

/// The minimum rises by one part in `DRIFT` of the time that passes: 120 ppm.
const DRIFT: u64 = 8333;
/// [`DelayMeter::take`] returns the minimum over the last 2 to 4 ms. A receiver that slept reads all packets of that
/// time at once, and the newest of them waited for nothing.
const WINDOW: Duration = Duration::from_millis(2);

/// Measures the queueing delay of one stream.
#[derive(Debug, Default)]
pub(in crate::multicast) struct DelayMeter {
    /// Arrival minus timestamp of the first packet, modulo 2^32; all others are relative to it.
    origin_us: Option<u32>,
    /// The minimum delay, without queues, relative to `origin_us`, at `base_at`.
    base_ns: i64,
    base_at: Instant,
    /// Minimum waiting time in µs of the present window, with its start, and of the window before it.
    current: Option<(Instant, u32)>,
    previous: Option<u32>,
    last_us: u32,
    /// Minimum waiting time in µs since the last call of [`DelayMeter::take_least`]; `None` if no packet arrived.
    least_us: Option<u32>,
}

impl DelayMeter {
    /// A packet with this timestamp arrived.
    pub(in crate::multicast) fn packet(&mut self, now: Instant, timestamp_us: u32) {
        let difference = micros(now).wrapping_sub(timestamp_us);
        let relative = difference.wrapping_sub(*self.origin_us.get_or_insert(difference)).cast_signed();
        let delay_ns = i64::from(relative) * 1000;
        let rise_ns = u64::try_from(now.since(self.base_at).as_nanos()).unwrap_or(u64::MAX) / DRIFT;
        let risen = self.base_ns.saturating_add_unsigned(rise_ns);
        if self.base_at == Instant::ZERO || delay_ns <= risen {
            (self.base_ns, self.base_at) = (delay_ns, now);
        } else {
            // Less than a nanosecond of rise is not rounded away: it counts with the next packet.
            (self.base_ns, self.base_at) = (risen, Instant(self.base_at.0 + rise_ns * DRIFT));
        }
        let waited = u32::try_from((delay_ns - self.base_ns + 500) / 1000).unwrap_or(u32::MAX);
        self.least_us = Some(self.least_us.map_or(waited, |least| least.min(waited)));
        match &mut self.current {
            Some((begun, least)) if now.since(*begun) < WINDOW => *least = waited.min(*least),
            current => self.previous = current.replace((now, waited)).map(|(_, least)| least),
        }
    }

    /// The minimum waiting time in microseconds of all packets since the last call; 0 if none arrived.
    pub(in crate::multicast) fn take_least(&mut self) -> u32 {
        self.least_us.take().unwrap_or(0)
    }

    /// The minimum waiting time in microseconds of the packets since the last call, as far as they arrived within the
    /// last few milliseconds; the previous value if there were none.
    pub(in crate::multicast) fn take(&mut self, now: Instant) -> u32 {
        let fresh = self.current.is_some_and(|(begun, _)| now.since(begun) < WINDOW);
        let previous = self.previous.take().filter(|_| fresh);
        if let Some((_, current)) = self.current.take() {
            self.last_us = previous.map_or(current, |previous| previous.min(current));
        }
        self.last_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 5_000_000_000_000;

    fn at(us: u64) -> Instant {
        Instant(START + us * 1000)
    }

    /// Feeds one packet per millisecond, each `waits[i]` µs later than the minimum.
    fn feed(meter: &mut DelayMeter, from_ms: u64, clock_us: u32, waits: &[u64]) {
        for (ms, wait) in (from_ms..).zip(waits) {
            let timestamp = clock_us.wrapping_add(u32::try_from(ms * 1000).unwrap());
            meter.packet(at(ms * 1000 + 300 + wait), timestamp);
        }
    }

    #[test]
    fn waiting_is_what_exceeds_the_least_whatever_the_clocks() {
        for clock in [0, 17, u32::MAX - 5000] {
            let mut meter = DelayMeter::default();
            feed(&mut meter, 0, clock, &[400, 0, 250]);
            assert_eq!(meter.take(at(3000)), 0);
            feed(&mut meter, 3, clock, &[900, 700, 800]);
            assert_eq!(meter.take(at(6700)), 700);
            assert_eq!(meter.take(at(7000)), 700, "nothing new");
        }
    }

    #[test]
    fn only_the_last_milliseconds_count() {
        let mut meter = DelayMeter::default();
        feed(&mut meter, 0, 0, &[0; 40]);
        feed(&mut meter, 40, 0, &[6000; 8]);
        assert!(meter.take(at(53_400)).abs_diff(6000) < 10);
    }

    #[test]
    fn a_pause_of_the_receiver_is_no_queue() {
        let mut meter = DelayMeter::default();
        feed(&mut meter, 0, 0, &[0; 5]);
        meter.take(at(5000));
        for ms in 5..30 {
            meter.packet(at(30_000), ms * 1000);
        }
        assert!(meter.take(at(30_000)) <= 1000);
    }

    #[test]
    fn drift_is_no_queue_and_a_queue_no_drift() {
        let mut meter = DelayMeter::default();
        // The receiver's clock gains 100 ppm for 10 minutes.
        for second in 0..600_u64 {
            meter.packet(at(second * 1_000_100), u32::try_from(second * 1_000_000).unwrap());
            assert!(meter.take(at(second * 1_000_100)) < 50);
        }
        let mut meter = DelayMeter::default();
        feed(&mut meter, 0, 0, &[0; 5]);
        for second in 1..20_u32 {
            meter.packet(at(u64::from(second) * 1_000_000 + 50_300), second * 1_000_000);
        }
        assert!(meter.take(at(20_100_000)) > 45_000);
    }
}
