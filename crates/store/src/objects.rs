//! Objects of a repository: chunks and nodes, each with one or more copies. formats/repository.md, "What counts as
//! stored".

use base::limits::OBJECT_BYTES_MAX;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectKind, ObjectRef, ObjectSink, ObjectSource, Verified};

use crate::layout;
use crate::repository::Repository;

impl ObjectSource for Repository {
    /// The bytes of a good copy of the object. `Corrupt` if all existing copies are damaged, `NotFound` if there are
    /// none.
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        Ok(self.verified(object)?.bytes().clone())
    }

    fn read_ahead(&self, object: &ObjectRef) {
        self.backend.read_ahead(&layout::object_in(object.kind, &object.digest, 0));
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        let read = || self.read_object(object);
        match &self.cache {
            Some(cache) => cache.get_or(object, read),
            None => read(),
        }
    }
}

impl ObjectSink for Repository {
    /// Whether there is a good copy, found by reading and verifying it.
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.is_good(object)
    }

    /// Stores the object; it is durable after a version is published or [`Repository::flush`] is called. `Refused` if
    /// the repository is encrypted and the object is not.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.put_in(object, 0, bytes)
    }
}

/// Result of reading one copy of an object.
pub(crate) enum Copy {
    /// There is no copy; with the error.
    Missing(Error),
    /// The copy is damaged or can't be read.
    Bad(Error),
    Good(Verified),
}

