//! The limited number of places for a server's clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::nbd::event::Log;
use crate::nbd::exports::Exports;
use crate::nbd::transport::Transport;

/// Pause after accept(2) failed, usually because there were no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of clients that are being told that all places are taken. Further ones are disconnected at once.
const TURNED_AWAY_MAX: usize = 8;

/// The state that all clients of a server share.
pub(super) struct Shared {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) clients_max: usize,
    pub(super) log: Log,
    pub(super) stopping: AtomicBool,
    pub(super) places: Mutex<Places>,
    /// A place became free, or the server stops.
    pub(super) changed: Condvar,
}

/// The clients that are connected.
#[derive(Default)]
pub(super) struct Places {
    taken: BTreeMap<u64, Arc<Transport>>,
    /// How many of these are only told that there is no place.
    turned_away: usize,
    next: u64,
}

impl Places {
    /// The connections of all clients.
    pub(super) fn transports(&self) -> impl Iterator<Item = &Arc<Transport>> {
        self.taken.values()
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops: from now on no client gets a place.
    pub(super) fn stop(&self) -> MutexGuard<'_, Places> {
        let places = self.lock();
        self.begin_stop();
        places
    }

    /// Like [`Self::stop`], for a caller that has the lock.
    pub(super) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// A place for the client of `transport`, perhaps only to be told that there is none. `None` if the server
    /// stops, or too many clients are being told that already.
    pub(super) fn place(self: &Arc<Self>, transport: &Arc<Transport>) -> Option<Place> {
        let mut places = self.lock();
        let full = places.taken.len() - places.turned_away >= self.clients_max;
        if self.is_stopping() || (full && places.turned_away >= TURNED_AWAY_MAX) {
            return None;
        }
        let number = places.next;
        places.next += 1;
        places.turned_away += usize::from(full);
        places.taken.insert(number, Arc::clone(transport));
        Some(Place { shared: Arc::clone(self), number, full })
    }

    /// Waits for [`ACCEPT_PAUSE`], or until the server stops.
    pub(super) fn pause(&self) {
        let stays = |_: &mut Places| !self.is_stopping();
        self.changed.wait_while_for(&mut self.lock(), stays, ACCEPT_PAUSE);
    }
}

/// A client's place, which is free again when this is dropped.
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    number: u64,
    /// All places were taken: this client is only told so.
    pub(super) full: bool,
}

impl Place {
    /// Whether requests must be refused, because the server stops.
    pub(super) fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.shared.lock();
        places.taken.remove(&self.number);
        places.turned_away -= usize::from(self.full);
        self.shared.changed.notify_all();
    }
}
