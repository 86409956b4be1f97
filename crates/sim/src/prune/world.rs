//! The store that all actors share, and the order in which they get at it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use base::Chance;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Violation;
use crate::prune::PruneOutcome;
use crate::prune::checker::Checker;
use crate::trace::Trace;

/// Most actors of a run.
const ACTORS_MAX: usize = 16;
/// Operations after which a run is taken for one that never ends.
const OPERATIONS_MAX: u64 = 100_000;

/// How much more often who is about to delete sleeps or dies.
const DELETES_WORSE: u32 = 8;

/// What a store is asked for.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// The record at a path.
    Get(String),
    /// A record, only if there is none if `create`.
    Put { path: String, bytes: Bytes, create: bool },
    /// Everything below a path.
    List(String),
    /// The record at a path goes.
    Delete(String),
    /// Nothing: the actor waits for others.
    Nap,
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Found(Bytes),
    Missing,
    Exists,
    Listed(Vec<(String, u64)>),
    Failed,
}

/// How often what goes wrong, in millionths of all operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    /// An actor sleeps for up to `sleep_steps`.
    pub sleep: u32,
    pub sleep_steps: u64,
    /// An actor dies.
    pub death: u32,
    /// What was asked for is not done, and an error comes back.
    pub failure: u32,
    /// It is done, and an error comes back.
    pub lost_reply: u32,
    /// A change shows in lists up to so many operations late.
    pub lag_steps: u64,
    /// Others on the same machine see who is dead, and a request of the dead that somebody repeats takes no effect any
    /// more.
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
    /// When lists show it.
    shown_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Computes, or has not asked for anything yet.
    Busy,
    /// Waits for its turn.
    Waits,
    /// Has ended.
    Gone,
}

#[derive(Debug)]
struct Soul {
    mood: Mood,
    /// Whether it waits to delete something, when to sleep and to die is worst.
    deletes: bool,
    sleeps_until: u64,
    is_dead: bool,
}

/// Everything there is.
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    /// One for each actor, so that nobody is woken in vain.
    turns: [Condvar; ACTORS_MAX],
}

#[derive(Debug)]
struct State {
    chance: Chance,
    faults: Faults,
    /// Goes on by one with each operation, and by as much as is slept when all sleep.
    step: u64,
    operations: u64,
    trace: Trace,
    souls: Vec<Soul>,
    /// Number of the first of them among all that there ever were.
    first_soul: usize,
    chosen: Option<usize>,
    records: BTreeMap<String, Record>,
    /// Deleted, and still in lists until then.
    ghosts: BTreeMap<String, (u64, u64)>,
    /// Requests of the dead that are still on their way, and when they arrive.
    late: Vec<(u64, Operation)>,
    checker: Checker,
}

impl World {
    /// An empty store where nothing goes wrong.
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

    /// From now on `faults` happen.
    pub(super) fn trouble(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// From now on nothing goes wrong, and what is on its way arrives.
    pub(super) fn calm(&self) {
        let mut state = self.state();
        state.faults = Faults { deaths_show: state.faults.deaths_show, ..Faults::NONE };
        state.arrive(u64::MAX);
        state.ghosts.clear();
        state.records.values_mut().for_each(|record| record.shown_at = 0);
    }

    /// Makes room for so many actors, who all begin at once.
    pub(super) fn multicast(&self, actors: usize) {
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

    /// Lets somebody else go on.
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

/// An actor's way to the world.
#[derive(Debug, Clone)]
pub(super) struct Stage {
    world: Arc<World>,
    actor: usize,
}

impl Stage {
    /// Waits for this actor's turn, then does what it asks for.
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

    /// Its number among all that there ever were.
    pub(super) fn number(&self) -> usize {
        self.world.state().first_soul + self.actor
    }

    /// Whether it can see that the actor of this number is no more.
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

    /// What an actor is told, for the checker.
    pub(super) fn tell(&self, tell: impl FnOnce(&mut Checker, u64)) {
        let mut state = self.world.state();
        let step = state.step;
        tell(&mut state.checker, step);
    }
}

impl State {
    /// Chooses who goes on, once everybody waits.
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

    /// Does what `actor` asks for, or what becomes of it.
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

    /// Lets arrive what is due.
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

/// The objects that there are.
pub(super) struct Copies<'a>(&'a BTreeMap<String, Record>);

impl Copies<'_> {
    /// The bytes of any copy of the object at `path`, which is that of its first slot.
    pub(super) fn find(&self, path: &str) -> Option<&Bytes> {
        let copies = self.0.range(path.to_owned()..);
        copies.take_while(|(found, _)| found.starts_with(path)).map(|(_, record)| &record.bytes).next()
    }

    /// The paths of `wanted` that have no copy.
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
    /// Notes that a rule is broken.
    pub(super) fn violate(&mut self, rule: &'static str, what: String) {
        self.violations.push(Violation { rule, what });
    }
}
