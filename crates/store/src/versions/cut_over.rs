//! Cut-over records. What older programs signed names no repository, so it counts only if a signed record of this
//! repository lists it. formats/repository.md, "Keys".

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, Signed, Trust};
use serde::{Deserialize, Serialize};

use crate::backend::Created;
use crate::layout;
use crate::names::{ImageName, TagName};
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::numbering::{RACES_MAX, next};

const CUT_OVER: &str = "cut-over";
/// Longest record in bytes, also if it is encrypted.
const CUT_OVER_BYTES_MAX: u64 = 1 << 20;
/// Most versions that a record lists: the newest of an image.
const VERSIONS_MAX: usize = 4096;
/// Most tags that a record lists.
const TAGS_MAX: usize = 256;

/// The body of a cut-over record.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    image: String,
    /// Number of the record, from 1; also its name.
    number: u64,
    repository: String,
    /// The last version that the record accepts, 0 if none.
    last: u64,
    /// Number and manifest's digest of each version that the record accepts, ascending.
    versions: Vec<(u64, String)>,
    /// Name, number of the newest move and digest of that record, for each tag that the record accepts.
    tags: Vec<(String, u64, String)>,
    created: String,
    creator: String,
    nonce: String,
}

/// What is signed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item<'a> {
    /// The version with this number.
    Version(u64),
    /// The move with this number of this tag.
    Move(&'a TagName, u64),
}

/// What a cut-over record accepts of what older programs signed.
#[derive(Debug)]
pub(crate) struct CutOver(Body);

impl CutOver {
    /// Reads the newest cut-over record of `image` in `repository`. `Refused` if no key in `trust` signed it for this
    /// repository, `Corrupt` if it is damaged or not encrypted as `cipher` says.
    pub(crate) fn read(
        image: &ImageName,
        bytes: Bytes,
        cipher: &Cipher,
        trust: &Trust,
        repository: &str,
    ) -> Result<Self> {
        let what = format!("the cut-over record of `{image}`");
        let (body, signed) = decode(image, &what, record::decrypt(cipher, &what, bytes)?)?;
        match trust.check(&what, &signed, repository)? {
            image::Binding::Repository => Ok(Self(body)),
            image::Binding::Nothing => {
                Err(Error::new(ErrorKind::Refused, format!("{what} names no repository")))
            }
        }
    }

    /// Whether it accepts `item`. `digest` is that of the manifest, or of the move's first line.
    pub(crate) fn lists(&self, item: Item<'_>, digest: &Digest) -> bool {
        let (body, hex) = (&self.0, digest.to_hex());
        match item {
            Item::Version(number) => {
                let is_it = |(known, manifest): &(u64, String)| *known == number && *manifest == hex;
                number <= body.last && body.versions.iter().any(is_it)
            }
            Item::Move(tag, number) => body
                .tags
                .iter()
                .any(|(name, known, line)| name == tag.as_str() && *known == number && *line == hex),
        }
    }
}

/// What [`Repository::cut_over`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutOverReport {
    /// Number of the new record.
    pub number: u64,
    /// The last version that it accepts, 0 if none.
    pub last: u64,
    /// Versions that it accepts.
    pub versions: u64,
    /// Tags that it accepts.
    pub tags: u64,
    /// Versions that no trusted key signed: it does not list them.
    pub untrusted: u64,
}

