//! Step 6 of a prune: waits until every lease of a past epoch is closed, or revokes it, and collects its commits.

use std::time::Duration;

use base::{ErrorKind, Result};
use bytes::Bytes;

use crate::backend::Created;
use crate::layout;
use crate::lease::epoch::{Begin, PartName};
use crate::lease::{self, Commit, Entry, Owner};
use crate::process::Process;
use crate::repository::Repository;

use super::mark::Tombstones;
use super::run::{PruneEvent, Run};

/// Pause between the first two looks at a lease, doubled each time. It starts short, since most writers end soon.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// A lease that is read repeatedly until it has ended.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    repository: &'a Repository,
    epoch: u64,
    lease: u64,
    /// Number of the entry that is read next.
    next: u64,
    /// Looks since the last new entry.
    silent: u32,
    owner: Option<Owner>,
    /// The last commit, not known to be a version yet, with its manifest as it is stored. Earlier commits are
    /// settled.
    last_commit: Option<(Commit, Bytes)>,
    /// Commits that became versions.
    commits: Vec<Commit>,
    deleting: Option<u64>,
    has_ended: bool,
}

/// What a prune learned from leases that have ended.
#[derive(Debug, Default)]
pub(super) struct Closed<'a> {
    pub(super) watched: Vec<Watch<'a>>,
    /// Commits that are versions.
    pub(super) commits: Vec<Commit>,
}

/// The parts in doubt after the prune with this `begin`, whose lease is in `epoch`, has ended.
pub(crate) fn doubted(repository: &Repository, epoch: u64, begin: &Begin) -> Result<Vec<PartName>> {
    let mut watch = Watch::new(repository, epoch, begin.lease);
    watch.look()?;
    Ok(watch.doubt(begin))
}

impl<'a> Watch<'a> {
    pub(super) fn new(repository: &'a Repository, epoch: u64, lease: u64) -> Self {
        Self {
            repository,
            epoch,
            lease,
            next: 1,
            silent: 0,
            owner: None,
            last_commit: None,
            commits: Vec::new(),
            deleting: None,
            has_ended: false,
        }
    }

    /// Whether the lease was closed or revoked.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The parts in doubt after the owner, the prune with this `begin`, has ended: those passed on to it, and the
    /// last part that it announced.
    pub(super) fn doubt(&self, begin: &Begin) -> Vec<PartName> {
        let mut doubt = begin.doubt.clone();
        if let Some(part) = self.deleting {
            // A number above its own parts stands for a part in doubt, which it deleted again.
            let again = part.checked_sub(begin.parts + 1);
            if again.is_none() {
                doubt.push(PartName::of(self.epoch, self.lease, part));
            }
            let at = again.map_or(Ok(doubt.len() - 1), usize::try_from).unwrap_or(usize::MAX);
            let doubted = doubt.get_mut(at);
            doubted.into_iter().for_each(|part| part.process = self.process().cloned());
        }
        doubt
    }

    /// The process that holds the lease, if known.
    pub(super) fn process(&self) -> Option<&Process> {
        self.owner.as_ref().and_then(|owner| owner.process.as_ref())
    }

    /// Whether its owner is known to be dead.
    fn is_dead(&self) -> bool {
        self.process().is_some_and(|process| self.repository.processes.is_dead(process))
    }

    /// Whether the lease exists.
    fn is_there(&self) -> Result<bool> {
        self.repository.backend.exists(&layout::lease_entry(self.epoch, self.lease, 1))
    }

    /// Reads all new entries.
    fn look(&mut self) -> Result<()> {
        self.silent += 1;
        while !self.has_ended {
            match lease::read(self.repository, self.epoch, self.lease, self.next)? {
                None => return Ok(()),
                Some(Entry::Begin(owner)) => self.owner = Some(owner),
                Some(Entry::Alive) => {}
                Some(Entry::Delete(part)) => self.deleting = Some(part),
                Some(Entry::Commit(commit, bytes)) => {
                    // An owner commits again only after it knew the outcome of the commit before, so that one can be
                    // settled now.
                    if let Some((before, bytes)) = self.last_commit.replace((commit, bytes)) {
                        let is_version = self.is_version(&before, &bytes)?;
                        self.commits.extend(is_version.then_some(before));
                    }
                }
                Some(Entry::Closed | Entry::Revoked) => self.has_ended = true,
            }
            self.next += 1;
            self.silent = 0;
        }
        Ok(())
    }

