//! What a receiver sends to the server, and when.

use base::{Duration, Instant};

use super::{
    ANSWER, LEAVE_SPACING, LOOK_MIN, PROBE_EACH, PROBE_MAX, PROBE_MIN, Phase, REPORT_INTERVAL_MIN, Receiver,
    SOON, SPREAD_EACH, SPREAD_MAX, nanos, view,
};
use crate::multicast::clock::micros;
use crate::multicast::receiver::behind::{Blocks, LEAVERS};
use crate::multicast::receiver::congestion::Counted;
use crate::multicast::receiver::event::ReceiverEvent;
use crate::multicast::receiver::half::Point;
use crate::multicast::receiver::slots::back_off;
use crate::multicast::receiver::window::Window;
use crate::multicast::wire::header::{BLOCK_HEADER_BYTES, ObjectRange};
use crate::multicast::wire::report::{Cause, Lacking, NEED_RANGE_BYTES, NeedRange, Report, Upstream};
use crate::multicast::wire::status::{QUEUE_STEP_US, Status};

impl Receiver {
    pub(super) fn take_status(&mut self, now: Instant, status: &Status) {
        self.stream.status(now, status);
        self.halves.status(now, status, self.stream.arrived());
        self.interval = status.report_interval.max(REPORT_INTERVAL_MIN);
        self.receivers = status.receivers.max(1);
        self.typical_us = status.queue.map(|steps| u32::from(steps) * QUEUE_STEP_US);
        let latest = now + self.interval + self.interval / 2;
        self.report_at = Some(match self.report_at {
            None => now + Duration::from_nanos(self.config.chance.below(nanos(self.interval))),
            Some(at) => at.min(latest),
        });
        self.pending.clone_from(&status.pending);
        self.repairs.clone_from(&status.repairs);
        if let Some(echo) = status.echo.filter(|echo| echo.receiver == self.config.receiver) {
            let taken = micros(now).wrapping_sub(echo.timestamp_us).saturating_sub(echo.age_us);
            let sample = Duration::from_micros(taken.into()).min(Duration::from_secs(1));
            // Smoothed as in TCP (RFC 6298).
            self.rtt = (self.rtt * 7 + sample) / 8;
        }
        if status.idle && !self.lacking.is_empty() {
            self.hurry(now);
        }
    }

    /// Moves the next check to at most `LOOK_MIN` from now, unless the receiver still waits to send its first packet.
    pub(super) fn hurry(&mut self, now: Instant) {
        if !self.stream.is_unheard() {
            self.tick_at = self.tick_at.min(now + LOOK_MIN);
        }
    }

    /// Reports to the driver: a silent server, a stall, or a network that loses too much.
    pub(super) fn watch(&mut self, now: Instant) {
        if !self.silent && now.since(self.heard_at) >= self.silent_after() {
            self.silent = true;
            self.events.push_back(ReceiverEvent::Silent { since: self.heard_at });
        }
        let wants = !self.open.is_empty() || self.slots.are_filling();
        let since = now.since(self.progress_at);
        if !self.silent && !self.stalled && wants && since >= self.config.stalled_after {
            self.stalled = true;
            self.events.push_back(ReceiverEvent::Stalled { since: self.progress_at });
        }
        let point = Point { at: now, sent: self.stream.decided(), arrived: self.stream.arrived() };
        if wants && let Some(half) = self.halves.look(point) {
            self.events.push_back(ReceiverEvent::Half(half));
        }
        self.compare(now, wants);
        // A receiver that is alone determines the rate itself, and losses of objects that it does not want do not
        // matter.
        let (arrived, lost, typical_us) = (self.stream.arrived(), self.stream.lost(), self.typical_us);
        let counted = Counted { arrived, lost, typical_us };
        if wants
            && self.receivers > 1
            && let Some(strain) = self.congestion.look(now, counted, || self.delay.take_usual())
        {
            self.events.push_back(ReceiverEvent::TooSlow(strain));
        }
    }

