//! A writer: what is added to a repository is added under a lease, so that no prune deletes what a writer counts on.
//! formats/repository.md, "Versions" and "Pruning".

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, Manifest, ObjectRef, ObjectSink};
use parking_lot::{Mutex, MutexGuard};

use crate::backend::Created;
use crate::layout;
use crate::lease::filter::Filter;
use crate::lease::{Heartbeat, Lease, Purpose};
use crate::names::ImageName;
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::{RACES_MAX, next};

/// How often work starts again because a prune revoked its lease.
const STARTS_MAX: u32 = 3;

/// Does `once`, which begins a writer, and does it again from its start if a prune revoked that writer's lease.
pub(crate) fn retry_if_revoked<T>(mut once: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..STARTS_MAX {
        match once() {
            Err(error) if error.kind() == ErrorKind::Revoked => {}
            outcome => return outcome,
        }
    }
    once()
}

/// Adds objects and versions to a repository, from when it was begun until it is dropped. Any number of threads may use
/// it at once.
///
/// What a new version takes over from others without looking at each object, such as the tree of a version that is
/// cloned, is resolved after the writer has begun. After an error of kind `Revoked` everything starts again with
/// another writer; what was stored is found again as far as it is still there.
#[derive(Debug)]
pub struct Writer {
    repository: Repository,
    // Before the lease, so that it has stopped when that is closed.
    _heartbeat: Option<Heartbeat>,
    lease: Arc<Lease>,
    condemned: Filter,
    slots: u8,
    good: Good,
}

/// Most objects that a writer remembers as good.
const GOOD_MAX: usize = 1 << 20;

/// Objects that a writer put itself, or read and held against their names, by the first half of their digests.
#[derive(Debug, Default)]
struct Good(Mutex<HashSet<[u8; 16]>>);

impl Good {
    fn has(&self, digest: &Digest) -> bool {
        self.lock().contains(digest.first_half())
    }

