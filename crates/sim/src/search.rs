//! Looks for a run that breaks a rule, among those by which `cargo xtask mutants` shows that the checkers see seeded
//! bugs.

use std::fmt;
use std::ops::Range;

use base::Duration;

use crate::{Room, Scenario, Violation, mirror, run, run_prunes};

/// Runs of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Sessions of multicast, and rooms.
    Multicast,
    /// Attached disks.
    Mirror,
    /// Prunes beside writers.
    Prune,
}

/// One run that may break a rule.
#[derive(Debug, Clone)]
pub enum Trial {
    /// Of [`Scenario::mixed`], by its seed.
    Mixed(u64),
    /// Of [`Scenario::harsh`], by its seed.
    Harsh(u64),
    /// A room, with a name for people.
    Room(&'static str, Box<Room>),
    /// Of [`mirror::MirrorScenario::mixed`], by its seed.
    Mirror(u64),
    /// Of [`run_prunes`], by its seed.
    Prune(u64),
}

/// A rule that was broken, and by which trial of its family.
#[derive(Debug)]
pub struct Broken {
    /// How many trials came before it.
    pub number: usize,
    /// The trial.
    pub trial: Trial,
    /// The first of its breaches.
    pub violation: Violation,
}

impl Family {
    /// All trials, those first that show most.
    #[must_use]
    pub fn trials(self) -> Vec<Trial> {
        match self {
            Self::Multicast => {
                let seeds = |from, to| (from..to).flat_map(|seed| [Trial::Mixed(seed), Trial::Harsh(seed)]);
                seeds(0, 10).chain(rooms()).chain(seeds(10, 200)).collect()
            }
            Self::Mirror => (0..3000).map(Trial::Mirror).collect(),
            Self::Prune => (0..6000).map(Trial::Prune).collect(),
        }
    }
}

/// Near and many; far and few.
fn rooms() -> [Trial; 2] {
    let near = Room::new(300, 8 << 20, 100_000_000, 10_000);
    let far = Room { round_trip: Duration::from_millis(60), ..Room::new(30, 8 << 20, 100_000_000, 50_000) };
    [("the near room", near), ("the far room", far)].map(|(name, room)| Trial::Room(name, Box::new(room)))
}

impl Trial {
    /// What it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        match self {
            Self::Mixed(seed) => run(&Scenario::mixed(*seed)).violations,
            Self::Harsh(seed) => run(&Scenario::harsh(*seed)).violations,
            Self::Room(_, room) => room.run().violations,
            Self::Mirror(seed) => mirror::run(&mirror::MirrorScenario::mixed(*seed)).violations,
            Self::Prune(seed) => run_prunes(*seed).violations,
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mixed(seed) => write!(f, "mixed seed {seed}"),
            Self::Harsh(seed) => write!(f, "harsh seed {seed}"),
            Self::Room(name, _) => f.write_str(name),
            Self::Mirror(seed) => write!(f, "mirror seed {seed}"),
            Self::Prune(seed) => write!(f, "prune seed {seed}"),
        }
    }
}

/// The first trial of `family` that breaks a rule, of those with the numbers `numbers`.
#[must_use]
pub fn until_broken(family: Family, numbers: Range<usize>) -> Option<Broken> {
    let mut trials = family.trials().into_iter().enumerate().skip(numbers.start).take(numbers.len());
    trials.find_map(|(number, trial)| {
        let violation = trial.violations().into_iter().next()?;
        Some(Broken { number, trial, violation })
    })
}
