//! Records of which more changed than can be put right: what they said is found out again where others tell it, or
//! where nothing depends on it; what nobody reads is set aside. Never is anything guessed that writers or prunes count
//! on. formats/repository.md, "Damage".

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
    /// Puts the record `name` right or sets it aside, of which more than a byte changed. `None` if it stays as it is,
    /// since nobody can tell what it said and somebody may count on it.
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
            // The next one is made without them.
            Name::Profile(..) | Name::Capabilities(_) => return self.set_aside(name),
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

    /// The manifest of `image@number` as a lease has it that committed to it. Others may have committed to the same
    /// number: it is this one only if what is left of the record says so, by the digest at its end or by the nonce.
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

    /// How prune `number` began: exactly as it did, or, once it has ended, what of it still counts.
    fn begin_again(&self, number: u64, stamp: &Stamp) -> Result<Option<Bytes>> {
        let (lease, parts, doubt) = match known(end_of(self, number))? {
            None => return Ok(None),
            Some(Some(end)) => (0, 0, end.doubt),
            Some(None) => {
                // What a prune begins with is in its list, in its lease, and in the end of the one before.
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

    /// The lease of the only prune that was begun in `epoch`, if there is only one.
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

    /// An end of prune `number`, which has one: leases are over that were over before it, and all is in doubt that was
    /// when it began, or that it deleted last, as far as there still are lists.
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

    /// An entry that says no more than that the owner lived, where nothing else can have been said that counts.
    fn entry_again(&self, epoch: u64, lease: u64, entry: u64) -> Result<Option<Bytes>> {
        let read = |entry| known(lease::read(self, epoch, lease, entry));
        if entry == 1 {
            // An owner that lives finds another's lease there, and starts again.
            let unknown = || "unknown, since the record was damaged".to_owned();
            let (created, creator) = (unknown(), unknown());
            let owner = Owner { purpose: Purpose::Write, created, creator, process: None };
            return lease::sealed_begin(self, owner).map(Some);
        }
        let Some(Some(Entry::Begin(owner))) = read(1)? else { return Ok(None) };
        let is_write = owner.purpose == Purpose::Write;
        let is_settled = match read(entry + 1)? {
            // A prune may have been deleting; a writer goes on when it knows what came of its commit.
            Some(Some(Entry::Alive | Entry::Commit(..) | Entry::Begin(_))) => is_write,
            Some(Some(Entry::Closed | Entry::Delete(_))) => true,
            // A commit that never was a version, and never will be.
            Some(Some(Entry::Revoked) | None) => {
                is_write && owner.process.is_some_and(|process| self.processes.is_dead(&process))
            }
            None => false,
        };
        if is_settled { lease::sealed_alive(self).map(Some) } else { Ok(None) }
    }
}

/// How prune `number` ended.
fn end_of(repository: &Repository, number: u64) -> Result<Option<End>> {
    Epoch { number, begin: None }.end(repository)
}

/// What was read; `None` if that is damaged or gone, too.
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

/// Whether `left` is what is left of the manifest `whole`.
fn is_of(left: &[u8], whole: &[u8]) -> bool {
    let has_digest = left.len() == whole.len() && left.last_chunk::<32>() == whole.last_chunk::<32>();
    let nonce = SignedManifest::open(whole).map(|sealed| sealed.manifest.nonce);
    let has =
        |nonce: &str| nonce.len() >= 32 && left.windows(nonce.len()).any(|some| some == nonce.as_bytes());
    has_digest || nonce.is_ok_and(|nonce| has(&nonce))
}
