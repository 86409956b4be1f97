//! How long a deployment still takes.

use std::time::Duration;

use base::Instant;

use super::{Deploy, HostState};

/// An attempt that ran for less says nothing of its rate.
const MEASURED_MIN: Duration = Duration::from_millis(500);

impl Deploy {
    /// How long a host at work still takes at the rate of its present step, and at least until it has taken as long as
    /// others did on the average; `None` if that is not known.
    #[must_use]
    pub fn host_left(&self, host: usize, now: Instant) -> Option<Duration> {
        let HostState::Working { since, step: (_, step_since), done, total, ending: None, .. } =
            *self.host(host)
        else {
            return None;
        };
        let as_others = self.each().map(|each| each.saturating_sub(now.since(since)));
        let ran = now.since(step_since);
        if ran < MEASURED_MIN || done == 0 || total == 0 {
            return as_others;
        }
        #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
        let share = (total - done) as f64 / done as f64;
        let of_step = Duration::try_from_secs_f64(ran.as_secs_f64() * share).ok();
        of_step.max(as_others)
    }

    /// How long a host took that is ready, on the average.
    fn each(&self) -> Option<Duration> {
        let ready = u32::try_from(self.counts().ready).unwrap_or(u32::MAX);
        (ready > 0).then(|| self.took / ready)
    }

    /// How long all still take, if nothing fails: the slowest at work, and after it those that wait, in as many rounds
    /// as they need, each as long as hosts took so far. `None` if nothing is known yet.
    #[must_use]
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let mut known = Vec::new();
        let mut slowest = None;
        for host in 0..self.hosts.len() {
            if let (HostState::Working { since, .. }, Some(left)) =
                (self.host(host), self.host_left(host, now))
            {
                slowest = slowest.max(Some(left));
                known.push(now.since(*since) + left);
            }
        }
        let counts = self.counts();
        if counts.waiting == 0 {
            return slowest.or((counts.working == 0).then_some(Duration::ZERO));
        }
        let at_work = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let of_those = (at_work > 0).then(|| known.iter().sum::<Duration>() / at_work.max(1));
        let each = self.each().or(of_those)?;
        let later = u32::try_from(self.rounds()).unwrap_or(u32::MAX);
        let begins = u32::try_from(counts.waiting).unwrap_or(u32::MAX);
        let rounds = each.saturating_mul(later).max(self.rules.stagger.saturating_mul(begins));
        Some(slowest.unwrap_or_default().saturating_add(rounds))
    }

    /// How many times all places are filled anew until everybody has begun.
    fn rounds(&self) -> usize {
        let (at_once, wave) = (self.rules.at_once, self.rules.wave);
        let later = self.hosts.len() - self.next_wave;
        let now = self.counts().waiting.saturating_sub(later);
        let of_rest = (later % wave).div_ceil(at_once);
        now.div_ceil(at_once) + later / wave * wave.div_ceil(at_once) + of_rest
    }
}
