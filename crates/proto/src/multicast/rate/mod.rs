//! The rate of a session: finds what the path of the typical receiver carries, follows it, and shares it with others.
//!
//! **Input.** Receivers report how long packets waited in queues (`delay.rs`), how many blocks arrived and how many
//! were lost. The *typical* receiver is the median of those that reported within 30 ms (of the last 12, if these are
//! fewer); of two it is the better one. So a minority with a slow port, disk or processor does not slow the others
//! (`sense.rs`).
//! - Jitter or queue: the minimum waiting time of the last milliseconds counts. A queue delays all packets, a
//!   processor that slept only some; of a burst of a server that woke up late the first packet waits for nothing.
//! - Random loss or overflow: random loss does not depend on the rate. The baseline is the lower quartile of the loss
//!   in the last 24 windows of 125 ms without a queue. While the queue is long, loss counts that exceeds the baseline
//!   by 2 % and 3.5 standard deviations at least; 8 % count at any time. Loss directly after a cut, without a queue
//!   before and after it, did not depend on the rate either: it counts as three windows.
//! - Reordering: a loss counts 25 ms after it was reported, if the packet has not arrived by then.
//!
//! **Search.** The rate begins at `initial`. It doubles every 9 ms or more, as soon as five receivers (or all) have
//! reported since the last step, until the typical queue exceeds 3 ms or loss grows by 5 %. Then it becomes 0.97 of
//! what is delivered.
//!
//! **Following** (`law.rs`), every 25 ms:
//! - Above a queue of 4 ms and two packets, the rate is cut to 0.9, or to 0.97 of what is delivered if that is less.
//! - While the old queue lasts, the rate is even lower, by the queue's part of 150 ms, at most 0.3. So queues drain,
//!   and every receiver sees an empty queue, the reference for waiting times. The next decision waits for reports
//!   about packets that were sent after the cut.
//! - Below a queue of 1 ms, each step raises the rate by 0.7 Mbit/s × (1 + (t / 62 ms)²), where `t` is the time
//!   without a queue, and by 0.5 % of the rate. All flows that share a queue see the same `t`, so they rise equally
//!   and are cut in proportion. Their rates become equal within about 2 s, at 100 Mbit/s and at 1 Gbit/s.
//! - Above 120 Mbit/s, a rate whose share of the link moved since its last cut continues in that direction
//!   (`share.rs`). This needs half as many cuts.
//! - If a buffer overflows before the queue reaches 4 ms, half of the queue at the last overflow is the threshold for
//!   5 s.
//!
//! **With TCP on the same link** (`compete.rs`). A flow with loss-based congestion control fills every queue. If five
//! cuts over at least half a second, down to 0.6 of the rate, have not drained the queue, there is such a flow. Then
//! the rate does not follow delay any more. It grows by 8 % per step until packets are lost, or until the queue falls
//! to 0.8 and stays there (the other flow has yielded). From then on it follows the window of one CUBIC flow: it is
//! cut to 0.7, and grows along CUBIC's cubic function. In simulation each flow gets between a third and two thirds of
//! the link; plain following would leave almost nothing to this one. Every 3 s the rate is halved until the queue has
//! drained or two and a half times its length have passed. If it drained, the other flow has ended.
//!
//! **The server's own link** (`push.rs`). If this machine's link or its source of data is slower than the rate, part
//! of the permitted time is forfeited: nothing was sent in it. Then the rate is at most 1.1 times what is really
//! sent, and this machine's own queue (at most 6 ms and 256 KiB, not growing) is no congestion. The socket's buffer
//! follows the rate, so with other flows on that link a higher rate may bring more. So every 2 s a higher rate is
//! tried, up to twice what is sent, and kept while it brings a tenth more. A driver that sees what passes this
//! machine's interface sets the part to take itself (`Server::set_own_share`); then only losses lower the rate. What
//! the machine sends by other ways takes its time from the session's (`Server::leave_room`): the rate is that of both.
//!
//! **Bounds.** Packets are spaced. A run takes at most half a millisecond. A driver that wakes up late may catch up
//! by a millisecond or 128 KiB, whichever is less; one whose processor is busy by as much as it was late, or 256 KiB.
//! After a second without a report the rate is halved each second, down to `floor`. The next report begins the search
//! again, from the rate that was found, or `initial`: the cause may have been a cable, or a receiver that never heard a
//! packet. A report of a receiver to which no packet arrived yet says nothing else.
//!
//! **Sources of the constants.** 4 ms exceed the jitter of busy hosts (after the minimum is taken), and fit the 32 to
//! 64 KiB that a port of a small switch has at 100 Mbit/s. 25 ms are two reports of one receiver. The others were
//! found by the simulation in `tests`, with links from 10 Mbit/s to 10 Gbit/s, buffers from 16 KiB to 1 MiB, 1 to 16
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

