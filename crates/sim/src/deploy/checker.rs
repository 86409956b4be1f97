//! What must hold in every deployment, told by what really happens and not by the machine.

use base::{Duration, Instant};
use proto::deploy::{Counts, Deploy, HostState, Said};

use super::host::Kind;
use super::{DeployScenario, ROOT};
use crate::Violation;

/// What is known of a host.
#[derive(Debug, Clone, Default)]
struct Seen {
    attempts: u32,
    /// When the attempt that runs began, said something new and got further.
    runs: Option<(Instant, Instant, Instant)>,
    /// The furthest that the attempt said: step and bytes.
    furthest: (u8, u64),
    stopped: Option<Instant>,
    ended: Option<Instant>,
    /// Its last attempt brought it.
    has_it: bool,
    final_failure: bool,
}

pub(super) struct Checker<'a> {
    scenario: &'a DeployScenario,
    hosts: Vec<Seen>,
    violations: Vec<Violation>,
    last_start: Option<Instant>,
    cancelled: Option<Instant>,
    attempts: u64,
    over: Option<Instant>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(scenario: &'a DeployScenario) -> Self {
        let hosts = vec![Seen::default(); scenario.kinds.len()];
        Self {
            scenario,
            hosts,
            violations: vec![],
            last_start: None,
            cancelled: None,
            attempts: 0,
            over: None,
        }
    }

    fn broken(&mut self, rule: &'static str, what: String) {
        if self.violations.len() < 10 {
            self.violations.push(Violation { rule, what });
        }
    }

    pub(super) fn cancelled(&mut self, now: Instant) {
        self.cancelled = Some(now);
    }

    /// An attempt begins; `runs`: one of this host runs; `others`: how many run.
    pub(super) fn started(&mut self, host: usize, attempt: u32, runs: bool, others: usize, now: Instant) {
        self.attempts += 1;
        let rules = &self.scenario.rules;
        let seen = self.hosts[host].clone();
        if runs {
            self.broken("one attempt at a time", format!("host {host} has two at {now:?}"));
        }
        if others >= rules.at_once {
            self.broken("not more at once than allowed", format!("{} at {now:?}", others + 1));
        }
        if attempt != seen.attempts + 1 || attempt > rules.attempts {
            self.broken("attempts are counted", format!("attempt {attempt} of host {host}"));
        }
        if seen.has_it || seen.final_failure {
            self.broken("who has ended does not begin again", format!("host {host}"));
        }
        let pause =
            rules.pause.saturating_mul(1 << seen.attempts.saturating_sub(1)).min(Duration::from_secs(60));
        if seen.ended.is_some_and(|ended| now.since(ended) < pause) {
            self.broken("a host rests between attempts", format!("host {host} at {now:?}"));
        }
        if self.last_start.is_some_and(|last| now.since(last) < rules.stagger) {
            self.broken("hosts begin one after the other", format!("host {host} at {now:?}"));
        }
        let failures = self.hosts.iter().filter(|seen| seen.final_failure).count();
        let too_many = rules.failures.is_some_and(|most| failures >= most.max(1));
        let too_late = rules.time.is_some_and(|time| now.since(Instant::ZERO) >= time);
        if too_many || too_late || self.cancelled.is_some() {
            self.broken("nobody begins when all is halted", format!("host {host} at {now:?}"));
        }
        let wave = host / rules.wave;
        let earlier = self.hosts[..wave * rules.wave].iter().all(|seen| seen.has_it || seen.final_failure);
        if !earlier {
            self.broken("waves follow each other", format!("host {host} at {now:?}"));
        }
        self.last_start = Some(now);
        self.hosts[host] = Seen { attempts: attempt, runs: Some((now, now, now)), ..Seen::default() };
    }

    pub(super) fn stopped(&mut self, host: usize, now: Instant) {
        let rules = &self.scenario.rules;
        let halted =
            self.cancelled.is_some() || rules.time.is_some_and(|time| now.since(Instant::ZERO) >= time);
        let seen = self.hosts[host].clone();
        let Some((since, heard, moved)) = seen.runs else {
            return self.broken("what does not run is not stopped", format!("host {host} at {now:?}"));
        };
        let hangs = now.since(heard) >= rules.silence || now.since(moved) >= rules.standstill;
        let is_over = rules.host_time.is_some_and(|time| now.since(since) >= time);
        if !(hangs || is_over || halted) {
            self.broken("what gets on is not stopped", format!("host {host} at {now:?}"));
        }
        if seen.stopped.is_some() {
            self.broken("it is stopped once", format!("host {host} at {now:?}"));
        }
        self.hosts[host].stopped = Some(now);
    }

    /// Something is said; `runs`: by the attempt that runs.
    pub(super) fn said(&mut self, host: usize, attempt: u32, said: &Said, runs: bool, now: Instant) {
        if !runs {
            return;
        }
        let rules = &self.scenario.rules;
        let seen = &mut self.hosts[host];
        if let Some((_, heard, moved)) = &mut seen.runs {
            *heard = now;
            if let Said::Progress { step, done, total } = said {
                let at = (*step, *done.min(total));
                if at > seen.furthest {
                    (*moved, seen.furthest) = (now, at);
                }
                // A total that grows counts, too: the machine cannot know better.
                *moved =
                    if *total > 0 && matches!(self.scenario.kinds[host], Kind::Lies) { now } else { *moved };
            }
        }
        match said {
            Said::Ready { root } => {
                seen.runs = None;
                seen.ended = Some(now);
                seen.has_it = *root == ROOT;
                seen.final_failure = *root != ROOT;
            }
            Said::Failed { again, .. } => {
                let again = *again || seen.stopped.is_some();
                seen.runs = None;
                seen.ended = Some(now);
                seen.final_failure = !again || attempt >= rules.attempts;
            }
            Said::Alive | Said::Progress { .. } => {}
        }
    }

    /// Looks at the machine after each step.
    pub(super) fn look(&mut self, deploy: &Deploy, now: Instant) {
        if deploy.is_over() && self.over.is_none() {
            self.over = Some(now);
        }
        // For many hosts this is looked at now and then.
        if self.hosts.len() > 100 && !self.attempts.is_multiple_of(64) {
            return;
        }
        let mut counts = Counts::default();
        for host in 0..self.hosts.len() {
            let count = match deploy.host(host) {
                HostState::Waiting | HostState::Pausing { .. } => &mut counts.waiting,
                HostState::Working { done, total, .. } => {
                    if done > total {
                        self.broken("no host is further than its end", format!("host {host}"));
                    }
                    &mut counts.working
                }
                HostState::Ready { .. } => &mut counts.ready,
                HostState::Failed { .. } => &mut counts.failed,
                HostState::LeftOut { .. } => &mut counts.left_out,
            };
            *count += 1;
        }
        if counts != deploy.counts() {
            self.broken("hosts are counted", format!("{counts:?} are {:?}", deploy.counts()));
        }
        let rules = &self.scenario.rules;
        let late = Duration::from_millis(1);
        let hangs = |seen: &Seen| {
            let (_, heard, moved) = seen.runs.filter(|_| seen.stopped.is_none())?;
            Some(now.since(heard) > rules.silence + late || now.since(moved) > rules.standstill + late)
        };
        if let Some(host) = self.hosts.iter().position(|seen| hangs(seen) == Some(true)) {
            self.broken("what hangs is stopped", format!("host {host} at {now:?}"));
        }
    }

    /// The end. Returns the number of attempts, and what was broken.
    pub(super) fn end(mut self, deploy: &Deploy, left: bool) -> (u64, Vec<Violation>) {
        if !deploy.is_over() || left {
            self.broken("it ends", format!("{:?}", deploy.counts()));
        }
        let rules = self.scenario.rules.clone();
        let halted = self.cancelled.is_some() || rules.time.is_some() || rules.failures.is_some();
        for host in 0..self.hosts.len() {
            let (seen, kind) = (self.hosts[host].clone(), self.scenario.kinds[host]);
            let state = deploy.host(host).clone();
            if matches!(state, HostState::Ready { .. }) != seen.has_it {
                self.broken("ready is who has it", format!("host {host}, {kind:?}: {state:?}"));
            }
            if let HostState::Failed { why } | HostState::LeftOut { why } = &state
                && why.is_empty()
            {
                self.broken("who failed is told why", format!("host {host}"));
            }
            if kind == Kind::Refuses && seen.attempts > 1 {
                self.broken("who refuses is asked once", format!("host {host}"));
            }
            let may_end = rules.host_time.is_none();
            let should = kind.works_at().is_some_and(|attempt| attempt <= rules.attempts) && may_end;
            if should && !halted && !seen.has_it {
                self.broken("who can have it gets it", format!("host {host}, {kind:?}: {state:?}"));
            }
            if !halted && matches!(state, HostState::LeftOut { .. }) {
                self.broken("nobody is left out without a reason", format!("host {host}: {state:?}"));
            }
        }
        (self.attempts, self.violations)
    }
}
