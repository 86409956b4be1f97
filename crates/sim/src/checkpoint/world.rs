//! The clock, the programs that run, and words and orders on their way.

use std::collections::BTreeMap;

use base::{Chance, Duration, Instant};
use proto::checkpoint::{Action, Checkpoint, Order, Phase, Said};

use super::checker::Checker;
use super::host::{Doing, Kind, Later, Program};
use super::{CheckpointOutcome, CheckpointScenario};
use crate::queue::Queue;

/// Time until the client of a program that does not end is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How often the deployment says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// No run takes longer.
const END: Instant = Instant(10_000 * 1_000_000_000);

/// The program of a host in a round.
type Name = (usize, u32);

enum Event {
    /// A word reaches the deployment.
    Word(Name, Said),
    /// An order reaches a host.
    Told(Name, Order),
    /// The deployment says to all that it lives.
    Heartbeat,
    /// The end of its input reaches a host.
    Cut(Name),
    /// The client of a program is killed, if it is still there.
    Kill(Name),
    Later(Name, Later),
    Published(bool),
    Wake,
    Cancel,
    /// The deployment is killed.
    Dies,
}

pub(super) struct World<'a> {
    scenario: &'a CheckpointScenario,
    /// `None` when it was killed.
    set: Option<Checkpoint>,
    queue: Queue<Event>,
    chance: Chance,
    /// All programs that ever ran; hosts go on when nobody hears them any more.
    programs: BTreeMap<Name, Program>,
    /// Programs whose end the deployment waits for, and until when their way takes words in order.
    running: BTreeMap<Name, Instant>,
    wake: Option<Instant>,
    checker: Checker<'a>,
    rounds: u32,
    steps: u64,
    trace: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a CheckpointScenario) -> Self {
        let hosts = scenario.kinds.len();
        let mut queue = Queue::default();
        queue.push(Instant::ZERO, Event::Wake);
        queue.push(Instant::ZERO + HEARTBEAT, Event::Heartbeat);
        scenario.cancel.into_iter().for_each(|at| queue.push(at, Event::Cancel));
        scenario.killed.into_iter().for_each(|at| queue.push(at, Event::Dies));
        Self {
            scenario,
            set: Some(Checkpoint::new(hosts, scenario.rules.clone(), Instant::ZERO)),
            queue,
            chance: Chance::from_seed(scenario.seed ^ 0x0063_6865_636b),
            programs: BTreeMap::new(),
            running: BTreeMap::new(),
            wake: None,
            checker: Checker::new(scenario),
            rounds: 0,
            steps: 0,
            trace: 0,
        }
    }

    pub(super) fn run(mut self) -> CheckpointOutcome {
        let mut over = None;
        while let Some(event) = self.queue.pop() {
            let now = self.queue.now();
            if now > END {
                break;
            }
            self.steps += 1;
            self.take(event, now);
            if let Some(set) = &mut self.set {
                let actions = set.next(now);
                self.act_all(actions, now);
            }
            self.checker.look(now);
            let ended = self.set.as_ref().is_none_or(|set| set.phase() == Phase::Over);
            over = over.or(ended.then_some(now));
            // Hosts that hang may be frozen for a while, whatever the deployment knows of them.
            let frozen = self.programs.values().any(|program| program.frozen.is_some());
            if ended && !frozen && self.set.as_ref().is_none_or(|_| self.running.is_empty()) {
                break;
            }
            self.set_wake(now);
        }
        let took = over.unwrap_or(self.queue.now()).since(Instant::ZERO);
        let frozen = self.programs.values().map(|program| program.longest).max().unwrap_or_default();
        let published = self.checker.is_visible();
        let violations = self.checker.end(self.set.as_ref(), &self.programs);
        let (steps, trace, rounds) = (self.steps, self.trace, self.rounds);
        CheckpointOutcome { violations, trace, steps, rounds, published, frozen, took }
    }

    fn set_wake(&mut self, now: Instant) {
        let wakes = self.set.as_ref().and_then(Checkpoint::wakes);
        if let Some(at) = wakes.filter(|at| self.wake.is_none_or(|wake| *at < wake || wake <= now)) {
            self.wake = Some(at);
            self.queue.push(at, Event::Wake);
        }
    }

    fn take(&mut self, event: Event, now: Instant) {
        match event {
            Event::Wake => {}
            Event::Heartbeat => {
                if self.set.is_some() {
                    let silent = |program: &Program| program.is_silent;
                    let running = self.running.keys();
                    let hears: Vec<_> =
                        running.filter(|name| !silent(&self.programs[*name])).copied().collect();
                    hears.iter().for_each(|name| self.programs.get_mut(name).expect("it ran").hears(now));
                    self.queue.push(now + HEARTBEAT, Event::Heartbeat);
                }
            }
            Event::Cancel => {
                let actions = self.set.as_mut().map(Checkpoint::cancel).unwrap_or_default();
                self.checker.cancelled();
                self.act_all(actions, now);
            }
            Event::Dies => {
                if self.set.take().is_some() {
                    self.checker.killed();
                    let names: Vec<_> = self.running.keys().copied().collect();
                    names.into_iter().for_each(|name| self.cut(name, now));
                }
            }
            Event::Published(done) => self.published(done, now),
            Event::Word(name, said) => self.word(name, said, now),
            Event::Told(name, order) => {
                self.at_host(name, now, |program, chance| program.told(order, now, chance))
            }
            Event::Cut(name) => self.at_host(name, now, |program, _| program.cut(now)),
            Event::Later(name, later) => {
                self.at_host(name, now, |program, _| program.happens(later, now));
            }
            Event::Kill(name) => {
                if self.running.contains_key(&name) {
                    self.word(name, Said::Failed { why: "killed".to_owned(), again: true }, now);
                    self.return_late(name, now);
                }
            }
        }
    }

    fn published(&mut self, done: bool, now: Instant) {
        if done {
            self.checker.visible(&self.programs, now);
        }
        let outcome = if done { Ok(()) } else { Err("it is full".to_owned()) };
        let actions = self.set.as_mut().map(|set| set.published(outcome, now)).unwrap_or_default();
        self.act_all(actions, now);
    }

    /// The words of a host that hung come when it was ended.
    fn return_late(&mut self, (host, round): Name, now: Instant) {
        if matches!(self.scenario.kinds[host], Kind::Hangs(..)) {
            for (after, said) in [(200, Said::Prepared), (2500, Said::Frozen), (6000, Said::Stored)] {
                self.queue.push(now + Duration::from_millis(after), Event::Word((host, round), said));
            }
        }
    }

    fn word(&mut self, name: Name, said: Said, now: Instant) {
        if matches!(said, Said::Ended | Said::Failed { .. }) {
            self.running.remove(&name);
        }
        let (host, round) = name;
        self.checker.said(name, &said);
        if self.running.is_empty() {
            self.checker.nothing_runs();
        }
        let word = now.0 ^ ((host as u64) << 8) ^ u64::from(round);
        self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3);
        let actions = self.set.as_mut().map(|set| set.heard(host, round, said, now)).unwrap_or_default();
        self.act_all(actions, now);
    }

    /// Something happens at a host: what it says is on its way then.
    fn at_host(
        &mut self,
        name: Name,
        now: Instant,
        happens: impl FnOnce(&mut Program, &mut Chance) -> Doing,
    ) {
        let Some(program) = self.programs.get_mut(&name) else { return };
        let was_silent = program.is_silent;
        let doing = happens(program, &mut self.chance);
        let (kind, silent) = (program.kind, program.is_silent);
        if silent && !was_silent && matches!(kind, Kind::Dies(..)) {
            // All of it is lost, and its client notices.
            let program = self.programs.get_mut(&name).expect("it was there");
            program.thaw(now);
            let said = Said::Failed { why: "the way to it was lost".to_owned(), again: true };
            self.queue.push(now + Duration::from_secs(1), Event::Word(name, said));
        }
        self.carry(name, doing, now);
    }

    fn carry(&mut self, name: Name, doing: Doing, now: Instant) {
        let program = &self.programs[&name];
        let lost = program.is_silent && matches!(program.kind, Kind::Dies(..));
        for (after, later) in doing.later {
            if !lost {
                self.queue.push(now + after, Event::Later(name, later));
            }
        }
        if program.is_silent {
            return;
        }
        for said in doing.said {
            // Words arrive in their order.
            let Some(last) = self.running.get_mut(&name) else { return };
            let at = (now + Duration::from_millis(self.chance.below(300))).max(*last);
            *last = at;
            self.queue.push(at, Event::Word(name, said));
        }
    }

    fn act_all(&mut self, actions: Vec<Action>, now: Instant) {
        for action in actions {
            self.act(action, now);
        }
    }

    fn act(&mut self, action: Action, now: Instant) {
        self.checker.acts(action, self.running.len(), now);
        let round = self.rounds;
        match action {
            Action::Start { host, round } => {
                self.rounds = round;
                let (name, kind) = ((host, round), self.scenario.kinds[host]);
                let how = (self.scenario.suspends, self.scenario.rules.freeze);
                let (program, doing) = Program::new(kind, round, how, now, &mut self.chance);
                self.programs.insert(name, program);
                self.running.insert(name, now);
                match kind {
                    Kind::Dead => self.queue.push(now + Duration::from_secs(10), Event::Kill(name)),
                    _ => self.carry(name, doing, now),
                }
            }
            Action::Tell { host, order } => {
                let at = now + Duration::from_millis(self.chance.below(400));
                if !self.programs[&(host, round)].is_silent {
                    self.queue.push(at, Event::Told((host, round), order));
                }
            }
            Action::Stop { host } => self.cut((host, round), now),
            Action::Publish => {
                let done = !self.scenario.unpublished;
                let at = now + Duration::from_millis(self.chance.below(900));
                self.queue.push(at, Event::Published(done));
            }
        }
    }

    /// Closes the input of a program.
    fn cut(&mut self, name: Name, now: Instant) {
        if !self.programs[&name].is_silent {
            self.queue.push(now + Duration::from_millis(self.chance.below(400)), Event::Cut(name));
        }
        self.queue.push(now + GRACE, Event::Kill(name));
    }
}
