//! When a seeker stops to rely on offers and asks the server: members may only claim to have objects, or to be about to
//! have them.

use base::{Duration, Instant};

/// Whoever gets nothing for this time asks the server, whatever is offered. Next time after half of it, until a member
/// sends something.
const PATIENCE: Duration = Duration::from_secs(10);
const HALVED_MAX: u32 = 5;
/// After that only the server answers its requests, for this time: what an agent on a switch believes is not verified.
const DIRECT_FOR: Duration = Duration::from_secs(60);
/// After so many offers in a row of members that are avoided the server is asked.
const REFUSED_MAX: u32 = 8;

/// What is needed to decide.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When the first request was sent, or the last object arrived.
    progressed: Option<Instant>,
    halved: u32,
    /// Until when only the server may answer.
    direct_until: Option<Instant>,
    /// Offers in a row of members that are avoided.
    refused: u32,
}

impl Patience {
    /// A request is sent.
    pub(super) fn begin(&mut self, now: Instant) {
        self.progressed.get_or_insert(now);
    }

    /// A wanted object arrived.
    pub(super) fn came(&mut self, now: Instant, from_member: bool) {
        self.progressed = Some(now);
        if from_member {
            self.halved = self.halved.saturating_sub(1);
        }
    }

    /// Something is offered. Whether to ask the server instead.
    pub(super) fn is_lost(&mut self, now: Instant) -> bool {
        let lost = self.progressed.is_some_and(|at| now.since(at) >= PATIENCE / (1 << self.halved));
        if lost {
            self.halved = (self.halved + 1).min(HALVED_MAX);
            self.direct_until = Some(now + DIRECT_FOR);
        }
        lost
    }

    /// Whether only the server may answer requests now.
    pub(super) fn is_direct(&self, now: Instant) -> bool {
        self.direct_until.is_some_and(|until| now < until)
    }

    /// The member that was offered is not avoided.
    pub(super) fn accepted(&mut self) {
        self.refused = 0;
    }

    /// The member that was offered is avoided. Whether to ask the server instead.
    pub(super) fn refused(&mut self) -> bool {
        self.refused += 1;
        self.refused > REFUSED_MAX
    }
}
