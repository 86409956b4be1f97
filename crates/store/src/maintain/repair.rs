//! Repair: what is damaged or missing here and whole in another repository is taken from there.

use std::collections::HashSet;

use base::limits::MANIFEST_BYTES_MAX;
use base::{ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectKind, ObjectRef, Progress};
use object_store::path::Path;

use crate::layout;
use crate::lease::writer::Writer;
use crate::maintain::records::Name;
use crate::maintain::verify::{Damage, Scope, VerifyReport};
use crate::objects::Copy;
use crate::record::Stamp;
use crate::record::mend::{mend, mend_byte};
use crate::repository::Repository;

/// How damage was put right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// One byte of a record had changed, and its digest told which.
    Mended,
    /// The other repository has it whole.
    Copied,
    /// A record was written anew, from what other records tell.
    Rebuilt,
    /// Nobody needs the record: it has `.damaged` behind its name now.
    SetAside,
}

/// Damage that is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healed {
    /// What it was.
    pub damage: Damage,
    /// What became of it.
    pub how: How,
}

/// What was healed, and what a verification finds afterwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What had been damaged and is whole again.
    pub healed: Vec<Healed>,
    /// What the last verification found, without what was healed after it.
    pub verified: VerifyReport,
}

impl Repository {
    /// Verifies `scope`, and puts right what it can: records of which one byte changed; and from the repository `from`,
    /// if one is given, objects that it holds under the same digest, and manifests if the two are copies of one
    /// repository, record by record. Looks again below nodes that were healed, for they hid what is below them. `stamp`
    /// tells people whose work it is.
    pub fn repair(
        &self,
        scope: &Scope,
        from: Option<&Self>,
        stamp: &Stamp,
        progress: &dyn Progress,
    ) -> Result<RepairReport> {
        let mut healer = Healer { to: self, from, stamp, writer: None };
        let (mut healed, mut seen) = (Vec::new(), HashSet::new());
        loop {
            let mut verified = self.verify(scope, progress)?;
            let before = healed.len();
            let (mut left, mut hid) = (Vec::new(), false);
            for damage in std::mem::take(&mut verified.damaged) {
                // What does not stay healed is left.
                let how = if seen.insert(damage.path.clone()) { healer.heal(&damage)? } else { None };
                let Some(how) = how else {
                    left.push(damage);
                    continue;
                };
                hid |= layout::object_at(ObjectKind::Chunk, &Path::from(damage.path.as_str())).is_none();
                healed.push(Healed { damage, how });
            }
            verified.damaged = left;
            if !hid || healed.len() == before {
                return Ok(RepairReport { healed, verified });
            }
        }
    }
}

/// Heals one repository from another.
struct Healer<'a> {
    to: &'a Repository,
    from: Option<&'a Repository>,
    stamp: &'a Stamp,
    /// Begun when it is needed first: it knows where an object must lie so that no prune deletes it.
    writer: Option<Writer>,
}

impl Healer<'_> {
    /// How `damage` could be healed, if it could.
    fn heal(&mut self, damage: &Damage) -> Result<Option<How>> {
        let path = Path::from(damage.path.as_str());
        if let Some((kind, digest)) = object_at(&path) {
            // Another copy of this repository is as good as one of the other.
            let places = std::iter::once(self.to).chain(self.from);
            let found = places.into_iter().find_map(|place| place.find_object(kind, &digest));
            let Some((object, bytes)) = found else { return Ok(None) };
            return Ok(self.heal_object(&object, bytes)?.then_some(How::Copied));
        }
        let Some(name) = Name::at(&path) else { return Ok(None) };
        let stored = self.to.backend.read(&path, u64::from(MANIFEST_BYTES_MAX));
        if let Some(whole) = stored.ok().and_then(|stored| mend(&stored).or_else(|| mend_byte(&stored))) {
            return self.to.backend.renew(&path, whole).map(|()| Some(How::Mended));
        }
        match self.whole(&name, damage) {
            Some(bytes) => self.to.backend.replace(&path, bytes).map(|()| Some(How::Copied)),
            // A record can be whole and name what is not.
            None if self.to.read_whole(&name).is_err_and(|error| error.kind() == ErrorKind::Corrupt) => {
                self.to.rebuild(&name, self.stamp)
            }
            None => Ok(None),
        }
    }

    /// The record as the other repository has it, if that is a copy of this one.
    fn whole(&self, name: &Name, damage: &Damage) -> Option<Bytes> {
        let from = self.from.filter(|from| from.id() == self.to.id())?;
        let Name::Version(image, number) = name else { return None };
        let (sealed, bytes) = from.read_manifest(image, *number).ok()?;
        self.to.check_signed(&damage.path, sealed.signed()).ok()?;
        Some(bytes)
    }

    /// Puts right every copy that is there and bad, and makes sure that there is a good one that stays.
    fn heal_object(&mut self, object: &ObjectRef, bytes: Bytes) -> Result<bool> {
        let mut found = false;
        for slot in 0..layout::SLOTS {
            let path = layout::object_in(object.kind, &object.digest, slot);
            match self.to.read_in(object, slot)? {
                Copy::Missing(_) => {}
                Copy::Good(_) => found = true,
                Copy::Bad(_) => {
                    self.to.backend.replace(&path, bytes.clone())?;
                    found = true;
                }
            }
        }
        // Without the key nobody writes, and nobody can tell what else is missing.
        if self.to.is_locked() {
            return Ok(found);
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(Writer::begin(self.to, self.stamp)?),
        };
        writer.restore(object, bytes)?;
        Ok(true)
    }
}

/// Which object belongs at `path`.
fn object_at(path: &Path) -> Option<(ObjectKind, base::Digest)> {
    let kinds = [ObjectKind::Chunk, ObjectKind::Node];
    kinds.into_iter().find_map(|kind| Some((kind, layout::object_at(kind, path)?.0)))
}
