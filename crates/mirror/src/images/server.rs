//! Implements [`Images`] for a server. A client that makes changes should retry for a long time, as
//! [`net::client::ClientOptions::default`] does: the disk keeps what cannot be sent.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use base::limits::PROFILE_CHUNKS_MAX;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, Manifest, ObjectRef, ObjectSink, ObjectSource, SignedManifest, Trust};
use net::api::{CreateRequest, ImageSummary};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use net::profile::{ANSWER_CHUNKS_MAX, BootRequest, ExchangeRequest, chunks_of, runs_of};
use store::{Changes, Content, ImageName, Judge, Reference, Shape, Stamp, TagName};

use super::{Addition, BootProfiles, Images, ReadReport, ReadUpdate, Sighting, Tell, Written, if_found};

/// Objects that are sent to a server in parallel: enough to fill 1 Gbit/s at a round trip of 10 ms.
const AT_ONCE: usize = 16;

impl Images for Client {
    fn image_names(&self) -> Result<Vec<ImageName>> {
        self.images()?.images.iter().map(|image| image.name.parse()).collect()
    }

    fn version_numbers(&self, image: &ImageName) -> Result<Vec<u64>> {
        Ok(self.versions(image.as_str())?.versions.iter().map(|version| version.number).collect())
    }

    fn tag_names(&self, image: &ImageName) -> Result<Vec<TagName>> {
        let images = self.images()?.images;
        let found = images.into_iter().find(|found| found.name == image.as_str());
        found.into_iter().flat_map(|found| found.tags.into_keys()).map(|tag| tag.parse()).collect()
    }

    /// If only some keys are trusted, the tag must be signed too. Otherwise the server could answer with any version
    /// that was ever signed.
    fn sight(&self, reference: &Reference) -> Result<Sighting> {
        let Some(trust) = &self.options().trust else {
            let version = net::fetch::manifest(self, &reference.to_string())?;
            return Ok(Sighting { version, repository: None, tag_move: None });
        };
        let repository = self.repository()?.id;
        let (version, tag_move) = judged_by(self, &repository, trust, |judge| {
            let (version, tag_move) = match reference {
                Reference::Tagged(image, tag) => tagged(self, image, tag, judge)?,
                _ => (net::fetch::manifest(self, &reference.to_string())?, None),
            };
            judge.version(&format_args!("`{reference}`"), reference.image(), &version)?;
            Ok((version, tag_move))
        })?;
        Ok(Sighting { version, repository: Some(repository), tag_move })
    }

    fn judge(&self, what: &dyn Display, version: &SignedManifest, trust: &Trust) -> Result<()> {
        let image = version.manifest.image.parse()?;
        let repository = self.repository()?.id;
        judged_by(self, &repository, trust, |judge| judge.version(what, &image, version))
    }

    fn create_image(&self, image: &ImageName, shape: &Shape, _: &Stamp) -> Result<u64> {
        let request = CreateRequest {
            size_bytes: shape.size_bytes,
            chunk_bytes: Some(shape.chunk.bytes()),
            logical_sector_bytes: Some(shape.logical_sector_bytes),
        };
        self.create(image.as_str(), &request).map(|made| made.number)
    }

    fn clone_version(&self, from: &Reference, image: &ImageName, _: &Stamp) -> Result<u64> {
        self.clone_image(image.as_str(), &from.to_string()).map(|made| made.number)
    }

    fn commit_changes(
        &self,
        image: &ImageName,
        changes: &Changes<'_>,
        expected: Option<u64>,
        _: &Stamp,
    ) -> Result<Written> {
        let all = net::client::Changes { written: changes.written.to_vec(), freed: changes.freed.to_vec() };
        let mut read = |offset: u64, into: &mut [u8]| changes.content.read_at(offset, into);
        self.commit(image.as_str(), &all, &mut read, expected).map(|done| written(&done))
    }

    fn append_bytes(
        &self,
        image: &ImageName,
        bytes: u64,
        content: &dyn Content,
        _: &Stamp,
    ) -> Result<Written> {
        let mut read = |offset: u64, into: &mut [u8]| content.read_at(offset, into);
        self.append(image.as_str(), bytes, &mut read).map(|done| written(&done))
    }

    /// The server keeps uploaded objects for ten minutes and protects them from prunes, so `work` runs only once.
    fn add_version(
        &self,
        _: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        work(&There(self.another()))
    }

