//! Pruning: deletes the objects that no version needs, while any number of writers work. The step numbers are those
//! of formats/repository.md, "Pruning", which also shows why no object in use is lost.

mod candidates;
mod close;
mod copies;
mod mark;
mod run;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use object_store::path::Path;

use crate::backend::Created;
use crate::layout;
use crate::lease::epoch::{self, Begin, Candidate, End, Epoch, PART_PATHS_MAX, PartName, collect, read_part};
use crate::lease::filter::Filter;
use crate::lease::{Heartbeat, Lease, Purpose};
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::RACES_MAX;
use candidates::{Candidates, each_object};
pub(crate) use close::doubted;
use close::{Closed, Watch};
use copies::{has_other, spare, store_elsewhere};
use mark::{Marks, Tombstones};
use run::Run;
pub use run::{Overseer, PruneEvent, PruneOptions, PruneReport, Tally};

impl Repository {
    /// Deletes the objects that no version needs. `Corrupt` or `NotFound`, with nothing deleted, if the tree of a
    /// version can't be read. `Revoked` if another prune treated this one as dead and continues instead.
    pub fn prune(
        &self,
        options: &PruneOptions,
        stamp: &Stamp,
        overseer: &dyn Overseer,
    ) -> Result<PruneReport> {
        self.prune_with(options, stamp, overseer, true)
    }

    /// [`Self::prune`] without the thread that appends `alive` every minute: a simulation decides which owners are
    /// silent.
    #[doc(hidden)]
    pub fn prune_without_heartbeat(
        &self,
        options: &PruneOptions,
        stamp: &Stamp,
        overseer: &dyn Overseer,
    ) -> Result<PruneReport> {
        self.prune_with(options, stamp, overseer, false)
    }

    /// Reports what a prune would delete, and deletes nothing. Objects of writers at work count as not needed.
    pub fn prune_dry(&self, options: &PruneOptions, overseer: &dyn Overseer) -> Result<PruneReport> {
        let mut report = PruneReport::default();
        let marks = first_marks(self, options, &Tombstones::list(self)?, overseer, &mut report)?;
        let doubted = Epoch::current(self)?.condemned(self)?;
        each_object(self, &mut |found| {
            found.iter().for_each(|copy| report.stored.add(copy));
            let is_live = marks.is_live(&found[0].digest);
            spare(self, found, is_live, &doubted).for_each(|copy| report.candidates.add(copy));
            Ok(())
        })?;
        overseer.event(&PruneEvent::Found(report.candidates));
        Ok(report)
    }

    fn prune_with(
        &self,
        options: &PruneOptions,
        stamp: &Stamp,
        overseer: &dyn Overseer,
        beats: bool,
    ) -> Result<PruneReport> {
        let _freeing = self.backend.freeing();
        let mut report: Option<PruneReport> = None;
        loop {
            let (next, is_cut) = self.prune_once(options, stamp, overseer, beats)?;
            let deleted = next.deleted.objects;
            let sum = report.map_or_else(|| next.clone(), |report| report.followed_by(&next));
            if !is_cut {
                return Ok(sum);
            }
            // A full disk had no room for the list of all candidates; now it has more.
            if deleted == 0 {
                return Err(Error::new(
                    ErrorKind::Full,
                    "prune: the disk has no room for a list of what can go",
                ));
            }
            report = Some(sum);
        }
    }

    /// Prunes; true if the disk had no room for the list of all candidates.
    fn prune_once(
        &self,
        options: &PruneOptions,
        stamp: &Stamp,
        overseer: &dyn Overseer,
        beats: bool,
    ) -> Result<(PruneReport, bool)> {
        for _ in 0..RACES_MAX {
            let (lease, epoch) = Lease::take(self, Purpose::Prune, stamp)?;
            let lease = Arc::new(lease);
            let _heartbeat = beats.then(|| Heartbeat::start(Arc::clone(&lease))).transpose()?;
            let report = PruneReport::default();
            let mut run = Run { repository: self, options, stamp, overseer, lease, report, is_cut: false };
            match run.all(&epoch) {
                Ok(true) => return Ok((run.report, run.is_cut)),
                Ok(false) => {}
                // Without its lease, a prune may fail because another one deletes: then the revocation is the real
                // cause.
                Err(error) => return Err(run.lease.beat().err().filter(is_revoked).unwrap_or(error)),
            }
        }
        Err(Error::new(ErrorKind::Io, "prune: too many other prunes begin now"))
    }
}

impl Repository {
    /// Deletes the records at `paths`, in this order.
    pub(crate) fn delete_all(&self, paths: &[Path]) -> Result<()> {
        paths.chunks(PART_PATHS_MAX).try_for_each(|some| self.backend.delete(some))
    }
}

fn is_revoked(error: &Error) -> bool {
    error.kind() == ErrorKind::Revoked
}

