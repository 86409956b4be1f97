//! Objects of a repository: chunks and nodes, each in one or more copies. formats/repository.md, "What counts as
//! stored".

use base::limits::OBJECT_BYTES_MAX;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, ObjectKind, ObjectRef, ObjectSink, ObjectSource, Verified};

use crate::layout;
use crate::repository::Repository;

impl ObjectSource for Repository {
    /// The bytes of a good copy of the object. `Corrupt` if all that are there are damaged.
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        Ok(self.verified(object)?.bytes().clone())
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        let read = || self.read_object(object);
        match &self.cache {
            Some(cache) => cache.get_or(object, read),
            None => read(),
        }
    }

    fn cipher(&self) -> Cipher {
        self.cipher.clone()
    }
}

impl ObjectSink for Repository {
    /// Whether there is a good copy: it is read.
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.is_good(object)
    }

    /// Takes in the object; it is durable once a version is published or [`Repository::flush`] was called. `Refused`
    /// if the repository is encrypted and the object is not.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.put_in(object, 0, bytes)
    }

    fn cipher(&self) -> Cipher {
        self.cipher.clone()
    }
}

/// What lies in one of the places of an object.
pub(crate) enum Copy {
    /// Nothing, and the error that says so.
    Missing(Error),
    /// Something else than the object, or what cannot be read.
    Bad(Error),
    Good(Verified),
}

impl Repository {
    /// Whether there is a copy of `object` now, by its length alone. A writer asks its [`Writer`](crate::Writer), which
    /// knows what is good and what will stay.
    pub fn holds(&self, object: &ObjectRef) -> Result<bool> {
        for slot in 0..layout::SLOTS {
            if self.holds_in(object, slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `Corrupt` unless the record `format` is what it was.
    pub(crate) fn check_format(&self) -> Result<()> {
        crate::repository::read_format(&self.backend).map(drop)
    }

    /// Whether there is a good copy of `object` in the store now: one is read, whatever the cache holds, or the scrub
    /// log covers it.
    pub(crate) fn is_good(&self, object: &ObjectRef) -> Result<bool> {
        for slot in 0..layout::SLOTS {
            if self.is_good_in(object, slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is one in `slot`, by its length alone.
    pub(crate) fn holds_in(&self, object: &ObjectRef, slot: u8) -> Result<bool> {
        let path = layout::object_in(object.kind, &object.digest, slot);
        Ok(self.backend.waits(&path) || self.backend.size(&path)? == Some(u64::from(object.len)))
    }

    /// Stores a copy of `object` in `slot`; what lies there gives way. `Refused` if the repository is encrypted and the
    /// object is not.
    pub(crate) fn put_in(&self, object: &ObjectRef, slot: u8, bytes: Bytes) -> Result<()> {
        if !self.cipher.takes(object.kind, &bytes) {
            let text = format!("`{}` is encrypted, {object} is not", self.name());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        self.backend.put(&layout::object_in(object.kind, &object.digest, slot), bytes)
    }

    /// The object as the store has it, whatever the cache holds: the first copy that is good. If there is none, the
    /// error is that of the first bad one, `NotFound` if there is no copy at all.
    pub(crate) fn read_object(&self, object: &ObjectRef) -> Result<Verified> {
        self.read_first(object, |_, _| {}).map(|(_, found)| found)
    }

    /// The same with the slot that it lies in; `bad` is told of the copies in slots before it.
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

    /// Whether a good copy lies in `slot`: it is read and held against its name now, or the scrub log covers it.
    pub(crate) fn is_good_in(&self, object: &ObjectRef, slot: u8) -> Result<bool> {
        let path = layout::object_in(object.kind, &object.digest, slot);
        // Taken before the file is read: see `Scrubs::add`.
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

    /// What lies in `slot`. Errors are those of a store that cannot be reached.
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

    /// A good copy of the object of `digest`, whose length nobody knows.
    pub(crate) fn find_object(&self, kind: ObjectKind, digest: &Digest) -> Option<(ObjectRef, Bytes)> {
        (0..layout::SLOTS).find_map(|slot| {
            let path = layout::object_in(kind, digest, slot);
            let bytes = self.backend.read(&path, u64::from(OBJECT_BYTES_MAX)).ok()?;
            let object = ObjectRef::of(kind, &bytes);
            (object.digest == *digest).then_some((object, bytes))
        })
    }

    /// Whether `error`, met while an object was read, is damage of that object. Where it does not lie in a folder, it
    /// may be the way there that failed.
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
        // An hour after all files of this test were written.
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
        // It changed after it was found good, so it is read, and is not.
        assert!(!open(now).is_good(&object).unwrap());
        // If the log says that this very file was found good, nobody reads it within a day.
        open(now).scrubs.as_ref().unwrap().add(&object, 0, stamp);
        assert!(open(now).is_good(&object).unwrap());
        assert!(!open(now + Duration::from_secs(24 * 3600)).is_good(&object).unwrap());
        // Who meets damage forgets what the log says.
        let finder = open(now);
        assert!(matches!(finder.read_in(&object, 0).unwrap(), Copy::Bad(_)));
        assert!(!finder.is_good(&object).unwrap() && !open(now).is_good(&object).unwrap());
        drop(finder);
        assert!(!open(now).is_good(&object).unwrap());
        // Whatever changes the file or its inode makes another ctime.
        open(now).scrubs.as_ref().unwrap().add(&object, 0, stamp);
        assert!(open(now).is_good(&object).unwrap());
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(!open(now).is_good(&object).unwrap());
    }
}
