//! Versions: manifests under numbers that are never used again. formats/repository.md, "Versions".

use std::collections::VecDeque;

use base::limits::MANIFEST_BYTES_MAX;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Manifest, SignedManifest};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::backend::Created;
use crate::layout;
use crate::names::{ImageName, Reference};
use crate::parallel::parallel_by;
use crate::record::{self, RECORD_BYTES_MAX, Stamp};
use crate::repository::Repository;
use crate::versions::cut_over::Item;
use crate::versions::numbering::next;

const REMOVED: &str = "removed";

/// Manifests that are read at the same time, and most that are read ahead, for a log.
const LOG_READERS: usize = 8;
const LOG_AHEAD_MAX: usize = 32;

/// What [`Repository::remove`] removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// The version with this number; its data stays until the next prune.
    Version(u64),
    /// The tag; its version stays.
    Tag,
}

/// A version that [`Repository::find_version`] found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The version.
    pub version: SignedManifest,
    /// Its manifest as it is stored.
    pub bytes: Bytes,
    /// If the reference was a tag, the number of its newest move.
    pub tag_move: Option<u64>,
}

/// The numbers of an image's versions.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Those not removed, ascending.
    pub(crate) live: Vec<u64>,
    /// First and last number of each gap without version or tombstone below the highest number: records were lost
    /// there.
    pub(crate) lost: Vec<(u64, u64)>,
    /// The highest number that was ever used, 0 if none was.
    pub(crate) highest: u64,
}

impl Numbers {
    fn has_lost(&self, number: u64) -> bool {
        self.lost.iter().any(|(first, last)| (first..=last).contains(&&number))
    }
}

/// The body of a tombstone.
#[derive(Debug, Serialize, Deserialize)]
struct Tombstone {
    image: String,
    number: u64,
    created: String,
    creator: String,
    nonce: String,
}

impl Repository {
    /// Names this repository in `manifest`, and records how it was made. Returns it signed and encrypted as it is
    /// stored, and the digest that names it.
    pub(crate) fn seal_version(&self, manifest: &mut Manifest) -> Result<(Bytes, Digest)> {
        manifest.repository = Some(self.id().to_owned());
        manifest.made = self.made_of(manifest)?;
        let failed = |error: Error| error.within(format!("publish `{}`", manifest.image));
        let envelope = manifest.encode(self.keys.sign.as_ref()).map_err(failed)?;
        let digest = SignedManifest::open(&envelope).map_err(failed)?.digest();
        Ok((self.cipher.encrypt_manifest(envelope).map_err(failed)?, digest))
    }

    /// Creates the record `bytes` of `manifest` if there is none under its number. After an error it is not known
    /// whether the record exists.
    pub(crate) fn create_version(
        &self,
        image: &ImageName,
        manifest: &Manifest,
        bytes: &Bytes,
    ) -> Result<Created> {
        if self.backend.create(&layout::version(image, manifest.number), bytes)? == Created::Ours {
            return Ok(Created::Ours);
        }
        // Before the caller publishes again, make sure the record is not ours: the read after a lost reply may have
        // returned damaged bytes.
        let (found, _) = self.read_manifest(image, manifest.number)?;
        Ok(if found.manifest.nonce == manifest.nonce { Created::Ours } else { Created::Taken })
    }

    /// The manifest that `reference` names. `NotFound` if it does not exist or was removed; `Refused` if it, or the
    /// tag, has no signature by a key in [`Keys`](crate::Keys)`::trust`.
    pub fn resolve(&self, reference: &Reference) -> Result<Manifest> {
        self.signed_manifest(reference).map(|(sealed, _)| sealed.manifest)
    }

    /// [`Self::resolve`], with digest and signatures, and the bytes as they are stored, for forwarding.
    pub fn signed_manifest(&self, reference: &Reference) -> Result<(SignedManifest, Bytes)> {
        self.find_version(reference).map(|found| (found.version, found.bytes))
    }

    /// [`Self::signed_manifest`], and the number of the tag's newest move.
    pub fn find_version(&self, reference: &Reference) -> Result<Found> {
        let image = reference.image();
        let (number, moved) = match reference {
            Reference::Version(_, number) => (*number, None),
            Reference::Newest(_) => (self.newest(image)?, None),
            Reference::Tagged(_, tag) => {
                let moved = self.trusted_move(image, tag)?;
                (moved.version, Some(moved))
            }
        };
        let (version, bytes) = self.look_at(reference, number, moved.map(|moved| moved.manifest))?;
        let what = format!("`{image}@{number}`");
        self.check_signed(&what, image, Item::Version(number), version.signed())?;
        Ok(Found { version, bytes, tag_move: moved.map(|moved| moved.number) })
    }

    /// [`Self::signed_manifest`] without checking signatures: for display only.
    pub fn look(&self, reference: &Reference) -> Result<(SignedManifest, Bytes)> {
        let image = reference.image();
        let (number, digest) = match reference {
            Reference::Version(_, number) => (*number, None),
            Reference::Newest(_) => (self.newest(image)?, None),
            Reference::Tagged(_, tag) => {
                let (tag, digest) = self.tagged(image, tag)?;
                (tag.version, Some(digest))
            }
        };
        self.look_at(reference, number, digest)
    }

