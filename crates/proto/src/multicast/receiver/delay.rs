//! Measures at the receiver how long packets wait in queues, from the server's timestamps.
//!
//! The clocks of server and receiver are not synchronised, so only differences count: the minimum of arrival time
//! minus timestamp stands for a path without queues, and what exceeds it is waiting time. Clocks drift by 100 ppm at
//! most (quartz of a PC), so the minimum rises by a little more than that, until a packet that did not wait sets it
//! again.
//!
//! Every member of the group can forge BLOCKs, and one with a wrong timestamp would leave a minimum that no packet
//! reaches again: a queue that is none, for hours. So signed packets (STATUS) set the minimum, and BLOCKs lower it by
//! [`UNSIGNED_MAX`] at most.
//!
//! Arrival is when a packet reached this machine. A receiver that reads more slowly than packets come keeps them in its
//! socket, which is a queue, too, and overflows; one that is late now and then empties it each time.
//!
//! The server's clock may stand still, with its virtual machine. Then all delays grow by the pause, which also looks
//! like a queue (see [`Jump`]).

use std::collections::VecDeque;

use base::{Duration, Instant};

use crate::multicast::clock::micros;

/// The minimum rises by one part in `DRIFT` of the time that passes: 120 ppm.
const DRIFT: u64 = 8333;
/// [`DelayMeter::take`] returns the minimum over the last 2 to 4 ms. A receiver that slept reads all packets of that
/// time at once, and the newest of them waited for nothing.
const WINDOW: Duration = Duration::from_millis(2);
/// A server that woke up late sends at once what it missed. Runs sent so shortly after one another, in µs, and no
/// longer than that after the first of them, are such a burst: all but the first wait for those before them, which is
/// no queue. On a link that carries the rate, that takes no longer than nothing was sent before the burst.
const BURST_GAP_US: u32 = 200;
const BURST_US: u32 = 5000;
const PAUSE_US_MAX: u32 = 100_000;
/// So many of the latest windows count for [`DelayMeter::take_usual`].
const MINIMA: usize = 256;
/// BLOCKs are more frequent than STATUS, so they find the minimum sooner. They lower it by this at most, in ns: less
/// than the queue that slows a session (4 ms).
const UNSIGNED_MAX: i64 = 1_000_000;
/// Delays that grow by less than this from one signed packet to the next are no pause of the server's clock.
const JUMP_MIN: Duration = Duration::from_millis(200);
/// After a pause the lowest delays of this many times in a row are within `STEADY`, in ns. A queue that other traffic
/// fills is not as steady: 4 ms are four packets at 12 Mbit/s.
const STEADY_TIMES: u8 = 5;
const STEADY_TIME: Duration = Duration::from_millis(500);
const STEADY: i64 = 4_000_000;

/// Measures the queueing delay of one stream.
#[derive(Debug, Default)]
pub(in crate::multicast) struct DelayMeter {
    /// Arrival minus timestamp of the first signed packet, modulo 2^32; all others are relative to it.
    origin_us: Option<u32>,
    /// The minimum delay of signed packets, without queues, relative to `origin_us`, at `base_at`.
    base_ns: i64,
    base_at: Instant,
    /// BLOCKs had a delay that was lower by this.
    unsigned_ns: i64,
    /// Arrival and delay of the last signed packet.
    signed: Option<(Instant, i64)>,
    jump: Option<Jump>,
    burst: Option<Burst>,
    /// Minimum waiting time in µs of the present window, with its start, and of the window before it.
    current: Option<(Instant, u32)>,
    previous: Option<u32>,
    last_us: u32,
    /// The shortest time in µs that a packet waited in the socket since the last call of [`DelayMeter::take`].
    kept_us: Option<u32>,
    /// The minima of the windows since the last call of [`DelayMeter::take_usual`], in µs.
    minima_us: VecDeque<u32>,
}

/// Packets that the server sent at once.
#[derive(Debug, Clone, Copy)]
struct Burst {
    /// The timestamps of the first and the last of them.
    begun_us: u32,
    last_us: u32,
    /// Nothing was sent for so long before, in µs.
    pause_us: u32,
    /// The shortest time that one of them waited, in µs.
    least_us: u32,
}

impl Burst {
    /// How long a packet of it waited for others than those before it in the burst. The packets of one run have one
    /// timestamp, and are none.
    fn waited(&self, waited_us: u32) -> u32 {
        let is_long = self.last_us != self.begun_us;
        if is_long { waited_us.saturating_sub(self.pause_us).max(self.least_us) } else { waited_us }
    }
}

