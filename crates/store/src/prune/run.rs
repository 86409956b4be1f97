//! The interface of a prune: its options, its events and its report.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::epoch::Candidate;
use crate::lease::{Lease, Owner};
use crate::record::Stamp;
use crate::repository::Repository;

/// Options of a prune.
#[derive(Debug, Clone)]
pub struct PruneOptions {
    /// How often the prune looks at a silent lease before it treats the owner as dead. Owners append an entry every
    /// minute.
    pub looks: u32,
    /// Pause between two looks.
    pub pause: Duration,
    /// Tree nodes that are read at the same time.
    pub window: usize,
}

impl Default for PruneOptions {
    /// 300 looks, two seconds apart: treats owners as dead after ten minutes of silence.
    fn default() -> Self {
        Self { looks: 300, pause: Duration::from_secs(2), window: 64 }
    }
}

/// Progress of a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PruneEvent {
    /// It has marked the objects that versions need.
    Marked {
        /// Number of versions that are not removed.
        versions: u64,
    },
    /// It has listed its candidates.
    Found(Tally),
    /// It waits for leases to end; this is the owner of one of them.
    Waiting(Owner),
    /// It has revoked the lease of this owner, which was silent for too long.
    Revoked(Owner),
    /// It has revoked the lease of this owner, whose process is dead.
    Dead(Owner),
    /// What it has deleted so far.
    Deleted(Tally),
}

/// A number of copies of objects, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of copies.
    pub objects: u64,
    /// Their total length in bytes.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, candidate: &Candidate) {
        self.objects += 1;
        self.bytes += candidate.bytes;
    }
}

/// Receives the events of a prune and does its waiting.
pub trait Overseer {
    /// Called after each event.
    fn event(&self, event: &PruneEvent);
    /// Waits for `time`.
    fn pause(&self, time: Duration);
}

/// What a prune has done, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Versions that are not removed.
    pub versions: u64,
    /// All copies of objects in the repository.
    pub stored: Tally,
    /// Copies that were candidates.
    pub candidates: Tally,
    /// Copies that were deleted; zero in a dry run.
    pub deleted: Tally,
    /// Leases of writers and prunes that were revoked.
    pub revoked: u64,
}

impl PruneReport {
    /// What this prune and the next one, which did the rest, have done together.
    pub(super) fn followed_by(self, next: &Self) -> Self {
        let sum = |one: Tally, other: Tally| Tally {
            objects: one.objects + other.objects,
            bytes: one.bytes + other.bytes,
        };
        Self {
            versions: next.versions,
            stored: self.stored,
            candidates: sum(self.deleted, next.candidates),
            deleted: sum(self.deleted, next.deleted),
            revoked: self.revoked + next.revoked,
        }
    }
}

/// One prune.
pub(super) struct Run<'a> {
    pub(super) repository: &'a Repository,
    pub(super) options: &'a PruneOptions,
    pub(super) stamp: &'a Stamp,
    pub(super) overseer: &'a dyn Overseer,
    pub(super) lease: Arc<Lease>,
    pub(super) report: PruneReport,
    /// Whether the disk had no room for the list of all candidates.
    pub(super) is_cut: bool,
}
