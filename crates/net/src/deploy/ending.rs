//! Programs that were called off, and are killed if they stay: their hosts may not be reachable any more.

use std::time::Duration;

use base::Instant;

/// How long a program that is to end may take to do so by itself.
const GRACE: Duration = Duration::from_secs(5);

/// Hosts whose program was asked to end, and when.
#[derive(Default)]
pub(super) struct Ending(Vec<(usize, Instant)>);

impl Ending {
    /// The program of `host` was asked to end.
    pub(super) fn begins(&mut self, host: usize, now: Instant) {
        self.0.push((host, now));
    }

    /// Lets `kill` end those whose time is over. Those that do not run are forgotten.
    pub(super) fn kill_those_that_stay(
        &mut self,
        now: Instant,
        runs: impl Fn(usize) -> bool,
        kill: impl Fn(usize),
    ) {
        self.0.retain(|&(host, since)| {
            let is_over = now.since(since) >= GRACE;
            if runs(host) && is_over {
                kill(host);
            }
            runs(host) && !is_over
        });
    }
}
