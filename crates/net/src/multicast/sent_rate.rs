//! How fast a session sends, as people see it: measured, where the machine's rate is only how fast it may send.

use std::time::Duration;

use base::Instant;

use crate::recent::Recent;

/// A session that was sending for less than this has no rate.
const SENDING_MIN: Duration = Duration::from_millis(100);
/// The present rate is that of the last seconds.
const WINDOW: Duration = Duration::from_secs(2);
/// A session that has not sent for this long is idle, and has no present rate.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Counts what a session sends.
pub(super) struct SentRate {
    sending: Duration,
    sending_bytes: u64,
    all_bytes: u64,
    recent: Recent,
    /// When it last sent, and whether it still did when it was last counted.
    sent_at: Option<Instant>,
    is_sending: bool,
}

impl Default for SentRate {
    fn default() -> Self {
        Self {
            sending: Duration::ZERO,
            sending_bytes: 0,
            all_bytes: 0,
            recent: Recent::over(WINDOW),
            sent_at: None,
            is_sending: false,
        }
    }
}

impl SentRate {
    /// During `passed`, up to `now`, `bytes` were sent on the wire. `is_idle` says that these are hardly any.
    pub(super) fn count(&mut self, now: Instant, passed: Duration, bytes: u64, is_idle: bool) {
        if self.is_idle(now) {
            self.recent.clear();
        }
        self.all_bytes += bytes;
        self.recent.count(now.since(Instant::ZERO), self.all_bytes);
        // Nobody knows when in it the first interval after a pause began to send.
        if !is_idle && self.is_sending {
            self.sending += passed;
            self.sending_bytes += bytes;
        }
        if !is_idle {
            self.sent_at = Some(now);
        }
        self.is_sending = !is_idle;
    }

    /// Bits per second while it was sending; 0 if that was too short to tell.
    pub(super) fn while_sending(&self) -> u64 {
        if self.sending < SENDING_MIN {
            return 0;
        }
        let bits = u128::from(self.sending_bytes) * 8_000_000;
        u64::try_from(bits / self.sending.as_micros()).unwrap_or(u64::MAX)
    }

    /// For how long it was sending.
    pub(super) fn sending_time(&self) -> Duration {
        self.sending
    }

    /// Bits per second over the last seconds; `None` if it is idle, or began just now.
    pub(super) fn recent(&self, now: Instant) -> Option<u64> {
        if self.is_idle(now) { None } else { Some(self.recent.per_second()?.saturating_mul(8)) }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.sent_at.is_none_or(|sent| now.since(sent) > IDLE_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Counts `bytes` in each step for `time`.
    fn send(rate: &mut SentRate, now: &mut Instant, time: Duration, bytes: u64) {
        let end = *now + time;
        while *now < end {
            *now = *now + STEP;
            rate.count(*now, STEP, bytes, bytes == 0);
        }
    }

    #[test]
    fn a_pause_does_not_lower_the_rate_and_an_idle_session_has_none() {
        let (mut rate, mut now) = (SentRate::default(), Instant::ZERO);
        assert_eq!((rate.while_sending(), rate.recent(now)), (0, None));
        let second = Duration::from_secs(1);
        // 10 kB in 10 ms are 8 Mbit/s.
        send(&mut rate, &mut now, 3 * second, 10_000);
        assert_eq!((rate.while_sending(), rate.recent(now)), (8_000_000, Some(8_000_000)));
        send(&mut rate, &mut now, 20 * second, 0);
        assert_eq!((rate.while_sending(), rate.recent(now)), (8_000_000, None));
        send(&mut rate, &mut now, second / 2, 20_000);
        assert_eq!(rate.recent(now), None, "half a second says nothing");
        send(&mut rate, &mut now, 3 * second, 20_000);
        assert_eq!(rate.recent(now), Some(16_000_000));
        let sending = rate.sending_time();
        assert!(sending > 6 * second && sending < 7 * second, "{sending:?}");
    }

    #[test]
    fn a_burst_has_no_rate() {
        let (mut rate, mut now) = (SentRate::default(), Instant::ZERO);
        send(&mut rate, &mut now, 5 * STEP, 10_000_000);
        assert_eq!((rate.while_sending(), rate.recent(now)), (0, None));
    }
}
