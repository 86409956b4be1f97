//! Reads tree nodes through a cache of recently read and written ones.

use std::collections::{HashMap, VecDeque};

use base::{Digest, Result};
use bytes::Bytes;
use image::tree::NodeSource;
use image::{ObjectRef, ObjectSource, Verified};
use parking_lot::{Mutex, MutexGuard};

use crate::repository::Repository;

/// Most bytes of nodes that a repository keeps in memory.
const CACHE_BYTES_MAX: usize = 16 << 20;

/// Nodes by digest; the oldest are evicted first.
#[derive(Debug, Default)]
struct NodeCache(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    nodes: HashMap<Digest, Bytes>,
    order: VecDeque<Digest>,
    bytes: usize,
}

impl NodeCache {
    fn get(&self, digest: &Digest) -> Option<Bytes> {
        self.lock().nodes.get(digest).cloned()
    }

    fn keep(&self, digest: Digest, bytes: &Bytes) {
        let mut kept = self.lock();
        if kept.nodes.insert(digest, bytes.clone()).is_none() {
            kept.order.push_back(digest);
            kept.bytes += bytes.len();
        }
        while kept.bytes > CACHE_BYTES_MAX {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.bytes -= kept.nodes.remove(&oldest).map_or(0, |bytes| bytes.len());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock()
    }
}

/// Reads the nodes of a repository through its cache. Nodes were verified before they entered the cache.
pub(crate) struct Nodes<'a>(pub(crate) &'a Repository);

impl Nodes<'_> {
    /// Adds a new node to the cache.
    pub(crate) fn keep(&self, digest: Digest, bytes: &Bytes) {
        self.0.memory.get::<NodeCache>().keep(digest, bytes);
    }
}

impl ObjectSource for Nodes<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let cache = self.0.memory.get::<NodeCache>();
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