use std::collections::VecDeque;

use base::{Duration, Instant};

pub(super) use self::feedback::Feedback;
use self::law::{Law, Own, Verdict};
use self::look::Look;
use self::pacer::Pacer;
use self::sense::Sense;
use crate::multicast::wire::header::ReceiverId;

/// Bounds of a session's rate, in bits per second on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// The rate at which the search begins.
    pub initial: u64,
    /// The lowest rate, unless a later ceiling is lower.
    pub floor: u64,
    /// The highest rate.
    pub ceiling: u64,
}

/// The part of this machine's own link that a session is to take, while that link is the limit and others use it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnShare {
    /// The part, in bits per second on the wire.
    pub rate: u64,
    /// How long packets wait before that link.
    pub queue: Duration,
}

/// After this time without any report the rate is halved.
const SILENCE: Duration = Duration::from_secs(1);
/// If more than this part of the time is forfeited, the sender counts as slower than the rate.
const LIMITED_PART: f64 = 0.02;
/// Longest time that a run takes, in nanoseconds.
const RUN_NS: u64 = 500_000;
/// Losses count as random while the queue is shorter than this, in seconds.
const CHANCE_QUEUE: f64 = 0.002;
/// While a receiver says that other traffic wants room on its full link, and for `CROWDED_LASTS` after it said so, the
/// rate is this part of what the session got before. TCP that got nothing for some seconds tries again after as long.
const CROWDED_PART: f64 = 0.8;
const CROWDED_LASTS: Duration = Duration::from_secs(5);
/// The queue that receivers compare theirs with is the median over this time.
const TYPICAL: Duration = Duration::from_millis(250);
/// Time until reports show a change of the rate.
const EFFECT: Duration = Duration::from_millis(5);
/// Each step of the search waits for the reports of this many receivers, or of all if they are fewer.
const SEEK_RECEIVERS: usize = 5;
/// A search that takes longer waits only for receivers that reported recently: the others may be dead.
const SEEK_DOUBT: Duration = Duration::from_millis(150);
/// A search without a step for this time waits not for reports, but for data, or it has reached the ceiling.
const SEEK_PATIENCE: Duration = Duration::from_millis(100);
/// Parts of the rate, in millionths, that all reports together may take; while the search waits for them; and on slow
/// links, up to `REPORTS_BITS` per second: with few reports a rate that is too high is noticed late.
const REPORTS_SHARE: u64 = 4_000;
const REPORTS_SHARE_SEEKING: u64 = 8_000;
const REPORTS_SHARE_SLOW: u64 = 20_000;
const REPORTS_BITS: u64 = 400_000;
/// Bits of the largest packet that is assumed.
const PACKET_BITS: f64 = 8.0 * 1514.0;

/// Paces the packets of a session at a rate that follows what receivers report. See the module.
#[derive(Debug)]
pub(super) struct Rate {
    law: Law,
    sense: Sense,
    pacer: Pacer,
    /// When [`Law::look`] was last called, and the bytes on the wire that were sent since.
    looked_at: Instant,
    sent_bytes: u64,
    /// Reports from before this time describe an earlier rate.
    view_from: Instant,
    cut_or_raised: Instant,
    /// The queue at the last cut, in seconds.
    cut_queue: f64,
    heard_at: Instant,
    /// The rate was halved since the last report; the one from which the search begins then.
    faded: bool,
    resumes_at: f64,
    /// When the search began.
    search_from: Instant,
    /// The highest rate that was set, and the one that leaves room for other traffic.
    ceiling: f64,
    room: f64,
    crowded: Option<Crowded>,
    /// The median of the receivers' queues, in seconds, at each look within `TYPICAL`.
    queues: VecDeque<(Instant, f64)>,
    loss: f64,
    packet_bits: f64,
    /// The largest number of receivers so far whose reports the rate is based on.
    judges: usize,
}

