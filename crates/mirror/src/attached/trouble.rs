//! What makes reads of a disk wait or fail, for the administrator.

use std::time::Duration;

use super::Mirror;
use super::shared::State;
use crate::machine::Item;

/// Maximum number of damaged items that are remembered.
const DAMAGE_MAX: usize = 256;

/// What reads wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The chunk, or the node above it, that has been waited for longest.
    pub what: String,
    /// How long it has been waited for.
    pub waited: Duration,
    /// The last error of a fetch, if there was one.
    pub why: Option<String>,
}

/// An item that a source has damaged, or not at all.
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
    /// Remembers that source number `source` has `item` damaged, or lacks it.
    pub(super) fn note_damage(&mut self, item: Item, source: usize, why: String) {
        if self.damage.len() < DAMAGE_MAX || self.damage.contains_key(&(item, source)) {
            self.damage.insert((item, source), why);
        }
    }

    /// Forgets the damage of `item`: the source delivered it undamaged.
    pub(super) fn note_good(&mut self, item: Item, source: usize) {
        self.damage.remove(&(item, source));
    }
}

impl Mirror {
    /// What reads wait for at this moment. `None` while no read waits for a source.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting> {
        let state = self.shared.lock();
        let (item, since) = state.core.longest_wait()?;
        let waited = self.shared.now().since(since);
        Some(Waiting { what: item.to_string(), waited, why: state.complaint.clone() })
    }

    /// The items that sources have damaged, or lack, and have not delivered undamaged since: at most 256.
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