/// The delay grew by almost as much as the time that passed: the server's clock stood still, or the network held the
/// packets. Held packets drain, or other traffic makes their delay vary. If the delays stay high, and all are equal, it
/// was the clock.
#[derive(Debug)]
struct Jump {
    /// A delay below this says that the packets were held.
    held_below_ns: i64,
    /// The time that is being measured began then, and the lowest delay in it.
    began: Instant,
    low_ns: i64,
    /// The lowest and the highest of the `times` lowest delays in a row that were steady.
    lowest_ns: i64,
    highest_ns: i64,
    times: u8,
}

impl Jump {
    fn new(now: Instant, before_ns: i64, delay_ns: i64) -> Self {
        let held_below_ns = before_ns + (delay_ns - before_ns) / 2;
        Self {
            held_below_ns,
            began: now,
            low_ns: delay_ns,
            lowest_ns: i64::MAX,
            highest_ns: i64::MIN,
            times: 0,
        }
    }

    /// A signed packet has this delay. Returns the minimum delay from now on, if it was the clock that made the jump.
    fn signed(&mut self, now: Instant, delay_ns: i64) -> Option<i64> {
        self.low_ns = self.low_ns.min(delay_ns);
        if now.since(self.began) < STEADY_TIME {
            return None;
        }
        let low_ns = std::mem::replace(&mut self.low_ns, i64::MAX);
        self.began = now;
        (self.lowest_ns, self.highest_ns) = (self.lowest_ns.min(low_ns), self.highest_ns.max(low_ns));
        self.times += 1;
        if self.highest_ns - self.lowest_ns > STEADY {
            (self.lowest_ns, self.highest_ns, self.times) = (low_ns, low_ns, 1);
        }
        (self.times == STEADY_TIMES).then_some(self.lowest_ns)
    }
}

impl DelayMeter {
    /// A packet with this timestamp arrived. `is_signed`: nobody but the server can have made it. Packets before the
    /// first signed one are not measured.
    pub(in crate::multicast) fn packet(&mut self, now: Instant, timestamp_us: u32, is_signed: bool) {
        let difference = micros(now).wrapping_sub(timestamp_us);
        if is_signed && self.origin_us.is_none() {
            (self.origin_us, self.base_at) = (Some(difference), now);
        }
        let Some(origin_us) = self.origin_us else { return };
        let delay_ns = i64::from(difference.wrapping_sub(origin_us).cast_signed()) * 1000;
        self.rise(now);
        if is_signed {
            self.lower(delay_ns);
            self.watch_clock(now, delay_ns);
        } else {
            self.unsigned_ns = self.unsigned_ns.max((self.base_ns - delay_ns).min(UNSIGNED_MAX));
        }
        self.jump.take_if(|jump| delay_ns < jump.held_below_ns);
        let waited_ns = (delay_ns - self.base_ns + self.unsigned_ns).max(0);
        let waited_us = u32::try_from((waited_ns + 500) / 1000).unwrap_or(u32::MAX);
        let waited_us = self.of_burst(timestamp_us, waited_us);
        self.note(now, waited_us);
    }

    /// How long a packet waited for others than those that the server sent at once with it.
    fn of_burst(&mut self, timestamp_us: u32, waited_us: u32) -> u32 {
        let since = |before_us: u32| timestamp_us.wrapping_sub(before_us);
        let goes_on = |burst: &Burst| since(burst.last_us) < BURST_GAP_US && since(burst.begun_us) < BURST_US;
        let burst = match self.burst {
            Some(burst) if goes_on(&burst) => {
                Burst { last_us: timestamp_us, least_us: burst.least_us.min(waited_us), ..burst }
            }
            before => {
                let pause_us = before.map_or(0, |before| since(before.last_us));
                let pause_us = if pause_us > PAUSE_US_MAX { 0 } else { pause_us };
                Burst { begun_us: timestamp_us, last_us: timestamp_us, pause_us, least_us: waited_us }
            }
        };
        self.burst.insert(burst).waited(waited_us)
    }

    /// The minimum rises with the drift of the clocks.
    fn rise(&mut self, now: Instant) {
        let rise_ns = u64::try_from(now.since(self.base_at).as_nanos()).unwrap_or(u64::MAX) / DRIFT;
        // Less than a nanosecond of rise is not rounded away: it counts with the next packet.
        self.base_ns = self.base_ns.saturating_add_unsigned(rise_ns);
        self.base_at = Instant(self.base_at.0 + rise_ns * DRIFT);
    }

    /// A signed packet had this delay, which is the minimum if it is lower.
    fn lower(&mut self, delay_ns: i64) {
        let by_ns = (self.base_ns - delay_ns).max(0);
        self.base_ns -= by_ns;
        self.unsigned_ns = (self.unsigned_ns - by_ns).max(0);
    }