    /// Reads version `number`, which `reference` names. `digest` is that of its manifest, if it is known.
    fn look_at(
        &self,
        reference: &Reference,
        number: u64,
        digest: Option<Digest>,
    ) -> Result<(SignedManifest, Bytes)> {
        let image = reference.image();
        if self.is_removed(image, number)? {
            return Err(Error::new(ErrorKind::NotFound, format!("`{image}@{number}` was removed")));
        }
        let (sealed, bytes) = self.read_manifest(image, number)?;
        if digest.is_some_and(|digest| digest != sealed.digest()) {
            let text = format!("`{reference}` names version {number} with another manifest than is stored");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok((sealed, bytes))
    }

    /// The names of all images that have a version, ascending.
    pub fn images(&self) -> Result<Vec<ImageName>> {
        let mut images = Vec::new();
        for name in self.backend.folders(&layout::versions())? {
            let Ok(image) = name.parse::<ImageName>() else { continue };
            if self.newest_numbers(&image, None)?.live.is_some() {
                images.push(image);
            }
        }
        Ok(images)
    }

    /// The numbers of all versions of `image` that are not removed, ascending. `NotFound` if there are none.
    pub fn versions(&self, image: &ImageName) -> Result<Vec<u64>> {
        let live = self.numbers(image)?.live;
        if live.is_empty() { Err(no_image(image)) } else { Ok(live) }
    }

    /// The versions of `image` that are not removed, newest first; with `before`, only those with smaller numbers.
    /// The iterator reads manifests as needed. `NotFound` if the image has no versions.
    pub fn log(
        &self,
        image: &ImageName,
        before: Option<u64>,
    ) -> Result<impl Iterator<Item = Result<SignedManifest>> + use<'_>> {
        let image = image.clone();
        let wanted = move |number: &u64| before.is_none_or(|before| *number < before);
        let mut numbers = self.versions(&image)?.into_iter().rev().filter(wanted);
        let (mut ready, mut ahead) = (VecDeque::new(), 1);
        Ok(std::iter::from_fn(move || {
            if ready.is_empty() {
                // Read more manifests at the same time as the caller continues.
                let next: Vec<u64> = numbers.by_ref().take(ahead).collect();
                ahead = (ahead * 2).min(LOG_AHEAD_MAX);
                let read = |(): &mut (), number: &u64| self.read_manifest(&image, *number);
                ready.extend(parallel_by(LOG_READERS, &next, || (), read));
            }
            ready.pop_front().map(|read| read.map(|(sealed, _)| sealed))
        }))
    }

    /// Removes the version `image@number`, or the tag `image:tag`. A version leaves a tombstone; its data stays until
    /// the next prune. `Refused` for an image without version or tag, and for a version with a tag.
    pub fn remove(&self, reference: &Reference, stamp: &Stamp) -> Result<Removed> {
        let _freeing = self.backend.freeing();
        match reference {
            Reference::Newest(image) => {
                let text = format!("remove `{image}`: expected `{image}@version` or `{image}:tag`");
                Err(Error::new(ErrorKind::Refused, text))
            }
            Reference::Tagged(image, tag) => self.untag(image, tag, stamp).map(|()| Removed::Tag),
            Reference::Version(image, number) => {
                self.remove_version(image, *number, stamp).map(|()| Removed::Version(*number))
            }
        }
    }

    fn remove_version(&self, image: &ImageName, number: u64, stamp: &Stamp) -> Result<()> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no version `{image}@{number}`"));
        let numbers = self.numbers(image)?;
        if !numbers.live.contains(&number) && !numbers.has_lost(number) {
            return Err(missing());
        }
        if let Some(tag) = self.tags(image)?.into_iter().find(|tag| tag.version == number) {
            let text =
                format!("`{image}@{number}` carries the tag `{}`: move or remove the tag first", tag.name);
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let bytes = self.tombstone(image, number, stamp)?;
        match self.backend.create(&layout::removed(image, number), &bytes)? {
            Created::Ours => Ok(()),
            Created::Taken => Err(missing()),
        }
    }

    /// A tombstone of `image@number`, as it is stored.
    pub(crate) fn tombstone(&self, image: &ImageName, number: u64, stamp: &Stamp) -> Result<Bytes> {
        let tombstone = Tombstone {
            image: image.to_string(),
            number,
            created: stamp.created.clone(),
            creator: stamp.creator.clone(),
            nonce: record::nonce()?,
        };
        record::encrypt(&self.cipher, record::encode(REMOVED, &tombstone))
    }

