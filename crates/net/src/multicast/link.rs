//! An interface that sessions send on: what passes it, and what follows from that.
//!
//! While a session sends, the counters of the interface's queue are read every 25 ms, and judged for each fifth of a
//! second. The link is *full* if packets waited in more than half of the samples. What is neither multicast nor the
//! server's own unicast belongs to *others*.

use base::{Duration, Instant};
use proto::multicast::OwnShare;

use super::beside::Beside;
use super::own_link::OwnLink;
use super::shares::Shares;
use crate::clock::Clock;
use crate::send_queue::SendQueue;

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);
/// Asking for the counters of an interface takes at most one part in `SAMPLE_COST_PARTS` of the time: the system lists
/// those of all interfaces.
const SAMPLE_COST_PARTS: u32 = 100;
/// Time over which samples are judged.
const WINDOW: Duration = Duration::from_millis(200);
/// One part in `SMOOTH_PARTS` of the answers' rate is that of the last window.
const SMOOTH_PARTS: u64 = 4;
/// Each claim of a session pays one part in `DUE_PARTS` of the answers whose time is still owed: an answer that is sent
/// at the answers' rate is paid for meanwhile.
const DUE_PARTS: u64 = 8;
/// Headers of TCP, IP and Ethernet are one part in `HEADER_PARTS` of an answer.
const HEADER_PARTS: u64 = 20;
/// What a link showed counts for this time.
const CURRENT: Duration = Duration::from_secs(1);

/// Counters of an interface and of this server at one moment. All only grow, except `waiting_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LinkSample {
    /// Bytes that the interface has sent.
    passed_bytes: u64,
    /// Bytes that wait in its queue.
    waiting_bytes: u32,
    /// Bytes that the sessions have sent, with their headers.
    multicast_bytes: u64,
    /// Bytes of the server's answers by unicast.
    answer_bytes: u64,
}

/// The window that is being measured.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: Instant,
    first: LinkSample,
    samples: u32,
    waited: u32,
    longest_bytes: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    queue: Option<SendQueue>,
    clock: Clock,
    /// When the counters are read next.
    next_sample: Instant,
    multicast_bytes: u64,
    window: Option<Window>,
    /// When the last window ended.
    judged_at: Instant,
    /// The smoothed rate of the server's answers, which go out in whole objects.
    answers: u64,
    own: OwnLink,
    share: Option<OwnShare>,
    beside: Beside,
    /// The server's answers that were counted, and those that the sessions still have to leave room for.
    answer_bytes: u64,
    due_bytes: u64,
}

impl Link {
    /// The interface with this index.
    pub(super) fn new(interface: u32) -> Self {
        Self {
            queue: SendQueue::open(interface).ok(),
            clock: Clock::start(),
            next_sample: Instant::ZERO,
            multicast_bytes: 0,
            window: None,
            judged_at: Instant::ZERO,
            answers: 0,
            own: OwnLink::default(),
            share: None,
            beside: Beside::default(),
            answer_bytes: 0,
            due_bytes: 0,
        }
    }

    /// What all sessions together are to take, if that is known.
    pub(super) fn share(&self) -> Option<OwnShare> {
        self.share
    }

    /// The bytes for which a session leaves room now, beside answers of the server of `answer_bytes` so far. Without
    /// that the answers would look like congestion. Answers that get more than their base get it because they cost
    /// nothing.
    pub(super) fn due(&mut self, answer_bytes: u64) -> u64 {
        let answered = answer_bytes.saturating_sub(self.answer_bytes);
        self.answer_bytes = answer_bytes;
        if self.beside.times() > 1 || self.share.is_some() {
            self.due_bytes = 0;
            return 0;
        }
        self.due_bytes += answered + answered / HEADER_PARTS;
        let due = self.due_bytes.div_ceil(DUE_PARTS);
        self.due_bytes -= due;
        due
    }

    /// The answers may be this many times their base; `None` if no session uses the link now.
    pub(super) fn answer_times(&self) -> Option<u64> {
        (self.clock.now().since(self.judged_at) < CURRENT).then(|| self.beside.times())
    }

    /// Counts `sent_bytes` more of the sessions, and judges what the link shows. `answer_bytes`: the server's answers
    /// so far; `answers_allowed`: what they may take, in bits per second.
    pub(super) fn look(&mut self, sent_bytes: u64, answer_bytes: u64, answers_allowed: u64) {
        self.multicast_bytes += sent_bytes;
        let now = self.clock.now();
        if now < self.next_sample {
            return;
        }
        let counters = self.queue.as_mut().and_then(SendQueue::sample);
        let took = self.clock.now().since(now);
        self.next_sample = now + SAMPLE_INTERVAL.max(took * SAMPLE_COST_PARTS);
        let Some(counters) = counters else { return };
        let (passed_bytes, waiting_bytes) = (counters.passed_bytes, counters.waiting_bytes);
        let multicast_bytes = self.multicast_bytes;
        let sample = LinkSample { passed_bytes, waiting_bytes, multicast_bytes, answer_bytes };
        let window = self.window.get_or_insert_with(|| Window::new(now, sample));
        window.samples += 1;
        window.waited += u32::from(waiting_bytes > 0);
        window.longest_bytes = window.longest_bytes.max(waiting_bytes);
        let passed = now.since(window.from);
        if passed < WINDOW {
            return;
        }
        let shares = window.shares(&sample, passed, self.answers);
        self.window = Some(Window::new(now, sample));
        // After a pause of all sessions a window shows that pause, and not how they share.
        if passed < CURRENT {
            self.share = self.own.window(now, &shares);
            self.beside.window(now, &shares, answers_allowed);
        } else {
            self.share = None;
        }
        (self.judged_at, self.answers) = (now, shares.answers);
    }
}

impl Window {
    fn new(from: Instant, first: LinkSample) -> Self {
        Self { from, first, samples: 0, waited: 0, longest_bytes: 0 }
    }

    /// What the window showed, if the answers had the smoothed rate `answers` before it.
    fn shares(&self, last: &LinkSample, passed: Duration, answers: u64) -> Shares {
        let rate = |of: fn(&LinkSample) -> u64| {
            let bits = u128::from(of(last).saturating_sub(of(&self.first))) * 8_000_000_000;
            u64::try_from(bits / passed.as_nanos().max(1)).unwrap_or(u64::MAX)
        };
        let total = rate(|sample| sample.passed_bytes);
        // What a socket has accepted may still wait in the queue.
        let multicast = rate(|sample| sample.multicast_bytes).min(total);
        let answers = (answers - answers / SMOOTH_PARTS + rate(|sample| sample.answer_bytes) / SMOOTH_PARTS)
            .min(total - multicast);
        let others = total - multicast - answers;
        let queue = Duration::from_nanos(u64::from(self.longest_bytes) * 8_000_000_000 / total.max(1));
        Shares { total, multicast, answers, others, full: 2 * self.waited > self.samples, queue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_leave_room_for_answers_and_their_headers_once() {
        let mut link = Link::new(1);
        let claims: Vec<u64> = (0..200).map(|_| link.due(100_000)).collect();
        assert_eq!(claims.iter().sum::<u64>(), 105_000);
        assert!(claims[0] <= 105_000 / 8 + 1 && claims[40..].iter().sum::<u64>() < 1000, "over about 100 ms");
        assert_eq!(link.due(100_080), 11);
    }
}
