//! One host of a deployment.

use std::time::Duration;

use base::{Digest, Instant};

use super::rules::{PAUSE_MAX, Rules};

/// What an attempt says. [`Self::Ready`] and [`Self::Failed`] are its last words: its program has ended then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It is alive.
    Alive,
    /// How far it is.
    Progress {
        /// The step, such as writing or checking; a later one has a greater number.
        step: u8,
        /// Bytes of this step that are done.
        done: u64,
        /// Bytes of all of this step.
        total: u64,
    },
    /// The host has its copy, which was read back and checked.
    Ready {
        /// The root of the tree of the version that it has.
        root: Digest,
    },
    /// It has no copy.
    Failed {
        /// Why, for people.
        why: String,
        /// Whether another attempt may help: not if the host refuses, or its disk is too small.
        again: bool,
    },
}

/// How far a host is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HostState {
    /// Its turn has not come.
    #[default]
    Waiting,
    /// An attempt failed; the next one comes.
    Pausing {
        /// Why the last one failed.
        why: String,
        /// When the next one may begin.
        until: Instant,
    },
    /// An attempt runs.
    Working {
        /// When it began.
        since: Instant,
        /// When it last said something.
        heard: Instant,
        /// When it last got further.
        moved: Instant,
        /// The step that it is at, and since when.
        step: (u8, Instant),
        /// Bytes of the step that are done.
        done: u64,
        /// Bytes of all of the step, 0 if not known.
        total: u64,
        /// Why it is being ended, if it is.
        ending: Option<String>,
    },
    /// It has its copy.
    Ready {
        /// How long the attempt took that brought it.
        took: Duration,
    },
    /// It was given up.
    Failed {
        /// Why its last attempt failed.
        why: String,
    },
    /// It did not begin, or was stopped, though nothing was wrong with it.
    LeftOut {
        /// Why.
        why: String,
    },
}

#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    pub(super) state: HostState,
    /// Attempts so far.
    attempts: u32,
    /// When it is to be looked at.
    pub(super) timer: Option<Instant>,
}

impl Host {
    /// Begins an attempt, and returns its number.
    pub(super) fn begin(&mut self, now: Instant) -> u32 {
        self.attempts += 1;
        self.state = HostState::Working {
            since: now,
            heard: now,
            moved: now,
            step: (0, now),
            done: 0,
            total: 0,
            ending: None,
        };
        self.attempts
    }

    /// Whether this attempt runs.
    pub(super) fn runs(&self, attempt: u32) -> bool {
        self.is_working() && attempt == self.attempts
    }

    pub(super) fn is_working(&self) -> bool {
        matches!(self.state, HostState::Working { .. })
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.state, HostState::Waiting | HostState::Pausing { .. })
    }

    /// Whether a pause is over.
    pub(super) fn is_rested(&self, now: Instant) -> bool {
        matches!(self.state, HostState::Pausing { until, .. } if until <= now)
    }

    pub(super) fn leave_out(&mut self, why: &str) {
        self.state = HostState::LeftOut { why: why.to_owned() };
    }

    pub(super) fn alive(&mut self, now: Instant) {
        if let HostState::Working { heard, .. } = &mut self.state {
            *heard = now;
        }
    }

    /// It is at `at`: step, bytes done, bytes of all. Only what was never reached before counts, since a host may say
    /// anything.
    pub(super) fn progress(&mut self, at: (u8, u64, u64), now: Instant) {
        self.alive(now);
        let HostState::Working { moved, step, done, total, .. } = &mut self.state else { return };
        let (new_step, new_total) = (at.0, at.2);
        let new_done = at.1.min(new_total);
        if new_step > step.0 {
            (*step, *moved, *done, *total) = ((new_step, now), now, new_done, new_total);
        } else if new_step == step.0 && (new_done > *done || new_total > *total) {
            (*moved, *done, *total) = (now, new_done.max(*done), new_total.max(*total));
        }
    }

    /// Ends an attempt that hangs. Returns whether it has to be stopped.
    pub(super) fn give_up_if_hanging(&mut self, rules: &Rules, now: Instant) -> bool {
        let HostState::Working { since, heard, moved, .. } = self.state else { return false };
        let seconds = |time: Duration| time.as_secs();
        let over = |since: Instant, time: Duration| now.since(since) >= time;
        let why = if over(heard, rules.silence) {
            format!("nothing was heard of it for {} s", seconds(rules.silence))
        } else if over(moved, rules.standstill) {
            format!("it got no further for {} s", seconds(rules.standstill))
        } else if let Some(time) = rules.host_time.filter(|time| over(since, *time)) {
            format!("it took longer than {} s", seconds(time))
        } else {
            return false;
        };
        self.stop(why)
    }

    /// Ends the attempt that runs. Returns whether the driver must be told: not twice.
    pub(super) fn stop(&mut self, why: String) -> bool {
        let HostState::Working { ending, .. } = &mut self.state else { return false };
        let first = ending.is_none();
        ending.get_or_insert(why);
        first
    }

    /// The attempt has ended. Returns how long it took if the host is ready.
    pub(super) fn end(
        &mut self,
        outcome: Result<(), (String, bool)>,
        rules: &Rules,
        halted: Option<&'static str>,
        now: Instant,
    ) -> Option<Duration> {
        let HostState::Working { since, ending, .. } = &mut self.state else { return None };
        let took = now.since(*since);
        let ending = ending.take();
        let Err((why, again)) = outcome else {
            // Also if it was about to be ended: it has its copy.
            self.state = HostState::Ready { took };
            return Some(took);
        };
        let is_stopped = ending.is_some();
        let why = ending.unwrap_or(why);
        self.state = match halted {
            Some(reason) if is_stopped && why == reason => HostState::LeftOut { why },
            None if (again || is_stopped) && self.attempts < rules.attempts => {
                let doubled = 1u32.checked_shl(self.attempts - 1).unwrap_or(u32::MAX);
                let pause = rules.pause.saturating_mul(doubled).min(PAUSE_MAX);
                HostState::Pausing { why, until: now + pause }
            }
            _ => HostState::Failed { why },
        };
        None
    }

    /// When it is to be looked at again.
    pub(super) fn next_look(&self, rules: &Rules) -> Option<Instant> {
        match &self.state {
            HostState::Pausing { until, .. } => Some(*until),
            HostState::Working { since, heard, moved, ending: None, .. } => {
                let whole = rules.host_time.map(|time| *since + time);
                let hangs = (*heard + rules.silence).min(*moved + rules.standstill);
                Some(whole.map_or(hangs, |whole| whole.min(hangs)))
            }
            _ => None,
        }
    }
}
