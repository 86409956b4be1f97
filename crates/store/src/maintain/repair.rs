//! Repair: replaces damaged and missing objects and records with intact ones from another repository, or restores
//! them from their own redundancy.

use std::collections::HashSet;

use base::limits::MANIFEST_BYTES_MAX;
use base::{ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectKind, ObjectRef, Progress};
use object_store::path::Path;

use crate::layout;
use crate::lease::writer::Writer;
use crate::maintain::records::Name;
use crate::maintain::verify::{Damage, Scope, VerifyReport, Why};
use crate::objects::Copy;
use crate::record::Stamp;
use crate::record::mend::{mend, mend_byte};
use crate::repository::Repository;
use crate::versions::cut_over::Item;

/// How damage was repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// One byte of a record had changed, and its digest showed which.
    Mended,
    /// Copied from the other repository, or from another copy in this one.
    Copied,
    /// A record was written again, with the content that other records imply.
    Rebuilt,
    /// The record is not needed; it was renamed with the suffix `.damaged`.
    SetAside,
}

/// Damage that was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healed {
    /// The damage.
    pub damage: Damage,
    /// How it was repaired.
    pub how: How,
}

/// What was repaired, and what a verification found afterwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Damage that was repaired.
    pub healed: Vec<Healed>,
    /// Result of the last verification, without damage that was repaired after it.
    pub verified: VerifyReport,
}

impl Repository {
    /// Verifies `scope` and repairs what it can. Records with one changed byte are restored from their digest. If
    /// `from` is given, it supplies objects with the same digest, and also manifests if both repositories have the
    /// same id. After nodes are repaired, verifies again, since damage below them was hidden. `stamp` says who
    /// repairs and when.
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
                // If a record is damaged again after its repair, do not repeat the repair.
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

/// Repairs one repository, with another one as a source.
struct Healer<'a> {
    to: &'a Repository,
    from: Option<&'a Repository>,
    stamp: &'a Stamp,
    /// Begun at the first use. It knows in which slots no prune deletes an object.
    writer: Option<Writer>,
}

impl Healer<'_> {
    /// Repairs `damage` if possible; returns how.
    fn heal(&mut self, damage: &Damage) -> Result<Option<How>> {
        let path = Path::from(damage.path.as_str());
        // It may be as it was stored.
        if damage.why == Why::Unreachable {
            return Ok(None);
        }
        if let Some((kind, digest)) = object_at(&path) {
            // Another copy in this repository is as good as one in the other.
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
            // A record can have a correct digest and still have invalid content.
            None if self.to.read_whole(&name).is_err_and(|error| error.kind() == ErrorKind::Corrupt) => {
                self.to.rebuild(&name, self.stamp)
            }
            None => Ok(None),
        }
    }

    /// The record from the other repository, if that has the same id.
    fn whole(&self, name: &Name, damage: &Damage) -> Option<Bytes> {
        let from = self.from.filter(|from| from.id() == self.to.id())?;
        let Name::Version(image, number) = name else { return None };
        let (sealed, bytes) = from.read_manifest(image, *number).ok()?;
        let item = Item::Version(*number);
        self.to.check_signed(&damage.path, image, item, sealed.signed()).ok()?;
        Some(bytes)
    }

    /// Replaces every bad copy, and makes sure that there is a good copy that no prune deletes.
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
        // Without the key no lease can be taken, so only existing copies are replaced.
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

/// The kind and digest of the object that belongs at `path`.
fn object_at(path: &Path) -> Option<(ObjectKind, base::Digest)> {
    let kinds = [ObjectKind::Chunk, ObjectKind::Node];
    kinds.into_iter().find_map(|kind| Some((kind, layout::object_at(kind, path)?.0)))
}
