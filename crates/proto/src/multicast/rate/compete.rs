//! Competes with a flow that fills every queue, such as TCP with loss-based congestion control.
//!
//! Then delay is no guide: a flow that yields to it gets nothing. When a buffer of `B` bytes before a link of rate
//! `C` overflows, the window `W` of a TCP flow and the rate `r` of a paced flow satisfy `W / B + r / C = 1`. So this
//! rate is cut and grows like CUBIC's window (RFC 9438), scaled by the time that a full buffer takes to drain; so it
//! gets about half of the link. It is cut when packets are lost, and when the queue falls because the other flow
//! has yielded.

/// Constants of RFC 9438.
const CUBIC_C: f64 = 0.4;
const BETA: f64 = 0.7;
const SEGMENT_BITS: f64 = 8.0 * 1448.0;
/// RFC 9438, section 4.3: growth of a flow like Reno with this `BETA`, in segments per round trip.
const RENO: f64 = 0.53;
/// Assumed delay without a queue, in seconds, which one-way delays do not show.
const WAY: f64 = 0.001;
/// Largest relative change of the rate in one step.
const SLEW: f64 = 0.08;
/// If the queue fell to this part of its peak, another flow has yielded.
const FELL: f64 = 0.8;
/// Time until a change of the rate shows in reports, in addition to the queue.
const SETTLING: f64 = 0.1;
/// A state that lasts this long is not caused by a pause of a host.
const LASTING: f64 = 0.08;
/// Time between two tests whether the other flow is still there; factor for the rate during a test; and its duration,
/// as a multiple of the queue.
const TRY_EVERY: f64 = 3.0;
const TRY_PART: f64 = 0.5;
const TRY_QUEUES: f64 = 2.5;

/// A test whether the queue drains at a lower rate.
#[derive(Debug, Clone, Copy)]
struct Try {
    until: f64,
    rate: f64,
}

/// The state of the competition. Rates in bits per second, times in seconds.
#[derive(Debug)]
pub(super) struct Compete {
    /// Whether a buffer has overflowed, or the other flow has yielded. Until then the rate grows as in TCP's slow
    /// start.
    noticed: bool,
    /// The rate before and after the last cut, and when that was.
    rate_max: f64,
    rate_cut: f64,
    cut_at: f64,
    /// The longest queue since then, and the queue of a full buffer, in seconds.
    peak: f64,
    full: f64,
    /// Since when there is no queue, or a queue much below its peak; infinite if not.
    empty_from: f64,
    fell_from: f64,
    /// From this time on a falling queue is not an effect of our own cut.
    watch_at: f64,
    try_at: f64,
    trying: Option<Try>,
}

impl Compete {
    /// Begins at `rate`. Unless the other flow is `known`, the rate first grows until that flow yields or a buffer
    /// overflows.
    pub(super) fn new(now: f64, rate: f64, queue: f64, known: bool) -> Self {
        Self {
            noticed: known,
            rate_max: rate / BETA,
            rate_cut: rate,
            cut_at: now,
            peak: queue,
            full: queue,
            empty_from: f64::INFINITY,
            fell_from: f64::INFINITY,
            watch_at: now,
            try_at: now + TRY_EVERY,
            trying: None,
        }
    }

    /// The next rate; `Err` with the next rate if no other flow fills the queue any more.
    pub(super) fn step(&mut self, now: f64, rate: f64, queue: f64, low: f64, lost: bool) -> Result<f64, f64> {
        self.empty_from = if queue <= low { self.empty_from.min(now) } else { f64::INFINITY };
        let empty = now - self.empty_from >= LASTING;
        if let Some(trial) = self.trying {
            if empty {
                return Err(trial.rate * 0.95);
            }
            if now < trial.until {
                return Ok(rate);
            }
            self.trying = None;
            self.watch_at = now + queue + SETTLING;
            return Ok(trial.rate);
        }
        if empty {
            return Err(rate);
        }
        self.peak = if now < self.watch_at { queue } else { self.peak.max(queue) };
        self.full = self.full.max(queue);
        self.fell_from = if queue < FELL * self.peak { self.fell_from.min(now) } else { f64::INFINITY };
        let fell = now - self.fell_from >= LASTING;
        let settled = now - self.cut_at > self.full + SETTLING;
        if settled && (lost && queue > FELL * self.full || fell) {
            self.noticed = true;
            self.full = 0.5 * (self.full + self.peak);
            self.fell_from = f64::INFINITY;
            (self.rate_max, self.rate_cut, self.cut_at) = (rate, rate * BETA, now);
            self.watch_at = now + queue + SETTLING;
        } else if now >= self.try_at && self.noticed {
            self.try_at = now + TRY_EVERY;
            self.trying = Some(Try { until: now + TRY_QUEUES * queue + 0.03, rate });
            return Ok(rate * TRY_PART);
        }
        if !self.noticed {
            return Ok(rate * (1.0 + SLEW));
        }
        Ok(self.target(now).clamp(rate * (1.0 - 4.0 * SLEW), rate * (1.0 + SLEW)))
    }

    /// CUBIC's window, converted to a rate.
    fn target(&self, now: f64) -> f64 {
        let passed = now - self.cut_at;
        let segment = SEGMENT_BITS / (self.full + WAY);
        let knee = cube_root((self.rate_max - self.rate_cut).max(0.0) / segment / CUBIC_C);
        let cubic = self.rate_max + CUBIC_C * (passed - knee).powi(3) * segment;
        let reno = self.rate_cut + RENO * passed / (self.full + WAY) * segment;
        cubic.max(reno)
    }
}

/// By Newton's method: the result of the standard library differs between machines.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    (0..60).fold(x.max(1.0), |root, _| (2.0 * root + x / (root * root)) / 3.0)
}
