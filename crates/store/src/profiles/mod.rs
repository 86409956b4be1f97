//! Boot profiles: which chunks machines read when they start from an image, and in which order, merged over several
//! boots. They are only hints: not signed, not trusted for content, and a prune may delete them.
//! formats/repository.md, "Profiles".

mod merge;

use std::collections::HashSet;

use base::limits::{PROFILE_CHUNKS_MAX, PROFILE_DISK_BYTES_MAX, PROFILE_RECORD_BYTES_MAX};
use base::{Error, ErrorKind, Result};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use self::merge::{BOOTS_MAX, CHUNK_INDEX_END, distinct, merge};
pub use self::merge::{Profile, ProfileRun};
use crate::backend::Created;
use crate::layout;
use crate::names::{ImageName, Reference};
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::{RACES_MAX, next};

const PROFILE: &str = "profile";

/// Newest records of an image that a prune keeps, and among which a matching profile is searched.
const KEPT: usize = 4;
/// How many times the search follows a clone to the image that it was cloned from.
const ANCESTORS_MAX: usize = 8;

/// The body of a record. Without runs it says that there is no profile, and that none is inherited.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    image: String,
    /// Number of the profile, from 1; also the name of the record.
    number: u64,
    /// Version that the newest boot ran; 0 without runs.
    ran: u64,
    chunk_bytes: u32,
    boots: u32,
    runs: Vec<ProfileRun>,
    created: String,
    creator: String,
    nonce: String,
}

impl Record {
    /// The reason why the content is not valid; `None` if it is.
    fn fault(&self) -> Option<&'static str> {
        let chunks = self.runs.iter().fold(0u64, |sum, run| sum + u64::from(run.count));
        if chunks > PROFILE_CHUNKS_MAX as u64 {
            return Some("it names too many chunks");
        }
        let (mut known, boots) = (HashSet::new(), self.boots);
        if boots > BOOTS_MAX || (boots == 0) != self.runs.is_empty() {
            return Some("it remembers no such number of boots");
        }
        for run in &self.runs {
            let is_inside =
                run.first < CHUNK_INDEX_END && u64::from(run.count) <= CHUNK_INDEX_END - run.first;
            if run.count == 0 || !is_inside {
                return Some("it names chunks that no disk has");
            }
            if run.seen == 0 || u32::from(run.seen) >> boots != 0 {
                return Some("it names boots that it does not remember");
            }
            if !run.chunks().all(|chunk| known.insert(chunk)) {
                return Some("it names a chunk twice");
            }
        }
        None
    }

    fn profile(self, image: &ImageName) -> Option<Profile> {
        let Self { number, ran, chunk_bytes, boots, runs, created, creator, .. } = self;
        let image = image.clone();
        let profile = Profile { image, number, version: ran, chunk_bytes, boots, runs, created, creator };
        (!profile.runs.is_empty()).then_some(profile)
    }
}

impl Repository {
    /// The boot profile for version `version` of `image`: the newest profile of the image whose chunk size matches,
    /// or else that of the image from which it was cloned. `None` if there is none, `NotFound` if there is no such
    /// version, `Corrupt` if the record is damaged.
    pub fn profile(&self, image: &ImageName, version: u64) -> Result<Option<Profile>> {
        let chunk_bytes = self.chunk_bytes_of(image, version)?;
        self.profile_of(image, chunk_bytes)
    }

