//! Repair: what is damaged or missing here and whole in another repository is taken from there.

use base::limits::OBJECT_BYTES_MAX;
use bytes::Bytes;
use image::{ObjectKind, ObjectRef, Progress};
use object_store::path::Path;

use crate::error::Result;
use crate::layout;
use crate::names::ImageName;
use crate::repository::Repository;
use crate::verify::{Damage, Scope, VerifyReport};
use crate::versions::Stamp;
use crate::writer::Writer;

/// What was healed, and what a verification finds afterwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What had been damaged and is whole again.
    pub healed: Vec<Damage>,
    /// What the last verification found, without what was healed after it.
    pub verified: VerifyReport,
}

impl Repository {
    /// Verifies `scope`, and puts right from the repository `from` what it can: objects that `from` holds under the same
    /// digest, and manifests if the two are copies of one repository, record by record. Looks again below nodes that
    /// were healed, for they hid what is below them. `stamp` tells people whose work it is.
    pub fn repair(
        &self,
        scope: &Scope,
        from: &Self,
        stamp: &Stamp,
        progress: &dyn Progress,
    ) -> Result<RepairReport> {
        let mut healer = Healer { to: self, from, stamp, writer: None };
        let mut healed = Vec::new();
        loop {
            let mut verified = self.verify(scope, progress)?;
            let before = healed.len();
            let (mut left, mut hid) = (Vec::new(), false);
            for damage in std::mem::take(&mut verified.damaged) {
                match healer.heal(&damage)? {
                    true => {
                        hid |=
                            layout::object_at(ObjectKind::Chunk, &Path::from(damage.path.as_str())).is_none();
                        healed.push(damage);
                    }
                    false => left.push(damage),
                }
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
    from: &'a Repository,
    stamp: &'a Stamp,
    /// Begun when it is needed first: it knows where an object must lie so that no prune deletes it.
    writer: Option<Writer>,
}

impl Healer<'_> {
    /// Whether `damage` could be healed.
    fn heal(&mut self, damage: &Damage) -> Result<bool> {
        let path = Path::from(damage.path.as_str());
        if let Some((kind, digest)) = object_at(&path) {
            let any = ObjectRef { kind, len: OBJECT_BYTES_MAX, digest };
            let bytes = self.from.read_copy(&any).ok().map(|(_, bytes)| bytes);
            let bytes = bytes.filter(|bytes| ObjectRef::of(kind, bytes).digest == digest);
            return bytes.map_or(Ok(false), |bytes| self.heal_object(&ObjectRef::of(kind, &bytes), bytes));
        }
        let manifest = manifest_at(&path).filter(|_| self.to.id() == self.from.id());
        let whole = manifest.and_then(|(image, number)| {
            let (sealed, bytes) = self.from.read_manifest(&image, number).ok()?;
            self.to.check_signed(&damage.path, sealed.signed()).ok()?;
            Some(bytes)
        });
        whole.map_or(Ok(false), |bytes| self.to.backend.replace(&path, bytes).map(|()| true))
    }

    /// Puts right every copy that is there, and makes sure that there is one that stays.
    fn heal_object(&mut self, object: &ObjectRef, bytes: Bytes) -> Result<bool> {
        let mut found = false;
        for slot in 0..layout::SLOTS {
            let path = layout::object_in(object.kind, &object.digest, slot);
            if self.to.backend.exists(&path)? {
                self.to.backend.replace(&path, bytes.clone())?;
                found = true;
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

/// Which version's manifest belongs at `path`.
fn manifest_at(path: &Path) -> Option<(ImageName, u64)> {
    let image: ImageName = path.parts().nth(1)?.as_ref().parse().ok()?;
    let number = layout::number_of(path)?;
    (layout::version(&image, number) == *path).then_some((image, number))
}
