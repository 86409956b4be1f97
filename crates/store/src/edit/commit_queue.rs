//! Orders the writers of one process to one image: each builds its version on the version before it in the queue,
//! even if that is not published yet, and they publish in this order. So they never lose a race against each other.
//! If another process takes the number, all versions after it in the queue are built again.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Digest, Result};
use image::{Layout, Manifest};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::backend::Created;
use crate::names::ImageName;
use crate::versions::newest::Newest;

/// Most images whose queue is remembered although no writer waits in it.
const QUEUES_MAX: usize = 1024;

/// The version on which the next one is built.
#[derive(Debug)]
pub(super) struct Tip {
    pub(super) manifest: Manifest,
    /// The digest that names the manifest.
    pub(super) digest: Digest,
    pub(super) layout: Layout,
    /// The next number: greater than those of the manifest and of removed versions.
    pub(super) next: u64,
}

/// The queues of all images of a repository.
#[derive(Debug, Default)]
pub(crate) struct CommitQueues(Mutex<HashMap<ImageName, Arc<CommitQueue>>>);

impl CommitQueues {
    pub(super) fn of(&self, image: &ImageName) -> Arc<CommitQueue> {
        let mut queues = self.0.lock();
        if queues.len() >= QUEUES_MAX && !queues.contains_key(image) {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(queues.entry(image.clone()).or_default())
    }
}

impl Tip {
    /// Whether it is still the newest version of its image, if `newest` is where the numbers end.
    pub(super) fn is(&self, newest: &Newest) -> bool {
        (newest.live, newest.highest.checked_add(1)) == (Some(self.manifest.number), Some(self.next))
    }
}

/// The queue of one image.
#[derive(Debug, Default)]
pub(super) struct CommitQueue {
    /// The newest version in the store at the last look of this process.
    seen: Mutex<Option<Arc<Tip>>>,
    /// Locked by the thread that builds the next version.
    head: Mutex<Head>,
    turns: Mutex<Turns>,
    moved: Condvar,
}

/// The version on which the next one is built, and the epoch of [`Turns`] in which it was built.
#[derive(Debug, Default)]
pub(super) struct Head {
    tip: Option<(Arc<Tip>, u64)>,
}

/// The order of versions that are built and not yet published.
#[derive(Debug, Default, Clone, Copy)]
struct Turns {
    /// Incremented when all versions in the queue are invalid, because one of them could not be published.
    epoch: u64,
    /// Number of places that were given out in this epoch.
    given: u64,
    /// The place that publishes next.
    next: u64,
    /// Lost races minus successes, at least 0.
    losses: u32,
}

/// A place in the queue. If it is dropped before it has published, all versions after it are built again.
pub(super) struct Turn<'a> {
    queue: &'a CommitQueue,
    epoch: u64,
    place: u64,
    done: bool,
}

/// Result of a turn.
pub(super) enum Outcome {
    /// The version is published.
    Published,
    /// Another process took this number, or that of a version before it in the queue.
    Lost,
}

impl CommitQueue {
    pub(super) fn seen(&self) -> MutexGuard<'_, Option<Arc<Tip>>> {
        self.seen.lock()
    }

    /// Waits until no other thread builds a version.
    pub(super) fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock()
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock()
    }

    /// The version to build on as far as this process knows, and whether versions before it are still unpublished.
    pub(super) fn tip(&self, head: &Head) -> Option<(Arc<Tip>, bool)> {
        let turns = *self.turns();
        let (tip, epoch) = head.tip.as_ref()?;
        (*epoch == turns.epoch).then(|| (Arc::clone(tip), turns.given > turns.next))
    }

    /// Lost races minus successes: how much other processes write to this image now.
    pub(super) fn losses(&self) -> u32 {
        self.turns().losses
    }

    /// Sets the head to `tip`, as it is in the store.
    pub(super) fn refresh(&self, head: &mut Head, tip: Arc<Tip>) {
        head.tip = Some((tip, self.turns().epoch));
    }

    /// A place at the end of the queue for `tip`, which was built on the head. `None` if the head became invalid
    /// meanwhile.
    pub(super) fn queue(&self, head: &mut Head, tip: Arc<Tip>) -> Option<Turn<'_>> {
        let mut turns = self.turns();
        let epoch = head.tip.as_ref().map(|(_, epoch)| *epoch).filter(|epoch| *epoch == turns.epoch)?;
        let place = turns.given;
        turns.given += 1;
        head.tip = Some((tip, epoch));
        Some(Turn { queue: self, epoch, place, done: false })
    }
}

impl Turn<'_> {
    /// Waits for all places before this one, then publishes with `create`.
    pub(super) fn publish(mut self, create: impl FnOnce() -> Result<Created>) -> Result<Outcome> {
        let mut turns = self.queue.turns();
        while turns.epoch == self.epoch && turns.next != self.place {
            self.queue.moved.wait(&mut turns);
        }
        if turns.epoch != self.epoch {
            self.done = true;
            return Ok(Outcome::Lost);
        }
        // Create without the lock, so that other threads can queue. `next` still keeps their turns back.
        drop(turns);
        if create()? == Created::Taken {
            return Ok(Outcome::Lost);
        }
        self.done = true;
        let mut turns = self.queue.turns();
        if turns.epoch == self.epoch {
            turns.next += 1;
            turns.losses = turns.losses.saturating_sub(1);
        }
        self.queue.moved.notify_all();
        Ok(Outcome::Published)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut turns = self.queue.turns();
        if turns.epoch == self.epoch {
            *turns = Turns { epoch: turns.epoch + 1, losses: turns.losses + 1, ..Turns::default() };
        }
        self.queue.moved.notify_all();
    }
}
