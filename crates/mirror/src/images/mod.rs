//! The images of a repository that is here or behind a server: one trait, and its two implementations. Commands, disks
//! and mounts use it, and do not ask which of the two they have.

mod repository;
mod server;

use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, Result};
use image::{Manifest, ObjectSink, ObjectSource, SignedManifest};
use net::clock::Stop;
use net::profile::Cursor;
use store::{Changes, Content, ImageName, Reference, Shape, Stamp, TagName};

/// See the module. Calls block, and several threads may make them at once. `stamp` says who changes something, and
/// when; a server uses its own.
pub trait Images: BootProfiles {
    /// Names of all images.
    fn image_names(&self) -> Result<Vec<ImageName>>;

    /// Numbers of the versions of `image`, ascending.
    fn version_numbers(&self, image: &ImageName) -> Result<Vec<u64>>;

    /// Tags of `image`.
    fn tag_names(&self, image: &ImageName) -> Result<Vec<TagName>>;

    /// The version that `reference` names, signed by a trusted key if only some are trusted. `NotFound` if there is no
    /// such version or image.
    fn find(&self, reference: &Reference) -> Result<SignedManifest>;

    /// Makes an empty image. The number of its version.
    fn create_image(&self, image: &ImageName, shape: &Shape, stamp: &Stamp) -> Result<u64>;

    /// Makes `image`, which begins as the version `from`. The number of its version.
    fn clone_version(&self, from: &Reference, image: &ImageName, stamp: &Stamp) -> Result<u64>;

    /// Makes a version of `image` with `changes`, onto version `expected` if that is given, else onto the newest.
    fn commit_changes(
        &self,
        image: &ImageName,
        changes: &Changes<'_>,
        expected: Option<u64>,
        stamp: &Stamp,
    ) -> Result<Written>;

    /// Makes a version of `image` with the first `bytes` bytes of `content` after its end.
    fn append_bytes(
        &self,
        image: &ImageName,
        bytes: u64,
        content: &dyn Content,
        stamp: &Stamp,
    ) -> Result<Written>;

    /// Does `work`, which adds one version, and does it again if what it sent may be lost.
    fn add_version(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest>;

    /// The same images for one commit: `tell` is told in words what it waits for, and `stop` calls it off, where they
    /// are behind a server.
    fn for_one_commit(self: Arc<Self>, tell: Tell, stop: &Stop) -> Arc<dyn Images>
    where
        Self: 'static;
}

/// What machines read when they start, as far as it is known. All of it is hints.
pub trait BootProfiles: Send + Sync {
    /// The chunks that a machine which starts from this version probably reads, in order. `None` if no boot of it is
    /// known.
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>>;

    /// Tells others what this machine has just read, at most `EXCHANGE_CHUNKS_MAX` chunks, and returns what they have
    /// read. `None` if nobody else can be reached through this.
    fn share_reads(&self, image: &str, report: ReadReport<'_>) -> Result<Option<ReadUpdate>>;

    /// Adds a boot to the profile: the chunks that it read, in the order of first reads.
    fn record_boot(&self, image: &str, version: u64, chunks: &[u64], stamp: &Stamp) -> Result<()>;
}

/// Is told in words what is waited for.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// A version on its way: objects are put, then it is published.
pub trait Addition: ObjectSource + ObjectSink {
    /// How many objects are best on their way at once.
    fn at_once(&self) -> usize;

    /// Publishes `draft` as the version of `image` that follows version `expected`, 0 if there is no such image.
    /// `Refused` with the newest one's number if that is another by then, or if an object was never put.
    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest>;
}

/// A version that was made by [`Images::commit_changes`] or [`Images::append_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its number.
    pub number: u64,
    /// Bytes that went into the store.
    pub stored_bytes: u64,
    /// How often another writer had taken the number.
    pub retries: u32,
    /// Chunks that others wrote at the same time.
    pub merged_chunks: u64,
}

/// What a machine that starts tells others.
#[derive(Debug, Clone, Copy)]
pub struct ReadReport<'a> {
    /// The version that it runs.
    pub version: u64,
    /// A random number of its own.
    pub machine: u64,
    /// How far it knows what others read: as the last answer had it.
    pub cursor: Cursor,
    /// What it read, in the order of first reads.
    pub chunks: &'a [u64],
}

/// What it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadUpdate {
    /// For the next exchange.
    pub cursor: Cursor,
    /// What others read, in the order of first reads.
    pub chunks: Vec<u64>,
    /// The next exchange is not to come earlier than this.
    pub pause: Duration,
}

/// What was found; `None` if there is no such thing.
pub fn if_found<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