    /// Looks for a pause of the server's clock before this signed packet, or whether there was one.
    fn watch_clock(&mut self, now: Instant, delay_ns: i64) {
        let last = self.signed.replace((now, delay_ns));
        if let Some((at, before_ns)) = last {
            let gap_ns = i64::try_from(now.since(at).as_nanos()).unwrap_or(i64::MAX);
            let grew_ns = delay_ns - before_ns;
            if i128::from(grew_ns) >= JUMP_MIN.as_nanos().cast_signed() && grew_ns > gap_ns / 4 * 3 {
                self.jump = Some(Jump::new(now, before_ns, delay_ns));
            }
        }
        if let Some(base_ns) = self.jump.as_mut().and_then(|jump| jump.signed(now, delay_ns)) {
            (self.base_ns, self.base_at, self.unsigned_ns, self.jump) = (base_ns, now, 0, None);
        }
    }

    /// A packet waited for this long.
    fn note(&mut self, now: Instant, waited_us: u32) {
        match &mut self.current {
            Some((begun, least)) if now.since(*begun) < WINDOW => *least = waited_us.min(*least),
            current => {
                self.previous = current.replace((now, waited_us)).map(|(_, least)| least);
                if self.minima_us.len() == MINIMA {
                    self.minima_us.pop_front();
                }
                self.minima_us.extend(self.previous);
            }
        }
    }

    /// A packet was read this long after it had arrived at this machine.
    pub(in crate::multicast) fn kept(&mut self, kept: Duration) {
        let kept_us = u32::try_from(kept.as_micros()).unwrap_or(u32::MAX);
        self.kept_us = Some(self.kept_us.map_or(kept_us, |least| least.min(kept_us)));
    }

    /// How long packets usually waited at least since the last call, in microseconds: the lower quartile of the minima
    /// of [`WINDOW`]s; 0 if none arrived.
    pub(in crate::multicast) fn take_usual(&mut self) -> u32 {
        let mut minima = Vec::from(std::mem::take(&mut self.minima_us));
        minima.sort_unstable();
        minima.get(minima.len() / 4).copied().unwrap_or(0)
    }

