//! A deployment to many hosts, without I/O: which host begins when, which one is tried again or given up, and how long
//! all of it still takes. The driver starts and stops *attempts*, one program each, and tells what they say.
//!
//! Two attempts of one host never run at the same time: the next one begins when the driver has said that the one
//! before has ended. What an earlier attempt says is of no account.

mod host;
mod left;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use base::{Digest, Instant};

use self::host::Host;
pub use self::host::{HostState, Said};
pub use self::rules::Rules;

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start attempt `attempt`, from 1, at a host.
    Start {
        /// The host, from 0.
        host: usize,
        /// The attempt, from 1.
        attempt: u32,
    },
    /// End the attempt that runs at a host, and say when it has ended.
    Stop {
        /// The host, from 0.
        host: usize,
    },
}

/// Hosts, by how far they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Hosts whose turn has not come, and those that pause before an attempt.
    pub waiting: usize,
    /// Hosts at work, and those whose attempt is being ended.
    pub working: usize,
    /// Hosts that have their copy.
    pub ready: usize,
    /// Hosts that were given up.
    pub failed: usize,
    /// Hosts that were not to begin, or not to go on.
    pub left_out: usize,
}

/// A deployment.
#[derive(Debug, Clone)]
pub struct Deploy {
    rules: Rules,
    /// What a host must prove to have.
    wanted: Digest,
    hosts: Vec<Host>,
    began: Instant,
    started: Option<Instant>,
    /// Hosts of the waves so far that may begin, in their order.
    due: VecDeque<usize>,
    /// The first host of the next wave.
    next_wave: usize,
    /// When to look at a host again.
    timers: BTreeSet<(Instant, usize)>,
    counts: Counts,
    /// Why no host begins any more.
    halted: Option<&'static str>,
    /// How long the hosts took that are ready, together.
    took: Duration,
}

impl Deploy {
    /// A deployment of the version whose root is `wanted` to `hosts` hosts, numbered from 0.
    #[must_use]
    pub fn new(hosts: usize, wanted: Digest, rules: Rules, now: Instant) -> Self {
        let rules = Rules {
            at_once: rules.at_once.max(1),
            wave: rules.wave.max(1),
            attempts: rules.attempts.max(1),
            ..rules
        };
        let counts = Counts { waiting: hosts, ..Counts::default() };
        Self {
            rules,
            wanted,
            hosts: vec![Host::default(); hosts],
            began: now,
            started: None,
            due: VecDeque::new(),
            next_wave: 0,
            timers: BTreeSet::new(),
            counts,
            halted: None,
            took: Duration::ZERO,
        }
    }

