//! Repair: what is damaged or missing here and whole in another repository is taken from there.

use base::limits::OBJECT_BYTES_MAX;
use image::{ObjectKind, ObjectRef, Progress};
use object_store::path::Path;

use crate::error::Result;
use crate::layout;
use crate::names::ImageName;
use crate::repository::Repository;
use crate::verify::{Damage, Scope, VerifyReport};

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
    /// were healed, for they hid what is below them.
    pub fn repair(&self, scope: &Scope, from: &Self, progress: &dyn Progress) -> Result<RepairReport> {
        let mut healed = Vec::new();
        loop {
            let mut verified = self.verify(scope, progress)?;
            let before = healed.len();
            let (mut left, mut hid) = (Vec::new(), false);
            for damage in std::mem::take(&mut verified.damaged) {
                match self.heal(&damage, from)? {
                    true => {
                        hid |=
                            layout::digest_of(ObjectKind::Chunk, &Path::from(damage.path.as_str())).is_none();
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

    /// Whether `damage` could be healed.
    fn heal(&self, damage: &Damage, from: &Self) -> Result<bool> {
        let path = Path::from(damage.path.as_str());
        let bytes = match object_at(&path) {
            Some((kind, digest)) => {
                from.backend.read(&path, u64::from(OBJECT_BYTES_MAX)).ok().filter(|bytes| {
                    let found = ObjectRef::of(kind, bytes);
                    found.digest == digest
                })
            }
            None if self.id() == from.id() => manifest_at(&path).and_then(|(image, number)| {
                let (sealed, bytes) = from.read_manifest(&image, number).ok()?;
                self.check_signed(&damage.path, sealed.signed()).ok()?;
                Some(bytes)
            }),
            None => None,
        };
        bytes.map_or(Ok(false), |bytes| self.backend.replace(&path, bytes).map(|()| true))
    }
}

/// Which object belongs at `path`.
fn object_at(path: &Path) -> Option<(ObjectKind, base::Digest)> {
    let kinds = [ObjectKind::Chunk, ObjectKind::Node];
    kinds.into_iter().find_map(|kind| Some((kind, layout::digest_of(kind, path)?)))
}

/// Which version's manifest belongs at `path`.
fn manifest_at(path: &Path) -> Option<(ImageName, u64)> {
    let image: ImageName = path.parts().nth(1)?.as_ref().parse().ok()?;
    let number = layout::number_of(path)?;
    (layout::version(&image, number) == *path).then_some((image, number))
}
