//! What a mount shows: the images and versions of a repository or a server, and where commits go.

use std::sync::Arc;

use image::Manifest;
use store::{ImageName, Reference, Repository, Stamp, TagName};

use crate::error::from_store;
use crate::{Commit, CommitOptions, Mirror, Result};

/// See the module. Calls block, and are made by several threads at once. `NotFound` if there is no such thing.
pub trait Origin: Send + Sync {
    /// Names of all images.
    fn images(&self) -> Result<Vec<ImageName>>;

    /// Numbers of the versions of `image`, ascending.
    fn versions(&self, image: &ImageName) -> Result<Vec<u64>>;

    /// Tags of `image`.
    fn tags(&self, image: &ImageName) -> Result<Vec<TagName>>;

    /// The manifest of a version, signed by somebody who is trusted if only some are.
    fn resolve(&self, reference: &Reference) -> Result<Manifest>;

    /// Makes what was written to `disk` a version of `image`. `None` if nothing was written.
    fn commit(&self, disk: &Mirror, image: &ImageName) -> Result<Option<Commit>>;
}

/// A repository as it is.
pub struct RepositoryOrigin {
    repository: Arc<Repository>,
    stamp: Box<dyn Fn() -> Stamp + Send + Sync>,
}

impl RepositoryOrigin {
    /// `stamp` says who commits, and when it is.
    pub fn new(repository: Arc<Repository>, stamp: impl Fn() -> Stamp + Send + Sync + 'static) -> Self {
        Self { repository, stamp: Box::new(stamp) }
    }
}

impl Origin for RepositoryOrigin {
    fn images(&self) -> Result<Vec<ImageName>> {
        self.repository.images().map_err(|error| from_store(error, "list images"))
    }

    fn versions(&self, image: &ImageName) -> Result<Vec<u64>> {
        let found = self.repository.versions(image);
        found.map_err(|error| from_store(error, format!("list versions of `{image}`")))
    }

    fn tags(&self, image: &ImageName) -> Result<Vec<TagName>> {
        let found = self.repository.tags(image);
        let found = found.map_err(|error| from_store(error, format!("list tags of `{image}`")))?;
        Ok(found.into_iter().map(|tag| tag.name).collect())
    }

    fn resolve(&self, reference: &Reference) -> Result<Manifest> {
        let found = self.repository.resolve(reference);
        found.map_err(|error| from_store(error, format!("look up `{reference}`")))
    }

    fn commit(&self, disk: &Mirror, image: &ImageName) -> Result<Option<Commit>> {
        disk.commit(&self.repository, image, &CommitOptions::new(&(self.stamp)()))
    }
}
