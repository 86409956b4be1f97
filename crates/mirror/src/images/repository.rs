//! Implements [`Images`] for a local repository.

use std::fmt::Display;
use std::sync::Arc;

use base::Result;
use bytes::Bytes;
use image::{Cipher, Manifest, ObjectRef, ObjectSink, ObjectSource, SignedManifest, Trust, Verified};
use net::clock::Stop;
use store::{Changes, Committed, Content, ImageName, Reference, Repository, Shape, Stamp, TagName, Writer};

use super::{Addition, BootProfiles, Images, ReadReport, ReadUpdate, Sighting, Tell, Written};

impl Images for Repository {
    fn image_names(&self) -> Result<Vec<ImageName>> {
        self.images()
    }

    fn version_numbers(&self, image: &ImageName) -> Result<Vec<u64>> {
        self.versions(image)
    }

    fn tag_names(&self, image: &ImageName) -> Result<Vec<TagName>> {
        Ok(self.tags(image)?.into_iter().map(|tag| tag.name).collect())
    }

    fn sight(&self, reference: &Reference) -> Result<Sighting> {
        let found = self.find_version(reference)?;
        let (repository, tag_move) = match &self.keys().trust {
            Some(_) => (Some(self.id().to_owned()), found.tag_move),
            None => (None, None),
        };
        Ok(Sighting { version: found.version, repository, tag_move })
    }

    fn judge(&self, what: &dyn Display, version: &SignedManifest, trust: &Trust) -> Result<()> {
        let image = version.manifest.image.parse()?;
        self.judged_by(trust, |judge| judge.version(what, &image, version))
    }

    fn create_image(&self, image: &ImageName, shape: &Shape, stamp: &Stamp) -> Result<u64> {
        self.blob(image).create(shape, stamp).map(|made| made.number)
    }

    fn clone_version(&self, from: &Reference, image: &ImageName, stamp: &Stamp) -> Result<u64> {
        self.blob(image).clone_from(from, stamp).map(|made| made.number)
    }

    fn commit_changes(
        &self,
        image: &ImageName,
        changes: &Changes<'_>,
        expected: Option<u64>,
        stamp: &Stamp,
    ) -> Result<Written> {
        self.blob(image).commit(changes, expected, stamp).map(written)
    }

    fn append_bytes(
        &self,
        image: &ImageName,
        bytes: u64,
        content: &dyn Content,
        stamp: &Stamp,
    ) -> Result<Written> {
        self.blob(image).append_from(bytes, content, stamp).map(|(_, done)| written(done))
    }

    fn add_version(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        Writer::retrying(self, stamp, || (), |writer| work(&Here { repository: self, writer }))
    }

    fn for_one_commit(self: Arc<Self>, _: Tell, _: &Stop) -> Arc<dyn Images> {
        self
    }
}

impl BootProfiles for Repository {
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        let found = image.parse().and_then(|name| self.profile(&name, version))?;
        Ok(found.map(|profile| profile.order()))
    }

    fn share_reads(&self, _: &str, _: ReadReport<'_>) -> Result<Option<ReadUpdate>> {
        Ok(None)
    }

    fn record_boot(&self, image: &str, version: u64, chunks: &[u64], stamp: &Stamp) -> Result<()> {
        self.add_profile(&image.parse()?, version, chunks, stamp).map(drop)
    }
}

fn written(done: Committed) -> Written {
    Written {
        number: done.manifest.number,
        stored_bytes: done.stored_bytes,
        retries: done.retries,
        merged_chunks: done.merged_chunks,
    }
}

/// A version that is being added to a local repository.
struct Here<'a> {
    repository: &'a Repository,
    writer: &'a Writer,
}

impl ObjectSource for Here<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.repository.fetch(object)
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        self.repository.verified(object)
    }
}

impl ObjectSink for Here<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.writer.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.writer.put(object, bytes)
    }
}

impl Addition for Here<'_> {
    fn cipher(&self) -> &Cipher {
        self.repository.cipher()
    }

    fn at_once(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest> {
        self.writer.publish_onto(image, draft, expected)
    }
}
