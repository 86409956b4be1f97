//! The list of copies that a prune may delete. It is written in parts, one folder of objects after the other, so that
//! memory is bounded by the largest folder. On a full disk the list ends early.

use base::{ErrorKind, Result};
use image::ObjectKind;
use object_store::path::Path;

use crate::layout;
use crate::lease::Lease;
use crate::lease::epoch::{Candidate, PART_PATHS_MAX, PartName, seal_part};
use crate::repository::Repository;

/// Calls `each` for every object, with all its copies in the order of their slots, folder by folder.
pub(super) fn each_object(
    repository: &Repository,
    each: &mut dyn FnMut(&[Candidate]) -> Result<()>,
) -> Result<()> {
    for kind in [ObjectKind::Chunk, ObjectKind::Node] {
        for name in repository.backend.folders(&layout::objects(kind))? {
            let found = in_folder(repository, &layout::objects(kind).join(name))?;
            found.chunk_by(|one, next| one.digest == next.digest).try_for_each(&mut *each)?;
        }
    }
    Ok(())
}

/// The copies of objects in `folder`, sorted by digest and slot. Files that are not objects are skipped.
pub(super) fn in_folder(repository: &Repository, folder: &Path) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    repository.backend.for_each(folder, &mut |record| {
        found.extend(Candidate::at(&record.location, record.size));
    })?;
    found.sort_unstable_by_key(|candidate| (candidate.digest, candidate.slot));
    Ok(found)
}

/// A list of candidates while it is written.
pub(super) struct Candidates<'a> {
    repository: &'a Repository,
    epoch: u64,
    lease: u64,
    waiting: Vec<Candidate>,
    parts: u64,
    slots: u8,
    is_cut: bool,
}

impl<'a> Candidates<'a> {
    /// An empty list for the prune that holds `lease`, in an epoch with `slots` slots in use.
    pub(super) fn new(repository: &'a Repository, lease: &Lease, slots: u8) -> Self {
        let (epoch, lease) = (lease.epoch(), lease.number());
        // A writer that finds slot 0 condemned stores in slot 1, so two slots may be in use from now on.
        let slots = slots.max(2);
        Self { repository, epoch, lease, waiting: Vec::new(), parts: 0, slots, is_cut: false }
    }

    /// Notes the slot of a copy, whether it is a candidate or not.
    pub(super) fn saw(&mut self, copy: &Candidate) {
        // Slots are counted from 0; one more is for writers that find this copy condemned.
        self.slots = self.slots.max((copy.slot + 2).min(layout::SLOTS));
    }

    /// Adds a candidate, unless the list has ended early. A part never spans two folders.
    pub(super) fn push(&mut self, candidate: Candidate) -> Result<()> {
        let folder = |candidate: &Candidate| (candidate.kind, candidate.digest.0[0]);
        let is_next = self.waiting.last().is_some_and(|last| folder(last) != folder(&candidate));
        if is_next || self.waiting.len() == PART_PATHS_MAX {
            self.finish()?;
        }
        if !self.is_cut {
            self.waiting.push(candidate);
        }
        Ok(())
    }

    /// Writes the candidates that are not written yet, as a part.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let name = PartName::of(self.epoch, self.lease, self.parts + 1);
        let made = self.repository.backend.create(&name.path(), &seal_part(&self.waiting));
        self.waiting.clear();
        match made {
            Err(error) if error.kind() == ErrorKind::Full && self.parts > 0 => self.cut(),
            made => made.map(|_| self.parts += 1),
        }
    }

    /// The disk is full. The list ends here, and half of it goes, so that there is room for the records that follow.
    fn cut(&mut self) -> Result<()> {
        self.is_cut = true;
        let (all, stay) = (self.parts, self.parts.div_ceil(2));
        self.parts = stay;
        let part = |part| PartName::of(self.epoch, self.lease, part).path();
        self.repository.delete_all(&(stay + 1..=all).map(part).collect::<Vec<_>>())
    }

    /// Whether there was no room for all candidates.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(super) fn parts(&self) -> u64 {
        self.parts
    }

    pub(super) fn slots(&self) -> u8 {
        self.slots
    }

    pub(super) fn names(&self) -> impl Iterator<Item = PartName> + use<> {
        let (epoch, lease) = (self.epoch, self.lease);
        (1..=self.parts).map(move |part| PartName::of(epoch, lease, part))
    }
}
