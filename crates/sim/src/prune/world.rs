//! The store that all actors share, and the order in which their operations are performed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use base::Chance;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Violation;
use crate::prune::PruneOutcome;
use crate::prune::checker::Checker;
use crate::trace::Trace;

/// Maximum number of actors.
const ACTORS_MAX: usize = 16;
/// Number of operations after which a run is considered endless.
const OPERATIONS_MAX: u64 = 100_000;

/// Factor of the probability to sleep or die for an actor that is about to delete, since that is the most dangerous
/// moment.
const DELETES_WORSE: u32 = 8;

/// An operation of the store.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// Gets the record at a path.
    Get(String),
    /// Stores a record; with `create` only if there is none.
    Put { path: String, bytes: Bytes, create: bool },
    /// Lists all records below a path.
    List(String),
    /// Deletes the record at a path.
    Delete(String),
    /// No operation: the actor gives other actors a turn.
    Nap,
}

/// An answer of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Found(Bytes),
    Missing,
    Exists,
    Listed(Vec<(String, u64)>),
    Failed,
}

/// Probabilities of faults, per million operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    /// An actor sleeps for up to `sleep_steps`.
    pub sleep: u32,
    pub sleep_steps: u64,
    /// An actor dies.
    pub death: u32,
    /// The operation is not performed, and an error is returned.
    pub failure: u32,
    /// The operation is performed, and an error is returned.
    pub lost_reply: u32,
    /// A change appears in lists up to this number of operations later.
    pub lag_steps: u64,
    /// Whether other actors see that an actor is dead, as on the same machine. A late delete of a dead actor then
    /// takes no effect once another actor repeats it.
    pub deaths_show: bool,
}

impl Faults {
    pub(super) const NONE: Self = Self {
        sleep: 0,
        sleep_steps: 0,
        death: 0,
        failure: 0,
        lost_reply: 0,
        lag_steps: 0,
        deaths_show: false,
    };

    pub(super) fn draw(chance: &mut Chance) -> Self {
        Self {
            sleep: [0, 5_000, 20_000, 50_000][chance.below(4) as usize],
            sleep_steps: [100, 1000, 3000][chance.below(3) as usize],
            death: [0, 1_000, 4_000][chance.below(3) as usize],
            failure: [0, 1_000][chance.below(2) as usize],
            lost_reply: [0, 5_000][chance.below(2) as usize],
            lag_steps: [0, 0, 100, 2000][chance.below(4) as usize],
            deaths_show: chance.hits(250_000),
        }
    }
}

#[derive(Debug)]
struct Record {
    bytes: Bytes,
    /// The step from which lists show it.
    shown_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Computes, or has not started yet.
    Busy,
    /// Waits for its turn.
    Waits,
    /// Has ended.
    Gone,
}

#[derive(Debug)]
struct Soul {
    mood: Mood,
    /// Whether it waits to delete a record, when sleep and death are most dangerous.
    deletes: bool,
    sleeps_until: u64,
    is_dead: bool,
}

/// The store, the actors' states, and the checker.
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    /// One condition variable for each actor, so that only the chosen one wakes up.
    turns: [Condvar; ACTORS_MAX],
}

#[derive(Debug)]
struct State {
    chance: Chance,
    faults: Faults,
    /// Virtual time: increases by one with each operation, and jumps when all actors sleep.
    step: u64,
    operations: u64,
    trace: Trace,
    souls: Vec<Soul>,
    /// Number of the first of them, counted over all actors so far.
    first_soul: usize,
    chosen: Option<usize>,
    records: BTreeMap<String, Record>,
    /// Deleted records that lists still show: until which step, and their length.
    ghosts: BTreeMap<String, (u64, u64)>,
    /// Late requests of dead actors, and the step of their arrival.
    late: Vec<(u64, Operation)>,
    checker: Checker,
}