fn first_marks<'a>(
    repository: &'a Repository,
    options: &PruneOptions,
    removed: &Tombstones,
    overseer: &dyn Overseer,
    report: &mut PruneReport,
) -> Result<Marks<'a>> {
    let mut marks = Marks::new(repository, options.window)?;
    report.versions = marks.versions(removed)?;
    overseer.event(&PruneEvent::Marked { versions: report.versions });
    Ok(marks)
}

impl<'a> Run<'a> {
    /// Steps 2 to 10. `false` if another prune began first.
    fn all(&mut self, epoch: &Epoch) -> Result<bool> {
        let before = self.end_of(epoch)?;
        let removed = Tombstones::list(self.repository)?;
        let mut marks =
            first_marks(self.repository, self.options, &removed, self.overseer, &mut self.report)?;
        // Listed before the new epoch begins, so the list has no files of that epoch's writers.
        let unfinished = self.repository.backend.unfinished()?;
        let candidates = self.candidates(&marks, epoch, &before)?;
        self.overseer.event(&PruneEvent::Found(self.report.candidates));
        let begun = self.begin(epoch, &before, &candidates).inspect_err(|error| {
            // Then there is no such record, and its list only takes space.
            if error.kind() == ErrorKind::Full && self.repository.backend.is_folder() {
                let _ = self.clear(candidates.names().collect());
            }
        });
        if !begun? {
            self.clear(candidates.names().collect())?;
            return Ok(false);
        }
        let closed = self.close(before.closed, epoch.number, &removed)?;
        marks.versions(&removed)?;
        for commit in &closed.commits {
            marks.root(commit.root, commit.size)?;
        }
        let is_listed = marks.has_seen_all(&closed.commits);
        // From here on, a delete may still be under way when a step fails.
        let doubt = self.delete(&marks, &candidates, &before.doubt).inspect_err(|_| self.lease.abandon())?;
        let closed_below = if is_listed { epoch.number + 1 } else { before.closed };
        let end = End::new(epoch.number + 1, closed_below, doubt)?;
        if self
            .repository
            .backend
            .create(&layout::prune_end(end.number), &end.encode(self.repository.cipher())?)?
            == Created::Taken
        {
            // Another prune created it, and treats our last part as in doubt.
            self.lease.abandon();
            return Err(Error::new(
                ErrorKind::Revoked,
                "another prune treated this one as dead, and continues in its place",
            ));
        }
        // Close the lease before its log is deleted with the others. If it was revoked, another prune may have ended
        // this one long ago, and its record was deleted since. Our last part is in doubt then, and its list must stay.
        self.lease.finish()?;
        self.clean(&end, &candidates)?;
        self.clear_removed(&removed)?;
        self.repository.backend.delete_unfinished(unfinished)?;
        Ok(true)
    }

    /// Step 2: the `end` of the prune that began `epoch`. Waits for that prune, or revokes its lease, if there is
    /// none yet.
    fn end_of(&mut self, epoch: &Epoch) -> Result<End> {
        let Some(begin) = epoch.begin.as_ref() else { return End::new(0, 0, Vec::new()) };
        let of = epoch.number - 1;
        let mut watch = Watch::new(self.repository, of, begin.lease);
        for _ in 0..RACES_MAX {
            if let Some(end) = epoch.end(self.repository)? {
                return Ok(end);
            }
            if watch.has_ended() {
                let doubt = watch.doubt(begin);
                let closed =
                    Epoch::of(self.repository, of)?.end(self.repository)?.map_or(0, |end| end.closed);
                let end = End::new(epoch.number, closed, doubt)?;
                let bytes = end.encode(self.repository.cipher())?;
                self.repository.backend.create(&layout::prune_end(end.number), &bytes)?;
            } else {
                let mut closed = Closed::default();
                self.wait_for(vec![watch], &mut closed)?;
                watch = closed.watched.pop().expect("one was watched");
            }
        }
        Err(Error::new(ErrorKind::Corrupt, format!("prune {} cannot be ended", epoch.number)))
    }

