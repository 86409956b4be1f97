//! The clock, the attempts that run, and what they say.

use std::collections::BTreeMap;

use base::{Chance, Duration, Instant};
use proto::deploy::{Action, Deploy, Said};

use super::checker::Checker;
use super::host::script;
use super::{DeployOutcome, DeployScenario, ROOT};
use crate::queue::Queue;

/// Longest time until an attempt that was stopped has ended: then its program is killed.
const STOPS_MAX_MS: u64 = 5000;
/// No run takes longer.
const END: Instant = Instant(1_000_000 * 1_000_000_000);

enum Event {
    /// What an attempt says.
    Word {
        host: usize,
        attempt: u32,
        said: Said,
    },
    /// An attempt that was stopped has ended.
    Ended {
        host: usize,
        attempt: u32,
    },
    /// The machine asked for this.
    Wake,
    Cancel,
}

pub(super) struct World<'a> {
    scenario: &'a DeployScenario,
    deploy: Deploy,
    queue: Queue<Event>,
    chance: Chance,
    /// The attempt of a host that runs, and what it says after its end.
    running: BTreeMap<usize, (u32, Vec<(Duration, Said)>)>,
    wake: Option<Instant>,
    checker: Checker<'a>,
    steps: u64,
    trace: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a DeployScenario) -> Self {
        let deploy = Deploy::new(scenario.kinds.len(), ROOT, scenario.rules.clone(), Instant::ZERO);
        let mut queue = Queue::default();
        queue.push(Instant::ZERO, Event::Wake);
        scenario.cancel.into_iter().for_each(|at| queue.push(at, Event::Cancel));
        Self {
            scenario,
            deploy,
            queue,
            chance: Chance::from_seed(scenario.seed ^ 0x6465_706c_6f79),
            running: BTreeMap::new(),
            wake: None,
            checker: Checker::new(scenario),
            steps: 0,
            trace: 0,
        }
    }

    pub(super) fn run(mut self) -> DeployOutcome {
        while let Some(event) = self.queue.pop() {
            let now = self.queue.now();
            if now > END {
                break;
            }
            self.steps += 1;
            self.take(event, now);
            let actions = self.deploy.next(now);
            actions.into_iter().for_each(|action| self.act(action, now));
            self.checker.look(&self.deploy, now);
            if self.deploy.is_over() && self.running.is_empty() {
                break;
            }
            if let Some(at) =
                self.deploy.wakes().filter(|at| self.wake.is_none_or(|wake| *at < wake || wake <= now))
            {
                self.wake = Some(at);
                self.queue.push(at, Event::Wake);
            }
        }
        let took = self.queue.now().since(Instant::ZERO);
        let (attempts, violations) = self.checker.end(&self.deploy, !self.running.is_empty());
        let (counts, steps, trace) = (self.deploy.counts(), self.steps, self.trace);
        DeployOutcome { violations, trace, steps, attempts, counts, took }
    }

    fn take(&mut self, event: Event, now: Instant) {
        match event {
            Event::Wake => {}
            Event::Cancel => {
                self.checker.cancelled(now);
                let actions = self.deploy.cancel();
                actions.into_iter().for_each(|action| self.act(action, now));
            }
            Event::Word { host, attempt, said } => {
                let runs = self.running.get(&host).is_some_and(|(running, _)| *running == attempt);
                let is_last = matches!(said, Said::Ready { .. } | Said::Failed { .. });
                if runs && is_last {
                    self.running.remove(&host);
                }
                self.checker.said(host, attempt, &said, runs, now);
                self.mix(host, attempt);
                self.deploy.heard(host, attempt, said, now);
            }
            Event::Ended { host, attempt } => {
                if self.running.get(&host).is_none_or(|(running, _)| *running != attempt) {
                    return;
                }
                let (_, late) = self.running.remove(&host).expect("it runs");
                let said = Said::Failed { why: "its program was ended".to_owned(), again: true };
                self.checker.said(host, attempt, &said, true, now);
                self.deploy.heard(host, attempt, said, now);
                for (after, said) in late {
                    self.queue.push(now + after, Event::Word { host, attempt, said });
                }
            }
        }
    }

    fn act(&mut self, action: Action, now: Instant) {
        match action {
            Action::Start { host, attempt } => {
                self.checker.started(
                    host,
                    attempt,
                    self.running.contains_key(&host),
                    self.running.len(),
                    now,
                );
                let script = script(self.scenario.kinds[host], attempt, &mut self.chance);
                self.running.insert(host, (attempt, script.late));
                for (after, said) in script.words {
                    self.queue.push(now + after, Event::Word { host, attempt, said });
                }
            }
            Action::Stop { host } => {
                self.checker.stopped(host, now);
                if let Some((attempt, _)) = self.running.get(&host) {
                    let after = Duration::from_millis(self.chance.below(STOPS_MAX_MS));
                    self.queue.push(now + after, Event::Ended { host, attempt: *attempt });
                }
            }
        }
    }

    fn mix(&mut self, host: usize, attempt: u32) {
        let word = self.queue.now().0 ^ ((host as u64) << 8) ^ u64::from(attempt);
        self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3);
    }
}