/// Other traffic wants room on the full link of a receiver.
#[derive(Debug)]
struct Crowded {
    /// When a receiver last said so.
    asked_at: Instant,
    /// The rate that leaves room, in bits per second.
    ceiling: f64,
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
            faded: false,
            resumes_at: initial,
            search_from: now,
            ceiling,
            room: f64::MAX,
            crowded: None,
            queues: VecDeque::new(),
            loss: 0.0,
            packet_bits: PACKET_BITS,
            judges: 1,
        }
    }

    /// Sets the bytes of a full BLOCK on the wire; without it, the length of Ethernet's largest frame is assumed.
    pub(super) fn with_packet(self, wire_bytes: u64) -> Self {
        Self { packet_bits: to_float(wire_bytes.max(1)) * 8.0, ..self }
    }

    /// The earliest time for the next packet.
    pub(super) fn ready_at(&self) -> Instant {
        self.pacer.ready_at()
    }

    /// The link or the source of data was not ready for what is due: it is not the driver that is late.
    pub(super) fn excuse(&mut self) {
        self.pacer.excuse();
    }

    /// How late the driver woke up at most, lately.
    pub(super) fn lateness(&self) -> Duration {
        self.pacer.lateness()
    }

    /// Accounts for `wire_bytes` that are sent at `now`.
    pub(super) fn sent(&mut self, now: Instant, wire_bytes: u64) {
        self.pacer.sent(now, wire_bytes);
        self.sent_bytes += wire_bytes;
        if now.since(self.heard_at) >= SILENCE {
            self.heard_at = now;
            if !std::mem::replace(&mut self.faded, true) && !self.law.is_seeking() {
                self.resumes_at = self.law.rate;
            }
            self.law.fade();
            self.pacer.set_rate(self.bits_per_second());
        }
    }

    /// Processes a report of one of `receivers` receivers.
    pub(super) fn feedback(&mut self, now: Instant, report: &Feedback, receivers: u32) {
        if std::mem::take(&mut self.faded) {
            self.search_again(now);
        }
        if report.arrived > 0 {
            self.heard_at = now;
        }
        self.sense.feedback(now, report);
        self.reconsider();
        self.leave_crowds_room(now, report.crowded);
        let passed = now.since(self.looked_at).as_secs_f64();
        if passed >= self.law.step() {
            self.look(now, passed, receivers as usize);
        }
    }

    /// If the receivers have become twice as many, forgets what is known of losses and other flows: it was told by a
    /// minority of them, whose link may be bad, or who may lie.
    fn reconsider(&mut self) {
        let judges = self.sense.judges();
        if judges < 2 * self.judges {
            return;
        }
        self.judges = judges;
        self.sense.forget_losses();
        self.loss = 0.0;
        self.law.follow_anew();
    }

    /// Begins the search for the rate again: what was known is out of date. A rate that was found is the best guess: if
    /// receivers were merely silent, a much higher one would fill a slow link's queue.
    fn search_again(&mut self, now: Instant) {
        self.law.search_again(seconds(now), self.resumes_at);
        self.sense = Sense::default();
        (self.looked_at, self.sent_bytes, self.search_from) = (now, 0, now);
        (self.view_from, self.cut_or_raised, self.heard_at) = (now, now, now);
        self.pacer.set_rate(self.bits_per_second());
    }

    /// A receiver left.
    pub(super) fn forget(&mut self, receiver: ReceiverId) {
        self.sense.forget(receiver);
    }

    /// Sets the highest rate, in bits per second.
    pub(super) fn set_ceiling(&mut self, bits_per_second: u64) {
        self.ceiling = to_float(bits_per_second);
        self.limit();
    }

    fn limit(&mut self) {
        self.law.set_ceiling(self.ceiling.min(self.room));
        self.pacer.set_rate(self.bits_per_second());
    }

    /// Leaves room for other traffic while a receiver asks for it. Who asks again soon after gets no more: else the
    /// rate would fall with each time, before it has recovered.
    fn leave_crowds_room(&mut self, now: Instant, is_asked: bool) {
        if self.crowded.is_none() && (!is_asked || self.law.is_seeking()) {
            return;
        }
        let crowded = Crowded { asked_at: now, ceiling: self.law.rate * CROWDED_PART };
        let crowded = self.crowded.get_or_insert(crowded);
        if is_asked {
            crowded.asked_at = now;
        }
        let since = now.since(crowded.asked_at);
        self.room = if since < CROWDED_LASTS { crowded.ceiling } else { f64::MAX };
        self.crowded.take_if(|_| since >= 2 * CROWDED_LASTS);
        self.limit();
    }

    /// Sets the part of this machine's own link to take; `None` if that link is not known to be the limit.
    pub(super) fn set_own_share(&mut self, share: Option<OwnShare>) {
        let own = |share: OwnShare| Own { rate: to_float(share.rate), queue: share.queue.as_secs_f64() };
        self.law.set_own(share.map(own));
    }

    /// Leaves room for `wire_bytes` of another flow of this machine.
    pub(super) fn leave_room(&mut self, wire_bytes: u64) {
        self.pacer.leave_room(wire_bytes);
    }

    /// The present rate in bits per second.
    pub(super) fn bits_per_second(&self) -> u64 {
        to_bits(self.law.rate)
    }

    /// Whether the search waits for reports: it began, or made a step, less than `SEEK_PATIENCE` ago.
    pub(super) fn is_seeking(&self, now: Instant) -> bool {
        self.law.is_seeking() && now.since(self.cut_or_raised) < SEEK_PATIENCE
    }

    /// Bits per second that the reports of all receivers together may take, at least 1.
    pub(super) fn reports_bits_per_second(&self, now: Instant) -> u32 {
        let part = |share: u64| u128::from(self.bits_per_second()) * u128::from(share) / 1_000_000;
        let most = part(if self.is_seeking(now) { REPORTS_SHARE_SEEKING } else { REPORTS_SHARE });
        let slow = part(REPORTS_SHARE_SLOW).min(u128::from(REPORTS_BITS));
        u32::try_from(most.max(slow).max(1)).unwrap_or(u32::MAX)
    }

    /// How long packets to the median receiver waited in queues lately; `None` if no receiver told.
    pub(super) fn typical_queue(&self, now: Instant) -> Option<Duration> {
        let recent = self.queues.iter().filter(|(at, _)| now.since(*at) < TYPICAL);
        sense::median(recent.map(|(_, queue)| *queue).collect()).map(Duration::from_secs_f64)
    }

    /// How many packets of `packet_wire_bytes` may be sent without a gap: as many as take half a millisecond, within
    /// `1..=most`.
    pub(super) fn run_blocks_max(&self, packet_wire_bytes: u64, most: u16) -> u16 {
        // Of flows that share a full buffer, the one that sends longer runs loses more packets.
        let run_ns = if self.law.is_competing() { RUN_NS / 2 } else { RUN_NS };
        let bits = u128::from(self.bits_per_second()) * u128::from(run_ns) / 1_000_000_000;
        let packets = bits / (8 * u128::from(packet_wire_bytes.max(1)));
        u16::try_from(packets).unwrap_or(most).clamp(1, most.max(1))
    }

    /// Packets of a million that the typical receiver loses while there is no queue.
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
        // A single report may come from a slow receiver.
        let mut needed = receivers.min(SEEK_RECEIVERS);
        if now.since(self.search_from) >= SEEK_DOUBT {
            needed = needed.min(self.sense.active());
        }
        if self.law.is_seeking() && view.is_none_or(|view| view.receivers < needed) {
            return;
        }
        // Loss without a queue that persists directly after a cut does not depend on the rate.
        let queue = self.cut_queue.max(view.map_or(0.0, |view| view.queue_last));
        if let Some(view) = view.filter(|_| queue < CHANCE_QUEUE) {
            self.sense.book_after_cut(view.loss, law::LOSS_HIGH);
        }
        let forfeited = self.pacer.take_forfeited().as_secs_f64();
        self.queues.retain(|(at, _)| now.since(*at) < TYPICAL);
        self.queues.extend(view.map(|view| (now, view.queue_median)));
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
        // Without a queue, loss is random.
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
                // Packets that were sent before the cut arrive first. They say nothing about the rate after it.
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