    /// The minimum waiting time in microseconds of the packets since the last call, as far as they arrived within the
    /// last few milliseconds, and the shortest that one of them was kept in the socket; the previous value if there
    /// were none.
    pub(in crate::multicast) fn take(&mut self, now: Instant) -> u32 {
        let fresh = self.current.is_some_and(|(begun, _)| now.since(begun) < WINDOW);
        let previous = self.previous.take().filter(|_| fresh);
        if let Some((_, current)) = self.current.take() {
            let kept_us = self.kept_us.take().unwrap_or(0);
            self.last_us = previous.map_or(current, |previous| previous.min(current)).saturating_add(kept_us);
        }
        self.last_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 5_000_000_000_000;
    /// Every so many ms one of the packets is signed.
    const SIGNED_MS: u64 = 10;

    fn at(us: u64) -> Instant {
        Instant(START + us * 1000)
    }

    /// Feeds one packet per millisecond, each `waits[i]` µs later than the minimum.
    fn feed(meter: &mut DelayMeter, from_ms: u64, clock_us: u32, waits: &[u64]) {
        for (ms, wait) in (from_ms..).zip(waits) {
            let timestamp = clock_us.wrapping_add(u32::try_from(ms * 1000).unwrap());
            meter.packet(at(ms * 1000 + 300 + wait), timestamp, ms % SIGNED_MS == 0);
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
            meter.packet(at(30_000), ms * 1000, ms == 10);
        }
        assert!(meter.take(at(30_000)) <= 1000);
    }

    #[test]
    fn a_socket_that_is_never_empty_is_a_queue() {
        let mut meter = DelayMeter::default();
        let mut take = |from_ms, kept_ms: [u64; 3]| {
            feed(&mut meter, from_ms, 0, &[0; 3]);
            kept_ms.into_iter().for_each(|ms| meter.kept(Duration::from_millis(ms)));
            meter.take(at((from_ms + 3) * 1000))
        };
        assert_eq!(take(0, [30, 25, 20]), 20_000);
        assert_eq!(take(3, [25, 0, 40]), 0, "it was late, and emptied it");
        assert_eq!(take(6, [9, 8, 12]), 8000);
        assert_eq!(meter.take(at(9000)), 8000, "nothing new");
    }

    #[test]
    fn a_burst_of_a_server_that_woke_up_late_is_no_queue() {
        let mut meter = DelayMeter::default();
        feed(&mut meter, 0, 0, &[0; 20]);
        meter.take(at(20_000));
        // Sent within a millisecond, it takes ten to arrive. The receiver reports meanwhile.
        for packet in 0..10 {
            meter.packet(at(40_300 + packet * 1000), 40_000 + u32::try_from(packet).unwrap() * 100, false);
            assert!(meter.take(at(40_300 + packet * 1000)) < 50, "{packet}");
        }
        // If even the first packet of the next one waits, there is a queue.
        meter.packet(at(70_300 + 6000), 70_000, false);
        assert!(meter.take(at(76_400)).abs_diff(6000) < 50);
    }

    #[test]
    fn drift_is_no_queue_and_a_queue_no_drift() {
        let mut meter = DelayMeter::default();
        // The receiver's clock gains 100 ppm for 10 minutes.
        for second in 0..600_u64 {
            meter.packet(at(second * 1_000_100), u32::try_from(second * 1_000_000).unwrap(), true);
            assert!(meter.take(at(second * 1_000_100)) < 50);
        }
        let mut meter = DelayMeter::default();
        feed(&mut meter, 0, 0, &[0; 5]);
        for second in 1..20_u32 {
            meter.packet(at(u64::from(second) * 1_000_000 + 50_300), second * 1_000_000, true);
        }
        assert!(meter.take(at(20_100_000)) > 45_000);
    }

    #[test]
    fn forged_blocks_leave_no_queue_and_no_minimum() {
        for ahead_us in [1_000_000_u32, 20_000, u32::MAX / 2 - 100_000] {
            let mut meter = DelayMeter::default();
            // Before the first signed packet, and later.
            meter.packet(at(0), ahead_us, false);
            feed(&mut meter, 0, 0, &[0; 100]);
            (0..50).for_each(|_| meter.packet(at(100_000), 100_000 + ahead_us, false));
            feed(&mut meter, 101, 0, &[0; 50]);
            let queue_us = meter.take(at(151_300));
            assert!(queue_us <= 1000, "{queue_us} µs after blocks from {ahead_us} µs ahead");
        }
    }

    #[test]
    fn blocks_refine_the_minimum_of_signed_packets() {
        let mut meter = DelayMeter::default();
        // Signed packets wait for 600 µs, others do not.
        let waits: Vec<u64> = (0..100).map(|ms| if ms % SIGNED_MS == 0 { 600 } else { 0 }).collect();
        feed(&mut meter, 0, 0, &waits);
        feed(&mut meter, 100, 0, &[5000; 20]);
        assert!(meter.take(at(125_000)).abs_diff(5000) < 20);
    }

    /// Delays of this many seconds, from one second on, are `wait(ms)` µs, and nothing arrives in the pause before
    /// them, in which the server's clock stood still. Returns what the meter says then.
    fn after_a_pause(pause_us: u64, seconds: u64, wait: impl Fn(u64) -> u64) -> u32 {
        let mut meter = DelayMeter::default();
        feed(&mut meter, 0, 0, &[0; 1000]);
        for ms in 1000..1000 + seconds * 1000 {
            let arrives = at(ms * 1000 + 300 + pause_us + wait(ms));
            meter.packet(arrives, u32::try_from(ms * 1000).unwrap(), ms % SIGNED_MS == 0);
        }
        meter.take(at((1 + seconds) * 1_000_000 + pause_us))
    }

    #[test]
    fn a_pause_of_the_servers_clock_is_soon_no_queue() {
        for pause_us in [250_000, 3_000_000, 900_000_000] {
            assert!(after_a_pause(pause_us, 1, |_| 0) > 200_000, "it looks like a queue for a moment");
            let jitter = |ms: u64| ms * 7919 % 20 * 500;
            for wait in [&(|_| 0_u64) as &dyn Fn(u64) -> u64, &jitter] {
                let queue_us = after_a_pause(pause_us, 4, wait);
                assert!(queue_us < 4000, "{queue_us} µs after a pause of {pause_us} µs");
            }
        }
    }

    #[test]
    fn a_queue_that_comes_at_once_is_no_pause() {
        // Another flow fills a queue of a second at once, and keeps it between 0.7 and 1 of that.
        let sawtooth = |ms: u64| 700_000 + ms % 3000 * 100;
        assert!(after_a_pause(0, 30, sawtooth) > 600_000);
        // The network held the packets of a second, which then drain.
        let held = |ms: u64| 1_000_000_u64.saturating_sub((ms - 1000) * 1000).max(50_000);
        assert!(after_a_pause(0, 30, held) > 40_000, "what remains is a queue");
    }
}