    fn for_one_commit(self: Arc<Self>, tell: Tell, stop: &Stop) -> Arc<dyn Images> {
        let options = ClientOptions { tell, stop: stop.clone(), ..self.options().clone() };
        Arc::new(self.with_options(options))
    }
}

impl BootProfiles for Client {
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        let found = self.profile(image, version)?;
        Ok(found.map(|profile| chunks_of(&profile.runs, PROFILE_CHUNKS_MAX)))
    }

    /// `None` also if the server does not know this request yet, or if the version no longer exists.
    fn share_reads(&self, image: &str, report: ReadReport<'_>) -> Result<Option<ReadUpdate>> {
        let ReadReport { version, machine, cursor, chunks } = report;
        let request = ExchangeRequest { version, machine, cursor, runs: runs_of(chunks) };
        let answer = if_found(self.exchange_reads(image, &request))?;
        Ok(answer.map(|answer| ReadUpdate {
            cursor: answer.cursor,
            chunks: chunks_of(&answer.runs, ANSWER_CHUNKS_MAX),
            pause: Duration::from_millis(u64::from(answer.pause_ms)),
        }))
    }

    fn record_boot(&self, image: &str, version: u64, chunks: &[u64], _: &Stamp) -> Result<()> {
        let boot = BootRequest { version, runs: runs_of(chunks) };
        self.add_boot(image, &boot).map(drop)
    }
}

/// The images of a server, each with its newest version, as [`Images::find`] gives it: one request for all of them.
///
/// # Errors
/// As [`Images::find`].
pub fn newest_versions(client: &Client) -> Result<Vec<(ImageSummary, SignedManifest)>> {
    let trust = client.options().trust.as_ref();
    let trusted = trust.map(|trust| Ok((trust, client.repository()?.id))).transpose()?;
    let each = client.images_with_manifests()?.into_iter().map(|(summary, manifest)| {
        let reference = format!("{}@{}", summary.name, summary.latest);
        let version = match manifest {
            Some(manifest) => net::fetch::version(&manifest, &reference)?,
            None => net::fetch::manifest(client, &reference)?,
        };
        if let Some((trust, repository)) = &trusted {
            let image = summary.name.parse()?;
            let what = format!("`{reference}`");
            judged_by(client, repository, trust, |judge| judge.version(&what, &image, &version))?;
        }
        Ok((summary, version))
    });
    each.collect()
}

/// Calls `with` with a judge about signatures in the server's repository, whose id the server says. A client pins the
/// id, or remembers it.
fn judged_by<T>(
    client: &Client,
    repository: &str,
    trust: &Trust,
    with: impl FnOnce(Judge<'_>) -> Result<T>,
) -> Result<T> {
    let cut_over = |image: &ImageName| client.cut_over(image.as_str());
    with(Judge { trust, repository, cipher: client.cipher(), cut_over: &cut_over })
}

/// The version that the signed tag `tag` names, and the number of the tag's newest move. Fails with `Verification` if
/// the server has another version of that number.
fn tagged(
    client: &Client,
    image: &ImageName,
    tag: &TagName,
    judge: Judge<'_>,
) -> Result<(SignedManifest, Option<u64>)> {
    let newest = judge.tag(image, tag, client.tag(image.as_str(), tag.as_str())?)?;
    let number = newest.version;
    let version = net::fetch::manifest(client, &format!("{image}@{number}"))?;
    if version.digest() == newest.manifest {
        return Ok((version, Some(newest.number)));
    }
    let text = format!("`{image}:{tag}` was put on another version {number} than the server has");
    Err(Error::new(ErrorKind::Verification, text))
}

fn written(done: &net::api::Written) -> Written {
    Written {
        number: done.number,
        stored_bytes: done.stored_bytes,
        retries: done.retries,
        merged_chunks: done.merged_chunks,
    }
}

/// A version that is being added through a server, as one upload.
struct There(Client);

impl ObjectSource for There {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.0.fetch(object)
    }
}

impl ObjectSink for There {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.0.put(object, bytes)
    }
}

impl Addition for There {
    fn cipher(&self) -> &Cipher {
        self.0.cipher()
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest> {
        // The server knows the image under its own name, which must be the name in the manifest.
        let draft = Manifest { image: image.to_string(), ..draft }.encode(None)?;
        let published = self.0.publish_onto(image.as_str(), draft, expected)?;
        Manifest::decode(&published).map_err(|error| error.within(format!("publish `{image}`")))
    }
}
