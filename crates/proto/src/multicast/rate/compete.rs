//! Standing one's ground beside a flow that fills every queue, such as TCP with loss-based congestion control.
//!
//! Delay says nothing then: whoever yields to it is left with nothing. So the rate follows a window like that of one
//! CUBIC flow (RFC 9438): bytes that may lie on the way, queue included, which shrink to 0.7 when packets are lost or the
//! queue falls since the other shrank, and grow back along a cubic. The rate is that window over the time on the way.

/// Constants of RFC 9438.
const CUBIC_C: f64 = 0.4;
const BETA: f64 = 0.7;
const SEGMENT_BITS: f64 = 8.0 * 1448.0;
/// RFC 9438, section 4.3: growth of a flow like Reno with this `BETA`, in segments per round trip.
const RENO: f64 = 0.53;
/// Time on the way without queue, which one-way delays can't tell.
const WAY: f64 = 0.001;
/// Most that the rate changes in one step.
const SLEW: f64 = 0.08;
/// A queue that fell by so much from its peak was let down by somebody.
const FELL: f64 = 0.8;
/// Time between two tries whether the other is still there, and what the rate is during one.
const TRY_EVERY: f64 = 3.0;
const TRY_PART: f64 = 0.5;
const TRY_QUEUES: f64 = 2.5;

#[derive(Debug, Clone, Copy)]
struct Try {
    until: f64,
    queue: f64,
    rate: f64,
}

#[derive(Debug)]
pub(super) struct Compete {
    /// Window in bits, its largest before the last cut, and when that was.
    window_max: f64,
    cut_window: f64,
    cut_at: f64,
    peak: f64,
    try_at: f64,
    trying: Option<Try>,
}

impl Compete {
    pub fn new(now: f64, rate: f64, queue: f64) -> Self {
        let window = rate * (queue + WAY);
        Self {
            window_max: window / BETA,
            cut_window: window,
            cut_at: now,
            peak: queue,
            try_at: now + TRY_EVERY,
            trying: None,
        }
    }

    /// The next rate; `Err` if nobody else fills the queue any more.
    pub fn step(&mut self, now: f64, rate: f64, queue: f64, low: f64, lost: bool) -> Result<f64, f64> {
        if let Some(trial) = self.trying {
            if queue <= low.max(0.3 * trial.queue) {
                return Err(trial.rate * 0.95);
            }
            if now < trial.until {
                return Ok(rate);
            }
            self.trying = None;
            self.peak = queue;
            return Ok(trial.rate);
        }
        if queue <= low {
            return Err(rate);
        }
        self.peak = self.peak.max(queue);
        let settled = now - self.cut_at > queue + 0.1;
        let window = self.window(now, queue);
        if settled && (lost || queue < FELL * self.peak) {
            (self.window_max, self.cut_window, self.cut_at) = (window, window * BETA, now);
            self.peak = queue;
        } else if now >= self.try_at {
            self.try_at = now + TRY_EVERY;
            self.trying = Some(Try { until: now + TRY_QUEUES * queue + 0.03, queue, rate });
            return Ok(rate * TRY_PART);
        }
        let target = self.window(now, queue) / (queue + WAY);
        Ok(target.clamp(rate * (1.0 - SLEW), rate * (1.0 + SLEW)))
    }

    fn window(&self, now: f64, queue: f64) -> f64 {
        let passed = now - self.cut_at;
        let (max, low) = (self.window_max / SEGMENT_BITS, self.cut_window / SEGMENT_BITS);
        let knee = cube_root((max - low).max(0.0) / CUBIC_C);
        let cubic = CUBIC_C * (passed - knee).powi(3) + max;
        let reno = low + RENO * passed / (queue + WAY);
        cubic.max(reno).min(4.0 * max) * SEGMENT_BITS
    }
}

/// Newton's, since the standard library's differs between machines.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    (0..40).fold(x.max(1.0), |root, _| (2.0 * root + x / (root * root)) / 3.0)
}