    /// First half of step 5: finds the candidates and writes their list.
    fn candidates(&mut self, marks: &Marks, epoch: &Epoch, before: &End) -> Result<Candidates<'a>> {
        let mut candidates = Candidates::new(self.repository, &self.lease, epoch.slots());
        let doubted = collect(self.repository, &before.doubt)?;
        each_object(self.repository, &mut |found| {
            for copy in found {
                self.report.stored.add(copy);
                candidates.saw(copy);
            }
            let is_live = marks.is_live(&found[0].digest);
            spare(self.repository, found, is_live, &doubted).try_for_each(|copy| {
                self.report.candidates.add(copy);
                candidates.push(copy.clone())
            })
        })?;
        candidates.finish()?;
        self.is_cut = candidates.is_cut();
        if self.is_cut {
            self.report.candidates = Tally::default();
            for name in candidates.names() {
                read_part(self.repository, &name)?.iter().for_each(|copy| self.report.candidates.add(copy));
            }
        }
        Ok(candidates)
    }

    /// Second half of step 5: creates the `begin`. `false` if another prune has this number.
    fn begin(&self, epoch: &Epoch, before: &End, candidates: &Candidates) -> Result<bool> {
        let begin = Begin {
            number: epoch.number + 1,
            lease: self.lease.number(),
            parts: candidates.parts(),
            slots: candidates.slots(),
            doubt: before.doubt.clone(),
            created: self.stamp.created.clone(),
            creator: self.stamp.creator.clone(),
            nonce: record::nonce()?,
        };
        let bytes = begin.encode(self.repository.cipher())?;
        let created = self.repository.backend.create(&layout::prune_begin(begin.number), &bytes)?;
        Ok(created == Created::Ours)
    }

    /// Step 8. A copy of an object that a version needs is deleted only if another copy stays that no prune deletes;
    /// this must be checked after the announcement. Returns the parts that stay in doubt.
    fn delete(
        &mut self,
        marks: &Marks,
        candidates: &Candidates,
        doubt: &[PartName],
    ) -> Result<Vec<PartName>> {
        let parts: Vec<_> = candidates.names().chain(doubt.iter().cloned()).collect();
        let all = collect(self.repository, &parts)?;
        for name in candidates.names() {
            let mut condemned = read_part(self.repository, &name)?;
            self.lease.announce(name.part)?;
            condemned.retain(|copy| !marks.is_live(&copy.digest) || has_other(self.repository, copy, &all));
            self.delete_copies(&condemned)?;
            condemned.iter().for_each(|copy| self.report.deleted.add(copy));
            self.overseer.event(&PruneEvent::Deleted(self.report.deleted));
        }
        let mut in_doubt = Vec::new();
        for (name, number) in doubt.iter().zip(candidates.parts() + 1..) {
            let is_dead = |process| self.repository.processes.is_dead(process);
            if !(name.process.as_ref().is_some_and(is_dead)
                && self.delete_again(name, number, marks, &all)?)
            {
                in_doubt.push(name.clone());
            }
        }
        Ok(in_doubt)
    }

    /// Deletes again all copies in the part `name` that a dead prune may have deleted, so that no delete of them is
    /// still under way afterwards. Objects that a version needs are stored in another slot first. `false` if that is
    /// not possible.
    fn delete_again(&self, name: &PartName, number: u64, marks: &Marks, condemned: &Filter) -> Result<bool> {
        let copies = read_part(self.repository, name)?;
        self.lease.announce(number)?;
        for copy in copies.iter().filter(|copy| marks.is_live(&copy.digest)) {
            if !has_other(self.repository, copy, condemned)
                && !store_elsewhere(self.repository, copy, condemned)?
            {
                return Ok(false);
            }
        }
        self.repository.flush()?;
        self.delete_copies(&copies).map(|()| true)
    }

    fn delete_copies(&self, copies: &[Candidate]) -> Result<()> {
        self.repository.backend.delete(&copies.iter().map(Candidate::path).collect::<Vec<_>>())
    }

    /// Step 10. The first entry of each log is deleted before the others, even if the list does not show it.
    fn clean(&self, end: &End, candidates: &Candidates) -> Result<()> {
        self.clear(candidates.names().collect())?;
        let doubted: Vec<_> = end.doubt.iter().map(PartName::path).collect();
        let is_over = |path: &Path| layout::epoch_of(path).is_some_and(|epoch| epoch < end.closed);
        let (mut parts, mut entries) = (Vec::new(), Vec::new());
        self.repository.backend.for_each(&layout::candidates(), &mut |found| {
            if is_over(&found.location) && !doubted.contains(&found.location) {
                parts.push(found.location);
            }
        })?;
        self.repository.backend.for_each(&layout::leases(), &mut |found| {
            if is_over(&found.location) {
                entries.push(found.location);
            }
        })?;
        let leases: BTreeSet<_> = entries.iter().filter_map(layout::lease_of).collect();
        let firsts = leases.iter().map(|&(epoch, lease)| layout::lease_entry(epoch, lease, 1));
        let profiles = self.repository.stale_profiles()?;
        [parts, firsts.collect(), entries, profiles]
            .iter()
            .try_for_each(|paths| self.repository.delete_all(paths))?;
        epoch::forget(self.repository, end.number)
    }

    /// Deletes the records of versions that were removed before this prune began, and obsolete reservations of
    /// appends.
    fn clear_removed(&self, removed: &Tombstones) -> Result<()> {
        for (image, floor) in removed.floors().filter(|&(_, floor)| floor > 0) {
            self.repository.raise_floor(image, floor, self.stamp)?;
        }
        self.repository.forget_appends()
    }

    fn clear(&self, parts: Vec<PartName>) -> Result<()> {
        self.repository.delete_all(&parts.iter().map(PartName::path).collect::<Vec<_>>())
    }
}
