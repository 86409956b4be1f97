//! The simulated sources of a mirror, with their faults and their last answers.

use std::collections::BTreeMap;

use base::Chance;
use mirror::machine::{Failure, Item};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ways {
    Good,
    Dead,
    Damaged,
    Lacks,
}

/// The sources of a mirror.
pub(super) struct Sources {
    ways: Vec<Ways>,
    /// The state of each source when it was last asked for an item.
    answers: BTreeMap<(Item, usize), Ways>,
}

impl Sources {
    /// `count` sources without faults.
    pub(super) fn new(count: usize) -> Self {
        Self { ways: vec![Ways::Good; count], answers: BTreeMap::new() }
    }

    /// Changes the state of a random source.
    pub(super) fn turn(&mut self, chance: &mut Chance) {
        let at = chance.below(self.ways.len() as u64) as usize;
        let ways = [Ways::Good, Ways::Good, Ways::Dead, Ways::Damaged, Ways::Lacks];
        self.ways[at] = ways[chance.below(5) as usize];
    }

    /// Ends the faults of all sources.
    pub(super) fn heal(&mut self) {
        self.ways.fill(Ways::Good);
    }

    /// Requests an item from a source. An error says how that failed.
    pub(super) fn ask(&mut self, item: Item, source: usize) -> Result<(), Failure> {
        self.answers.insert((item, source), self.ways[source]);
        match self.ways[source] {
            Ways::Good => Ok(()),
            Ways::Dead => Err(Failure::Dead),
            Ways::Damaged => Err(Failure::Damaged),
            Ways::Lacks => Err(Failure::Missing),
        }
    }

    /// Whether a read may fail with `failure` although reads wait for unreachable sources: there is an item that
    /// every source had damaged, or lacked, when it was last asked.
    pub(super) fn is_spoilt(&self, failure: Failure) -> bool {
        let bad = |item: Item, source| {
            matches!(self.answers.get(&(item, source)), Some(Ways::Damaged | Ways::Lacks))
        };
        let spoilt = |item: Item| (0..self.ways.len()).all(|source| bad(item, source));
        matches!(failure, Failure::Damaged | Failure::Missing)
            && self.answers.keys().any(|(item, _)| spoilt(*item))
    }
}