    /// Tries to revoke the lease; `false` if the owner appended an entry first.
    fn revoke(&mut self) -> Result<bool> {
        let revoked = lease::revoke(self.repository, self.epoch, self.lease, self.next)? == Created::Ours;
        self.has_ended |= revoked;
        Ok(revoked)
    }

    /// The commits that became versions. Creates the version of the last commit if its number is free and was not
    /// removed.
    fn into_versions(mut self, removed: &Tombstones) -> Result<Vec<Commit>> {
        let last = self.last_commit.take();
        if let Some((last, bytes)) = last.filter(|(last, _)| !removed.holds(&last.image, last.number)) {
            let path = layout::version(&last.image, last.number);
            let is_version = self.repository.backend.create(&path, &bytes)? == Created::Ours;
            self.commits.extend(is_version.then_some(last));
        }
        Ok(self.commits)
    }

    fn is_version(&self, commit: &Commit, bytes: &Bytes) -> Result<bool> {
        let path = layout::version(&commit.image, commit.number);
        match self.repository.backend.read_record(&path, bytes.len() as u64) {
            Ok(found) => Ok(found == *bytes),
            // A longer record belongs to another version.
            Err(error) if [ErrorKind::NotFound, ErrorKind::Corrupt].contains(&error.kind()) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl<'a> Run<'a> {
    /// Waits until all leases of the epochs `from..=to` have ended, except this prune's own.
    pub(super) fn close(&mut self, from: u64, to: u64, removed: &Tombstones) -> Result<Closed<'a>> {
        let mut closed = Closed::default();
        for epoch in from..=to {
            let mut watches = Vec::new();
            for lease in 1.. {
                let watch = Watch::new(self.repository, epoch, lease);
                if !watch.is_there()? {
                    break;
                }
                if (epoch, lease) != (self.lease.epoch(), self.lease.number()) {
                    watches.push(watch);
                }
            }
            self.wait_for(watches, &mut closed)?;
        }
        for watch in std::mem::take(&mut closed.watched) {
            closed.commits.extend(watch.into_versions(removed)?);
        }
        closed.commits.retain(|commit| !removed.holds(&commit.image, commit.number));
        Ok(closed)
    }

    /// Waits until each lease has ended; revokes those of dead owners and those that stay silent for too long.
    pub(super) fn wait_for(&mut self, mut open: Vec<Watch<'a>>, closed: &mut Closed<'a>) -> Result<()> {
        let mut pause = FIRST_PAUSE.min(self.options.pause);
        loop {
            for watch in &mut open {
                watch.look()?;
                let is_dead = watch.is_dead();
                if is_dead {
                    // It may have appended an entry just before it died.
                    watch.look()?;
                }
                let is_given_up = is_dead || watch.silent >= self.options.looks;
                if !watch.has_ended && is_given_up && watch.revoke()? {
                    self.report.revoked += 1;
                    let event = if is_dead { PruneEvent::Dead } else { PruneEvent::Revoked };
                    watch.owner.iter().for_each(|owner| self.overseer.event(&event(owner.clone())));
                }
            }
            let (over, rest) = open.into_iter().partition(Watch::has_ended);
            open = rest;
            closed.watched.extend::<Vec<_>>(over);
            let Some(first) = open.first() else { return Ok(()) };
            first.owner.iter().for_each(|owner| self.overseer.event(&PruneEvent::Waiting(owner.clone())));
            self.overseer.pause(pause);
            pause = (2 * pause).min(self.options.pause);
        }
    }
}