impl Repository {
    /// Accepts what older programs signed, as it is now: creates a signed record that lists all versions of `image`,
    /// and all tags, that a trusted key or this program's key signed without naming a repository. Clients that trust
    /// the key accept these, and nothing else without the repository's id. `Invalid` without a key that signs;
    /// `NotFound` if there is no such image; `Refused` if it has too many tags.
    pub fn cut_over(&self, image: &ImageName, stamp: &Stamp) -> Result<CutOverReport> {
        let Some(key) = &self.keys.sign else {
            let text = format!("accept what older programs signed of `{image}`: this needs a key that signs");
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let mut trust = self.keys.trust.clone().unwrap_or_default();
        trust.add(key.into(), "this program's own key");
        let (mut body, untrusted) = self.older(image, &trust, stamp)?;
        for _ in 0..RACES_MAX {
            let newest = self.newest_number(&layout::cut_overs_of(image))?.unwrap_or(0);
            body.number = next(newest.max(body.number), image)?;
            body.nonce = record::nonce()?;
            let bytes = record::encrypt(&self.cipher, record::encode_signed(CUT_OVER, &body, Some(key)))?;
            if self.backend.create(&layout::cut_over(image, body.number), &bytes)? == Created::Ours {
                let (versions, tags) = (body.versions.len() as u64, body.tags.len() as u64);
                let Body { number, last, .. } = body;
                return Ok(CutOverReport { number, last, versions, tags, untrusted });
            }
        }
        Err(Error::new(ErrorKind::Io, format!("too many other processes cut over `{image}` now")))
    }

    /// The newest cut-over record of `image` as it is stored, for clients that check it themselves. `NotFound` if
    /// there is none.
    pub fn cut_over_record(&self, image: &ImageName) -> Result<Bytes> {
        let none = || Error::new(ErrorKind::NotFound, format!("there is no cut-over record of `{image}`"));
        let number = self.newest_number(&layout::cut_overs_of(image))?.ok_or_else(none)?;
        self.backend.read_record(&layout::cut_over(image, number), CUT_OVER_BYTES_MAX)
    }

    /// `Corrupt` if cut-over record `number` of `image` is not valid.
    pub(crate) fn check_cut_over(&self, image: &ImageName, number: u64) -> Result<()> {
        let path = layout::cut_over(image, number);
        let bytes = self.backend.read_record(&path, CUT_OVER_BYTES_MAX)?;
        let (found, signed) =
            decode(image, path.as_ref(), record::decrypt(&self.cipher, path.as_ref(), bytes)?)?;
        signed.signers()?;
        match found.number == number {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is another cut-over record"))),
        }
    }

    /// The body of a record that accepts everything of `image` that a key in `trust` signed for no repository, and
    /// how many versions no such key signed.
    fn older(&self, image: &ImageName, trust: &Trust, stamp: &Stamp) -> Result<(Body, u64)> {
        let is_older = |what: &str, signed: &Signed| match trust.check(&what, signed, self.id()) {
            Ok(image::Binding::Nothing) => Ok(true),
            Ok(image::Binding::Repository) => Ok(false),
            Err(error) => Err(error),
        };
        let (mut versions, mut tags, mut untrusted) = (Vec::new(), Vec::new(), 0);
        for sealed in self.log(image, None)? {
            let sealed = sealed?;
            let number = sealed.manifest.number;
            match is_older(&format!("`{image}@{number}`"), sealed.signed()) {
                Ok(true) if versions.len() < VERSIONS_MAX => {
                    versions.push((number, sealed.digest().to_hex()))
                }
                Ok(_) => {}
                Err(_) => untrusted += 1,
            }
        }
        versions.reverse();
        for tag in self.tag_names(image)? {
            let Some((newest, signed)) = self.newest_move(image, &tag)? else { continue };
            if !newest.is_away() && is_older(&format!("`{image}:{tag}`"), &signed).unwrap_or(false) {
                tags.push((tag.to_string(), newest.number(), signed.digest().to_hex()));
            }
        }
        if tags.len() > TAGS_MAX {
            let text =
                format!("`{image}` has {} tags that older programs signed, more than {TAGS_MAX}", tags.len());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let body = Body {
            image: image.to_string(),
            number: 0,
            repository: self.id().to_owned(),
            last: versions.last().map_or(0, |(number, _)| *number),
            versions,
            tags,
            created: stamp.created.clone(),
            creator: stamp.creator.clone(),
            nonce: String::new(),
        };
        Ok((body, untrusted))
    }
}

fn decode(image: &ImageName, name: &str, bytes: Bytes) -> Result<(Body, Signed)> {
    let (body, signed): (Body, Signed) = record::decode_signed(CUT_OVER, name, &bytes)?;
    match body.image == image.as_str() {
        true => Ok((body, signed)),
        false => Err(Error::new(ErrorKind::Corrupt, format!("`{name}` is that of another image"))),
    }
}