    /// `Corrupt` if the content of the tombstone of `image@number` is not valid. The tombstone still counts, by its
    /// name.
    pub(crate) fn check_tombstone(&self, image: &ImageName, number: u64) -> Result<()> {
        let path = layout::removed(image, number);
        let bytes = self.backend.read_record(&path, RECORD_BYTES_MAX)?;
        let bytes = record::decrypt(&self.cipher, path.as_ref(), bytes)?;
        let found: Tombstone = record::decode(REMOVED, path.as_ref(), &bytes)?;
        match (found.image.as_str(), found.number) == (image.as_str(), number) {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is the tombstone of another version")))
            }
        }
    }

    /// Whether `image@number` was lost: the number was used, but there is neither a manifest nor a tombstone.
    /// Removing the version ends this state.
    pub fn is_lost(&self, image: &ImageName, number: u64) -> Result<bool> {
        Ok(self.numbers(image)?.has_lost(number))
    }

    fn newest(&self, image: &ImageName) -> Result<u64> {
        self.newest_seen(image)?.live.ok_or_else(|| no_image(image))
    }

    /// Whether there is a tombstone. A damaged one counts too.
    pub(crate) fn is_removed(&self, image: &ImageName, number: u64) -> Result<bool> {
        Ok(self.backend.size(&layout::removed(image, number))?.is_some())
    }

    pub(crate) fn read_manifest(&self, image: &ImageName, number: u64) -> Result<(SignedManifest, Bytes)> {
        let path = layout::version(image, number);
        let read = self.backend.read_record(&path, u64::from(MANIFEST_BYTES_MAX));
        let bytes = read.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("there is no version `{image}@{number}`"))
            }
            _ => error,
        })?;
        let opened =
            self.cipher.decrypt_manifest(&bytes).and_then(|envelope| SignedManifest::open(&envelope));
        let sealed = opened.map_err(|error| error.within(format!("read `{path}`")))?;
        let manifest = &sealed.manifest;
        if (manifest.image.as_str(), manifest.number) != (image.as_str(), number) {
            let text = format!(
                "`{path}` holds the manifest of `{}@{}`",
                manifest.image.escape_debug(),
                manifest.number
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok((sealed, bytes))
    }

    /// Checks what is possible without the key: whether the checksum of an encrypted manifest is right.
    pub(crate) fn check_manifest(&self, image: &ImageName, number: u64) -> Result<()> {
        let path = layout::version(image, number);
        let bytes = self.backend.read_record(&path, u64::from(MANIFEST_BYTES_MAX))?;
        let checked = image::cipher::check_sealed_manifest(&bytes);
        checked.map(drop).map_err(|error| error.within(format!("read `{path}`")))
    }

    /// The number for the next version of `image`. All lower numbers were used, even if lists do not show them yet.
    pub(crate) fn next_number(&self, image: &ImageName) -> Result<u64> {
        let mut number = next(self.newest_numbers(image, None)?.highest, image)?;
        while self.backend.exists(&layout::version(image, number))? {
            number = next(number, image)?;
        }
        Ok(number)
    }

    /// The numbers of all tombstones of `image`, ascending.
    pub(crate) fn tombstones(&self, image: &ImageName) -> Result<Vec<u64>> {
        self.numbers_in(&layout::removed_of(image))
    }

    /// The numbers of all manifests of `image`, ascending, removed or not.
    pub(crate) fn manifests(&self, image: &ImageName) -> Result<Vec<u64>> {
        self.numbers_in(&layout::versions_of(image))
    }

    pub(crate) fn numbers(&self, image: &ImageName) -> Result<Numbers> {
        let mut live = self.numbers_in(&layout::versions_of(image))?;
        // List tombstones after versions, so that a version removed in between is listed with its tombstone. Floors
        // last: records deleted in between are below a floor.
        let removed = self.numbers_in(&layout::removed_of(image))?;
        let floor = self.floor(image)?;
        let highest = live.last().max(removed.last()).copied().unwrap_or(0).max(floor);
        let mut used = [&live[..], &removed[..]].concat();
        used.sort_unstable();
        let lost = gaps(floor, &used).collect();
        live.retain(|number| *number > floor && removed.binary_search(number).is_err());
        Ok(Numbers { live, lost, highest })
    }

    /// The numbers of the records in `folder`, ascending. Other files are skipped.
    pub(crate) fn numbers_in(&self, folder: &Path) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        self.backend.each_name(folder, &mut |name| numbers.extend(layout::number_named(name)))?;
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// First and last number of each gap above `floor` in the ascending numbers `used`.
pub(crate) fn gaps(floor: u64, used: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let used = &used[used.partition_point(|&number| number <= floor)..];
    let pairs = std::iter::once(floor).chain(used.iter().copied()).zip(used);
    let pairs = pairs.filter(|&(before, &number)| number.saturating_sub(before) > 1);
    pairs.map(|(before, number)| (before + 1, number - 1))
}

fn no_image(image: &ImageName) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no image `{image}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str =
        include_str!("../../../../golden/repository/v1/good/removed/debian/00000000000000000002");

    #[test]
    fn tombstones_are_still_written_as_they_were() {
        let tombstone: Tombstone = record::decode(REMOVED, "golden", GOLDEN.as_bytes()).unwrap();
        assert_eq!(record::encode(REMOVED, &tombstone), GOLDEN);
    }
}
