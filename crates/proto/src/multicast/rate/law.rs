//! Computes the rate from what the typical receiver sees. Pure arithmetic; the documentation of [`super`] gives the
//! reasons.
//!
//! Rates are in bits per second, times in seconds.

use super::compete::Compete;
use super::look::Look;
use super::push::Push;
use super::sense::View;
use super::share::Share;

/// Shortest time between two steps of the search, each of which doubles the rate.
pub(super) const SEEK_ROUND: f64 = 0.009;
/// A sender that sent this part of what the rate allowed is not slower than the rate.
const SENT_PART: f64 = 0.9;
/// A queue of this length ends the search.
const SEEK_QUEUE: f64 = 0.003;
/// Time between two calls of [`Law::look`] after the search.
pub(super) const STEP: f64 = 0.025;
/// A queue longer than this and two packets' time is congestion.
const QUEUE_HIGH: f64 = 0.004;
/// A queue shorter than this and one packet's time counts as none.
const QUEUE_LOW: f64 = 0.001;
/// If a buffer overflowed with a shorter queue, this part of that queue is the threshold, for this time.
const FULL_PART: f64 = 0.5;
const FULL_TIME: f64 = 5.0;
/// The longest known queue shrinks by this part per second, so that it is forgotten.
const TALLEST_FADE: f64 = 0.2;
/// Loss that exceeds the baseline by this is congestion.
pub(super) const LOSS_HIGH: f64 = 0.015;
/// Factor of a cut.
const CUT: f64 = 0.9;
/// A cut lowers the rate at most to this part of what is delivered.
const DELIVERED_PART: f64 = 0.97;
/// After the queue has drained, the rate is at least this part of what the link delivered meanwhile.
const BORNE_PART: f64 = 0.93;
/// While it drains, a rate of more than this many times what the link delivers was found before the link was: what
/// passed at once after a pause said nothing of it.
const BORNE_EXCESS: f64 = 2.0;
/// Lowest factor of a cut: while following; in the first step of the search; in a later step, when half the rate left
/// no queue.
const CUT_DEEPEST: f64 = 0.5;
const SEEK_DEEPEST: f64 = 0.08;
const SEEK_RAISED_DEEPEST: f64 = 0.33;
/// A queue should drain in this time, but the rate is not lowered by more than this part for that.
const DRAIN_TIME: f64 = 0.15;
const DRAIN_PART: f64 = 0.3;
/// For this time it drains for those that came before the cut, too, if they have become few: else it would stay with
/// them. Their queue can drain while it is at most this part of the time that is left.
const DRAIN_LONG: f64 = 1.5;
const DRAIN_LONG_PART: f64 = 0.35;
/// Assumed age of a report, and the longest queue that is believed.
const REPORT_AGE: f64 = 0.01;
const QUEUE_CUT_MAX: f64 = 0.25;
/// A step up adds this many bits per second, and quadratically more the longer there was no queue. So flows that
/// share a queue rise equally whatever their rates; the steps are small on slow links, and fast links are filled in a
/// short time.
const RISE: f64 = 0.7e6;
/// A step is at most this part of the rate.
const RISE_MOST: f64 = 0.1;
const RISE_STEPS: f64 = 2.5;
/// A step also adds this part of the rate, for links on which there are always short queues.
const RISE_PART: f64 = 0.005;
/// Between the two thresholds the rate stays; after this time without an empty queue another flow is assumed to hold
/// the queue there, and the rate rises.
const HELD_TIME: f64 = 0.5;
/// Most bits in this machine's own socket and device queue.
const OWN_QUEUE_BITS: f64 = 8.0 * 256.0 * 1024.0;
/// A socket's buffer holds at most what takes this time to send.
const OWN_QUEUE: f64 = 0.006;
/// If a queue does not drain although more than `FILLED_CUTS` cuts took the rate below `FILLED_PART`,
/// another flow fills it.
const FILLED_PART: f64 = 0.6;
const FILLED_TIME: f64 = 0.5;
const FILLED_CUTS: u32 = 4;
/// Such a flow keeps the queue at this part of its longest; a queue that shrinks with each cut is the rate's own.
const FILLED_QUEUE_PART: f64 = 0.9;
/// If less than this part of what is sent is delivered, the rate itself fills the queue.
const FLAT_PART: f64 = 0.85;
/// While competing, loss beyond the baseline of this part is a sign to yield.
const LOSS_COMPETE: f64 = 0.01;
/// With this loss the rate is at most what is delivered, even while competing.
const LOSS_FLOOD: f64 = 0.08;
/// For this time after such a loss the rate does not rise to a part of this machine's own link.
const FLOOD_TIME: f64 = 5.0;
/// Largest factor by which a step changes the rate towards that part.
const OWN_SLEW: f64 = 1.25;
/// When the competition begins, the rate returns to this part of what it was before the cuts.
const REGAINED: f64 = 0.8;
/// For this time after the other flow seemed to end, more than `AGAIN_CUTS` cuts are enough to compete again.
const DOUBT: f64 = 10.0;
const AGAIN_CUTS: u32 = 1;

