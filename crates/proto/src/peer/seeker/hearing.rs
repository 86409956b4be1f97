//! Whether anybody answers requests. A firewall may drop all packets to the redirector; then waiting is in vain.

use base::{Duration, Instant};

use super::TRIES_MAX;

/// A request is sent so often while none was ever answered.
const UNHEARD_TRIES_MAX: u32 = 2;
/// After more requests than these in a row without an answer nobody is believed to answer; after one, if none was ever
/// answered.
const UNANSWERED_MAX: u32 = 2;
/// Then one request is made after this time, and everything else comes from the server meanwhile.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// An answer to one of so many last requests tells that somebody answers, even if it comes too late.
const LAST_REQUESTS: u32 = 64;

/// What a seeker knows of that, and the next one of the same member goes on with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hearing {
    /// Whether a request was ever answered.
    heard: bool,
    /// Requests in a row that were not.
    unanswered: u32,
    /// When the last one was given up.
    given_up: Option<Instant>,
}

impl Hearing {
    /// The same by another clock, which shows `now`.
    pub(super) fn carried_to(self, now: Instant) -> Self {
        Self { given_up: self.given_up.map(|_| now), ..self }
    }

    /// Request `number` of `last` was answered.
    pub(super) fn heard(&mut self, number: u32, last: u32) {
        if last.wrapping_sub(number) < LAST_REQUESTS {
            (self.heard, self.unanswered) = (true, 0);
        }
    }

    /// A request was not answered.
    pub(super) fn missed(&mut self, now: Instant) {
        (self.unanswered, self.given_up) = (self.unanswered + 1, Some(now));
    }

    /// How often a request is sent before the server is asked.
    pub(super) fn tries_max(&self) -> u32 {
        match (self.is_deaf(), self.heard) {
            (true, _) => 1,
            (false, false) => UNHEARD_TRIES_MAX,
            (false, true) => TRIES_MAX,
        }
    }

    /// Whether the server is asked at once, instead of the redirector, of whom `asked` requests are open.
    pub(super) fn is_in_vain(&self, now: Instant, asked: usize) -> bool {
        let lately = self.given_up.is_some_and(|at| now.since(at) < LISTEN_AGAIN_AFTER);
        self.is_deaf() && (lately || asked > 0)
    }

    fn is_deaf(&self) -> bool {
        self.unanswered > if self.heard { UNANSWERED_MAX } else { 0 }
    }
}
