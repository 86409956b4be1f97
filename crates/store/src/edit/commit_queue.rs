//! The queue in which writers of one image stand that come through one process: each builds its version on the one
//! before it, not yet published, and they are published in that order. So none of them loses a race against another;
//! only another process can take a number away, and then all that was built behind it is built again.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Digest, Result};
use image::{Layout, Manifest};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::backend::Created;
use crate::names::ImageName;
use crate::versions::newest::Newest;

/// Most images whose queue is remembered while nobody stands in it.
const LINES_MAX: usize = 1024;

/// The version that the next one is built on.
#[derive(Debug)]
pub(super) struct Tip {
    pub(super) manifest: Manifest,
    /// The digest that names the manifest.
    pub(super) digest: Digest,
    pub(super) layout: Layout,
    /// The number that comes next: above the manifest's, and above those of removed versions.
    pub(super) next: u64,
}

/// All queues of a repository.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<ImageName, Arc<CommitQueue>>>);

impl Lines {
    pub(super) fn of(&self, image: &ImageName) -> Arc<CommitQueue> {
        let mut queues = self.0.lock();
        if queues.len() >= LINES_MAX && !queues.contains_key(image) {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(queues.entry(image.clone()).or_default())
    }
}

impl Tip {
    /// Whether it is the newest version of an image whose numbers end at `newest`.
    pub(super) fn is(&self, newest: &Newest) -> bool {
        (newest.live, newest.highest.checked_add(1)) == (Some(self.manifest.number), Some(self.next))
    }
}

/// The queue of one image.
#[derive(Debug, Default)]
pub(super) struct CommitQueue {
    /// The newest version in the store when this process last looked.
    seen: Mutex<Option<Arc<Tip>>>,
    /// Held by who builds the next version.
    head: Mutex<Head>,
    turns: Mutex<Turns>,
    moved: Condvar,
}

/// Where the next version goes.
#[derive(Debug, Default)]
pub(super) struct Head {
    tip: Option<(Arc<Tip>, u64)>,
}

/// Versions that were built and not yet published.
#[derive(Debug, Default, Clone, Copy)]
struct Turns {
    /// Goes up when what was built is worth nothing any more.
    epoch: u64,
    /// Places given away in this epoch.
    given: u64,
    /// Whose turn it is.
    next: u64,
    /// Epochs that ended lately without a version of this queue.
    losses: u32,
}

/// A place in the queue. If it is dropped before its turn came, all behind it are built again.
pub(super) struct Turn<'a> {
    queue: &'a CommitQueue,
    epoch: u64,
    place: u64,
    done: bool,
}

/// What came of a turn.
pub(super) enum Outcome {
    /// The version is published.
    Published,
    /// Somebody else took the number, or one before it.
    Lost,
}

impl CommitQueue {
    pub(super) fn seen(&self) -> MutexGuard<'_, Option<Arc<Tip>>> {
        self.seen.lock()
    }

    /// Waits until nobody else builds a version.
    pub(super) fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock()
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock()
    }

    /// The version to build on as far as this process knows, and whether others are yet to be published before.
    pub(super) fn tip(&self, head: &Head) -> Option<(Arc<Tip>, bool)> {
        let turns = *self.turns();
        let (tip, epoch) = head.tip.as_ref()?;
        (*epoch == turns.epoch).then(|| (Arc::clone(tip), turns.given > turns.next))
    }

    /// How many races were lost to other processes lately, more than were won.
    pub(super) fn losses(&self) -> u32 {
        self.turns().losses
    }

    /// The tip as the store has it.
    pub(super) fn refresh(&self, head: &mut Head, tip: Arc<Tip>) {
        head.tip = Some((tip, self.turns().epoch));
    }

    /// A place behind all others for `tip`, which was built on the head's. `None` if that one came to nothing
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
    /// Waits for those before, then publishes by `create`.
    pub(super) fn publish(mut self, create: impl FnOnce() -> Result<Created>) -> Result<Outcome> {
        let mut turns = self.queue.turns();
        while turns.epoch == self.epoch && turns.next != self.place {
            self.queue.moved.wait(&mut turns);
        }
        if turns.epoch != self.epoch {
            self.done = true;
            return Ok(Outcome::Lost);
        }
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
