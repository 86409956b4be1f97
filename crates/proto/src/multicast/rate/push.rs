//! How far the rate may exceed what is really sent, if this machine's own link or its source of data is slower.
//!
//! The send buffer of a socket follows the rate. If it alone keeps the link busy, a tenth more is enough. If other
//! flows fill the same queue, a session's part of the link is its part of that queue, so a higher rate brings more.
//! So a higher rate is tried now and then, and kept while it brings more.

use super::look::Look;

/// Lowest and highest ratio of the rate to what is sent.
const AHEAD_MIN: f64 = 1.1;
const AHEAD_MAX: f64 = 2.0;
/// A trial multiplies the ratio by `TRY` for `TRY_TIME` seconds; it must raise what is sent by the factor `GAIN`.
const TRY: f64 = 1.5;
const TRY_TIME: f64 = 0.15;
const GAIN: f64 = 1.1;
/// Seconds until the next trial after one that brought nothing.
const REST: f64 = 2.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Push {
    ahead: f64,
    /// What was sent before the trial that runs, in bits per second.
    before: Option<f64>,
    /// The rate before that trial.
    rate: f64,
    /// Bits sent in the present measurement, and its duration in seconds.
    sent: f64,
    passed: f64,
    rest_until: f64,
}

impl Default for Push {
    fn default() -> Self {
        Self { ahead: AHEAD_MIN, before: None, rate: 0.0, sent: 0.0, passed: 0.0, rest_until: 0.0 }
    }
}

impl Push {
    /// The rate to use while the sender is the limit; the rate was `before`, and the law computed `rate`.
    pub(super) fn step(&mut self, look: &Look, before: f64, rate: f64) -> f64 {
        self.sent += look.sent * look.passed;
        self.passed += look.passed;
        if self.passed >= TRY_TIME && look.now >= self.rest_until {
            let sent = self.sent / self.passed;
            (self.sent, self.passed) = (0.0, 0.0);
            if self.before.is_some_and(|before| sent < before * GAIN) {
                self.before = None;
                self.ahead = (self.ahead / TRY).max(AHEAD_MIN);
                self.rest_until = look.now + REST;
                return rate.min(self.rate);
            }
            (self.before, self.rate) = (Some(sent), before);
            self.ahead = (self.ahead * TRY).min(AHEAD_MAX);
        }
        let most = look.sent * self.ahead;
        if self.before.is_some() { rate.max(most.min(2.0 * before)) } else { rate.min(most.max(before)) }
    }

    /// There is congestion: ends the trial.
    pub(super) fn stop(&mut self) {
        self.before = None;
        (self.sent, self.passed) = (0.0, 0.0);
    }
}
