//! Reads tree nodes through a cache of recently read and written ones.

use base::{Digest, Result};
use bytes::Bytes;
use image::tree::NodeSource;
use image::{ObjectRef, ObjectSource, Verified};

use crate::digest_cache::DigestCache;
use crate::repository::Repository;

/// Most bytes of nodes that a repository keeps in memory.
const CACHE_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
struct NodeCache(DigestCache<CACHE_BYTES_MAX>);

/// Reads the nodes of a repository through its cache. Nodes were verified before they entered the cache.
pub(crate) struct Nodes<'a>(pub(crate) &'a Repository);

impl Nodes<'_> {
    /// Adds a new node to the cache.
    pub(crate) fn keep(&self, digest: Digest, bytes: &Bytes) {
        self.0.memory.get::<NodeCache>().0.keep(digest, bytes);
    }
}

impl ObjectSource for Nodes<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let cache = &self.0.memory.get::<NodeCache>().0;
        if let Some(bytes) = cache.get(&object.digest) {
            return Ok(bytes);
        }
        let bytes = self.0.fetch(object)?;
        cache.keep(object.digest, &bytes);
        Ok(bytes)
    }
}

impl NodeSource for Nodes<'_> {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        self.0.cipher().decrypt_object(object.kind, &self.verified(object)?)
    }
}