    /// Reports to the driver if little of what the session sends is of use.
    fn compare(&mut self, now: Instant, wants: bool) {
        if !wants {
            return self.behind.forget();
        }
        let (used, refused) = (self.counters.blocks_received, self.counters.blocks_refused);
        let blocks = Blocks { sent: self.stream.decided(), used, refused };
        if let Some(rate) = self.behind.look(now, blocks)
            && self.config.chance.below(self.receivers.into()) < LEAVERS.into()
        {
            let bytes_each_second = rate * u64::from(self.config.shape.block_bytes);
            self.events.push_back(ReceiverEvent::Behind { bytes_each_second });
        }
    }

    /// Checks what is missing. If the server should know of it, schedules a request after a random wait, or sends the
    /// request if the wait is over. Sends an empty NEED once per report interval.
    pub(super) fn look(&mut self, now: Instant) {
        let window = (now >= self.window_at).then(|| self.window());
        let window = window.filter(|window| window.is_news(&self.pending));
        let view = view(&self.stream, &self.refused, &self.pending, &self.repairs);
        let lacks = self.slots.lacks(now, &view);
        let urgent = self.next_urgent(now);
        if !lacks && window.is_none() && urgent.is_empty() {
            self.need_at = None;
        } else if self.need_at.is_none() {
            self.need_at = Some(now + self.spread_over(self.spread()));
        }
        if self.need_at.is_some_and(|at| at <= now) {
            self.ask(now, window.as_ref(), &urgent);
        } else if self.report_at.is_some_and(|at| at <= now) {
            self.say_need(now, Lacking::default());
        }
    }

    /// Requests everything that is missing, as far as it fits one packet.
    pub(super) fn ask(&mut self, now: Instant, window: Option<&Window>, urgent: &[u64]) {
        let room = usize::from(self.config.shape.block_bytes) + BLOCK_HEADER_BYTES;
        let mut lacking = Lacking::default();
        let retry = self.effect();
        for &object in urgent {
            let (objects, cause) = (ObjectRange { first: object, count: 1 }, self.cause(object));
            lacking.whole.push(NeedRange { objects, cause, urgent: true });
        }
        if !urgent.is_empty() {
            self.urgent_asks = self.urgent_asks.saturating_add(1);
            self.urgent_at = now + back_off(retry, self.urgent_asks);
        }
        let view = view(&self.stream, &self.refused, &self.pending, &self.repairs);
        for object in self.slots.write_lacking(now, retry, &view, room, &mut lacking) {
            self.events.push_back(ReceiverEvent::FetchByUnicast { object });
        }
        if let Some(window) = window {
            window.write(room, &mut lacking);
            self.window_asks = self.window_asks.saturating_add(1);
            self.window_at = now + back_off(retry, self.window_asks);
        }
        self.need_at = None;
        if !lacking.is_empty() {
            self.say_need(now, lacking);
        }
    }

    /// Urgent objects of which nothing has arrived and that do not come soon, as many as fit a third of a packet.
    pub(super) fn next_urgent(&mut self, now: Instant) -> Vec<u64> {
        self.urgent.retain(|&object| self.open.contains(object));
        if now < self.urgent_at {
            return Vec::new();
        }
        let most = usize::from(self.config.shape.block_bytes) / 3 / NEED_RANGE_BYTES;
        let late = self.urgent.iter().copied().filter(|&object| !self.comes_soon(object));
        late.take(most).collect()
    }

    /// Whether at most [`SOON`] other objects are sent before `object`, as of the last STATUS.
    pub(super) fn comes_soon(&self, object: u64) -> bool {
        let mut before = 0;
        for range in &self.pending {
            if range.first <= object && object < range.end() {
                return before + (object - range.first) <= SOON;
            }
            before += u64::from(range.count);
        }
        false
    }

    pub(super) fn say_need(&mut self, now: Instant, lacking: Lacking) {
        let spread = self.config.chance.below(nanos(self.interval).max(1));
        let next = now + self.interval / 2 + Duration::from_nanos(spread);
        // How often receivers report is not known before the first STATUS, which may be seconds away at a low rate.
        self.report_at = self.report_at.map(|_| next);
        self.counters.queue_us = self.delay.take(now);
        self.halves.sent(now);
        let report = self.header(now);
        self.send(&Upstream::Need(report, lacking));
    }

    /// Time from a report until its effect shows.
    pub(super) fn effect(&self) -> Duration {
        self.rtt + ANSWER
    }

