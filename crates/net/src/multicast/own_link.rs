//! How the sessions of an interface share it with other flows of this machine.
//!
//! If this machine's own interface is the limit, neither delay nor loss tells a session how much it may take: TCP keeps
//! as much in the interface's queue as its rate needs (TCP small queues, Linux's `tcp_output.c`), and so does our
//! socket. Any division of the link stays as it is: whoever began first keeps most of it. But the interface's counters
//! tell what passes and whether packets wait, so a fair rate can be set:
//!
//! - While the link is full and others take a twentieth or more, the sessions move towards half of it, an eighth of the
//!   link each time. Upwards they always may. Downwards only if the others want it: if they did not take half of
//!   what was given up, it is taken back, and tried again after 2 s.
//! - What the server answers by unicast is no other flow: the sessions leave room for it (`link.rs`).

use base::{Duration, Instant};
use proto::multicast::OwnShare;

use super::shares::Shares;

/// Other flows count from this part of the link on: one part in `OTHERS_PARTS`.
const OTHERS_PARTS: u64 = 20;
/// The sessions' part changes by one part in `STEP_PARTS` of the link.
const STEP_PARTS: u64 = 8;
/// After a trial that brought the others nothing, the next one waits.
const REST: Duration = Duration::from_secs(2);
/// The sessions' part may be this much more or less than half: one part in `SLACK_PARTS` of the link.
const SLACK_PARTS: u64 = 20;
/// A session that sends less than one part in `IDLE_PARTS` of the link has nothing to send.
const IDLE_PARTS: u64 = 100;
/// A link that seemed not full for this many windows is not.
const NOT_FULL_WINDOWS: u32 = 2;

/// Finds the rate of all sessions of an interface together.
#[derive(Debug, Default)]
pub(super) struct OwnLink {
    /// The rate that the sessions get, in bits per second; `None`: they find it themselves.
    rate: Option<u64>,
    /// The trial that runs.
    trial: Option<Trial>,
    rest_until: Option<Instant>,
    not_full: u32,
}

/// Whether others take what the sessions gave up.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// The rate before it, and what others had then.
    rate: u64,
    others: u64,
}

impl OwnLink {
    /// What all sessions together are to take after a window that ended at `now`; `None` if the interface is not known
    /// to be the limit, or nobody else uses it.
    pub(super) fn window(&mut self, now: Instant, shares: &Shares) -> Option<OwnShare> {
        self.judge(now, shares);
        self.rate.map(|rate| OwnShare { rate, queue: shares.queue })
    }

    fn judge(&mut self, now: Instant, shares: &Shares) {
        let Shares { total, multicast, answers, others, .. } = *shares;
        self.not_full = if shares.full { 0 } else { self.not_full + 1 };
        let trial = self.trial.take();
        if let Some(trial) = trial {
            let given_up = trial.rate.saturating_sub(self.rate.unwrap_or(trial.rate));
            if others < trial.others + given_up / 2 {
                self.rate = Some(trial.rate);
                self.rest_until = Some(now + REST);
                return;
            }
        } else if self.not_full >= NOT_FULL_WINDOWS || multicast < total / IDLE_PARTS {
            self.rate = None;
            return;
        }
        if others < total / OTHERS_PARTS {
            self.rate = None;
            return;
        }
        if !shares.full && trial.is_none() {
            return;
        }
        let (half, step, slack) =
            (total.saturating_sub(answers) / 2, total / STEP_PARTS, total / SLACK_PARTS);
        if multicast + slack < half {
            self.rate = Some(half.min(self.rate.unwrap_or(multicast).max(multicast) + step));
        } else if multicast > half + slack {
            let rate = self.rate.unwrap_or(multicast).min(multicast);
            if self.rest_until.is_none_or(|until| now >= until) {
                self.trial = Some(Trial { rate, others });
                self.rate = Some(half.max(rate.saturating_sub(step)));
            }
        } else {
            self.rate = Some(half);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 100_000_000;

    /// A link with a session, another flow and the server's answers, in steps of a window.
    struct Link {
        own: OwnLink,
        now: Instant,
        /// What the session would send by itself.
        wants: u64,
        /// What the other flow would send, and the answers.
        other: u64,
        answers: u64,
        rate: Option<u64>,
    }

    impl Link {
        fn new(wants: u64, other: u64, answers: u64) -> Self {
            Self { own: OwnLink::default(), now: Instant(1_000_000_000), wants, other, answers, rate: None }
        }

        /// Runs for some seconds. Returns the session's part of the link in the last of them, in per cent, and that
        /// of the other flow.
        fn run(&mut self, seconds: u64) -> (u64, u64) {
            let mut sums = (0, 0);
            for window in 0..5 * seconds {
                let left = LINK - self.answers.min(LINK);
                let multicast = self.rate.unwrap_or(self.wants).min(left);
                let others = self.other.min(left - multicast);
                let full = self.rate.unwrap_or(self.wants) + self.other + self.answers >= LINK;
                let (answers, total) = (self.answers, multicast + others + self.answers);
                let shares = Shares { total, multicast, answers, others, full, queue: Duration::ZERO };
                self.now = self.now + Duration::from_millis(200);
                self.rate = self.own.window(self.now, &shares).map(|share| share.rate);
                if window >= 5 * (seconds - 1) {
                    sums = (sums.0 + multicast, sums.1 + others);
                }
            }
            (sums.0 * 100 / 5 / LINK, sums.1 * 100 / 5 / LINK)
        }
    }

    #[test]
    fn a_session_that_came_second_gets_half() {
        let (session, other) = Link::new(LINK / 10, LINK, 0).run(3);
        assert!((45..=55).contains(&session) && (45..=55).contains(&other), "{session} {other}");
    }

    #[test]
    fn a_flow_that_came_second_gets_half() {
        let mut link = Link::new(LINK / 10 * 9, LINK, 0);
        let (session, other) = link.run(3);
        assert!((45..=55).contains(&session) && (45..=55).contains(&other), "{session} {other}");
        link.other = 0;
        assert_eq!(link.run(2), (90, 0), "when the flow has ended, the session finds its rate itself");
    }

    #[test]
    fn what_a_flow_does_not_want_stays_with_the_session() {
        let (session, other) = Link::new(LINK / 10 * 8, LINK / 5, 0).run(6);
        assert!(session >= 76 && other >= 18, "{session} {other}");
    }

    #[test]
    fn a_link_that_is_not_full_and_a_link_without_others_are_left_alone() {
        let mut link = Link::new(LINK / 10, LINK / 2, 0);
        assert_eq!((link.run(3), link.rate), ((10, 50), None));
        let mut link = Link::new(LINK, 0, 0);
        assert_eq!((link.run(3), link.rate), ((100, 0), None));
    }

    #[test]
    fn a_session_without_anything_to_send_gets_no_part() {
        let mut link = Link::new(LINK / 1000, LINK, 0);
        assert_eq!((link.run(3), link.rate), ((0, 99), None));
    }

    #[test]
    fn answers_of_the_server_are_no_other_flow() {
        let mut link = Link::new(LINK, 0, LINK / 16);
        assert_eq!((link.run(3), link.rate), ((93, 0), None));
    }
}
