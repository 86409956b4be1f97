//! The rate: finds what the path of the typical receiver bears, follows it, and shares it.
//!
//! **What it follows.** Receivers report how long packets waited on their way (`delay.rs`), how many blocks arrived and
//! how many were lost. The *typical* receiver is the median of those heard within 30 ms (of the last 12, if these are
//! fewer), of two the better one: what a minority suffers, be it a slow port, disk or processor, does not slow the
//! others (`sense.rs`). Jitter is told from a queue by taking the least waiting time of the last milliseconds: a queue
//! lets no packet through at once, a processor that slept does. Loss by chance is told from overflow because it does
//! not depend on the rate: only what exceeds the lower quartile of the last 24 windows of 125 ms without a queue
//! counts, by 2 % and 3.5 standard deviations at least, while the queue is long (8 % count at any time). What is lost
//! still right after a cut, both without a queue, did not depend on the rate either: it counts as three windows. A loss
//! counts 25 ms after it was reported if it has not turned up by then.
//!
//! **Search.** It begins at `initial` and doubles every 9 ms or more, as soon as five receivers (or all) have reported
//! since, until the typical queue exceeds 3 ms or losses grow by 5 %. Then it becomes 0.97 of what is delivered.
//!
//! **Following** (`law.rs`), every 25 ms: above a queue of 4 ms and two packets the rate is cut to 0.9, or to 0.97 of
//! what is delivered if that is less. For as long as the queue of before lasts it is lower still, by the part of 150 ms
//! that the queue takes, at most 0.3: so queues drain and everybody sees an empty one, which is what waiting time is
//! measured against. Nothing is decided again before packets that were sent after the cut have been reported. Below a
//! queue of 1 ms the rate rises by 0.7 Mbit/s × (1 + (t / 62 ms)²) each step, where `t` is the time without a queue,
//! and by 0.5 % of itself. All who share a queue see the same `t`, so they rise alike and are cut in proportion: their
//! rates become equal, at 100 Mbit/s and at 1 Gbit/s within about 2 s. Faster than 120 Mbit/s each goes on in the
//! direction in which its part of the link moved since its last cut (`share.rs`), which needs half as many cuts. Where
//! a buffer overflows before a queue of 4 ms is seen, half of the queue at the last overflow takes its place for 5 s.
//!
//! **Beside TCP** (`compete.rs`). A flow with loss-based congestion control fills every queue, whatever others do. If
//! five cuts within half a second or more, down to 0.6 of the rate, have not drained the queue, somebody does that.
//! Then delay is no longer followed: the rate grows by 8 % each step until packets are lost or the queue falls to 0.8
//! and stays so (somebody has yielded), and from then on as the window of one CUBIC flow does: cut to 0.7, grown back
//! along CUBIC's cubic. Each gets between a third and two thirds of the link in simulation, where plain following would
//! leave nothing to one. Every 3 s the rate is halved until the queue has drained, or two and a half times its length
//! have passed: if it drained, the other has gone.
//!
//! **Its own link** (`push.rs`). Where this machine's link or the source of data is slower, time is forfeited: what was
//! allowed and not sent. Then the rate is at most 1.1 times what is really sent, and the queue in this machine (6 ms
//! and 256 KiB at most, not growing) is no congestion. A socket's buffer follows the rate, so beside other flows on
//! that link more ahead may bring more: that is tried every 2 s, up to twice of it, and kept while it brings a tenth
//! more.
//!
//! **Bounds.** Packets are spaced; a run takes half a millisecond at most, what a late driver may catch up with is a
//! millisecond or 128 KiB. Without a report for a second the rate is halved each second, down to `floor`.
//!
//! Where the constants come from: 4 ms are above the jitter of busy hosts after the least was taken, and within the 32
//! to 64 KiB that a port of a small switch has for 100 Mbit/s; 25 ms are two reports of one receiver; the others were
//! tried in the simulation in `tests`, with links from 10 Mbit/s to 10 Gbit/s, buffers from 16 KiB to 1 MiB, 1 to 16
//! receivers and six seeds each.

mod compete;
mod feedback;
mod law;
mod look;
mod pacer;
mod push;
mod sense;
mod share;
#[cfg(test)]
mod tests;

use base::{Duration, Instant};

pub(super) use self::feedback::Feedback;
use self::law::{Law, Verdict};
use self::look::Look;
use self::pacer::Pacer;
use self::sense::Sense;
use crate::multicast::wire::header::ReceiverId;

/// Bounds of a session's rate, in bits per second on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// Where the search begins.
    pub initial: u64,
    /// The rate is never lower, unless a ceiling set later is.
    pub floor: u64,
    /// The rate is never higher.
    pub ceiling: u64,
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
/// A search that has not gone on for so long waits for something else than reports: for data, or the ceiling.
const SEEK_PATIENCE: Duration = Duration::from_millis(100);
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
    /// The queue at the last cut, in seconds.
    cut_queue: f64,
    heard_at: Instant,
    loss: f64,
    packet_bits: f64,
}

impl Rate {
    pub(super) fn new(now: Instant, config: RateConfig) -> Self {
        let [initial, floor, ceiling] = [config.initial, config.floor.max(1), config.ceiling].map(to_float);
        let law = Law::new(seconds(now), initial, floor.min(ceiling), ceiling);
        let pacer = Pacer::new(to_bits(law.rate));
        Self {
            law,
            sense: Sense::default(),
            pacer,
            looked_at: now,
            sent_bytes: 0,
            view_from: now,
            cut_or_raised: now,
            cut_queue: 0.0,
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

    /// Whether the search for the link waits for reports: it has begun, or has doubled the rate, not long ago.
    pub(super) fn is_seeking(&self, now: Instant) -> bool {
        self.law.is_seeking() && now.since(self.cut_or_raised) < SEEK_PATIENCE
    }

    /// How many packets of `packet_wire_bytes` may go back to back: as many as take half a millisecond, at least one.
    pub(super) fn run_blocks_max(&self, packet_wire_bytes: u64, most: u16) -> u16 {
        // Whoever sends the longer runs finds the buffer full first.
        let run_ns = if self.law.is_competing() { RUN_NS / 2 } else { RUN_NS };
        let bits = u128::from(self.bits_per_second()) * u128::from(run_ns) / 1_000_000_000;
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
        // What was lost without a queue, and is lost still at once after a cut, does not depend on the rate.
        let queue = self.cut_queue.max(view.map_or(0.0, |view| view.queue_last));
        if let Some(view) = view.filter(|_| queue < CHANCE_QUEUE) {
            self.sense.book_after_cut(view.loss, law::LOSS_HIGH);
        }
        let forfeited = self.pacer.take_forfeited().as_secs_f64();
        let baseline = self.sense.baseline();
        let look = Look {
            now: seconds(now),
            passed,
            sent: to_float(self.sent_bytes) * 8.0 / passed,
            limited: forfeited > LIMITED_PART * passed,
            view,
            baseline,
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
                self.cut_queue = view.map_or(0.0, |view| view.queue_last);
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
