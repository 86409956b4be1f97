//! A repository to which the connection breaks once: before a version is published, or after that.

use std::fmt::Display;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, Manifest, ObjectRef, ObjectSink, ObjectSource, SignedManifest, Trust};
use mirror::images::Tell;
use mirror::{Addition, BootProfiles, Images, ReadReport, ReadUpdate, Sighting, Written};
use net::clock::Stop;
use parking_lot::Mutex;
use store::{ImageName, Reference, Shape, Stamp, TagName};

use super::Place;

/// When the connection to a repository breaks.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Breaks {
    Never,
    BeforeTheVersion,
    BehindIt,
}

/// A repository to which the connection breaks once.
pub(crate) struct Far<'a> {
    pub place: &'a Place,
    pub breaks: Mutex<Breaks>,
}

struct Broken<'a>(&'a dyn Addition, Breaks);

impl BootProfiles for Far<'_> {
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        self.place.repository.boot_profile(image, version)
    }

    fn share_reads(&self, image: &str, report: ReadReport<'_>) -> Result<Option<ReadUpdate>> {
        self.place.repository.share_reads(image, report)
    }

    fn record_boot(&self, image: &str, version: u64, chunks: &[u64], stamp: &Stamp) -> Result<()> {
        self.place.repository.record_boot(image, version, chunks, stamp)
    }
}

impl Images for Far<'_> {
    fn image_names(&self) -> Result<Vec<ImageName>> {
        self.place.repository.image_names()
    }

    fn version_numbers(&self, image: &ImageName) -> Result<Vec<u64>> {
        self.place.repository.version_numbers(image)
    }

    fn tag_names(&self, image: &ImageName) -> Result<Vec<TagName>> {
        self.place.repository.tag_names(image)
    }

    fn sight(&self, reference: &Reference) -> Result<Sighting> {
        self.place.repository.sight(reference)
    }

    fn judge(&self, what: &dyn Display, version: &SignedManifest, trust: &Trust) -> Result<()> {
        self.place.repository.judge(what, version, trust)
    }

    fn create_image(&self, image: &ImageName, shape: &Shape, stamp: &Stamp) -> Result<u64> {
        self.place.repository.create_image(image, shape, stamp)
    }

    fn clone_version(&self, from: &Reference, image: &ImageName, stamp: &Stamp) -> Result<u64> {
        self.place.repository.clone_version(from, image, stamp)
    }

    fn commit_changes(
        &self,
        image: &ImageName,
        changes: &store::Changes<'_>,
        expected: Option<u64>,
        stamp: &Stamp,
    ) -> Result<Written> {
        self.place.repository.commit_changes(image, changes, expected, stamp)
    }

    fn append_bytes(
        &self,
        image: &ImageName,
        bytes: u64,
        content: &dyn store::Content,
        stamp: &Stamp,
    ) -> Result<Written> {
        self.place.repository.append_bytes(image, bytes, content, stamp)
    }

    fn add_version(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        let breaks = std::mem::replace(&mut *self.breaks.lock(), Breaks::Never);
        self.place.repository.add_version(stamp, &mut |addition| work(&Broken(addition, breaks)))
    }

    fn for_one_commit(self: Arc<Self>, _: Tell, _: &Stop) -> Arc<dyn Images>
    where
        Self: 'static,
    {
        self
    }
}

impl ObjectSource for Broken<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.0.fetch(object)
    }
}

impl ObjectSink for Broken<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.0.put(object, bytes)
    }
}

impl Addition for Broken<'_> {
    fn cipher(&self) -> &Cipher {
        self.0.cipher()
    }

    fn at_once(&self) -> usize {
        3
    }

    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest> {
        if self.1 != Breaks::BeforeTheVersion {
            let published = self.0.publish(image, draft, expected);
            if self.1 == Breaks::Never {
                return published;
            }
        }
        Err(Error::new(ErrorKind::Unreachable, "nobody there"))
    }
}
