//! What keeps reads of a disk waiting, or makes them fail: for who looks after it.

use std::time::Duration;

use super::Mirror;
use super::shared::State;
use crate::machine::Item;

/// Most pieces of damage that are remembered at once.
const DAMAGE_MAX: usize = 256;

/// What reads wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The chunk, or the node above it, that has been waited for longest.
    pub what: String,
    /// For how long.
    pub waited: Duration,
    /// What went wrong last on the way to anything, if anything did.
    pub why: Option<String>,
}

/// Something that a source has otherwise than it should have, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// The chunk or node.
    pub what: String,
    /// Name of the source.
    pub source: String,
    /// The whole chain of causes.
    pub why: String,
}

impl State {
    /// Source number `source` has `item` damaged, or lacks it.
    pub(super) fn note_damage(&mut self, item: Item, source: usize, why: String) {
        if self.damage.len() < DAMAGE_MAX || self.damage.contains_key(&(item, source)) {
            self.damage.insert((item, source), why);
        }
    }

    /// It has it undamaged.
    pub(super) fn note_good(&mut self, item: Item, source: usize) {
        self.damage.remove(&(item, source));
    }
}

impl Mirror {
    /// What reads wait for at this moment. Nothing while all of them are answered, or what they need is here.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting> {
        let state = self.shared.lock();
        let (item, since) = state.core.longest_wait()?;
        let waited = self.shared.now().since(since);
        Some(Waiting { what: item.to_string(), waited, why: state.complaint.clone() })
    }

    /// What sources were found to have damaged, or to lack, and have not given undamaged since: at most 256 pieces.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        let state = self.shared.lock();
        let damage = |(&(item, source), why): (&(Item, usize), &String)| Damage {
            what: item.to_string(),
            source: self.shared.sources[source].name.clone(),
            why: why.clone(),
        };
        state.damage.iter().map(damage).collect()
    }
}
