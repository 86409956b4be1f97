//! The rate: finds what the path of the typical receiver bears, and follows it.

mod compete;
mod law;
mod pacer;
mod push;
mod sense;
#[cfg(test)]
mod tests;

use base::{Duration, Instant};

use self::law::{Law, Look, Verdict};
use self::pacer::Pacer;
use self::sense::Sense;
use super::report::ReceiverId;

/// Bounds of a session's rate, in bits per second on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// Where the search begins.
    pub initial: u64,
    /// The rate is never lower.
    pub floor: u64,
    /// The rate is never higher.
    pub ceiling: u64,
}

/// What a receiver reports about its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Feedback {
    pub receiver: ReceiverId,
    /// See [`super::delay::DelayMeter::take`].
    pub queue_us: u32,
    /// BLOCKs that arrived, since it joined.
    pub arrived: u64,
    /// BLOCKs that were lost, since it joined.
    pub lost: u64,
}

/// Without any report for so long, the rate is halved.
const SILENCE: Duration = Duration::from_secs(1);
/// Part of the time that may be forfeited before what sends counts as slower than the rate.
const LIMITED_PART: f64 = 0.02;
/// A run takes at most so much of the time.
const RUN_NS: u64 = 500_000;
/// Losses count as chance while the queue is shorter than this, in seconds.
const CHANCE_QUEUE: f64 = 0.002;
/// Reports show a change of the rate after so long.
const EFFECT: Duration = Duration::from_millis(5);
/// The search looks at reports of so many receivers at least, if there are.
const SEEK_RECEIVERS: usize = 5;
/// Largest packet assumed.
const PACKET_BITS: f64 = 8.0 * 1514.0;

/// Paces the packets of a session at a rate that follows what receivers report. See the module.
#[derive(Debug)]
pub(super) struct Rate {
    law: Law,
    sense: Sense,
    pacer: Pacer,
    /// When the last look was taken, and what was sent since.
    looked_at: Instant,
    sent_bytes: u64,
    /// Reports from before that say nothing about the rate as it is.
    view_from: Instant,
    cut_or_raised: Instant,
    heard_at: Instant,
    loss: f64,
    packet_bits: f64,
}

impl Rate {
    pub(super) fn new(now: Instant, config: RateConfig) -> Self {
        let [initial, floor, ceiling] = [config.initial, config.floor.max(1), config.ceiling].map(to_float);
        let law = Law::new(seconds(now), initial, floor.min(ceiling), ceiling);
        let pacer = Pacer::new(Some(to_bits(law.rate)));
        Self {
            law,
            sense: Sense::default(),
            pacer,
            looked_at: now,
            sent_bytes: 0,
            view_from: now,
            cut_or_raised: now,
            heard_at: now,
            loss: 0.0,
            packet_bits: PACKET_BITS,
        }
    }

    /// Packets of BLOCKs have so many bytes on the wire; without it, as many as Ethernet's largest frame.
    pub(super) fn with_packet(self, wire_bytes: u64) -> Self {
        Self { packet_bits: to_float(wire_bytes.max(1)) * 8.0, ..self }
    }

    /// When the next packet may go.
    pub(super) fn ready_at(&self) -> Instant {
        self.pacer.ready_at()
    }

    /// Books `wire_bytes` that go at `now`.
    pub(super) fn sent(&mut self, now: Instant, wire_bytes: u64) {
        self.pacer.sent(now, wire_bytes);
        self.sent_bytes += wire_bytes;
        if now.since(self.heard_at) >= SILENCE {
            self.heard_at = now;
            self.law.fade();
            self.pacer.set_rate(self.bits_per_second());
        }
    }

    /// Takes in what one of `receivers` reports.
    pub(super) fn feedback(&mut self, now: Instant, report: &Feedback, receivers: u32) {
        self.heard_at = now;
        self.sense.feedback(now, report);
        let passed = now.since(self.looked_at).as_secs_f64();
        if passed >= self.law.step() {
            self.look(now, passed, receivers as usize);
        }
    }

    /// A receiver left.
    pub(super) fn forget(&mut self, receiver: ReceiverId) {
        self.sense.forget(receiver);
    }

    /// The rate is not to be higher from now on.
    pub(super) fn set_ceiling(&mut self, bits_per_second: u64) {
        self.law.set_ceiling(to_float(bits_per_second));
        self.pacer.set_rate(self.bits_per_second());
    }

    /// The rate now.
    pub(super) fn bits_per_second(&self) -> u64 {
        to_bits(self.law.rate)
    }

    /// How many packets of `packet_wire_bytes` may go back to back: as many as take half a millisecond, at least one.
    pub(super) fn run_blocks_max(&self, packet_wire_bytes: u64, most: u16) -> u16 {
        let bits = u128::from(self.bits_per_second()) * u128::from(RUN_NS) / 1_000_000_000;
        let packets = bits / (8 * u128::from(packet_wire_bytes.max(1)));
        u16::try_from(packets).unwrap_or(most).clamp(1, most.max(1))
    }

    /// What the typical receiver loses while the path is not too full, of a million packets.
    pub(super) fn loss_per_million(&self) -> u32 {
        u32::try_from(to_bits(self.loss * 1e6)).unwrap_or(u32::MAX).min(1_000_000)
    }

    #[cfg(test)]
    fn law_name(&self) -> &'static str {
        self.law.mode_name()
    }

    fn look(&mut self, now: Instant, passed: f64, receivers: usize) {
        let fresh = self.sense.view(now, self.view_from);
        let view = fresh.or_else(|| self.sense.view(now, self.cut_or_raised));
        // One receiver of many may be a slow one.
        if self.law.is_seeking() && view.is_none_or(|view| view.receivers < receivers.min(SEEK_RECEIVERS)) {
            return;
        }
        let forfeited = self.pacer.take_forfeited().as_secs_f64();
        let look = Look {
            now: seconds(now),
            passed,
            sent: to_float(self.sent_bytes) * 8.0 / passed,
            limited: forfeited > LIMITED_PART * passed,
            view,
            baseline: self.sense.baseline(),
            fresh: fresh.is_some(),
            delivered: view.map_or(0.0, |view| view.pace * self.packet_bits),
            packet: self.packet_bits / self.law.rate,
        };
        let verdict = self.law.look(&look);
        // Without a queue what is lost is lost by chance.
        if let Some(view) = view.filter(|view| verdict == Verdict::Calm && view.queue_last < CHANCE_QUEUE) {
            self.sense.book_loss(now, view.loss);
            if view.loss.of > 0.0 {
                self.loss += 0.1 * (view.loss.part - self.loss);
            }
        }
        match verdict {
            Verdict::Calm | Verdict::Congested => {}
            Verdict::Raised => {
                self.view_from = now + EFFECT;
                self.cut_or_raised = self.view_from;
            }
            Verdict::Cut => {
                // What was sent before the cut has to pass first: it says nothing about the rate after it.
                self.cut_or_raised = now;
                self.view_from = now + Duration::from_secs_f64(self.law.queue_cut) + EFFECT;
                self.sense.begin_era(self.view_from + EFFECT);
            }
        }
        (self.looked_at, self.sent_bytes) = (now, 0);
        self.pacer.set_rate(self.bits_per_second());
    }
}

fn seconds(now: Instant) -> f64 {
    now.since(Instant::ZERO).as_secs_f64()
}

fn to_float(number: u64) -> f64 {
    sense::ratio(number, 1)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
fn to_bits(rate: f64) -> u64 {
    rate as u64
}
