//! Whether the free sectors of a version are proven to be free. formats/image.md, "How a version was made".
//!
//! Programs from before that record made versions by `commit IMAGE DISK` in which zeros of the disk may be missing: a
//! sector that was free in the parent and then became an allocated zero stayed free. A version without the record is in
//! doubt if such a commit may have made it, or if what it was made from is in doubt.

use std::collections::HashMap;

use base::{Digest, ErrorKind, Result};
use image::manifest::Parent;
use image::{Made, Manifest, SignedManifest};

use crate::names::Reference;
use crate::repository::Repository;

/// Most ancestors of a version that are looked at; more count as a doubt.
const ANCESTORS_MAX: usize = 1 << 16;

/// Looks for the versions whose free sectors are not proven, and remembers what it found out of their ancestors.
pub struct FreeProofs<F> {
    find: F,
    /// Whether the version with the manifest of this digest is in doubt.
    known: HashMap<Digest, bool>,
}

impl<F> std::fmt::Debug for FreeProofs<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FreeProofs").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl<F: FnMut(&Reference) -> Result<SignedManifest>> FreeProofs<F> {
    /// `find` returns the version that a reference names.
    pub fn new(find: F) -> Self {
        Self { find, known: HashMap::new() }
    }

    /// Whether `version` may call sectors free that are allocated zeros of its disk. An ancestor that is gone or
    /// damaged counts as a doubt. Other errors are those of `find`.
    pub fn is_unproven(&mut self, version: &Manifest) -> Result<bool> {
        let mut passed: Vec<Digest> = Vec::new();
        let mut at = version.clone();
        let is_unproven = loop {
            if let Some(made) = &at.made {
                break made.unproven_free;
            }
            let Some(parent) = &at.parent else { break false };
            if let Some(&known) = self.known.get(&parent.digest).filter(|_| at.commit.is_some()) {
                break known;
            }
            let before = if passed.len() < ANCESTORS_MAX { self.parent(parent)? } else { None };
            let Some(before) = before else { break true };
            // A disk that was attached knows what was written; a clone has the tree of its parent.
            if at.commit.is_none() && at.root != before.root {
                break true;
            }
            passed.push(parent.digest);
            at = before;
        };
        self.known.extend(passed.into_iter().map(|digest| (digest, is_unproven)));
        Ok(is_unproven)
    }

    /// The version that `parent` names; `None` if it is gone, damaged, or another one.
    fn parent(&mut self, parent: &Parent) -> Result<Option<Manifest>> {
        let Ok(image) = parent.image.parse() else { return Ok(None) };
        match (self.find)(&Reference::Version(image, parent.number)) {
            Ok(found) => Ok((found.digest() == parent.digest).then_some(found.manifest)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Repository {
    /// How `draft` was made, if it has a parent and does not say it: by an older program, or from a version of one.
    pub(crate) fn made_of(&self, draft: &Manifest) -> Result<Option<Made>> {
        if draft.made.is_some() || draft.parent.is_none() {
            return Ok(draft.made.clone());
        }
        let by = if draft.copied.is_some() { Made::UNKNOWN } else { Made::CHANGE };
        let unproven_free = self.is_unproven(draft)?;
        Ok(Some(Made { by: by.to_owned(), survey: None, unproven_free }))
    }

    /// How a change of `parent` is made that this program makes itself: its free space is as good as the parent's.
    pub(crate) fn made_from(&self, parent: &Manifest) -> Result<Made> {
        match &parent.made {
            Some(made) => Ok(made.changed()),
            None => {
                let unproven_free = self.is_unproven(parent)?;
                Ok(Made { by: Made::CHANGE.to_owned(), survey: None, unproven_free })
            }
        }
    }

    fn is_unproven(&self, version: &Manifest) -> Result<bool> {
        FreeProofs::new(|reference: &Reference| self.look(reference).map(|(found, _)| found))
            .is_unproven(version)
    }
}

#[cfg(test)]
mod tests {
    use base::Error;
    use image::{Child, Root};

    use super::*;

    /// Versions as an older program published them: without a record of how they were made.
    #[derive(Default)]
    struct Old(Vec<SignedManifest>);

    impl Old {
        /// Publishes a version of `web` after `parent`, whose tree has `chunks` chunks.
        fn publish(
            &mut self,
            parent: Option<usize>,
            chunks: u64,
            change: impl FnOnce(&mut Manifest),
        ) -> usize {
            let mut manifest = Manifest::of_set(Vec::new(), "2026-11-01T00:00:00Z", "old");
            (manifest.image, manifest.number) = ("web".to_owned(), self.0.len() as u64 + 1);
            manifest.size_sectors = chunks * u64::from(manifest.chunk_bytes) / 512;
            manifest.origin.disk_sectors = manifest.size_sectors;
            manifest.root = Root { child: Child::Zero, height: Root::height_of(chunks), chunk_count: chunks };
            manifest.parent = parent.map(|index| {
                let of = &self.0[index];
                Parent { image: "web".to_owned(), number: of.manifest.number, digest: of.digest() }
            });
            change(&mut manifest);
            self.0.push(SignedManifest::open(&manifest.encode(None).unwrap()).unwrap());
            self.0.len() - 1
        }

        fn is_unproven(&self, index: usize) -> bool {
            let find = |reference: &Reference| {
                let Reference::Version(_, number) = reference else { unreachable!("parents have numbers") };
                let found = self.0.iter().find(|version| version.manifest.number == *number).cloned();
                found.ok_or_else(|| Error::new(ErrorKind::NotFound, "removed"))
            };
            FreeProofs::new(find).is_unproven(&self.0[index].manifest).unwrap()
        }
    }

    #[test]
    fn what_a_whole_commit_of_an_older_program_may_have_made_is_in_doubt_and_all_after_it() {
        let mut old = Old::default();
        let attached = |manifest: &mut Manifest| manifest.commit = Some("0123".to_owned());
        let capture = old.publish(None, 4, |_| {});
        let clone = old.publish(Some(capture), 4, |_| {});
        let of_a_disk = old.publish(Some(clone), 5, attached);
        assert_eq!([capture, clone, of_a_disk].map(|index| old.is_unproven(index)), [false; 3]);
        let commit = old.publish(Some(capture), 6, |_| {});
        let clone = old.publish(Some(commit), 6, |_| {});
        let of_a_disk = old.publish(Some(clone), 7, attached);
        assert_eq!([commit, clone, of_a_disk].map(|index| old.is_unproven(index)), [true; 3]);
        // The parent is gone, or another version has its name.
        let orphan = old.publish(Some(capture), 4, |manifest| {
            manifest.parent.as_mut().unwrap().number = 99;
        });
        let other = old.publish(Some(capture), 4, |manifest| {
            manifest.parent.as_mut().unwrap().digest = Digest::of(b"another");
        });
        assert_eq!([orphan, other].map(|index| old.is_unproven(index)), [true; 2]);
        // A version that records how it was made is what it says.
        let made = |unproven_free| Some(Made { by: Made::COMMIT.to_owned(), survey: None, unproven_free });
        let sound = old.publish(Some(commit), 8, |manifest| manifest.made = made(false));
        let after = old.publish(Some(sound), 9, attached);
        let doubtful = old.publish(Some(capture), 8, |manifest| manifest.made = made(true));
        assert_eq!([sound, after, doubtful].map(|index| old.is_unproven(index)), [false, false, true]);
    }
}
