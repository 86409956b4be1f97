//! Tree nodes on their way: a cache of those that were read or written lately, and those of a tree that is not stored
//! yet.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::Digest;
use bytes::Bytes;
use image::tree::NodeSource;
use image::{Cipher, ObjectRef, ObjectSink, ObjectSource, Result, Verified};

use super::upload::Upload;
use crate::repository::Repository;

/// Most bytes of nodes that a repository keeps in memory.
const CACHE_BYTES_MAX: usize = 16 << 20;
/// Most bytes of nodes of one unpublished tree that wait in memory; further ones are stored at once.
const STAGED_BYTES_MAX: usize = 8 << 20;

/// Nodes by digest, first in, first out.
#[derive(Debug, Default)]
pub(crate) struct NodeCache(Mutex<Kept>);

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes of a repository, through its cache. What the cache holds was verified when it went in.
pub(crate) struct Nodes<'a>(pub(crate) &'a Repository);

impl ObjectSource for Nodes<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let cache = &self.0.blobs.nodes;
        if let Some(bytes) = cache.get(&object.digest) {
            return Ok(bytes);
        }
        let bytes = self.0.fetch(object)?;
        cache.keep(object.digest, &bytes);
        Ok(bytes)
    }

    fn cipher(&self) -> Cipher {
        self.0.cipher().clone()
    }
}

impl NodeSource for Nodes<'_> {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        self.0.cipher().open_object(object.kind, &self.verified(object)?)
    }
}

/// The nodes of a tree that is being made over a repository.
pub(super) struct Staging<'a> {
    repository: &'a Repository,
    upload: &'a Upload<'a>,
    staged: Mutex<Staged>,
}

#[derive(Default)]
struct Staged {
    nodes: HashMap<Digest, (ObjectRef, Bytes)>,
    /// Of all nodes that were put since, also of those that did not wait.
    bytes: usize,
}

impl<'a> Staging<'a> {
    pub(super) fn new(repository: &'a Repository, upload: &'a Upload<'a>) -> Self {
        Self { repository, upload, staged: Mutex::default() }
    }

    /// Stores the nodes that wait.
    pub(super) fn store(&self) -> Result<()> {
        let staged = std::mem::take(&mut *self.lock());
        staged.nodes.into_values().try_for_each(|(object, bytes)| {
            self.repository.blobs.nodes.keep(object.digest, &bytes);
            self.upload.put(&object, bytes)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectSource for Staging<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let found = self.lock().nodes.get(&object.digest).map(|(_, bytes)| bytes.clone());
        found.map_or_else(|| Nodes(self.repository).fetch(object), Ok)
    }

    fn cipher(&self) -> Cipher {
        self.repository.cipher().clone()
    }
}

impl ObjectSink for Staging<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        Ok(self.lock().nodes.contains_key(&object.digest) || self.upload.contains(object)?)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        let mut staged = self.lock();
        staged.bytes += bytes.len();
        if staged.bytes > STAGED_BYTES_MAX {
            drop(staged);
            return self.upload.put(object, bytes);
        }
        staged.nodes.insert(object.digest, (*object, bytes));
        Ok(())
    }

    fn cipher(&self) -> Cipher {
        self.repository.cipher().clone()
    }
}
