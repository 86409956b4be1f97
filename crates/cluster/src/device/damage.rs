//! What the device knows of damage on its disk.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use proto::cluster::ObjectId;
use tokio::sync::Notify;

use super::rate::Rates;

/// Wait after all objects were verified, and before an object that could not be mended is tried again.
const ROUND_PAUSE: Duration = Duration::from_secs(60);
/// Objects that wait to be mended; more are found again by the next round.
const WAITING_MAX: usize = 4096;

/// What the device knows of damage.
#[derive(Debug, Default)]
pub(super) struct Scrubs {
    /// Objects in which a read found damage.
    waiting: Mutex<BTreeSet<ObjectId>>,
    found: Notify,
    pub(super) verified_bytes: AtomicU64,
    pub(super) mended_bytes: AtomicU64,
    pub(super) rates: Rates,
}

impl Scrubs {
    /// A read found damage.
    pub(super) fn report(&self, id: ObjectId) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX && waiting.insert(id) {
            self.found.notify_one();
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
