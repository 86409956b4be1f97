//! Decides whether signatures count: those of versions and of moves of tags, here and at a server.
//! formats/repository.md, "Keys".

use std::fmt::Display;

use base::{Error, ErrorKind, Result, Subject};
use bytes::Bytes;
use image::{Binding, Cipher, Signed, SignedManifest, Trust};

use crate::names::{ImageName, TagName};
use crate::repository::Repository;
use crate::versions::cut_over::{CutOver, Item};
use crate::versions::tags::{self, TagMove};

/// Returns the newest cut-over record of an image as it is stored. `NotFound` if there is none.
pub type CutOverOf<'a> = &'a (dyn Fn(&ImageName) -> Result<Bytes> + Sync);

/// Decides about signatures in one repository.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    /// Keys of which one must have signed.
    pub trust: &'a Trust,
    /// The repository's id.
    pub repository: &'a str,
    /// How the repository encrypts its records.
    pub cipher: &'a Cipher,
    /// Asked only about what an older program signed.
    pub cut_over: CutOverOf<'a>,
}

impl Judge<'_> {
    /// Succeeds if a trusted key signed the version `sealed` of `image` for this repository, or for none and a signed
    /// cut-over record lists it. `what` names it in errors. `Refused` if not, `Corrupt` if a signature is forged.
    pub fn version(&self, what: &dyn Display, image: &ImageName, sealed: &SignedManifest) -> Result<()> {
        self.check(what, image, Item::Version(sealed.manifest.number), sealed.signed())
    }

    /// Reads the record `bytes` of the newest move of `tag`. `NotFound` if the move removed the tag; `Refused` if no
    /// trusted key signed it for this repository; `Corrupt` if it is not a valid move of this tag, or is not encrypted
    /// as [`Self::cipher`] says.
    pub fn tag(&self, image: &ImageName, tag: &TagName, bytes: Bytes) -> Result<TagMove> {
        let what = format!("`{image}:{tag}`");
        let (newest, signed) = tags::read_newest(image, tag, bytes, self.cipher)?;
        let checked = self.check(&what, image, Item::Move(tag, newest.number()), &signed);
        checked.map_err(|error| error.within(format!("use {what}")))?;
        let number = newest.number();
        let (tag, manifest) = tags::tag_of(tag.clone(), newest).ok_or_else(|| tags::no_tag(image, tag))?;
        Ok(TagMove { number, version: tag.version, manifest })
    }

    pub(crate) fn check(
        &self,
        what: &dyn Display,
        image: &ImageName,
        item: Item<'_>,
        signed: &Signed,
    ) -> Result<()> {
        match self.trust.check(what, signed, self.repository)? {
            Binding::Repository => return Ok(()),
            Binding::Nothing => {}
        }
        let refused = |why: &str| {
            let text =
                format!("{what} is signed by an older program, for no particular repository, and {why}");
            Err(Error::new(ErrorKind::Refused, text).about(Subject::OldSignature))
        };
        let record = match (self.cut_over)(image) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return refused("this one has no cut-over record of the image");
            }
            record => record?,
        };
        let accepted = CutOver::read(image, record, self.cipher, self.trust, self.repository)?;
        if accepted.lists(item, &signed.digest()) {
            Ok(())
        } else {
            refused("the cut-over record does not list it")
        }
    }
}

impl Repository {
    /// Checks the signatures of `what`, if keys are trusted. `Refused` if no trusted key signed it for this
    /// repository, `Corrupt` if a signature is invalid.
    pub(crate) fn check_signed(
        &self,
        what: &dyn Display,
        image: &ImageName,
        item: Item<'_>,
        signed: &Signed,
    ) -> Result<()> {
        let Some(trust) = &self.keys.trust else { return Ok(()) };
        let checked = self.judged_by(trust, |judge| judge.check(what, image, item, signed));
        checked.map_err(|error| error.within(format!("use {what}")))
    }

    /// Calls `with` with a judge about signatures in this repository.
    pub fn judged_by<T>(&self, trust: &Trust, with: impl FnOnce(Judge<'_>) -> T) -> T {
        let cut_over = |image: &ImageName| self.cut_over_record(image);
        with(self.judge(trust, &cut_over))
    }

    /// A judge about signatures in this repository, which gets its cut-over records by `cut_over`.
    pub(crate) fn judge<'a>(&'a self, trust: &'a Trust, cut_over: CutOverOf<'a>) -> Judge<'a> {
        Judge { trust, repository: self.id(), cipher: self.cipher(), cut_over }
    }
}
