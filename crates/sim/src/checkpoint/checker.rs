//! What must hold for every set, told by what really happens and not by the machine.

use std::collections::BTreeMap;

use base::{Duration, Instant};
use proto::checkpoint::{Action, Checkpoint, Order, Phase, Said};

use super::CheckpointScenario;
use super::host::{Kind, Program, UNHEARD_MAX};
use crate::Violation;

/// Longest time from an order to its arrival, and from a word to its arrival.
const WAY: Duration = Duration::from_millis(400);

/// What was said and told in the present round.
#[derive(Debug, Clone, Default)]
struct Seen {
    frozen: bool,
    stored: bool,
}

pub(super) struct Checker<'a> {
    scenario: &'a CheckpointScenario,
    round: u32,
    seen: Vec<Seen>,
    /// When hosts were told to freeze, if they were not told to go on or stopped, and have not all ended.
    freezing: Option<Instant>,
    went_on: bool,
    publishes: bool,
    visible: bool,
    cancelled: bool,
    refused: bool,
    violations: Vec<Violation>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(scenario: &'a CheckpointScenario) -> Self {
        Self {
            scenario,
            round: 0,
            seen: vec![],
            freezing: None,
            went_on: false,
            publishes: false,
            visible: false,
            cancelled: false,
            refused: false,
            violations: vec![],
        }
    }

    fn broken(&mut self, rule: &'static str, what: String) {
        if self.violations.len() < 10 {
            self.violations.push(Violation { rule, what });
        }
    }

    pub(super) fn is_visible(&self) -> bool {
        self.visible
    }

    pub(super) fn cancelled(&mut self) {
        self.cancelled = true;
    }

    /// The deployment was killed: what it knows is of no account any more.
    pub(super) fn killed(&mut self) {
        self.freezing = None;
    }

    /// The last program has ended, and nobody is left to be told that it is over.
    pub(super) fn nothing_runs(&mut self) {
        self.freezing = None;
    }

    /// The machine does something while `running` programs run.
    pub(super) fn acts(&mut self, action: Action, running: usize, now: Instant) {
        match action {
            Action::Start { round, .. } => {
                if round != self.round {
                    if running > 0 {
                        self.broken(
                            "a round begins when all have ended",
                            format!("round {round} at {now:?}"),
                        );
                    }
                    if self.refused || self.publishes || round > self.scenario.rules.rounds {
                        self.broken("no round without a reason", format!("round {round} at {now:?}"));
                    }
                    self.round = round;
                    self.seen = vec![Seen::default(); self.scenario.kinds.len()];
                    (self.freezing, self.went_on) = (None, false);
                }
            }
            Action::Tell { order: Order::Freeze, .. } => {
                self.freezing.get_or_insert(now);
            }
            Action::Tell { order: Order::GoOn, host } => {
                if !self.seen.iter().all(|seen| seen.frozen) {
                    self.broken("nobody goes on before all are frozen", format!("host {host} at {now:?}"));
                }
                (self.freezing, self.went_on) = (None, true);
            }
            Action::Tell { order: Order::Finish, host } => {
                if !self.visible {
                    self.broken("nobody ends before the set is there", format!("host {host} at {now:?}"));
                }
            }
            Action::Stop { .. } => self.freezing = None,
            Action::Publish => {
                self.publishes = true;
                if !self.seen.iter().all(|seen| seen.stored) {
                    self.broken("published is what all have stored", format!("at {now:?}"));
                }
            }
        }
    }

    /// A word reaches the deployment.
    pub(super) fn said(&mut self, (host, round): (usize, u32), said: &Said) {
        if round != self.round {
            return;
        }
        match said {
            // What is said before its time does not count.
            Said::Frozen => self.seen[host].frozen |= self.freezing.is_some(),
            Said::Stored => self.seen[host].stored |= self.went_on,
            Said::Failed { again, .. } => self.refused |= !again && !self.visible,
            _ => {}
        }
    }

    /// After each step.
    pub(super) fn look(&mut self, now: Instant) {
        let limit = self.scenario.rules.freeze + Duration::from_millis(1);
        if let Some(since) = self.freezing.filter(|since| now.since(*since) > limit) {
            self.broken("the freeze is bounded", format!("since {since:?}, at {now:?}"));
        }
    }

    /// The set becomes visible.
    pub(super) fn visible(&mut self, programs: &BTreeMap<(usize, u32), Program>, now: Instant) {
        if std::mem::replace(&mut self.visible, true) {
            self.broken("it is published once", format!("at {now:?}"));
        }
        let honest = |(host, round): &(usize, u32)| {
            *round == self.round && !matches!(self.scenario.kinds[*host], Kind::Lies)
        };
        let members: Vec<_> =
            programs.iter().filter(|(name, _)| honest(name)).map(|(_, program)| program).collect();
        let lacks = members.iter().filter(|program| !program.stored || program.moment.is_none()).count();
        let from = members.iter().filter_map(|program| program.moment).map(|(from, _)| from).max();
        let to = members.iter().filter_map(|program| program.moment).map(|(_, to)| to).min();
        if lacks > 0 {
            self.broken("visible is what all have stored", format!("{lacks} have not, at {now:?}"));
        }
        if let (Some(from), Some(to)) = (from, to)
            && from > to
        {
            let what = format!("the last froze at {from:?}, the first went on at {to:?}");
            self.broken("there is a moment at which all stand still", what);
        }
    }

    /// The end. Returns what was broken.
    pub(super) fn end(
        mut self,
        set: Option<&Checkpoint>,
        programs: &BTreeMap<(usize, u32), Program>,
    ) -> Vec<Violation> {
        let scenario = self.scenario;
        for ((host, round), program) in programs {
            let most = match scenario.suspends {
                false => scenario.rules.freeze,
                // As long as the deployment is heard of; its last word is as old as this at the most.
                true => scenario.rules.freeze + UNHEARD_MAX + scenario.rules.time.unwrap_or_default(),
            };
            if program.frozen.is_some() || program.longest > most + WAY {
                let what = format!("host {host} in round {round}: {:?}, {program:?}", program.longest);
                self.broken("nobody stays frozen", what);
            }
            if program.ended && !self.visible {
                self.broken("no machine ends without a set", format!("host {host} in round {round}"));
            }
        }
        let Some(set) = set else { return self.violations };
        if set.phase() != Phase::Over {
            self.broken("it ends", format!("{:?}", set.phase()));
        }
        if set.is_published() != self.visible {
            self.broken("what is told is true", format!("{:?}", set.failure()));
        }
        if !set.is_published() && set.failure().is_none_or(|failure| failure.why.is_empty()) {
            self.broken("who has no set is told why", format!("{:?}", set.failure()));
        }
        let rules = &scenario.rules;
        let good_in = |round: u32| scenario.kinds.iter().all(|kind| kind.is_good_in(round));
        let failing =
            scenario.kinds.iter().all(|kind| matches!(kind, Kind::Dies(..) | Kind::Hangs(..) | Kind::Good));
        let should = good_in(1) || (failing && rules.rounds > 1 && good_in(2));
        if should && !self.cancelled && !scenario.unpublished && !self.visible {
            self.broken("what can be made is made", format!("{:?}", set.failure()));
        }
        self.violations
    }
}
