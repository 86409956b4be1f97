//! A writer adds objects and versions to a repository under a lease, so that no prune deletes what it relies on.
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

/// How often work is started if a prune revokes its lease.
const STARTS_MAX: u32 = 3;

/// Runs `work` under the lease that `begin` takes. If it fails since that `is_lost`, calls `told` and starts again with
/// a new lease, [`STARTS_MAX`] times in all.
pub(crate) fn again<L, T, E: From<Error>>(
    begin: impl Fn() -> Result<L>,
    is_lost: impl Fn(&L, &E) -> bool,
    told: impl Fn(),
    mut work: impl FnMut(&L) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    for _ in 1..STARTS_MAX {
        match begin() {
            Err(error) if error.kind() == ErrorKind::Revoked => {}
            begun => {
                let lease = begun?;
                match work(&lease) {
                    Err(error) if is_lost(&lease, &error) => {}
                    outcome => return outcome,
                }
            }
        }
        told();
    }
    work(&begin()?)
}

/// Adds objects and versions to a repository until it is dropped. Any number of threads may use it at the same time.
///
/// A new version may reuse parts of another without checking each object, such as the tree of a version that is
/// cloned. Resolve that version only after the writer has begun. After an error of kind `Revoked`, start again with a
/// new writer; it finds the objects that are still stored.
#[derive(Debug)]
pub struct Writer {
    repository: Repository,
    // Declared before the lease, so that it is dropped and stopped before the lease is closed.
    _heartbeat: Option<Heartbeat>,
    lease: Arc<Lease>,
    condemned: Filter,
    slots: u8,
    good: Good,
}

/// Most objects that a writer remembers as correct.
const GOOD_MAX: usize = 1 << 20;

/// Objects that this writer has put, or has read and verified, by the first half of their digests.
#[derive(Debug, Default)]
struct Good(Mutex<HashSet<[u8; 16]>>);

impl Good {
    fn has(&self, digest: &Digest) -> bool {
        self.lock().contains(digest.first_half())
    }

    /// Remembers an object. If the set is full, the object is read again when it is needed again.
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
    /// How the repository's objects are encrypted.
    #[must_use]
    pub fn cipher(&self) -> &Cipher {
        self.repository.cipher()
    }

    /// Begins a writer. `stamp` shows users who writes and when.
    pub fn begin(repository: &Repository, stamp: &Stamp) -> Result<Self> {
        let mut writer = Self::begin_without_heartbeat(repository, stamp)?;
        writer._heartbeat = Some(Heartbeat::start(Arc::clone(&writer.lease))?);
        Ok(writer)
    }

    /// Begins a writer and runs `work`. If a prune revokes the lease meanwhile, calls `told` and runs `work` again
    /// with a new writer. Returns the result of the third run in any case.
    pub fn retrying<T, E: From<Error>>(
        repository: &Repository,
        stamp: &Stamp,
        told: impl Fn(),
        work: impl FnMut(&Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        // The lease tells, and not the error alone: it may be about an object that the prune has deleted.
        again(|| Self::begin(repository, stamp), |writer: &Self, _| writer.is_revoked(), told, work)
    }

    /// [`Self::begin`] without the thread that appends `alive` every minute: the caller must call [`Self::beat`].
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

    /// A writer shared by all callers that write at the same time; `shared` holds it. Begins a new writer if a prune
    /// has begun since, so that this prune need not wait for ever.
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

    /// Appends `alive` to the lease. `Revoked` if a prune has revoked it.
    pub fn beat(&self) -> Result<()> {
        self.lease.beat()
    }

    /// Whether a prune has revoked its lease, as far as it knows. If so, start again with a new writer.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.lease.is_revoked()
    }

    /// Publishes `draft` as the next version of `image`: makes all objects that were put durable, then creates the
    /// manifest under the next number, signed with the repository's key if it has one. `Refused` if the root of the
    /// tree is not stored. After an `Io` error the version may still appear, at the latest at the next prune.
    pub fn publish(&self, image: &ImageName, mut draft: Manifest) -> Result<Manifest> {
        self.flush_objects(image, &draft)?;
        draft.image = image.to_string();
        draft.cipher = self.repository.cipher().name().to_owned();
        draft.nonce = record::nonce()?;
        for _ in 0..RACES_MAX {
            draft.number = self.repository.next_number(image)?;
            let (bytes, _) = self.repository.seal_version(&mut draft)?;
            if self.create(image, &draft, &bytes)? == Created::Ours {
                return Ok(draft);
            }
        }
        Err(Error::new(ErrorKind::Io, format!("publish `{image}`: too many other writers publish now")))
    }

    /// The repository that it writes to.
    pub(crate) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Publishes `draft` as the next version of `image`, if the newest version is still `expected` (0: there is
    /// none). `Refused`, with the number of the newest version, if it is another. Otherwise like [`Self::publish`].
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
        let (bytes, _) = self.repository.seal_version(&mut draft)?;
        match self.create(image, &draft, &bytes)? {
            Created::Ours => Ok(draft),
            Created::Taken => refused(draft.number),
        }
    }