/// The result of [`Law::look`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No congestion.
    Calm,
    /// There is congestion, but no new cut.
    Congested,
    /// The rate was raised so much that losses are counted from zero, from now on.
    Raised,
    /// The rate was cut: losses are counted from zero when the queue of before has drained.
    Cut,
}

#[derive(Debug)]
enum Mode {
    /// Searches for the link's rate; `loss` is the lowest loss of the steps so far.
    Seek { loss: Option<f64> },
    /// Follows the link's rate.
    Follow,
    /// Competes with a flow that fills every queue.
    Compete(Compete),
}

/// Cuts after which the queue did not drain: time and rate of the first, their number, and the longest queue at one.
#[derive(Debug, Clone, Copy)]
struct Streak {
    since: f64,
    from: f64,
    cuts: u32,
    queue: f64,
}

/// This machine's own link, while it is the limit and others use it, too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    /// The part to take, in bits per second.
    pub rate: f64,
    /// How long packets wait before that link, in seconds.
    pub queue: f64,
}

/// The state of the law.
#[derive(Debug)]
pub(super) struct Law {
    pub rate: f64,
    floor: f64,
    ceiling: f64,
    mode: Mode,
    /// The queue at the last call of [`Self::look`], if that was after the last cut.
    queue_before: Option<f64>,
    /// Smoothed sending rate.
    sent: f64,
    /// Growth of the queue, in seconds per second.
    slope: Option<f64>,
    cut_at: f64,
    /// When there was last no queue.
    clear_at: f64,
    /// When there was last a queue, or the rate was last cut.
    queued_at: f64,
    /// The cuts since the queue was last empty.
    streak: Option<Streak>,
    /// The queue at the last cut: packets sent before the cut take this long to arrive.
    pub queue_cut: f64,
    /// The rate to set when the queue of the last cut has drained; `None` if it has.
    drained: Option<f64>,
    /// The rate at which the link delivered while it drained.
    borne: Option<f64>,
    share: Share,
    /// After a competition: until when the other flow may still be there, and the rate when it seemed to end.
    doubt_until: f64,
    left_at: f64,
    /// The queue when the buffer last overflowed, and when that was.
    full: Option<(f64, f64)>,
    /// The longest queue since the last cut; and the longest recently.
    peak: f64,
    tallest: f64,
    push: Push,
    /// The part of this machine's own link that the session is to take, if that link is known to be the limit.
    own: Option<Own>,
    /// When another link than this machine's own was last found to be full meanwhile.
    flooded_at: Option<f64>,
}

impl Law {
    pub(super) fn new(now: f64, initial: f64, floor: f64, ceiling: f64) -> Self {
        Self {
            rate: initial.clamp(floor, ceiling),
            floor,
            ceiling,
            mode: Mode::Seek { loss: None },
            queue_before: None,
            sent: 0.0,
            slope: None,
            cut_at: now,
            clear_at: now,
            queued_at: now,
            streak: None,
            queue_cut: 0.0,
            drained: None,
            borne: None,
            share: Share::default(),
            doubt_until: 0.0,
            left_at: 0.0,
            full: None,
            peak: 0.0,
            tallest: 0.0,
            push: Push::default(),
            own: None,
            flooded_at: None,
        }
    }

    /// Sets the highest rate; it prevails over the floor.
    pub(super) fn set_ceiling(&mut self, ceiling: f64) {
        self.ceiling = ceiling.max(1.0);
        self.rate = self.bounded(self.rate);
    }

    /// Sets the part of this machine's own link to take, while that link is the limit.
    pub(super) fn set_own(&mut self, own: Option<Own>) {
        self.own = own;
    }