    /// What the driver is to do now. It must ask when it has told something, and at [`Self::wakes`].
    pub fn next(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.rules.time.is_some_and(|time| now.since(self.began) >= time) && self.halted.is_none() {
            self.halt("the time for all hosts is over");
            self.stop_all(&mut actions);
        }
        while let Some(&(at, host)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, host));
            self.hosts[host].timer = None;
            self.look_at(host, now, &mut actions);
        }
        while self.may_start(now) {
            let Some(host) = self.take_due() else { break };
            self.started = Some(now);
            let attempt = self.hosts[host].begin(now);
            self.counts.waiting -= 1;
            self.counts.working += 1;
            self.set_timer(host);
            actions.push(Action::Start { host, attempt });
        }
        actions
    }

    /// Takes what attempt `attempt` of a host said.
    pub fn heard(&mut self, host: usize, attempt: u32, said: Said, now: Instant) {
        if !self.hosts[host].runs(attempt) {
            return;
        }
        let outcome = match said {
            Said::Alive => {
                self.hosts[host].alive(now);
                return self.set_timer(host);
            }
            Said::Progress { step, done, total } => {
                self.hosts[host].progress((step, done, total), now);
                return self.set_timer(host);
            }
            Said::Ready { root } if root == self.wanted => Ok(()),
            Said::Ready { .. } => {
                Err(("it says that it is ready, but has another version".to_owned(), false))
            }
            Said::Failed { why, again } => Err((why, again)),
        };
        self.end(host, outcome, now);
    }

    /// Ends all: hosts at work are stopped, the others do not begin. Returns what the driver is to do.
    pub fn cancel(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.halt("it was called off");
        self.stop_all(&mut actions);
        actions
    }

    /// When to call [`Self::next`] at the latest; `None` if nothing but words of hosts brings anything new.
    #[must_use]
    pub fn wakes(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let some_wait = !self.due.is_empty() || self.next_wave_may_begin();
        let may_come = some_wait && self.halted.is_none() && self.counts.working < self.rules.at_once;
        let turn = self.started.filter(|_| may_come).map(|at| at + self.rules.stagger);
        let end = self.rules.time.filter(|_| self.halted.is_none()).map(|time| self.began + time);
        [timer, turn, end].into_iter().flatten().min()
    }

    /// Whether all hosts have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.counts.waiting + self.counts.working == 0
    }

    /// How many hosts are how far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How far a host is.
    #[must_use]
    pub fn host(&self, host: usize) -> &HostState {
        &self.hosts[host].state
    }

    fn may_start(&self, now: Instant) -> bool {
        let turn = self.started.is_none_or(|at| now.since(at) >= self.rules.stagger);
        self.halted.is_none() && self.counts.working < self.rules.at_once && turn
    }

    /// Whether nothing is left of the waves so far, and there is another one.
    fn next_wave_may_begin(&self) -> bool {
        let left = self.hosts.len() - self.next_wave;
        left > 0 && self.counts.working == 0 && self.counts.waiting == left
    }

    /// The next host that may begin.
    fn take_due(&mut self) -> Option<usize> {
        if self.next_wave_may_begin() {
            let end = self.hosts.len().min(self.next_wave.saturating_add(self.rules.wave));
            self.due.extend(self.next_wave..end);
            self.next_wave = end;
        }
        self.due.pop_front()
    }

    /// A host's time has come: its pause is over, or it hangs.
    fn look_at(&mut self, host: usize, now: Instant, actions: &mut Vec<Action>) {
        if self.hosts[host].is_rested(now) {
            return self.due.push_front(host);
        }
        if self.hosts[host].give_up_if_hanging(&self.rules, now) {
            actions.push(Action::Stop { host });
        }
        self.set_timer(host);
    }

    /// An attempt has ended.
    fn end(&mut self, host: usize, outcome: Result<(), (String, bool)>, now: Instant) {
        self.counts.working -= 1;
        if let Some(took) = self.hosts[host].end(outcome, &self.rules, self.halted, now) {
            self.took += took;
        }
        let count = match self.hosts[host].state {
            HostState::Ready { .. } => &mut self.counts.ready,
            HostState::Failed { .. } => &mut self.counts.failed,
            HostState::LeftOut { .. } => &mut self.counts.left_out,
            HostState::Waiting | HostState::Pausing { .. } | HostState::Working { .. } => {
                &mut self.counts.waiting
            }
        };
        *count += 1;
        self.set_timer(host);
        if self.rules.failures.is_some_and(|most| self.counts.failed >= most.max(1)) {
            self.halt("too many hosts have failed");
        }
    }

    /// No host begins any more.
    fn halt(&mut self, why: &'static str) {
        if self.halted.replace(why).is_some() {
            return;
        }
        self.due.clear();
        for (number, host) in self.hosts.iter_mut().enumerate().filter(|(_, host)| host.waits()) {
            if let Some(at) = host.timer.take() {
                self.timers.remove(&(at, number));
            }
            host.leave_out(why);
            self.counts.waiting -= 1;
            self.counts.left_out += 1;
        }
    }

    fn stop_all(&mut self, actions: &mut Vec<Action>) {
        let running = self.hosts.iter_mut().enumerate().filter(|(_, host)| host.is_working());
        for (number, host) in running {
            if host.stop(self.halted.unwrap_or_default().to_owned()) {
                actions.push(Action::Stop { host: number });
            }
        }
    }

    fn set_timer(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let at = host.next_look(&self.rules);
        if at == host.timer {
            return;
        }
        if let Some(old) = std::mem::replace(&mut host.timer, at) {
            self.timers.remove(&(old, number));
        }
        self.timers.extend(at.map(|at| (at, number)));
    }
}
