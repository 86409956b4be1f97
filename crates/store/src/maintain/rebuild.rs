//! Rebuilds records with more damage than their digest can repair: writes them again if other records imply their
//! content or if nothing depends on it, and renames those that are not needed. Never guesses anything that writers or
//! prunes rely on. formats/repository.md, "Damage".

use base::limits::MANIFEST_BYTES_MAX;
use base::{ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectKind, SignedManifest};
use object_store::path::Path;

use crate::backend::files::ASIDE;
use crate::layout;
use crate::lease::epoch::{Begin, End, Epoch, first_absent};
use crate::lease::{self, Entry, Owner, Purpose};
use crate::maintain::records::Name;
use crate::maintain::repair::How;
use crate::names::ImageName;
use crate::prune::doubted;
use crate::record::{self, Stamp};
use crate::repository::Repository;

impl Repository {
    /// Rebuilds the record `name`, in which more than one byte has changed, or renames it. `None`, without a change,
    /// if its content is not known and a program may rely on it.
    pub(crate) fn rebuild(&self, name: &Name, stamp: &Stamp) -> Result<Option<How>> {
        if self.is_locked() {
            return Ok(None);
        }
        let whole = match name {
            Name::Tombstone(image, number) => Some(self.tombstone(image, *number, stamp)?),
            Name::Floor(image, number) => Some(self.seal_floor(image, *number, stamp)?),
            Name::Version(image, number) => self.committed(image, *number)?,
            Name::Begin(number) => self.begin_again(*number, stamp)?,
            Name::End(number) => self.end_again(*number)?,
            Name::Entry(epoch, lease, entry) => self.entry_again(*epoch, *lease, *entry)?,
            // Not needed: the next record is made without them.
            Name::CutOver(..) | Name::Profile(..) | Name::Capabilities(_) => return self.set_aside(name),
            Name::Move(image, tag, number) => {
                let newest = self.newest_number(&layout::tag_records(image, tag))?;
                return if newest > Some(*number) { self.set_aside(name) } else { Ok(None) };
            }
            Name::Reservation(image, number) => {
                let newest = self.newest_number(&layout::appends_of(image))?;
                return if newest > Some(*number) { self.set_aside(name) } else { Ok(None) };
            }
            Name::Part(part) => {
                let epoch = Epoch::current(self)?;
                let is_over =
                    epoch.end(self)?.is_some_and(|end| end.doubt.iter().all(|it| it.path() != part.path()));
                return if is_over { self.set_aside(name) } else { Ok(None) };
            }
            Name::Format => None,
        };
        let Some(whole) = whole else { return Ok(None) };
        self.backend.replace(&name.path(), whole).map(|()| Some(How::Rebuilt))
    }

    fn set_aside(&self, name: &Name) -> Result<Option<How>> {
        let path = name.path();
        let aside = Path::from(format!("{path}.{ASIDE}"));
        self.backend.set_aside(&path, &aside).map(|()| Some(How::SetAside))
    }