    /// Adds a boot of version `version` of `image`; `chunks` are those that it read, in the order of first reads. The
    /// newest matching profile is merged with it and stored as the next one. A chunk that none of the newest four
    /// boots read is dropped, and so is what exceeds the limits of a profile. `Invalid` without chunks, `NotFound` if
    /// there is no such version.
    pub fn add_profile(
        &self,
        image: &ImageName,
        version: u64,
        chunks: &[u64],
        stamp: &Stamp,
    ) -> Result<Profile> {
        let chunk_bytes = self.chunk_bytes_of(image, version)?;
        let boot = distinct(chunks, chunks_max(chunk_bytes));
        if boot.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, format!("a boot of `{image}` that read nothing")));
        }
        let kept = self.keep_profile(image, stamp, &mut || {
            // A damaged profile is ignored, and the next one replaces it.
            let before = match self.profile_of(image, chunk_bytes) {
                Err(error) if is_worthless(&error) => None,
                before => before?,
            };
            let boots = before.as_ref().map_or(0, |before| before.boots);
            let runs = merge(before.as_ref(), &boot, chunks_max(chunk_bytes));
            Ok((version, chunk_bytes, (boots + 1).min(BOOTS_MAX), runs))
        })?;
        Ok(kept.profile(image).expect("a boot has chunks"))
    }

    /// Removes the profile of `image`: from now on it has none, and inherits none. `NotFound` if it has no profile
    /// and inherits none.
    pub fn remove_profile(&self, image: &ImageName, version: u64, stamp: &Stamp) -> Result<()> {
        match self.profile(image, version) {
            Ok(None) => {
                return Err(Error::new(ErrorKind::NotFound, format!("there is no profile of `{image}`")));
            }
            Err(error) if !is_worthless(&error) => return Err(error),
            _ => {}
        }
        self.keep_profile(image, stamp, &mut || Ok((0, 0, 0, Vec::new()))).map(drop)
    }

    /// Copies the profile of a version of `from`, if `image` has none in this repository.
    pub(crate) fn take_profile(
        &self,
        image: &ImageName,
        version: u64,
        from: &Self,
        original: &Reference,
    ) -> Result<()> {
        let Reference::Version(there, number) = original else { return Ok(()) };
        if self.newest_number(&layout::profiles_of(image))?.is_some() {
            return Ok(());
        }
        let found = match from.profile(there, *number) {
            Err(error) if is_worthless(&error) => return Ok(()),
            found => found?,
        };
        let Some(Profile { chunk_bytes, boots, runs, created, creator, .. }) = found else { return Ok(()) };
        let stamp = Stamp { created, creator };
        self.keep_profile(image, &stamp, &mut || Ok((version, chunk_bytes, boots, runs.clone()))).map(drop)
    }

    /// The paths of profiles that are not needed: all but the newest of each image, and all of removed images.
    pub(crate) fn stale_profiles(&self) -> Result<Vec<Path>> {
        let mut stale = Vec::new();
        for name in self.backend.folders(&layout::all_profiles())? {
            let Ok(image) = name.parse::<ImageName>() else { continue };
            let mut numbers = self.numbers_in(&layout::profiles_of(&image))?;
            if self.newest_numbers(&image, None)?.live.is_some() {
                numbers.truncate(numbers.len().saturating_sub(KEPT));
            }
            stale.extend(numbers.into_iter().map(|number| layout::profile(&image, number)));
        }
        Ok(stale)
    }

    fn chunk_bytes_of(&self, image: &ImageName, version: u64) -> Result<u32> {
        let (sealed, _) = self.look(&Reference::Version(image.clone(), version))?;
        let layout = sealed.manifest.layout();
        let layout = layout.map_err(|error| error.within(format!("use `{image}@{version}`")))?;
        Ok(layout.chunk.bytes())
    }

    fn profile_of(&self, image: &ImageName, chunk_bytes: u32) -> Result<Option<Profile>> {
        let mut image = image.clone();
        for _ in 0..ANCESTORS_MAX {
            if let Some(found) = self.newest_profile(&image, chunk_bytes)? {
                return Ok(found.profile(&image));
            }
            match self.cloned_from(&image)? {
                Some(parent) => image = parent,
                None => break,
            }
        }
        Ok(None)
    }

    /// The newest record of `image` itself that matches the chunk size, or that says that there is no profile.
    fn newest_profile(&self, image: &ImageName, chunk_bytes: u32) -> Result<Option<Record>> {
        let newest = self.newest_number(&layout::profiles_of(image))?.unwrap_or(0);
        for number in (1..=newest).rev().take(KEPT) {
            match self.read_profile(image, number) {
                Ok(found) if found.runs.is_empty() || found.chunk_bytes == chunk_bytes => {
                    return Ok(Some(found));
                }
                Ok(_) => {}
                // A prune has deleted it.
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// `Corrupt` if profile `number` of `image` is not valid.
    pub(crate) fn check_profile(&self, image: &ImageName, number: u64) -> Result<()> {
        self.read_profile(image, number).map(drop)
    }

    fn read_profile(&self, image: &ImageName, number: u64) -> Result<Record> {
        let path = layout::profile(image, number);
        let bytes = self.backend.read_record(&path, u64::from(PROFILE_RECORD_BYTES_MAX))?;
        let bytes = record::decrypt(&self.cipher, path.as_ref(), bytes)?;
        let found: Record = record::decode(PROFILE, path.as_ref(), &bytes)?;
        let is_named = (found.image.as_str(), found.number) == (image.as_str(), number);
        let fault = if is_named { found.fault() } else { Some("it is a profile of another image or number") };
        match fault {
            None => Ok(found),
            Some(why) => Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is damaged: {why}"))),
        }
    }

    /// The image from which `image` was cloned.
    fn cloned_from(&self, image: &ImageName) -> Result<Option<ImageName>> {
        // Its first manifest is kept even if that version was removed.
        let Some(parent) = self.manifest_if_there(image, 1)?.and_then(|first| first.manifest.parent) else {
            return Ok(None);
        };
        let Ok(name) = parent.image.parse::<ImageName>() else { return Ok(None) };
        if name == *image {
            return Ok(None);
        }
        // In a copied image the parent may be in another repository, where the name means another image.
        let there = self.manifest_if_there(&name, parent.number)?;
        Ok(there.filter(|there| there.digest() == parent.digest).map(|_| name))
    }

    fn manifest_if_there(&self, image: &ImageName, number: u64) -> Result<Option<image::SignedManifest>> {
        match self.read_manifest(image, number) {
            Ok((sealed, _)) => Ok(Some(sealed)),
            Err(error) if error.kind() == ErrorKind::NotFound || is_worthless(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the next record of `image`. `content` returns version, chunk size, boots and runs, and is called again
    /// after a lost race.
    fn keep_profile(
        &self,
        image: &ImageName,
        stamp: &Stamp,
        content: &mut dyn FnMut() -> Result<(u64, u32, u32, Vec<ProfileRun>)>,
    ) -> Result<Record> {
        let mut number = 0;
        for _ in 0..RACES_MAX {
            let (ran, chunk_bytes, boots, runs) = content()?;
            // After a lost race, go on from the number that was taken, even if lists do not show it yet.
            let newest = self.newest_number(&layout::profiles_of(image))?.unwrap_or(0);
            number = next(newest.max(number), image)?;
            let record = Record {
                image: image.to_string(),
                number,
                ran,
                chunk_bytes,
                boots,
                runs,
                created: stamp.created.clone(),
                creator: stamp.creator.clone(),
                nonce: record::nonce()?,
            };
            let bytes = record::encrypt(&self.cipher, record::encode(PROFILE, &record))?;
            if self.backend.create(&layout::profile(image, number), &bytes)? == Created::Ours {
                return Ok(record);
            }
        }
        Err(Error::new(ErrorKind::Io, format!("too many other processes add profiles of `{image}` now")))
    }
}

/// Whether the error means that the record is of no use to this program.
fn is_worthless(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// Most chunks of this size in a profile.
fn chunks_max(chunk_bytes: u32) -> usize {
    usize::try_from(PROFILE_DISK_BYTES_MAX / u64::from(chunk_bytes)).expect("a count of chunks in 1 GiB")
}

#[cfg(test)]
mod tests {
    use base::Chance;

    use super::*;

    const GOLDEN: &str =
        include_str!("../../../../golden/repository/v1/profiles/profiles/debian/00000000000000000002");

    #[test]
    fn profiles_are_still_written_as_they_were() {
        let second: Record = record::decode(PROFILE, "golden", GOLDEN.as_bytes()).unwrap();
        assert_eq!((second.fault(), second.boots, second.ran), (None, 2, 1));
        assert_eq!(record::encode(PROFILE, &second), GOLDEN);
    }

    /// The profile after one more boot, of chunks of 256 KiB.
    fn after(known: Option<&Profile>, boot: &[u64], max: usize) -> Profile {
        let record = Record {
            image: "web".to_owned(),
            number: 1,
            ran: 1,
            chunk_bytes: 1 << 18,
            boots: (known.map_or(0, |known| known.boots) + 1).min(BOOTS_MAX),
            runs: merge(known, boot, max),
            created: String::new(),
            creator: String::new(),
            nonce: String::new(),
        };
        assert_eq!(record.fault(), None);
        record.profile(&"web".parse().unwrap()).unwrap()
    }

    fn profile(boots: &[Vec<u64>]) -> Profile {
        let first = after(None, &boots[0], 4096);
        boots[1..].iter().fold(first, |known, boot| after(Some(&known), boot, 4096))
    }

    #[test]
    fn one_boot_is_remembered_as_it_was() {
        let boot = vec![7, 8, 9, 0, 1, 500, 2];
        let found = profile(std::slice::from_ref(&boot));
        assert_eq!((found.order(), found.chunks(), found.runs.len()), (boot, 7, 4));
    }

    #[test]
    fn what_few_boots_read_is_not_likely_and_drops_out() {
        let usual: Vec<u64> = (0..10).collect();
        let with = |more: u64| [&usual[..], &[more]].concat();
        let once = profile(&[with(100), usual.clone(), usual.clone()]);
        assert_eq!((once.order(), once.chunks()), (usual.clone(), 11));
        // A chunk that only one boot read is not expected until a second boot reads it.
        assert!(!profile(&[usual.clone(), usual.clone(), with(100)]).order().contains(&100));
        assert!(
            profile(&[usual.clone(), usual.clone(), usual.clone(), with(100), with(100)])
                .order()
                .contains(&100)
        );
        let gone = profile(&[with(100), usual.clone(), usual.clone(), usual.clone(), usual.clone()]);
        assert_eq!(gone.chunks(), 10);
        let many = vec![usual.clone(); 20];
        assert_eq!((profile(&many).boots, profile(&many).order()), (BOOTS_MAX, usual));
    }

    #[test]
    fn the_order_follows_the_boots() {
        let early: Vec<u64> = (0..100).collect();
        let late: Vec<u64> = (1..100).chain([0]).collect();
        // One late read does not move a chunk to the end, but repeated late reads do.
        let place = |boots: &[Vec<u64>]| profile(boots).order().iter().position(|&chunk| chunk == 0).unwrap();
        assert!(place(&[early.clone(), early.clone(), early.clone(), late.clone()]) < 50);
        assert!(place(&[early, late.clone(), late.clone(), late.clone(), late.clone(), late]) > 70);
    }

    #[test]
    fn whatever_boots_read_a_profile_is_within_its_bounds() {
        for seed in 0..50 {
            let mut chance = Chance::from_seed(seed);
            let mut known: Option<Profile> = None;
            for _ in 0..12 {
                let count = 1 + chance.below(300);
                let boot: Vec<u64> = (0..count).map(|_| chance.below(400)).collect();
                known = Some(after(known.as_ref(), &distinct(&boot, 128), 128));
                assert!(known.as_ref().is_some_and(|known| known.chunks() <= 128), "seed {seed}");
            }
        }
    }

    #[test]
    fn the_longest_record_is_as_long_as_it_may_be() {
        let first = |at: u64| CHUNK_INDEX_END - 1 - 2 * at;
        let runs =
            (0..PROFILE_CHUNKS_MAX as u64).map(|at| ProfileRun { first: first(at), count: 1, seen: 255 });
        let record = Record {
            image: "x".repeat(base::limits::NAME_BYTES_MAX),
            number: u64::MAX,
            ran: u64::MAX,
            chunk_bytes: u32::MAX,
            boots: BOOTS_MAX,
            runs: runs.collect(),
            created: "2026-11-20T14:00:00Z".to_owned(),
            creator: "x".repeat(256),
            nonce: record::nonce().unwrap(),
        };
        assert_eq!(record.fault(), None);
        let cipher = image::Cipher::Key(image::EncryptionKey::from_bytes([1; 32]));
        let sealed = record::encrypt(&cipher, record::encode(PROFILE, &record)).unwrap();
        assert!(sealed.len() <= PROFILE_RECORD_BYTES_MAX as usize, "{}", sealed.len());
        let opened = record::decrypt(&cipher, "it", sealed).unwrap();
        assert!(record::decode::<Record>(PROFILE, "it", &opened).is_ok());
    }
}