    /// Remembers one. One that finds no room is read again when it is needed again.
    fn add(&self, digest: &Digest) {
        let mut good = self.lock();
        if good.len() < GOOD_MAX {
            good.insert(*digest.first_half());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<[u8; 16]>> {
        self.0.lock()
    }
}

impl Writer {
    /// Begins to write. `stamp` tells people whose it is.
    pub fn begin(repository: &Repository, stamp: &Stamp) -> Result<Self> {
        let mut writer = Self::begin_without_heartbeat(repository, stamp)?;
        writer._heartbeat = Some(Heartbeat::start(Arc::clone(&writer.lease))?);
        Ok(writer)
    }

    /// Begins to write and does `work`. If a prune revokes the lease meanwhile, calls `told` and does `work` once more
    /// with another writer; the third time its outcome counts as it is.
    pub fn retrying<T, E: From<Error>>(
        repository: &Repository,
        stamp: &Stamp,
        told: impl Fn(),
        mut work: impl FnMut(&Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        for _ in 1..STARTS_MAX {
            let writer = Self::begin(repository, stamp)?;
            let outcome = work(&writer);
            // The lease tells, not the error: objects that a prune deleted may have been missed first.
            if outcome.is_ok() || !writer.is_revoked() {
                return outcome;
            }
            told();
        }
        work(&Self::begin(repository, stamp)?)
    }

    /// The same as [`Self::begin`], without a thread that says every minute that it lives: the caller does, by
    /// [`Self::beat`].
    pub fn begin_without_heartbeat(repository: &Repository, stamp: &Stamp) -> Result<Self> {
        let (lease, epoch) = Lease::take(repository, Purpose::Write, stamp)?;
        let condemned = epoch.condemned(repository)?;
        Ok(Self {
            repository: repository.clone(),
            _heartbeat: None,
            lease: Arc::new(lease),
            condemned,
            slots: epoch.slots(),
            good: Good::default(),
        })
    }

    /// A writer that all share who write at the same moment, `shared` being where it is found. A new one begins if a
    /// prune has begun since, so that no prune waits for ever.
    pub(crate) fn share(
        repository: &Repository,
        shared: &Mutex<Weak<Self>>,
        stamp: &Stamp,
    ) -> Result<Arc<Self>> {
        let mut shared = shared.lock();
        if let Some(writer) = shared.upgrade()
            && writer.lease.is_open()
            && !repository.backend.exists(&layout::prune_begin(writer.lease.epoch() + 1))?
        {
            return Ok(writer);
        }
        let writer = Arc::new(Self::begin(repository, stamp)?);
        *shared = Arc::downgrade(&writer);
        Ok(writer)
    }

    /// Says that it lives. `Revoked` if a prune has taken it for dead.
    pub fn beat(&self) -> Result<()> {
        self.lease.beat()
    }

    /// Whether a prune has taken it for dead, as far as it knows: then everything starts again with another writer.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.lease.is_revoked()
    }

    /// Publishes `draft` as the next version of `image`: makes all objects that were put durable, then takes the next
    /// number by creating the manifest under it, signed by the repository's key if it has one. `Refused` if the root of
    /// the tree was never put. After an `Io` error the version may appear all the same, at the latest when the
    /// repository is pruned.
    pub fn publish(&self, image: &ImageName, mut draft: Manifest) -> Result<Manifest> {
        self.flush_objects(image, &draft)?;
        draft.image = image.to_string();
        draft.cipher = self.repository.cipher().name().to_owned();
        draft.nonce = record::nonce()?;
        for _ in 0..RACES_MAX {
            draft.number = self.repository.next_number(image)?;
            let (bytes, _) = self.repository.seal_version(&draft)?;
            if self.create(image, &draft, &bytes)? == Created::Ours {
                return Ok(draft);
            }
        }
        Err(Error::new(ErrorKind::Io, format!("publish `{image}`: too many others do at this moment")))
    }

    /// What it writes to.
    pub(crate) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Publishes `draft` as the version of `image` that follows version `expected`, the newest; 0 if there is none.
    /// `Refused` with the newest one's number if that is another by then; else as [`Self::publish`].
    pub fn publish_onto(&self, image: &ImageName, mut draft: Manifest, expected: u64) -> Result<Manifest> {
        let newest = || self.repository.newest_numbers(image, None);
        let moved = |found: u64| match (found, expected) {
            (found, 0) => format!("there is an image `{image}` already, at version {found}"),
            (0, _) => format!("there is no image `{image}` any more"),
            _ => format!("`{image}` is at version {found} by now, not at {expected}"),
        };
        let refused = |found: u64| Err(Error::new(ErrorKind::Refused, moved(found)));
        let found = newest()?;
        if found.live.unwrap_or(0) != expected {
            return refused(found.live.unwrap_or(0));
        }
        self.flush_objects(image, &draft)?;
        draft.image = image.to_string();
        draft.cipher = self.repository.cipher().name().to_owned();
        draft.nonce = record::nonce()?;
        draft.number = next(found.highest, image)?;
        let (bytes, _) = self.repository.seal_version(&draft)?;
        match self.create(image, &draft, &bytes)? {
            Created::Ours => Ok(draft),
            Created::Taken => refused(draft.number),
        }
    }

    /// Commits to the version, then see [`Repository::create_version`]. All that it needs is durable.
    pub(crate) fn create(&self, image: &ImageName, manifest: &Manifest, bytes: &Bytes) -> Result<Created> {
        self.lease.commit(bytes, || self.repository.create_version(image, manifest, bytes))
    }

    /// Makes sure that there is a good copy of `object` which no prune deletes as long as a version needs it, durable.
    pub(crate) fn restore(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        if !self.holds(object)? {
            self.store(object, bytes)?;
            self.repository.backend.flush()?;
        }
        Ok(())
    }

    /// Makes durable all that `draft` needs.
    fn flush_objects(&self, image: &ImageName, draft: &Manifest) -> Result<()> {
        self.repository.flush()?;
        match draft.root.child.object() {
            Some(root) if !self.is_there(&root)? => {
                // A prune that took this writer for dead may have deleted it.
                self.beat()?;
                let text = format!("publish `{image}`: its root {root} is not stored");
                Err(Error::new(ErrorKind::Refused, text))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is a copy that will stay, good or bad.
    fn is_there(&self, object: &ObjectRef) -> Result<bool> {
        for slot in self.slots_of(object)? {
            if self.repository.holds_in(object, slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is a good copy that will stay: one that this writer put, one that is read and held against its
    /// name now, or one that the scrub log covers. formats/repository.md, "What counts as stored".
    pub(crate) fn holds(&self, object: &ObjectRef) -> Result<bool> {
        let slots = self.slots_of(object)?;
        if self.good.has(&object.digest) {
            return Ok(true);
        }
        for slot in slots {
            if self.repository.is_good_in(object, slot)? {
                self.good.add(&object.digest);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where copies may lie that this writer counts on.
    fn slots_of(&self, object: &ObjectRef) -> Result<impl Iterator<Item = u8>> {
        let last = self.slot_for(object)?.max(self.slots - 1);
        Ok((0..=last).filter(|&slot| self.is_free(&object.digest, slot)))
    }

    /// Whether no prune that began before this writer may delete what lies there.
    fn is_free(&self, digest: &Digest, slot: u8) -> bool {
        !self.condemned.contains(digest, slot)
    }

    /// Where this writer stores an object.
    fn slot_for(&self, object: &ObjectRef) -> Result<u8> {
        let free = (0..layout::SLOTS).find(|&slot| self.is_free(&object.digest, slot));
        free.ok_or_else(|| {
            let text =
                format!("store {object}: prunes that were killed may still delete it wherever it can lie");
            Error::new(ErrorKind::Refused, text)
        })
    }

    /// Stores the object unless there is a good copy. Far away a put costs no more than a look, and replaces what is
    /// there.
    fn store(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        if self.good.has(&object.digest) || (!self.repository.backend.is_far() && self.holds(object)?) {
            return Ok(());
        }
        self.repository.put_in(object, self.slot_for(object)?, bytes)?;
        self.good.add(&object.digest);
        Ok(())
    }
}

impl Repository {
    /// Publishes `draft` as the next version of `image` by a [`Writer`] of its own.
    pub fn publish(&self, image: &ImageName, draft: Manifest) -> Result<Manifest> {
        let stamp = Stamp { created: draft.created.clone(), creator: draft.creator.clone() };
        Writer::begin(self, &stamp)?.publish(image, draft)
    }
}

impl ObjectSink for Writer {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.holds(object)
    }

    /// Takes in the object; it is durable once a version is published.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.store(object, bytes)
    }

    fn cipher(&self) -> Cipher {
        self.repository.cipher().clone()
    }
}
