//! One prune: how it is asked for, what it tells while it runs, and what it did.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::epoch::Candidate;
use crate::lease::{Lease, Owner};
use crate::record::Stamp;
use crate::repository::Repository;

/// How to prune.
#[derive(Debug, Clone)]
pub struct PruneOptions {
    /// How often a lease that shows no sign of life is looked at before its owner is taken for dead. Owners give one
    /// every minute.
    pub looks: u32,
    /// What lies between two looks.
    pub pause: Duration,
    /// Tree nodes that are read at once.
    pub window: usize,
}

impl Default for PruneOptions {
    /// Ten minutes of patience.
    fn default() -> Self {
        Self { looks: 300, pause: Duration::from_secs(2), window: 64 }
    }
}

/// What a prune does at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PruneEvent {
    /// It has marked what so many versions need.
    Marked {
        /// Versions that are not removed.
        versions: u64,
    },
    /// It has found its candidates.
    Found(Tally),
    /// It waits for others, one of whom is this.
    Waiting(Owner),
    /// It has taken this one for dead, which was silent for long.
    Revoked(Owner),
    /// It has found that the process of this one is dead.
    Dead(Owner),
    /// It has deleted so much by now.
    Deleted(Tally),
}

/// Copies of objects, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, candidate: &Candidate) {
        self.objects += 1;
        self.bytes += candidate.bytes;
    }
}

/// Who watches a prune, and waits for it.
pub trait Overseer {
    /// Something has happened.
    fn event(&self, event: &PruneEvent);
    /// Lets so much time pass.
    fn pause(&self, time: Duration);
}

/// What a prune did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Versions that are not removed.
    pub versions: u64,
    /// Objects that were there.
    pub stored: Tally,
    /// Those that no version needed at first sight.
    pub candidates: Tally,
    /// Those that were deleted; of a dry run, nothing.
    pub deleted: Tally,
    /// Writers and prunes that were taken for dead.
    pub revoked: u64,
}

/// One prune.
pub(super) struct Run<'a> {
    pub(super) repository: &'a Repository,
    pub(super) options: &'a PruneOptions,
    pub(super) stamp: &'a Stamp,
    pub(super) overseer: &'a dyn Overseer,
    pub(super) lease: Arc<Lease>,
    pub(super) report: PruneReport,
}
