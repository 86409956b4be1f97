//! The sources of a mirror, each in its own way good or bad, and what they answered.

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

/// See the module.
pub(super) struct Sources {
    ways: Vec<Ways>,
    /// How each was when it was asked for an item last.
    answers: BTreeMap<(Item, usize), Ways>,
}

impl Sources {
    /// So many, all of them good.
    pub(super) fn new(count: usize) -> Self {
        Self { ways: vec![Ways::Good; count], answers: BTreeMap::new() }
    }

    /// One of them is otherwise from now on.
    pub(super) fn turn(&mut self, chance: &mut Chance) {
        let at = chance.below(self.ways.len() as u64) as usize;
        let ways = [Ways::Good, Ways::Good, Ways::Dead, Ways::Damaged, Ways::Lacks];
        self.ways[at] = ways[chance.below(5) as usize];
    }

    /// All are good again.
    pub(super) fn heal(&mut self) {
        self.ways.fill(Ways::Good);
    }

    /// Asks one for an item: how that fails, if it does.
    pub(super) fn ask(&mut self, item: Item, source: usize) -> Result<(), Failure> {
        self.answers.insert((item, source), self.ways[source]);
        match self.ways[source] {
            Ways::Good => Ok(()),
            Ways::Dead => Err(Failure::Dead),
            Ways::Damaged => Err(Failure::Damaged),
            Ways::Lacks => Err(Failure::Missing),
        }
    }

    /// Whether a read may have failed so although it waits for sources that are away: there is an item that every
    /// source had damaged, or lacked, when it was asked last.
    pub(super) fn is_spoilt(&self, failure: Failure) -> bool {
        let bad = |item: Item, source| {
            matches!(self.answers.get(&(item, source)), Some(Ways::Damaged | Ways::Lacks))
        };
        let spoilt = |item: Item| (0..self.ways.len()).all(|source| bad(item, source));
        matches!(failure, Failure::Damaged | Failure::Missing)
            && self.answers.keys().any(|(item, _)| spoilt(*item))
    }
}
