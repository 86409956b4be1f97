//! When a seeker stops to rely on offers and asks the server: members may only claim to have objects, or to be about to
//! have them.

use base::{Duration, Instant};

/// Whoever gets nothing for this time asks the server, whatever is offered. Next time after half of it, until a member
/// sends something.
const PATIENCE: Duration = Duration::from_secs(10);
const HALVED_MAX: u32 = 5;
/// After so many offers in a row of members that are avoided the server is asked.
const REFUSED_MAX: u32 = 8;

/// What is needed to decide.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When the first request was sent, or the last object arrived.
    progressed: Option<Instant>,
    halved: u32,
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
        }
        lost
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
