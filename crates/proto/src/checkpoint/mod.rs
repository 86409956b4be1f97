//! A set of disks at one moment, without I/O: when each host freezes its disk, when all go on, and when the set becomes
//! visible. The driver runs one program on each host, passes orders to it, and tells what it says.
//!
//! ```text
//! every host     says Prepared    says Frozen       says Stored
//!                     \               \                 \
//! all of them:         order Freeze    order GoOn        Publish, then order Finish
//! ```
//!
//! No host is told to go on before the last one is frozen, so there is a moment at which all stood still. A host that
//! is not told in time goes on by itself and says that it failed: then the set is not made. It becomes visible by one
//! record, after every host has stored its version of that moment. A round that fails may be followed by another one,
//! which begins when all programs have ended.
//!
//! Source: B. Nicolae, G. Antoniu, L. Bougé, D. Moise, A. Carpen-Amarie: BlobSeer, section on global checkpoints.

mod member;
mod rules;
#[cfg(test)]
mod tests;

use std::time::Duration;

use base::Instant;

use self::member::Member;
pub use self::member::{Said, Standing};
pub use self::rules::{Phase, Rules};

/// What a host is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Freeze the disk, and say so.
    Freeze,
    /// All are frozen: store the disk as it is now.
    GoOn,
    /// The set is published: end.
    Finish,
}

/// What the driver is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start the program of a host.
    Start {
        /// The host, from 0.
        host: usize,
        /// The round, from 1.
        round: u32,
    },
    /// Pass an order to the program of a host.
    Tell {
        /// The host, from 0.
        host: usize,
        /// The order.
        order: Order,
    },
    /// End the program of a host, whose disk runs on, and say when it has ended.
    Stop {
        /// The host, from 0.
        host: usize,
    },
    /// Make the set visible, and call [`Checkpoint::published`].
    Publish,
}

/// Why there is no set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The host that failed first; `None` if it was none of them.
    pub host: Option<usize>,
    /// Why, for people.
    pub why: String,
    /// Whether another round may help.
    again: bool,
}

/// The making of a set.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    rules: Rules,
    members: Vec<Member>,
    began: Instant,
    round: u32,
    phase: Phase,
    /// Why the round failed, or the last one.
    failure: Option<Failure>,
    published: bool,
}

impl Checkpoint {
    /// A set of the disks of `hosts` hosts, numbered from 0.
    #[must_use]
    pub fn new(hosts: usize, rules: Rules, now: Instant) -> Self {
        let members = vec![Member::default(); hosts];
        let phase = Phase::Pausing(now);
        Self { rules, members, began: now, round: 0, phase, failure: None, published: false }
    }

    /// What the driver is to do now. It must ask when it has told something, and at [`Self::wakes`].
    pub fn next(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.pass_time(now, &mut actions);
        match self.phase {
            Phase::Pausing(until) if until <= now => self.begin_round(now, &mut actions),
            Phase::Preparing(_) if self.all_are(Standing::Prepared) => {
                self.phase = Phase::Freezing(now);
                self.tell_all(Order::Freeze, &mut actions);
            }
            Phase::Freezing(_) if self.all_are(Standing::Frozen) => {
                self.phase = Phase::Storing;
                self.tell_all(Order::GoOn, &mut actions);
            }
            Phase::Storing if self.all_are(Standing::Stored) => {
                self.phase = Phase::Publishing;
                actions.push(Action::Publish);
            }
            Phase::Finishing(_) if self.nothing_runs() => self.phase = Phase::Over,
            Phase::Ending if self.nothing_runs() => self.end_round(now),
            _ => {}
        }
        actions
    }

    /// Takes what the program of a host said in round `round`. Returns what the driver is to do at once.
    pub fn heard(&mut self, host: usize, round: u32, said: Said, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if round != self.round || !self.members[host].runs() {
            return actions;
        }
        match self.members[host].take(said, self.phase, now) {
            Ok(()) => {}
            // The set is there, or its failure is known already.
            Err(_) if matches!(self.phase, Phase::Publishing | Phase::Finishing(_) | Phase::Ending) => {}
            Err((why, again)) => self.fail(Failure { host: Some(host), why, again }, &mut actions),
        }
        actions
    }

    /// Takes the end of [`Action::Publish`]: `Err` says why the set is not visible. Returns what the driver is to do.
    pub fn published(&mut self, outcome: Result<(), String>, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        debug_assert_eq!(self.phase, Phase::Publishing, "it is told once");
        match outcome {
            Ok(()) => {
                self.published = true;
                self.phase = Phase::Finishing(now);
                self.tell_all(Order::Finish, &mut actions);
            }
            Err(why) => self.fail(Failure { host: None, why, again: false }, &mut actions),
        }
        actions
    }