    /// The time over which receivers that miss the same object spread their reports.
    pub(super) fn spread(&self) -> Duration {
        let times = f64::from(self.receivers).ln().min(SPREAD_MAX);
        self.effect().mul_f64(times).min(SPREAD_EACH * self.receivers)
    }

    /// A random part of `most`. Few of many receivers draw a short wait; the answer to their reports silences the
    /// others. (Truncated exponential distribution of Nonnenmacher and Biersack, as in RFC 5740, section 5.5.1.)
    #[expect(clippy::cast_precision_loss, reason = "chance needs no more than 53 bits")]
    pub(super) fn spread_over(&mut self, most: Duration) -> Duration {
        if self.receivers < 2 {
            return Duration::ZERO;
        }
        let uniform = (self.config.chance.below(1 << 32) + 1) as f64 / (1u64 << 32) as f64;
        most.mul_f64((1.0 + uniform.ln() / f64::from(self.receivers).ln()).max(0.0))
    }

    /// The objects to request next: as many as there is room for, in the order in which the server would send them.
    pub(super) fn window(&self) -> Window {
        let shape = &self.config.shape;
        let mut window = Window::new(self.slots.room_for(self.open.len()), self.open.len());
        let cursor = self.stream.cursor().max(shape.heads);
        for (start, end) in [(0, shape.heads), (cursor, shape.objects), (shape.heads, cursor)] {
            window.collect(&self.open, start, end, |object| self.cause(object));
        }
        window
    }

    /// Why `object` is missing, of which no block has arrived.
    pub(super) fn cause(&self, object: u64) -> Cause {
        if self.refused.contains(object) {
            Cause::BufferFull
        } else if self.stream.went_by(object) && self.missed != Some(object) {
            Cause::Lost
        } else {
            Cause::Late
        }
    }

    /// Tries to reach the server. A receiver that has heard nothing from it yet requests heads at once: the server
    /// sends them before all others, wherever the stream is.
    pub(super) fn say_join(&mut self, now: Instant) {
        let report = self.header(now);
        let mut lacking = Lacking::default();
        if self.stream.is_unheard() {
            let mut heads = Window::new(self.slots.room_for(self.open.len()), self.open.len());
            heads.collect(&self.open, 0, self.config.shape.heads, |_| Cause::Late);
            heads.write(usize::from(self.config.shape.block_bytes), &mut lacking);
        }
        let empty = lacking.is_empty();
        self.halves.sent(now);
        self.send(&if empty { Upstream::Join(report) } else { Upstream::Need(report, lacking) });
        let least = PROBE_MIN.max(PROBE_EACH * self.receivers).min(PROBE_MAX);
        self.probe = (self.probe * 2).clamp(least, PROBE_MAX);
        let spread = self.config.chance.below(nanos(self.probe) / 2);
        self.tick_at = now + self.probe + Duration::from_nanos(spread);
        if !self.silent {
            // Probes become seldom, but silence is noticed when it has lasted long enough.
            self.tick_at = self.tick_at.min(self.heard_at + self.silent_after());
        }
    }

    /// After which time without a packet the driver hears of it: sooner if none ever came.
    fn silent_after(&self) -> Duration {
        if self.stream.is_unheard() { self.config.silent_after / 2 } else { self.config.silent_after }
    }

    pub(super) fn say_leave(&mut self, now: Instant, left: u8) {
        let report = self.header(now);
        self.send(&Upstream::Leave(report));
        self.phase = Phase::Leaving(left - 1);
        self.tick_at = now + LEAVE_SPACING;
    }

    pub(super) fn header(&self, now: Instant) -> Report {
        Report {
            receiver: self.config.receiver,
            timestamp_us: micros(now),
            seen: self.stream.decided(),
            // The rate of one that is alone follows what its own link carries.
            crowded: self.config.stays && self.receivers > 1 && self.congestion.is_crowded(),
            counters: self.counters(),
        }
    }

    pub(super) fn send(&mut self, packet: &Upstream) {
        // If the driver does not drain the packets, the oldest is dropped: a later report supersedes it.
        if self.outgoing.len() == 4 {
            self.outgoing.pop_front();
        }
        self.outgoing.push_back(packet.encode(&self.config.shape));
    }
}
