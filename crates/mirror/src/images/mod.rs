//! The images of a local repository or of a server: one trait with two implementations. Commands, disks and mounts
//! use the trait and need not know which of the two they have.

mod repository;
mod server;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, Result};
use image::{Cipher, Manifest, ObjectSink, ObjectSource, SignedManifest, Trust};
use net::clock::Stop;
use net::profile::Cursor;
use store::{Changes, Content, ImageName, Reference, Shape, Stamp, TagName};

pub use server::newest_versions;

/// See the module. Calls block, and several threads may make them at the same time. `stamp` records who makes a
/// change and when; a server ignores it and uses its own.
pub trait Images: BootProfiles {
    /// Names of all images.
    fn image_names(&self) -> Result<Vec<ImageName>>;

    /// Numbers of the versions of `image`, ascending.
    fn version_numbers(&self, image: &ImageName) -> Result<Vec<u64>>;

    /// Tags of `image`.
    fn tag_names(&self, image: &ImageName) -> Result<Vec<TagName>>;

    /// The version that `reference` names. If only some keys are trusted, one of them must have signed it, and the
    /// tag, for this repository. `NotFound` if there is no such version or image.
    fn find(&self, reference: &Reference) -> Result<SignedManifest> {
        self.sight(reference).map(|sighting| sighting.version)
    }

    /// [`Self::find`], with what shows later whether the repository went back to an older state.
    fn sight(&self, reference: &Reference) -> Result<Sighting>;

    /// Succeeds if a key in `trust` signed `version`, which [`Self::find`] returned, for this repository. `what` names
    /// it in errors. `Refused` if not, `Corrupt` if a signature is forged.
    fn judge(&self, what: &dyn Display, version: &SignedManifest, trust: &Trust) -> Result<()>;

    /// Makes an empty image and returns the number of its first version.
    fn create_image(&self, image: &ImageName, shape: &Shape, stamp: &Stamp) -> Result<u64>;

    /// Makes `image` as a copy of the version `from`, and returns the number of its first version.
    fn clone_version(&self, from: &Reference, image: &ImageName, stamp: &Stamp) -> Result<u64>;

    /// Makes a version of `image` with `changes`. It follows version `expected` if that is given, else the newest
    /// version.
    fn commit_changes(
        &self,
        image: &ImageName,
        changes: &Changes<'_>,
        expected: Option<u64>,
        stamp: &Stamp,
    ) -> Result<Written>;

    /// Makes a version of `image` that has the first `bytes` bytes of `content` appended to its end.
    fn append_bytes(
        &self,
        image: &ImageName,
        bytes: u64,
        content: &dyn Content,
        stamp: &Stamp,
    ) -> Result<Written>;

    /// Runs `work`, which adds one version. Runs it again if the objects that it sent may have been lost.
    fn add_version(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest>;

    /// The same images, for one commit. If they are on a server, `tell` gets a text for each thing that the commit
    /// waits for, and `stop` cancels the commit. A local repository ignores both.
    fn for_one_commit(self: Arc<Self>, tell: Tell, stop: &Stop) -> Arc<dyn Images>
    where
        Self: 'static;
}

/// What machines read when they boot, as far as it is known. All of it is only hints.
pub trait BootProfiles: Send + Sync {
    /// The chunks that a machine booting from this version probably reads, in order. `None` if no boot of it is
    /// known.
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>>;

    /// Sends the chunks that this machine has just read, at most `EXCHANGE_CHUNKS_MAX`, and returns the chunks that
    /// other machines have read. `None` if no other machine can be reached this way.
    fn share_reads(&self, image: &str, report: ReadReport<'_>) -> Result<Option<ReadUpdate>>;

    /// Adds one boot to the profile: the chunks that it read, in the order of their first reads.
    fn record_boot(&self, image: &str, version: u64, chunks: &[u64], stamp: &Stamp) -> Result<()>;
}

/// Called with a text that says what a commit is waiting for.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// A version that is being made: its objects are put first, then it is published.
pub trait Addition: ObjectSource + ObjectSink {
    /// How the objects of the version are encrypted.
    fn cipher(&self) -> &Cipher;

    /// How many objects should be sent in parallel for the best throughput.
    fn at_once(&self) -> usize;

    /// Publishes `draft` as the version of `image` that follows version `expected`; 0 if the image does not exist
    /// yet. `Refused` if the newest version is another one by then (the error names its number), or if an object was
    /// never put.
    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest>;
}

/// A version that [`Images::sight`] found.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// The version.
    pub version: SignedManifest,
    /// If keys are trusted: the repository's id, in which the signatures count.
    pub repository: Option<String>,
    /// If keys are trusted and the reference was a tag: the number of its newest move, which is signed, too.
    pub tag_move: Option<u64>,
}

/// A version that was made by [`Images::commit_changes`] or [`Images::append_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its number.
    pub number: u64,
    /// Bytes that were added to the store.
    pub stored_bytes: u64,
    /// How often another writer had already taken the version number, so that this one retried.
    pub retries: u32,
    /// Chunks that other writers changed at the same time, and that were merged.
    pub merged_chunks: u64,
}

/// What a booting machine reports about its reads.
#[derive(Debug, Clone, Copy)]
pub struct ReadReport<'a> {
    /// The version that it runs.
    pub version: u64,
    /// A random number that identifies the machine.
    pub machine: u64,
    /// Up to where the machine knows the reads of others: the cursor of the last answer.
    pub cursor: Cursor,
    /// The chunks that it read, in the order of their first reads.
    pub chunks: &'a [u64],
}

/// The answer to a [`ReadReport`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadUpdate {
    /// To be sent with the next report.
    pub cursor: Cursor,
    /// The chunks that other machines read, in the order of their first reads.
    pub chunks: Vec<u64>,
    /// The minimum time until the next report.
    pub pause: Duration,
}

/// Turns the error `NotFound` into `None`. Other errors stay errors.
pub fn if_found<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
