//! Tags: names that move between versions. Every move is a numbered record that is created only if absent; the newest
//! move says which version the tag names. formats/repository.md, "Tags".

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, Signed};
use serde::{Deserialize, Serialize};

use crate::backend::Created;
use crate::layout;
use crate::names::{ImageName, LATEST, Reference, TagName};
use crate::record::{self, RECORD_BYTES_MAX, Stamp};
use crate::repository::Repository;
use crate::versions::cut_over::Item;
use crate::versions::numbering::{RACES_MAX, next};

const TAG: &str = "tag";

/// A tag and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// Name of the tag.
    pub name: TagName,
    /// The number of the version that it names.
    pub version: u64,
    /// Time of the move, RFC 3339.
    pub created: String,
    /// The user or program that moved it.
    pub creator: String,
}

/// A move of a tag that a trusted key signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagMove {
    /// Its number, from 1.
    pub number: u64,
    /// The version that the tag names since then.
    pub version: u64,
    /// The digest of that version's manifest.
    pub manifest: Digest,
}

/// The body of one move.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Move {
    image: String,
    tag: String,
    /// Number of the move, from 1; also the name of the record.
    number: u64,
    /// The repository's id, so that a signature counts nowhere else; absent in what older programs wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repository: Option<String>,
    /// The new version of the tag; `None` if the tag was removed.
    target: Option<Target>,
    created: String,
    creator: String,
    nonce: String,
}

