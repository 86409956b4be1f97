//! What the device knows of damage on its disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use proto::cluster::ObjectId;
use tokio::sync::Notify;

use super::rate::Rates;
use crate::problem::{Problem, Word};
use crate::wire::DeviceHealth;

/// Wait after all objects were verified, and before an object that could not be mended is tried again.
const ROUND_PAUSE: Duration = Duration::from_secs(60);
/// Objects that wait to be mended; more are found again by the next round.
const WAITING_MAX: usize = 4096;

/// Notes for the operator that wait to be told; more in between are left out.
const NOTES_MAX: usize = 64;

/// What the device knows of damage.
#[derive(Debug, Default)]
pub(super) struct Scrubs {
    /// Objects in which a read found damage.
    waiting: Mutex<BTreeSet<ObjectId>>,
    /// Objects with damage that is not mended yet, waiting ones, too; and whether it was told that they can't be.
    damaged: Mutex<BTreeMap<ObjectId, bool>>,
    found: Notify,
    notes: Mutex<Vec<String>>,
    noted: Notify,
    /// Components that could not be completed when that was tried last.
    pub(super) incomplete: AtomicU64,
    pub(super) verified_bytes: AtomicU64,
    pub(super) mended_bytes: AtomicU64,
    pub(super) rates: Rates,
}

impl Scrubs {
    /// A read failed: if that is damage, it is to be mended.
    pub(super) fn hear(&self, id: ObjectId, problem: &Problem) {
        if problem.word == Word::Damaged {
            self.report(id, &problem.detail);
        }
    }

    /// A read found damage, which `why` describes.
    fn report(&self, id: ObjectId, why: &str) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX && waiting.insert(id) {
            self.found.notify_one();
            drop(waiting);
            // One that can't be mended is found in each round, and told once.
            if let Entry::Vacant(fresh) = self.damaged.lock().entry(id) {
                fresh.insert(false);
                self.note(format!("damage on the disk: {why}; it is computed again from other devices"));
            }
        }
    }

    /// Damage of an object was mended.
    pub(super) fn mended(&self, id: ObjectId) {
        if self.damaged.lock().remove(&id).is_some() {
            self.note(format!("object {id} is mended"));
        }
    }

    /// Damage of an object can't be mended now.
    pub(super) fn not_mended(&self, id: ObjectId, why: &str) {
        if self.damaged.lock().insert(id, true) != Some(true) {
            self.note(format!("object {id} can't be mended now, and is tried again: {why}"));
        }
    }

    /// There are only these objects: others were removed with their damage.
    pub(super) fn keep_only(&self, objects: &BTreeSet<ObjectId>) {
        self.damaged.lock().retain(|id, _| objects.contains(id));
    }

    fn note(&self, text: String) {
        let mut notes = self.notes.lock();
        if notes.len() < NOTES_MAX && !notes.contains(&text) {
            notes.push(text);
            self.noted.notify_one();
        }
    }

    /// Waits for what an operator should know, and takes it.
    pub(super) async fn notes(&self) -> Vec<String> {
        self.noted.notified().await;
        std::mem::take(&mut *self.notes.lock())
    }

    /// What the metadata service is told.
    pub(super) fn health(&self) -> DeviceHealth {
        DeviceHealth {
            mended: self.mended_bytes.load(Ordering::Relaxed),
            damaged: self.damaged.lock().len() as u64,
            incomplete: self.incomplete.load(Ordering::Relaxed),
            ..DeviceHealth::default()
        }
    }

    /// Bytes that were verified, and that were mended, since the start.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.verified_bytes.load(Ordering::Relaxed), self.mended_bytes.load(Ordering::Relaxed))
    }

    /// The next object to mend.
    pub(super) fn next(&self) -> Option<ObjectId> {
        self.waiting.lock().pop_first()
    }

    /// Waits until there is damage, at most for a round's pause.
    pub(super) async fn rest(&self) {
        let _ = tokio::time::timeout(ROUND_PAUSE, self.found.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn damage_is_told_once_and_counts_until_it_is_mended() {
        let scrubs = Scrubs::default();
        let id = ObjectId { group: 1, number: 2 };
        let told = |scrubs: &Scrubs| scrubs.notes().now_or_never().unwrap_or_default().join("\n");
        assert_eq!(told(&scrubs), "");
        scrubs.report(id, "bytes 0 to 65536 of object 2 have another checksum");
        assert!(told(&scrubs).contains("bytes 0 to 65536"));
        assert_eq!(scrubs.next(), Some(id));
        scrubs.not_mended(id, "too few devices");
        assert!(told(&scrubs).contains("can't be mended now, and is tried again: too few devices"));
        assert_eq!(scrubs.health(), DeviceHealth { damaged: 1, ..DeviceHealth::default() });
        scrubs.report(id, "bytes 0 to 65536 of object 2 have another checksum");
        scrubs.not_mended(id, "too few devices");
        assert_eq!((told(&scrubs).as_str(), scrubs.next()), ("", Some(id)), "the next round finds it again");
        scrubs.mended(id);
        assert!(told(&scrubs).contains("is mended"));
        scrubs.mended(id);
        assert_eq!((told(&scrubs).as_str(), scrubs.health()), ("", DeviceHealth::default()));
    }
}