impl World {
    /// An empty store without faults.
    pub(super) fn new(chance: Chance) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                chance,
                faults: Faults::NONE,
                step: 0,
                operations: 0,
                trace: Trace::new(),
                souls: Vec::new(),
                first_soul: 0,
                chosen: None,
                records: BTreeMap::new(),
                ghosts: BTreeMap::new(),
                late: Vec::new(),
                checker: Checker::default(),
            }),
            turns: Default::default(),
        })
    }

    /// Sets the faults from now on.
    pub(super) fn trouble(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Stops all faults, and lets all late requests and list changes arrive.
    pub(super) fn calm(&self) {
        let mut state = self.state();
        state.faults = Faults { deaths_show: state.faults.deaths_show, ..Faults::NONE };
        state.arrive(u64::MAX);
        state.ghosts.clear();
        state.records.values_mut().for_each(|record| record.shown_at = 0);
    }

    /// Replaces the actors by this number of new ones.
    pub(super) fn begin(&self, actors: usize) {
        let soul = || Soul { mood: Mood::Busy, deletes: false, sleeps_until: 0, is_dead: false };
        let mut state = self.state();
        state.first_soul += state.souls.len();
        state.souls = (0..actors).map(|_| soul()).collect();
    }

    pub(super) fn stage(self: &Arc<Self>, actor: usize) -> Stage {
        Stage { world: Arc::clone(self), actor }
    }

    pub(super) fn outcome(&self) -> PruneOutcome {
        let mut state = self.state();
        let State { checker, records, faults, .. } = &mut *state;
        let records = records.iter().map(|(path, record)| (path.as_str(), &record.bytes)).collect();
        checker.end(&records, faults.deaths_show);
        PruneOutcome {
            violations: std::mem::take(&mut state.checker.violations),
            trace: state.trace.value(),
            operations: state.operations,
            published: state.checker.published,
            deleted: state.checker.deleted,
            revoked: state.checker.revoked,
        }
    }

    /// Chooses the next actor and wakes it.
    fn pass_on(&self, state: &mut State) {
        state.choose();
        if let Some(chosen) = state.chosen {
            self.turns[chosen].notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// An actor's handle to the world.
#[derive(Debug, Clone)]
pub(super) struct Stage {
    world: Arc<World>,
    actor: usize,
}

impl Stage {
    /// Waits for this actor's turn, then performs the operation.
    pub(super) fn ask(&self, operation: Operation) -> Answer {
        let mut state = self.world.state();
        if state.souls[self.actor].is_dead {
            return Answer::Failed;
        }
        state.souls[self.actor].mood = Mood::Waits;
        state.souls[self.actor].deletes = matches!(operation, Operation::Delete(_));
        self.world.pass_on(&mut state);
        while state.chosen != Some(self.actor) {
            let turn = &self.world.turns[self.actor];
            turn.wait(&mut state);
        }
        state.chosen = None;
        state.souls[self.actor].mood = Mood::Busy;
        state.suffer(self.actor, operation)
    }

    /// Its number, counted over all actors so far.
    pub(super) fn number(&self) -> usize {
        self.world.state().first_soul + self.actor
    }

    /// Whether it can see that the actor with this number has died or ended.
    pub(super) fn sees_dead(&self, number: usize) -> bool {
        let state = self.world.state();
        let soul = number.checked_sub(state.first_soul).map(|at| &state.souls[at]);
        state.faults.deaths_show && soul.is_none_or(|soul| soul.is_dead || soul.mood == Mood::Gone)
    }

    /// Whether this actor died.
    pub(super) fn is_dead(&self) -> bool {
        self.world.state().souls[self.actor].is_dead
    }

    /// The actor has ended.
    pub(super) fn leave(&self) {
        let mut state = self.world.state();
        state.souls[self.actor].mood = Mood::Gone;
        self.world.pass_on(&mut state);
    }

    /// Reports a result of an actor to the checker.
    pub(super) fn tell(&self, tell: impl FnOnce(&mut Checker, u64)) {
        let mut state = self.world.state();
        let step = state.step;
        tell(&mut state.checker, step);
    }
}

impl State {
    /// Chooses the next actor, once all are waiting.
    fn choose(&mut self) {
        if self.chosen.is_some() || self.souls.iter().any(|soul| soul.mood == Mood::Busy) {
            return;
        }
        let waiting = |soul: &Soul| soul.mood == Mood::Waits;
        let Some(first) = self.souls.iter().filter(|soul| waiting(soul)).map(|soul| soul.sleeps_until).min()
        else {
            return;
        };
        self.step = self.step.max(first);
        loop {
            let awake: Vec<usize> = (0..self.souls.len())
                .filter(|&at| waiting(&self.souls[at]) && self.souls[at].sleeps_until <= self.step)
                .collect();
            let Some(&at) = awake.get(self.chance.below(awake.len() as u64) as usize) else {
                let next = self.souls.iter().filter(|soul| waiting(soul)).map(|soul| soul.sleeps_until).min();
                self.step = next.unwrap_or(self.step);
                continue;
            };
            let worst = if self.souls[at].deletes { DELETES_WORSE } else { 1 };
            if self.chance.hits(self.faults.sleep * worst) {
                self.souls[at].sleeps_until = self.step + 1 + self.chance.below(self.faults.sleep_steps);
                continue;
            }
            self.chosen = Some(at);
            return;
        }
    }

    /// Performs the operation of `actor`, or lets a fault happen instead.
    fn suffer(&mut self, actor: usize, operation: Operation) -> Answer {
        self.step += 1;
        self.operations += 1;
        self.arrive(self.step);
        let (code, path) = operation.name();
        let path = path.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.trace.note(&[actor as u64, code, path]);
        if self.operations > OPERATIONS_MAX {
            self.checker.violate("a run ends", format!("{OPERATIONS_MAX} operations are not enough"));
            self.souls.iter_mut().for_each(|soul| soul.is_dead = true);
            return Answer::Failed;
        }
        if matches!(operation, Operation::Nap) {
            return Answer::Done;
        }
        let worst = if matches!(operation, Operation::Delete(_)) { DELETES_WORSE } else { 1 };
        if self.chance.hits(self.faults.death * worst) {
            self.souls[actor].is_dead = true;
            match self.chance.below(3) {
                0 => {}
                1 => drop(self.perform(operation)),
                _ => {
                    let most = [300, 3_000, 1 << 40][self.chance.below(3) as usize];
                    let delay = self.chance.below(most);
                    self.late.push((self.step + delay, operation));
                }
            }
            return Answer::Failed;
        }
        if self.chance.hits(self.faults.failure) {
            return Answer::Failed;
        }
        let is_lost = self.chance.hits(self.faults.lost_reply);
        if let Operation::Delete(path) = &operation
            && self.faults.deaths_show
        {
            self.late.retain(|(_, late)| !matches!(late, Operation::Delete(late) if late == path));
        }
        let answer = self.perform(operation);
        if is_lost { Answer::Failed } else { answer }
    }

    /// Performs the late requests that are due.
    fn arrive(&mut self, now: u64) {
        let (due, rest) = std::mem::take(&mut self.late).into_iter().partition(|(when, _)| *when <= now);
        self.late = rest;
        for (_, operation) in due {
            self.perform(operation);
        }
    }

    fn perform(&mut self, operation: Operation) -> Answer {
        let lag = self.chance.below(self.faults.lag_steps + 1);
        let late = self.step + lag;
        match operation {
            Operation::Nap => Answer::Done,
            Operation::Get(path) => {
                self.records.get(&path).map_or(Answer::Missing, |found| Answer::Found(found.bytes.clone()))
            }
            Operation::Put { path, create: true, .. } if self.records.contains_key(&path) => Answer::Exists,
            Operation::Put { path, bytes, .. } => {
                let shown_at = self.records.get(&path).map_or(late, |there| there.shown_at);
                self.records.insert(path.clone(), Record { bytes: bytes.clone(), shown_at });
                self.checker.put(self.step, &path, &bytes, &Copies(&self.records));
                Answer::Done
            }
            Operation::Delete(path) => {
                let Some(gone) = self.records.remove(&path) else { return Answer::Missing };
                if gone.shown_at <= self.step {
                    self.ghosts.insert(path.clone(), (late, gone.bytes.len() as u64));
                }
                self.checker.delete(self.step, &path, &Copies(&self.records));
                Answer::Done
            }
            Operation::List(folder) => Answer::Listed(self.list(&folder)),
        }
    }

    fn list(&mut self, folder: &str) -> Vec<(String, u64)> {
        let now = self.step;
        self.ghosts.retain(|_, (until, _)| *until > now);
        let below = |path: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let there = self.records.iter().filter(|(path, found)| below(path) && found.shown_at <= now);
        let there = there.map(|(path, found)| (path.clone(), found.bytes.len() as u64));
        let ghosts = self.ghosts.iter().filter(|(path, _)| below(path));
        let ghosts = ghosts.map(|(path, (_, bytes))| (path.clone(), *bytes));
        let mut listed: Vec<_> = there.chain(ghosts).collect();
        listed.sort();
        listed.dedup_by(|a, b| a.0 == b.0);
        listed
    }
}

/// The copies of objects in the store.
pub(super) struct Copies<'a>(&'a BTreeMap<String, Record>);

impl Copies<'_> {
    /// The bytes of some copy of the object whose first slot is at `path`.
    pub(super) fn find(&self, path: &str) -> Option<&Bytes> {
        let copies = self.0.range(path.to_owned()..);
        copies.take_while(|(found, _)| found.starts_with(path)).map(|(_, record)| &record.bytes).next()
    }

    /// The first path of `wanted` that has no copy.
    pub(super) fn missing<'a>(&self, wanted: &'a HashSet<String>) -> Option<&'a String> {
        wanted.iter().find(|path| self.find(path).is_none())
    }
}

impl Operation {
    fn name(&self) -> (u64, &str) {
        match self {
            Self::Get(path) => (1, path),
            Self::Put { path, create, .. } => (2 + u64::from(*create), path),
            Self::List(path) => (4, path),
            Self::Delete(path) => (5, path),
            Self::Nap => (6, ""),
        }
    }
}

impl Checker {
    /// Records a violation.
    pub(super) fn violate(&mut self, rule: &'static str, what: String) {
        self.violations.push(Violation { rule, what });
    }
}
