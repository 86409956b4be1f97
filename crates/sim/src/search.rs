//! Searches for a run that breaks a rule. `cargo xtask mutants` uses these runs to show that the checkers find seeded
//! bugs.

use std::fmt;
use std::ops::Range;

use base::Duration;

use crate::{Room, Scenario, Violation, checkpoint, deploy, mirror, run, run_cluster, run_prunes, swarm};

/// The kinds of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Multicast sessions and rooms.
    Multicast,
    /// Attached disks.
    Mirror,
    /// Prunes at the same time as writers.
    Prune,
    /// Receivers that serve each other.
    Peers,
    /// Object devices, their clients and their metadata service.
    Cluster,
    /// Deployments to many hosts.
    Deploy,
    /// Sets of disks at one moment.
    Checkpoint,
}

/// One run that may break a rule.
#[derive(Debug, Clone)]
pub enum Trial {
    /// [`Scenario::mixed`] with this seed.
    Mixed(u64),
    /// [`Scenario::harsh`] with this seed.
    Harsh(u64),
    /// [`Scenario::ailing`] with this seed.
    Ailing(u64),
    /// A room and its name.
    Room(&'static str, Box<Room>),
    /// [`mirror::MirrorScenario::mixed`] with this seed.
    Mirror(u64),
    /// [`run_prunes`] with this seed.
    Prune(u64),
    /// [`swarm::SwarmScenario::mixed`] with this seed.
    Peers(u64),
    /// [`run_cluster`] with this seed.
    Cluster(u64),
    /// [`deploy::DeployScenario::mixed`] with this seed.
    Deploy(u64),
    /// [`checkpoint::CheckpointScenario::mixed`] with this seed.
    Checkpoint(u64),
}

/// The first trial that broke a rule.
#[derive(Debug)]
pub struct Broken {
    /// Number of trials before it.
    pub number: usize,
    /// The trial.
    pub trial: Trial,
    /// Its first violation.
    pub violation: Violation,
}

impl Family {
    /// All trials of the family; those that find the most bugs are first.
    #[must_use]
    pub fn trials(self) -> Vec<Trial> {
        match self {
            Self::Multicast => {
                let seeds = |from, to| (from..to).flat_map(|seed| [Trial::Mixed(seed), Trial::Harsh(seed)]);
                let ailing = (0..40).map(Trial::Ailing);
                seeds(0, 10).chain(rooms()).chain(seeds(10, 200)).chain(ailing).collect()
            }
            Self::Mirror => (0..3000).map(Trial::Mirror).collect(),
            Self::Prune => (0..6000).map(Trial::Prune).collect(),
            Self::Peers => (0..2000).map(Trial::Peers).collect(),
            Self::Cluster => (0..2500).map(Trial::Cluster).collect(),
            Self::Deploy => (0..4000).map(Trial::Deploy).collect(),
            Self::Checkpoint => (0..4000).map(Trial::Checkpoint).collect(),
        }
    }
}

/// A room with many receivers and a short round trip, and one with few receivers and a long round trip.
fn rooms() -> [Trial; 2] {
    let near = Room::new(300, 8 << 20, 100_000_000, 10_000);
    let far = Room { round_trip: Duration::from_millis(60), ..Room::new(30, 8 << 20, 100_000_000, 50_000) };
    [("the near room", near), ("the far room", far)].map(|(name, room)| Trial::Room(name, Box::new(room)))
}

impl Trial {
    /// Runs the trial and returns its violations.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        match self {
            Self::Mixed(seed) => run(&Scenario::mixed(*seed)).violations,
            Self::Harsh(seed) => run(&Scenario::harsh(*seed)).violations,
            Self::Ailing(seed) => run(&Scenario::ailing(*seed)).violations,
            Self::Room(_, room) => room.run().violations,
            Self::Mirror(seed) => mirror::run(&mirror::MirrorScenario::mixed(*seed)).violations,
            Self::Prune(seed) => run_prunes(*seed).violations,
            Self::Peers(seed) => swarm::run(&swarm::SwarmScenario::mixed(*seed)).violations,
            Self::Cluster(seed) => run_cluster(*seed).violations,
            Self::Deploy(seed) => deploy::run(&deploy::DeployScenario::mixed(*seed)).violations,
            Self::Checkpoint(seed) => {
                checkpoint::run(&checkpoint::CheckpointScenario::mixed(*seed)).violations
            }
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mixed(seed) => write!(f, "mixed seed {seed}"),
            Self::Harsh(seed) => write!(f, "harsh seed {seed}"),
            Self::Ailing(seed) => write!(f, "ailing seed {seed}"),
            Self::Room(name, _) => f.write_str(name),
            Self::Mirror(seed) => write!(f, "mirror seed {seed}"),
            Self::Prune(seed) => write!(f, "prune seed {seed}"),
            Self::Peers(seed) => write!(f, "peers seed {seed}"),
            Self::Cluster(seed) => write!(f, "cluster seed {seed}"),
            Self::Deploy(seed) => write!(f, "deploy seed {seed}"),
            Self::Checkpoint(seed) => write!(f, "checkpoint seed {seed}"),
        }
    }
}

/// Runs the trials of `family` with these numbers, and returns the first that breaks a rule.
#[must_use]
pub fn until_broken(family: Family, numbers: Range<usize>) -> Option<Broken> {
    let mut trials = family.trials().into_iter().enumerate().skip(numbers.start).take(numbers.len());
    trials.find_map(|(number, trial)| {
        let violation = trial.violations().into_iter().next()?;
        Some(Broken { number, trial, violation })
    })
}