    fn bounded(&self, rate: f64) -> f64 {
        rate.max(self.floor).min(self.ceiling)
    }

    /// Begins the search again, from `initial`, or from the present rate if that is higher. Forgets all else: it may be
    /// out of date.
    pub(super) fn search_again(&mut self, now: f64, initial: f64) {
        let fresh = Self::new(now, initial.max(self.rate), self.floor, self.ceiling);
        *self = Self { own: self.own, ..fresh };
    }

    /// Follows the link, unless the search still runs: what another flow did was told by others.
    pub(super) fn follow_anew(&mut self) {
        if let Mode::Compete(_) = self.mode {
            self.mode = Mode::Follow;
            (self.streak, self.doubt_until) = (None, 0.0);
        }
    }

    /// Halves the rate, because no reports arrived for a long time.
    pub(super) fn fade(&mut self) {
        self.rate = self.bounded(self.rate / 2.0);
    }

    /// Time between two calls of [`Self::look`].
    pub(super) fn step(&self) -> f64 {
        if self.is_seeking() { SEEK_ROUND } else { STEP }
    }

    pub(super) fn is_seeking(&self) -> bool {
        matches!(self.mode, Mode::Seek { .. })
    }

    pub(super) fn is_competing(&self) -> bool {
        matches!(self.mode, Mode::Compete(_))
    }

