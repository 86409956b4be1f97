//! A TCP flow with CUBIC congestion control (RFC 9438), as far as a full link is concerned: window, slow start that
//! ends when the delay rises (HyStart), one cut per round trip with losses. It always has something to send.

use std::collections::VecDeque;

use base::Chance;

use super::net::{MS, PACKET, Port};

const WAY: u64 = MS / 10;

#[derive(Debug)]
pub(super) struct Tcp {
    window: f64,
    threshold: f64,
    flying: f64,
    /// When what was sent is acknowledged, or known to be lost; and when it was sent.
    answers: VecDeque<(u64, u64, bool)>,
    window_max: f64,
    cut_at: u64,
    cut_window: f64,
    recovery_until: u64,
    begins: u64,
    round: u64,
    /// Bytes delivered per 100 ms.
    pub buckets: Vec<u64>,
}

impl Tcp {
    pub(super) fn new(begins: u64) -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            flying: 0.0,
            answers: VecDeque::new(),
            window_max: 0.0,
            cut_at: begins,
            cut_window: 10.0,
            recovery_until: 0,
            begins,
            round: MS,
            buckets: vec![],
        }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    pub(super) fn next(&self) -> u64 {
        self.answers.front().map_or(self.begins, |(at, ..)| *at)
    }

    pub(super) fn act(&mut self, now: u64, port: &mut Port, chance: &mut Chance) {
        if now < self.begins {
            return;
        }
        while let Some((at, sent, lost)) = self.answers.pop_front_if(|(at, ..)| *at <= now) {
            self.flying -= 1.0;
            self.round = at - sent;
            if lost {
                self.lose(at);
            } else {
                let bucket = ((at - super::net::SECOND) / (100 * MS)) as usize;
                self.buckets.resize(self.buckets.len().max(bucket + 1), 0);
                self.buckets[bucket] += PACKET;
                self.grow(at);
            }
        }
        while self.flying + 1.0 <= self.window {
            self.flying += 1.0;
            let (when, lost) = match port.pass(now, PACKET) {
                Ok(when) => (when, chance.hits(port.loss_per_million)),
                Err(when) => (when, true),
            };
            let when = (when + 2 * WAY).max(self.answers.back().map_or(0, |(at, ..)| *at));
            self.answers.push_back((when, now, lost));
        }
    }

    fn lose(&mut self, now: u64) {
        if now < self.recovery_until {
            return;
        }
        self.recovery_until = now + self.round;
        self.window_max = if self.window < self.window_max { self.window * 0.85 } else { self.window };
        self.window = (self.window * 0.7).max(2.0);
        (self.threshold, self.cut_at, self.cut_window) = (self.window, now, self.window);
    }

    fn grow(&mut self, now: u64) {
        if now < self.recovery_until {
            return;
        }
        if self.window < self.threshold {
            self.window += 1.0;
            if self.window >= 16.0 && self.round > 2 * WAY + 4 * MS {
                (self.threshold, self.cut_at, self.cut_window) = (self.window, now, self.window);
                self.window_max = self.window;
            }
            return;
        }
        let passed = (now - self.cut_at) as f64 / 1e9;
        let knee = ((self.window_max - self.cut_window).max(0.0) / 0.4).cbrt();
        let ahead = passed + self.round as f64 / 1e9 - knee;
        let cubic = 0.4 * ahead.powi(3) + self.window_max;
        let reno = self.cut_window + 0.53 * passed / (self.round as f64 / 1e9);
        let target = cubic.max(reno).clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) / self.window;
    }

    /// The mean rate in bits per second over that time.
    pub(super) fn mean(&self, from_ms: u64, to_ms: u64) -> f64 {
        let buckets = (from_ms / 100..to_ms / 100).filter_map(|bucket| self.buckets.get(bucket as usize));
        buckets.sum::<u64>() as f64 * 8e3 / (to_ms - from_ms) as f64
    }
}