    /// The manifest of `image@number` from the lease under which it was committed. Several writers may have committed
    /// to this number: a commit is the right one only if the rest of the damaged record has its digest or its nonce.
    fn committed(&self, image: &ImageName, number: u64) -> Result<Option<Bytes>> {
        let left = self.backend.read(&layout::version(image, number), u64::from(MANIFEST_BYTES_MAX));
        let Ok(left) = left else { return Ok(None) };
        let mut entries = Vec::new();
        self.backend.for_each(&layout::leases(), &mut |found| entries.extend(Name::at(&found.location)))?;
        for entry in entries {
            let Name::Entry(epoch, lease, entry) = entry else { continue };
            let Ok(Some(Entry::Commit(commit, bytes))) = lease::read(self, epoch, lease, entry) else {
                continue;
            };
            if (&commit.image, commit.number) == (image, number) && is_of(&left, &bytes) {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// The `begin` of prune `number`: with the same content as before, or, after the prune has ended, with the parts
    /// that still matter.
    fn begin_again(&self, number: u64, stamp: &Stamp) -> Result<Option<Bytes>> {
        let (lease, parts, doubt) = match known(end_of(self, number))? {
            None => return Ok(None),
            Some(Some(end)) => (0, 0, end.doubt),
            Some(None) => {
                // Its content is also in its list of candidates, its lease, and the `end` of the prune before.
                let Some(lease) = self.only_prune(number - 1)? else { return Ok(None) };
                let Some(Some(before)) = known(end_of(self, number - 1))? else { return Ok(None) };
                let part = |part| self.backend.exists(&layout::candidates_part(number - 1, lease, part));
                (lease, first_absent(part)? - 1, before.doubt)
            }
        };
        let mut slots = 2;
        for kind in [ObjectKind::Chunk, ObjectKind::Node] {
            self.backend.for_each(&layout::objects(kind), &mut |found| {
                let slot = layout::object_at(kind, &found.location).map_or(0, |(_, slot)| slot);
                slots = slots.max((slot + 2).min(layout::SLOTS));
            })?;
        }
        let Stamp { created, creator } = stamp.clone();
        let begin = Begin { number, lease, parts, slots, doubt, created, creator, nonce: record::nonce()? };
        begin.encode(&self.cipher).map(Some)
    }

    /// The lease of the prune in `epoch`, if there is exactly one.
    fn only_prune(&self, epoch: u64) -> Result<Option<u64>> {
        let mut prunes = Vec::new();
        for lease in 1.. {
            match known(lease::read(self, epoch, lease, 1))? {
                None => return Ok(None),
                Some(None) => break,
                Some(Some(Entry::Begin(owner))) if owner.purpose == Purpose::Prune => prunes.push(lease),
                Some(Some(_)) => {}
            }
        }
        Ok(prunes.pop().filter(|_| prunes.is_empty()))
    }

    /// An `end` for prune `number`, which had one. `closed` is that of the prune before. In doubt are the parts in
    /// its `begin` and the one that it deleted last, if their lists still exist.
    fn end_again(&self, number: u64) -> Result<Option<Bytes>> {
        let Some(epoch) = known(Epoch::of(self, number))? else { return Ok(None) };
        let begin = epoch.begin.expect("a prune has begun this epoch");
        let closed = known(end_of(self, number - 1))?.flatten().map_or(0, |end| end.closed);
        let Some(mut doubt) = known(doubted(self, number - 1, &begin))? else { return Ok(None) };
        for at in (0..doubt.len()).rev() {
            if !self.backend.exists(&doubt[at].path())? {
                doubt.remove(at);
            }
        }
        End::new(number, closed, doubt)?.encode(&self.cipher).map(Some)
    }

    /// An `alive` entry in place of the damaged one, if no other content could still matter.
    fn entry_again(&self, epoch: u64, lease: u64, entry: u64) -> Result<Option<Bytes>> {
        let read = |entry| known(lease::read(self, epoch, lease, entry));
        if entry == 1 {
            // If the owner is alive, it finds that entry 1 is not its own, and starts again.
            let unknown = || "unknown, since the record was damaged".to_owned();
            let (created, creator) = (unknown(), unknown());
            let owner = Owner { purpose: Purpose::Write, created, creator, process: None, reads: None };
            return lease::sealed_begin(self, owner).map(Some);
        }
        let Some(Some(Entry::Begin(owner))) = read(1)? else { return Ok(None) };
        let is_write = owner.purpose == Purpose::Write;
        let is_settled = match read(entry + 1)? {
            // A prune may have announced a delete here. A writer continues only when it knows the outcome of a
            // commit.
            Some(Some(Entry::Alive | Entry::Commit(..) | Entry::Begin(_))) => is_write,
            Some(Some(Entry::Closed | Entry::Delete(_))) => true,
            // If it was a commit, its version was never created, and never will be.
            Some(Some(Entry::Revoked) | None) => {
                is_write && owner.process.is_some_and(|process| self.processes.is_dead(&process))
            }
            None => false,
        };
        if is_settled { lease::sealed_alive(self).map(Some) } else { Ok(None) }
    }
}

/// The `end` of prune `number`.
fn end_of(repository: &Repository, number: u64) -> Result<Option<End>> {
    Epoch { number, begin: None }.end(repository)
}

/// The record that was read; `None` if that is damaged or missing too.
fn known<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error)
            if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Revoked) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether the damaged bytes `left` come from the manifest `whole`.
fn is_of(left: &[u8], whole: &[u8]) -> bool {
    let has_digest = left.len() == whole.len() && left.last_chunk::<32>() == whole.last_chunk::<32>();
    let nonce = SignedManifest::open(whole).map(|sealed| sealed.manifest.nonce);
    let has =
        |nonce: &str| nonce.len() >= 32 && left.windows(nonce.len()).any(|some| some == nonce.as_bytes());
    has_digest || nonce.is_ok_and(|nonce| has(&nonce))
}