    #[cfg(test)]
    pub(super) fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Seek { .. } => "seek",
            Mode::Follow => "follow",
            Mode::Compete(_) => "compete",
        }
    }

    pub(super) fn look(&mut self, look: &Look) -> Verdict {
        self.sent = if self.is_seeking() { look.sent } else { 0.5 * (self.sent + look.sent) };
        let Some(view) = look.view else { return Verdict::Calm };
        if let Some(own) = self.own {
            return self.share_own_link(look, view, own);
        }
        let others_drain = self.others_drain(look, view);
        let queue = if others_drain { view.queue_before } else { view.queue_last };
        if self.drained.is_some() && self.drain(look, queue) && (!look.fresh || others_drain) {
            return Verdict::Congested;
        }
        let grown = self.queue_before.map(|before| (view.queue - before) / look.passed.max(0.001));
        self.queue_before = Some(view.queue);
        self.slope = grown.map(|grown| grown.min(0.6 * grown + 0.4 * self.slope.unwrap_or(grown)));
        let before = self.rate;
        let verdict = match &mut self.mode {
            Mode::Seek { .. } => self.seek(look, view),
            Mode::Follow => self.follow(look, view),
            Mode::Compete(_) => self.compete(look, view),
        };
        let calm = matches!(verdict, Verdict::Calm | Verdict::Raised);
        if look.limited && calm {
            self.rate = self.push.step(look, before, self.rate);
        } else if !calm {
            self.push.stop();
        }
        self.rate = self.bounded(self.rate);
        verdict
    }

    /// Moves to the rate that `own` tells. If packets wait elsewhere, or are lost, another link is full, too: then the
    /// rate is cut, and does not rise for a while.
    fn share_own_link(&mut self, look: &Look, view: View, own: Own) -> Verdict {
        let waits_elsewhere = view.queue_last - own.queue > QUEUE_HIGH + 2.0 * look.packet;
        let loses = view.loss.beyond(look.baseline.unwrap_or(view.loss.part), LOSS_FLOOD).is_some();
        if look.fresh && (waits_elsewhere || loses) {
            self.flooded_at = Some(look.now);
            self.reduce(look, view, CUT);
            return Verdict::Cut;
        }
        let is_flooded = self.flooded_at.is_some_and(|at| look.now - at < FLOOD_TIME);
        let most = if is_flooded { self.rate } else { self.rate * OWN_SLEW };
        self.rate = self.bounded(own.rate.clamp(self.rate / OWN_SLEW, most));
        self.mode = Mode::Follow;
        (self.streak, self.drained, self.borne) = (None, None, None);
        (self.clear_at, self.queued_at) = (look.now, look.now);
        self.push.stop();
        Verdict::Calm
    }

    fn seek(&mut self, look: &Look, view: View) -> Verdict {
        let Mode::Seek { loss } = self.mode else { return Verdict::Calm };
        let queued = view.queue_last > SEEK_QUEUE + 2.0 * look.packet;
        let lost = view.loss_last.beyond(loss.unwrap_or(0.1), 0.05);
        if queued || lost.is_some() {
            if look.limited && queued && lost.is_none() && view.queue_last < own_queue(look) {
                // The queue is in this machine's own socket: the rate of the link is found.
                self.mode = Mode::Follow;
                return Verdict::Calm;
            }
            self.reduce(look, view, 0.95);
            self.mode = Mode::Follow;
            return Verdict::Cut;
        }
        // A sender that paused for a moment is not slower than the rate.
        let slower = look.limited && look.sent < SENT_PART * self.rate;
        if slower || self.rate >= self.ceiling {
            return Verdict::Calm;
        }
        let told = (view.loss_last.of >= 20.0).then_some(view.loss_last.part);
        self.mode = Mode::Seek { loss: loss.into_iter().chain(told).min_by(f64::total_cmp) };
        self.rate *= 2.0;
        Verdict::Raised
    }

    /// Cuts the rate to `factor`, or to `DELIVERED_PART` of what is delivered if that is less. While there is a
    /// queue, the rate is even lower, so that the queue drains.
    fn reduce(&mut self, look: &Look, view: View, factor: f64) {
        let from = self.drained.unwrap_or(self.rate);
        // If this machine's own link is slower than the rate, only what is really sent can be cut. Without a queue
        // the link is not slower: there was less to send.
        let queued = view.queue_last > QUEUE_HIGH;
        let from = if look.limited && queued { from.min(look.sent) } else { from };
        let deepest = match self.mode {
            Mode::Seek { loss: None } => SEEK_DEEPEST,
            Mode::Seek { loss: Some(_) } => SEEK_RAISED_DEEPEST,
            Mode::Follow | Mode::Compete(_) => CUT_DEEPEST,
        };
        let delivered = (look.delivered / self.sent.min(look.sent).max(1.0)).clamp(deepest, 1.0);
        let to = from * factor.min(delivered * DELIVERED_PART).max(deepest);
        if queued {
            self.share.cut(look.delivered.min(from));
        }
        // Reported packets were sent before the queue reached its present length, so extrapolate.
        let growth = 1.0 / delivered - 1.0;
        let queue = view.queue_last + growth * (view.queue_last + REPORT_AGE);
        self.queue_cut = queue.min(QUEUE_CUT_MAX);
        (self.drained, self.borne) = (Some(to), None);
        self.rate = to * (1.0 - (queue / DRAIN_TIME).min(DRAIN_PART));
        (self.cut_at, self.peak) = (look.now, 0.0);
        (self.queue_before, self.slope) = (None, None);
    }

    /// Whether the typical receiver has no queue, and those that were there at the last cut still have theirs, which
    /// can drain in time: that of a slower link does not.
    fn others_drain(&self, look: &Look, view: View) -> bool {
        let low = QUEUE_LOW + look.packet;
        let left = DRAIN_LONG - (look.now - self.cut_at);
        view.queue_last <= low && (low..DRAIN_LONG_PART * left).contains(&view.queue_before)
    }

    /// Whether the queue of the last cut, of which this is left, is still there. While it is, the link is busy, so what
    /// is delivered is what it carries.
    fn drain(&mut self, look: &Look, queue: f64) -> bool {
        let Some(drained) = &mut self.drained else { return false };
        if queue > QUEUE_LOW + look.packet {
            let Some(before) = self.borne.replace(look.delivered) else { return true };
            let borne = (before + look.delivered) / 2.0;
            self.borne = Some(borne);
            if self.rate > BORNE_EXCESS * before.max(look.delivered) {
                *drained = drained.min(borne * DELIVERED_PART);
                self.rate = *drained * (1.0 - (queue / DRAIN_TIME).min(DRAIN_PART));
            }
            return true;
        }
        let borne = self.borne.unwrap_or(0.0) * BORNE_PART;
        let tend = self.share.drained(look.now, look.packet);
        let to = drained.max(borne) * tend;
        // A flow that gives up much of its share may end below its rate during the drain.
        self.rate = if tend < 1.0 { to } else { self.rate.max(to) };
        (self.drained, self.borne) = (None, None);
        false
    }

    fn follow(&mut self, look: &Look, view: View) -> Verdict {
        let low = QUEUE_LOW + look.packet;
        self.full = self.full.filter(|(_, at)| look.now - at < FULL_TIME);
        let half = self.full.map_or(f64::MAX, |(queue, _)| (FULL_PART * queue).max(low));
        let high = (QUEUE_HIGH + 2.0 * look.packet).min(half);
        self.peak = self.peak.max(view.queue_last);
        if view.queue_last <= low {
            self.streak = None;
        }
        self.tallest = self.tallest.max(view.queue_last) * (1.0 - TALLEST_FADE * look.passed);
        let excess = view.loss.beyond(look.baseline.unwrap_or(view.loss.part), LOSS_HIGH);
        // A buffer overflows when the queue is long; other losses have other causes.
        let full = view.queue_last >= FULL_PART * self.tallest;
        if let Some(excess) = excess.filter(|excess| full || *excess > LOSS_FLOOD) {
            self.full = Some((self.peak, look.now));
            return self.cut(look, view, (0.98 * (1.0 - excess)).min(CUT));
        }
        if view.queue > high {
            let Some(slope) = self.slope else { return Verdict::Congested };
            let ours = look.limited && view.queue < own_queue(look) && slope < 0.05;
            let draining = slope < -(view.queue / 0.4).clamp(0.03, 0.2);
            if ours || draining {
                return Verdict::Congested;
            }
            return self.cut(look, view, CUT);
        }
        let falling = self.slope.is_none_or(|slope| slope < -0.01);
        if self.streak.is_some() && (falling || view.queue > 0.5 * high) {
            self.queued_at = look.now;
            return Verdict::Congested;
        }
        if view.queue <= low.min(0.6 * high) {
            self.clear_at = look.now;
        } else {
            self.queued_at = look.now;
            if look.now - self.clear_at < HELD_TIME {
                return Verdict::Calm;
            }
        }
        let steps = (look.now - self.queued_at) / STEP / RISE_STEPS;
        let step = RISE * (1.0 + steps * steps) + RISE_PART * self.rate;
        self.rate += step.min(RISE_MOST * self.rate) * (look.passed / STEP).min(4.0);
        Verdict::Calm
    }

    fn cut(&mut self, look: &Look, view: View, factor: f64) -> Verdict {
        self.queued_at = look.now;
        let fresh = Streak { since: look.now, from: self.rate, cuts: 0, queue: 0.0 };
        let streak = self.streak.get_or_insert(fresh);
        if look.delivered < FLAT_PART * self.sent.min(look.sent) {
            // The rate is far too high: that the queue has not drained yet is no sign of another flow.
            *streak = fresh;
        }
        streak.cuts += 1;
        streak.queue = streak.queue.max(view.queue);
        let kept = view.queue >= FILLED_QUEUE_PART * streak.queue;
        let tried = kept && streak.cuts > FILLED_CUTS && look.now - streak.since > FILLED_TIME;
        let again = look.now < self.doubt_until && streak.cuts > AGAIN_CUTS;
        if again || tried && self.rate < FILLED_PART * streak.from {
            // What was yielded until now went to the other flow, so take most of it back.
            let rate = self.rate.max(if again { self.left_at } else { streak.from * REGAINED });
            self.rate = rate;
            (self.drained, self.borne) = (None, None);
            self.mode = Mode::Compete(Compete::new(look.now, rate, view.queue, again));
            return Verdict::Congested;
        }
        self.reduce(look, view, factor);
        Verdict::Cut
    }

    fn compete(&mut self, look: &Look, view: View) -> Verdict {
        let Mode::Compete(state) = &mut self.mode else { return Verdict::Calm };
        self.queued_at = look.now;
        let low = QUEUE_LOW + look.packet;
        let lost = view.loss.beyond(look.baseline.unwrap_or(view.loss.part), LOSS_COMPETE).is_some();
        let flooded = view.loss.beyond(look.baseline.unwrap_or(0.0), LOSS_FLOOD).is_some();
        match state.step(look.now, self.rate, view.queue, low, lost) {
            Ok(rate) if flooded => self.rate = rate.min(look.delivered),
            Ok(rate) => self.rate = rate,
            Err(rate) => {
                self.rate = rate;
                self.mode = Mode::Follow;
                self.streak = None;
                self.cut_at = look.now;
                (self.doubt_until, self.left_at) = (look.now + DOUBT, rate);
            }
        }
        Verdict::Congested
    }
}

/// Longest queue that can be in this machine's own socket and device, in seconds.
fn own_queue(look: &Look) -> f64 {
    OWN_QUEUE.min(OWN_QUEUE_BITS / look.sent.max(1.0))
}