    /// Calls it off, unless the set is about to be published. Returns what the driver is to do.
    pub fn cancel(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let why = "it was called off".to_owned();
        match self.phase {
            Phase::Publishing | Phase::Finishing(_) | Phase::Over => {}
            Phase::Ending => self.failure = Some(Failure { host: None, why, again: false }),
            _ => self.fail(Failure { host: None, why, again: false }, &mut actions),
        }
        actions
    }

    /// When to call [`Self::next`] at the latest; `None` if nothing but words of hosts brings anything new.
    #[must_use]
    pub fn wakes(&self) -> Option<Instant> {
        let of_phase = match self.phase {
            Phase::Pausing(until) => Some(until),
            Phase::Preparing(since) => Some(since + self.rules.standstill),
            Phase::Finishing(since) => {
                self.members.iter().any(Member::goes_on).then(|| since + self.rules.standstill)
            }
            Phase::Freezing(since) => Some(since + self.rules.freeze),
            _ => None,
        };
        let silent = self.members.iter().filter_map(|member| member.silent_at(&self.rules)).min();
        let whole = self.rules.time.filter(|_| self.may_fail()).map(|time| self.began + time);
        [of_phase, silent, whole].into_iter().flatten().min()
    }

    /// How far all are.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// How far a host is.
    #[must_use]
    pub fn host(&self, host: usize) -> &Standing {
        &self.members[host].standing
    }

    /// Whether the set is published.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.published
    }

    /// Why the last round failed, if one did and the set is not published.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref().filter(|_| !self.published)
    }

    fn all_are(&self, standing: Standing) -> bool {
        self.members.iter().all(|member| member.standing == standing)
    }

    fn nothing_runs(&self) -> bool {
        !self.members.iter().any(Member::runs)
    }

    /// Whether a failure now means that there is no set.
    fn may_fail(&self) -> bool {
        matches!(self.phase, Phase::Preparing(_) | Phase::Freezing(_) | Phase::Storing | Phase::Pausing(_))
    }

    fn begin_round(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.round += 1;
        self.phase = Phase::Preparing(now);
        for (host, member) in self.members.iter_mut().enumerate() {
            *member = Member::begin(now);
            actions.push(Action::Start { host, round: self.round });
        }
    }

    /// All programs of a round that failed have ended.
    fn end_round(&mut self, now: Instant) {
        let again = self.failure.as_ref().is_some_and(|failure| failure.again);
        self.phase = match again && self.round < self.rules.rounds {
            true => Phase::Pausing(now + self.rules.pause),
            false => Phase::Over,
        };
    }

    fn tell_all(&self, order: Order, actions: &mut Vec<Action>) {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.runs());
        actions.extend(running.map(|(host, _)| Action::Tell { host, order }));
    }

    /// The round fails: all that runs is stopped.
    fn fail(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        self.failure = Some(failure);
        let idle = matches!(self.phase, Phase::Pausing(_));
        self.phase = if idle { Phase::Over } else { Phase::Ending };
        for (host, member) in self.members.iter_mut().enumerate().filter(|(_, member)| member.runs()) {
            if member.stop() {
                actions.push(Action::Stop { host });
            }
        }
    }

    /// Ends what hangs, or takes too long.
    fn pass_time(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let seconds = |time: Duration| time.as_secs_f64();
        for host in 0..self.members.len() {
            if self.members[host].silent_at(&self.rules).is_some_and(|at| at <= now) {
                let why = format!("nothing was heard of it for {} s", seconds(self.rules.silence));
                self.members[host].note(why.clone());
                if self.may_fail() {
                    self.fail(Failure { host: Some(host), why, again: true }, actions);
                } else if self.members[host].stop() {
                    actions.push(Action::Stop { host });
                }
            }
        }
        let whole = self.rules.time.filter(|time| self.may_fail() && now.since(self.began) >= *time);
        if whole.is_some() {
            let why = "the time for all hosts is over".to_owned();
            return self.fail(Failure { host: None, why, again: false }, actions);
        }
        let (since, limit, wanted, doing) = match self.phase {
            Phase::Preparing(since) => (since, self.rules.standstill, Standing::Prepared, "prepare"),
            Phase::Freezing(since) => (since, self.rules.freeze, Standing::Frozen, "stand still"),
            Phase::Finishing(since) => (since, self.rules.standstill, Standing::Ended, "end"),
            _ => return,
        };
        let late = self.members.iter().position(|member| member.standing != wanted);
        let Some(host) = late.filter(|_| now.since(since) >= limit) else { return };
        let why = format!("it did not {doing} within {} s", seconds(limit));
        if self.may_fail() {
            return self.fail(Failure { host: Some(host), why, again: true }, actions);
        }
        for (host, member) in self.members.iter_mut().enumerate().filter(|(_, member)| member.runs()) {
            member.note(why.clone());
            if member.stop() {
                actions.push(Action::Stop { host });
            }
        }
    }
}