    /// Appends the commit, then calls [`Repository::create_version`]. All objects of the version must be durable.
    pub(crate) fn create(&self, image: &ImageName, manifest: &Manifest, bytes: &Bytes) -> Result<Created> {
        self.lease.commit(bytes, || self.repository.create_version(image, manifest, bytes))
    }

    /// Makes sure that there is a correct, durable copy of `object` that no prune deletes while a version needs it.
    pub(crate) fn restore(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        if !self.holds(object)? {
            self.store(object, bytes)?;
            self.repository.backend.flush()?;
        }
        Ok(())
    }

    /// Makes all objects of `draft` durable. `Refused` if its root is not stored.
    fn flush_objects(&self, image: &ImageName, draft: &Manifest) -> Result<()> {
        self.repository.flush()?;
        match draft.root.child.object() {
            Some(root) if !self.is_there(&root)? => {
                // A prune that revoked this writer's lease may have deleted it; then the error is `Revoked`.
                self.beat()?;
                let text = format!("publish `{image}`: its root {root} is not stored");
                Err(Error::new(ErrorKind::Refused, text))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is a copy that no prune deletes, without checking its bytes.
    fn is_there(&self, object: &ObjectRef) -> Result<bool> {
        for slot in self.slots_of(object)? {
            if self.repository.holds_in(object, slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this writer remembers that it stored the object, or found it stored.
    #[must_use]
    pub fn has_stored(&self, object: &ObjectRef) -> bool {
        self.good.has(&object.digest)
    }

    /// Whether there is a correct copy that no prune deletes: one that this writer put, one that is verified now, or
    /// one that the scrub log covers. formats/repository.md, "What counts as stored".
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

    /// The slots of copies that this writer may rely on.
    fn slots_of(&self, object: &ObjectRef) -> Result<impl Iterator<Item = u8>> {
        // Look at least up to the slot in which this writer would store the object.
        let last = self.slot_for(object)?.max(self.slots - 1);
        Ok((0..=last).filter(|&slot| self.is_free(&object.digest, slot)))
    }

    /// Whether no prune that began before this writer may delete the copy in `slot`.
    fn is_free(&self, digest: &Digest, slot: u8) -> bool {
        !self.condemned.contains(digest, slot)
    }

    /// The slot in which this writer stores `object`: the lowest that is not condemned. `Refused` if all are
    /// condemned.
    fn slot_for(&self, object: &ObjectRef) -> Result<u8> {
        let free = (0..layout::SLOTS).find(|&slot| self.is_free(&object.digest, slot));
        free.ok_or_else(|| {
            let text = format!("store {object}: killed prunes may still delete copies in all of its slots");
            Error::new(ErrorKind::Refused, text)
        })
    }

    /// Stores the object unless there is a correct copy. Over a network it is always put, because a put costs no more
    /// than a read, and it replaces a damaged copy.
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
    /// Publishes `draft` as the next version of `image` with a new [`Writer`]. Errors are those of
    /// [`Writer::publish`].
    pub fn publish(&self, image: &ImageName, draft: Manifest) -> Result<Manifest> {
        let stamp = Stamp { created: draft.created.clone(), creator: draft.creator.clone() };
        Writer::begin(self, &stamp)?.publish(image, draft)
    }
}

impl ObjectSink for Writer {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.holds(object)
    }

    /// Stores the object; it is durable when a version is published.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.store(object, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;
    use crate::lease::revoke;

    /// Of the two errors that follow a revocation, the first may be about an object that the prune has deleted.
    #[test]
    fn work_begins_again_whatever_it_failed_with_since_its_lease_was_revoked() {
        let repository = Repository::create(&Location::Memory).unwrap();
        let stamp = Stamp { created: "now".to_owned(), creator: "a test".to_owned() };
        let mut starts = 0;
        let done = Writer::retrying(
            &repository,
            &stamp,
            || (),
            |writer| -> Result<u32> {
                starts += 1;
                if starts == 1 {
                    let lease = &writer.lease;
                    revoke(&repository, lease.epoch(), lease.number, 2)?;
                    assert_eq!(writer.beat().unwrap_err().kind(), ErrorKind::Revoked);
                    return Err(Error::new(ErrorKind::NotFound, "there is no such object"));
                }
                Ok(starts)
            },
        );
        assert_eq!(done.unwrap(), 2);
        let mut failed = 0;
        let error = Writer::retrying(
            &repository,
            &stamp,
            || (),
            |_| -> Result<()> {
                failed += 1;
                Err(Error::new(ErrorKind::NotFound, "there is no such object"))
            },
        );
        assert_eq!((error.unwrap_err().kind(), failed), (ErrorKind::NotFound, 1));
    }
}