impl Repository {
    /// Whether a copy of `object` of the right length exists now. Writers use their [`Writer`](crate::Writer)
    /// instead, which knows which copies are good and which a prune may delete.
    pub fn holds(&self, object: &ObjectRef) -> Result<bool> {
        for slot in 0..layout::SLOTS {
            if self.holds_in(object, slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `Corrupt` if the record `format` is damaged.
    pub(crate) fn check_format(&self) -> Result<()> {
        crate::repository::read_format(&self.backend).map(drop)
    }

    /// Whether there is a good copy of `object` in the store now: it is read and verified without the cache, or the
    /// scrub log covers it.
    pub(crate) fn is_good(&self, object: &ObjectRef) -> Result<bool> {
        for slot in 0..layout::SLOTS {
            if self.is_good_in(object, slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is a copy of the right length in `slot`.
    pub(crate) fn holds_in(&self, object: &ObjectRef, slot: u8) -> Result<bool> {
        let path = layout::object_in(object.kind, &object.digest, slot);
        Ok(self.backend.waits(&path) || self.backend.size(&path)? == Some(u64::from(object.len)))
    }

    /// Stores a copy of `object` in `slot`, replacing what is there. `Refused` if the repository is encrypted and the
    /// object is not.
    pub(crate) fn put_in(&self, object: &ObjectRef, slot: u8, bytes: Bytes) -> Result<()> {
        if !self.cipher.takes(object.kind, &bytes) {
            let text = format!("`{}` is encrypted, {object} is not", self.name());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        self.backend.put(&layout::object_in(object.kind, &object.digest, slot), bytes)
    }

    /// Reads the first good copy of the object from the store, without the cache. If there is none, returns the error
    /// of the first bad copy, or `NotFound` if there is no copy at all.
    pub(crate) fn read_object(&self, object: &ObjectRef) -> Result<Verified> {
        self.read_first(object, |_, _| {}).map(|(_, found)| found)
    }

    /// [`Self::read_object`], also returning the slot. Calls `bad` for each bad copy in a lower slot.
    pub(crate) fn read_first(
        &self,
        object: &ObjectRef,
        mut bad: impl FnMut(u8, &Error),
    ) -> Result<(u8, Verified)> {
        let (mut missing, mut damage) = (None, None);
        for slot in 0..layout::SLOTS {
            match self.read_in(object, slot)? {
                Copy::Good(found) => return Ok((slot, found)),
                Copy::Missing(error) => drop(missing.get_or_insert(error)),
                Copy::Bad(error) => {
                    bad(slot, &error);
                    damage.get_or_insert(error);
                }
            }
        }
        Err(damage.or(missing).expect("there are slots"))
    }

    /// Whether there is a good copy in `slot`: it is read and verified now, or the scrub log covers it.
    pub(crate) fn is_good_in(&self, object: &ObjectRef, slot: u8) -> Result<bool> {
        let path = layout::object_in(object.kind, &object.digest, slot);
        // Take the stamp before the file is read: see `Scrubs::add`.
        let scrubs = self.scrubs.as_ref().and_then(|scrubs| Some((scrubs, self.backend.stamp(&path)?)));
        if scrubs.as_ref().is_some_and(|(scrubs, stamp)| scrubs.covers(object, slot, stamp)) {
            return Ok(true);
        }
        let Copy::Good(_) = self.read_in(object, slot)? else { return Ok(false) };
        if let Some((scrubs, stamp)) = scrubs {
            scrubs.add(object, slot, stamp);
        }
        Ok(true)
    }

    /// Reads the copy in `slot`. An error means that the store can't be reached.
    pub(crate) fn read_in(&self, object: &ObjectRef, slot: u8) -> Result<Copy> {
        let path = layout::object_in(object.kind, &object.digest, slot);
        let read = self.backend.read_object(&path, u64::from(object.len.min(OBJECT_BYTES_MAX)));
        let verified = read
            .and_then(|bytes| object.verified(bytes).map_err(|error| error.within(format!("read `{path}`"))));
        match verified {
            Ok(found) => Ok(Copy::Good(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Copy::Missing(error)),
            Err(error) if self.means_damage(&error) => {
                self.scrubs.iter().for_each(|scrubs| scrubs.forget());
                Ok(Copy::Bad(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Finds a good copy of the object with this digest, whose length is not known.
    pub(crate) fn find_object(&self, kind: ObjectKind, digest: &Digest) -> Option<(ObjectRef, Bytes)> {
        (0..layout::SLOTS).find_map(|slot| {
            let path = layout::object_in(kind, digest, slot);
            let bytes = self.backend.read(&path, u64::from(OBJECT_BYTES_MAX)).ok()?;
            let object = ObjectRef::of(kind, &bytes);
            (object.digest == *digest).then_some((object, bytes))
        })
    }

    /// Whether `error` while reading an object means that the object is damaged. In a folder, every error does;
    /// elsewhere, the network may have failed.
    fn means_damage(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Corrupt || self.backend.is_folder()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::backend::location::Location;
    use crate::backend::scrubs::ScrubSetting;

    #[test]
    fn the_scrub_log_saves_a_read_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Folder(folder.path().join("repo"));
        // One hour after all files of this test were written.
        let now = folder.path().metadata().unwrap().modified().unwrap() + Duration::from_secs(3600);
        let open = |now: SystemTime| {
            let setting = ScrubSetting { folder: folder.path().join("scrubs"), now };
            Repository::open_or_create(&location).unwrap().with_scrubs(&setting)
        };
        let (good, rotten) = (Bytes::from_static(b"good bytes"), b"rotten one");
        let object = ObjectRef::of(ObjectKind::Chunk, &good);
        let repository = open(now);
        repository.put_in(&object, 0, good).unwrap();
        repository.flush().unwrap();
        assert!(repository.is_good(&object).unwrap());
        let path = layout::object_in(object.kind, &object.digest, 0);
        let file = folder.path().join("repo").join(path.as_ref());
        std::fs::write(&file, rotten).unwrap();
        let stamp = repository.backend.stamp(&path).unwrap();
        drop(repository);
        // It changed after it was found good, so it is read, and found damaged.
        assert!(!open(now).is_good(&object).unwrap());
        // While the log says that this file was found good, it is not read again for a day.
        open(now).scrubs.as_ref().unwrap().add(&object, 0, stamp);
        assert!(open(now).is_good(&object).unwrap());
        assert!(!open(now + Duration::from_secs(24 * 3600)).is_good(&object).unwrap());
        // A handle that finds damage deletes the log.
        let finder = open(now);
        assert!(matches!(finder.read_in(&object, 0).unwrap(), Copy::Bad(_)));
        assert!(!finder.is_good(&object).unwrap() && !open(now).is_good(&object).unwrap());
        drop(finder);
        assert!(!open(now).is_good(&object).unwrap());
        // Any change of the file or its inode changes its ctime.
        open(now).scrubs.as_ref().unwrap().add(&object, 0, stamp);
        assert!(open(now).is_good(&object).unwrap());
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(!open(now).is_good(&object).unwrap());
    }
}