impl Move {
    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it removes the tag.
    pub(crate) fn is_away(&self) -> bool {
        self.target.is_none()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Target {
    version: u64,
    /// Digest of the version's manifest, hexadecimal.
    manifest: String,
}

impl Repository {
    /// Sets `tag` to version `version` of `image`, whether the tag exists or not. `NotFound` if there is no such
    /// version; `Refused` for the tag `latest`, and if no trusted key signed the version.
    pub fn tag(&self, image: &ImageName, tag: &TagName, version: u64, stamp: &Stamp) -> Result<()> {
        if tag.as_str() == LATEST {
            return Err(Error::new(
                ErrorKind::Refused,
                format!("`{image}:{LATEST}` always means the newest version and cannot be set"),
            ));
        }
        let manifest = self.signed_manifest(&Reference::Version(image.clone(), version))?.0.digest().to_hex();
        self.move_tag(image, tag, Some(Target { version, manifest }), stamp)
    }

    /// Removes `tag`. `NotFound` if there is no such tag.
    pub fn untag(&self, image: &ImageName, tag: &TagName, stamp: &Stamp) -> Result<()> {
        self.tagged(image, tag)?;
        self.move_tag(image, tag, None, stamp)
    }

    /// All tags of `image`, sorted by name. `NotFound` if there is no such image.
    pub fn tags(&self, image: &ImageName) -> Result<Vec<Tag>> {
        if self.newest_numbers(image, None)?.live.is_none() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no image `{image}`")));
        }
        let mut tags = Vec::new();
        for name in self.tag_names(image)? {
            tags.extend(self.tag_now(image, &name)?.map(|(tag, _)| tag));
        }
        Ok(tags)
    }

    /// The names of all present and former tags of `image`, ascending.
    pub(crate) fn tag_names(&self, image: &ImageName) -> Result<Vec<TagName>> {
        let names = self.backend.folders(&layout::tags_of(image))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The version of `tag`, and the digest of its manifest; `None` if there is no such tag.
    pub(crate) fn tag_now(&self, image: &ImageName, tag: &TagName) -> Result<Option<(Tag, Digest)>> {
        Ok(self.newest_move(image, tag)?.and_then(|(newest, _)| tag_of(tag.clone(), newest)))
    }

    /// [`Self::tag_now`], but `NotFound` if there is no such tag.
    pub(crate) fn tagged(&self, image: &ImageName, tag: &TagName) -> Result<(Tag, Digest)> {
        self.tag_now(image, tag)?.ok_or_else(|| no_tag(image, tag))
    }

    /// The newest move of `tag`, as the trusted keys signed it. `NotFound` if there is no such tag, `Refused` if no
    /// trusted key signed the move for this repository.
    pub(crate) fn trusted_move(&self, image: &ImageName, tag: &TagName) -> Result<TagMove> {
        let (newest, signed) = self.newest_move(image, tag)?.ok_or_else(|| no_tag(image, tag))?;
        let number = newest.number;
        self.check_signed(&format_args!("`{image}:{tag}`"), image, Item::Move(tag, number), &signed)?;
        let (tag, manifest) = tag_of(tag.clone(), newest).ok_or_else(|| no_tag(image, tag))?;
        Ok(TagMove { number, version: tag.version, manifest })
    }

    /// The newest move of `tag` as it is stored, for clients that check it themselves with
    /// [`Judge`](crate::Judge). `NotFound` if there is none.
    pub fn tag_record(&self, image: &ImageName, tag: &TagName) -> Result<Bytes> {
        let number = self.newest_number(&layout::tag_records(image, tag))?;
        let number = number.ok_or_else(|| no_tag(image, tag))?;
        self.backend.read_record(&layout::tag_record(image, tag, number), RECORD_BYTES_MAX)
    }

    fn move_tag(
        &self,
        image: &ImageName,
        tag: &TagName,
        target: Option<Target>,
        stamp: &Stamp,
    ) -> Result<()> {
        let records = layout::tag_records(image, tag);
        let mut number = 0;
        for _ in 0..RACES_MAX {
            // After a lost race, go on from the number that was taken, even if lists do not show it yet.
            number = next(self.newest_number(&records)?.unwrap_or(0).max(number), image)?;
            let moved = Move {
                image: image.to_string(),
                tag: tag.to_string(),
                number,
                repository: Some(self.id().to_owned()),
                target: target.clone(),
                created: stamp.created.clone(),
                creator: stamp.creator.clone(),
                nonce: record::nonce()?,
            };
            let bytes = record::encode_signed(TAG, &moved, self.keys.sign.as_ref());
            let bytes = record::encrypt(&self.cipher, bytes)?;
            if self.backend.create(&layout::tag_record(image, tag, number), &bytes)? == Created::Ours {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Io, format!("too many other processes move `{image}:{tag}` now")))
    }

    pub(crate) fn newest_move(&self, image: &ImageName, tag: &TagName) -> Result<Option<(Move, Signed)>> {
        let newest = self.newest_number(&layout::tag_records(image, tag))?;
        newest.map(|number| self.move_of(image, tag, number)).transpose()
    }

    /// Reads move `number` of `tag`, with its signatures.
    pub(crate) fn move_of(&self, image: &ImageName, tag: &TagName, number: u64) -> Result<(Move, Signed)> {
        let path = layout::tag_record(image, tag, number);
        let bytes = self.backend.read_record(&path, RECORD_BYTES_MAX)?;
        let bytes = record::decrypt(&self.cipher, path.as_ref(), bytes)?;
        let (found, signed) = read_move(image, tag, path.as_ref(), &bytes)?;
        match found.number == number {
            true => Ok((found, signed)),
            false => Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is the record of another move"))),
        }
    }
}

/// Reads the record `bytes` of a move of `tag` of `image`, and its signatures, which are not verified. `Corrupt` if it
/// is not a valid move of this tag, or is not encrypted as `cipher` says.
pub(crate) fn read_newest(
    image: &ImageName,
    tag: &TagName,
    bytes: Bytes,
    cipher: &Cipher,
) -> Result<(Move, Signed)> {
    let what = format!("`{image}:{tag}`");
    read_move(image, tag, &what, &record::decrypt(cipher, &what, bytes)?)
}

fn read_move(image: &ImageName, tag: &TagName, name: &str, bytes: &[u8]) -> Result<(Move, Signed)> {
    let (newest, signed): (Move, _) = record::decode_signed(TAG, name, bytes)?;
    let has_digest = newest.target.as_ref().is_none_or(|target| target.manifest.parse::<Digest>().is_ok());
    if (newest.image.as_str(), newest.tag.as_str()) != (image.as_str(), tag.as_str()) || !has_digest {
        return Err(Error::new(ErrorKind::Corrupt, format!("`{name}` is the record of another move")));
    }
    Ok((newest, signed))
}

pub(crate) fn no_tag(image: &ImageName, tag: &TagName) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no tag `{image}:{tag}`"))
}

/// The tag after this move; `None` if the move removed it.
pub(crate) fn tag_of(name: TagName, newest: Move) -> Option<(Tag, Digest)> {
    let target = newest.target?;
    let manifest = target.manifest.parse().ok()?;
    Some((Tag { name, version: target.version, created: newest.created, creator: newest.creator }, manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str =
        include_str!("../../../../golden/repository/v1/good/tags/debian/stable/00000000000000000001");

    #[test]
    fn moves_are_still_written_as_they_were() {
        let first: Move = record::decode(TAG, "golden", GOLDEN.as_bytes()).unwrap();
        assert_eq!(first.target.as_ref().map(|target| target.version), Some(3));
        assert_eq!(record::encode(TAG, &first), GOLDEN);
    }
}
