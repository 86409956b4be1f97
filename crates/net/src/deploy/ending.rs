//! Programs that were called off, and are killed if they stay: their hosts may not be reachable any more.

use std::time::Duration;

use base::Instant;

/// How long a program that is to end may take to do so by itself.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Hosts whose program was asked to end, and when.
pub(super) struct Ending {
    grace: Duration,
    asked: Vec<(usize, Instant)>,
}

impl Ending {
    /// Programs may take so long to end.
    pub(super) fn within(grace: Duration) -> Self {
        Self { grace, asked: Vec::new() }
    }

    /// The program of `host` was asked to end.
    pub(super) fn begins(&mut self, host: usize, now: Instant) {
        self.asked.push((host, now));
    }

    /// Lets `kill` end those whose time is over. Those that do not run are forgotten.
    pub(super) fn kill_those_that_stay(
        &mut self,
        now: Instant,
        runs: impl Fn(usize) -> bool,
        kill: impl Fn(usize),
    ) {
        let grace = self.grace;
        self.asked.retain(|&(host, since)| {
            let is_over = now.since(since) >= grace;
            if runs(host) && is_over {
                kill(host);
            }
            runs(host) && !is_over
        });
    }
}
