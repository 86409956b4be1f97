//! Collects the nodes of a tree that is not published yet, before they are uploaded.

use std::collections::HashMap;

use base::{Digest, Result};
use bytes::Bytes;
use image::{ObjectRef, ObjectSink, ObjectSource};
use parking_lot::{Mutex, MutexGuard};

use super::upload::Upload;
use crate::nodes::Nodes;
use crate::repository::Repository;

/// Most bytes of nodes of one unpublished tree in memory; further nodes are uploaded at once.
const STAGED_BYTES_MAX: usize = 8 << 20;

/// The nodes of a tree that is being built, on top of those in a repository.
pub(super) struct Staging<'a> {
    repository: &'a Repository,
    upload: &'a Upload<'a>,
    staged: Mutex<Staged>,
}

#[derive(Default)]
struct Staged {
    nodes: HashMap<Digest, (ObjectRef, Bytes)>,
    /// Bytes of all nodes put since the last upload, including those that were uploaded at once.
    bytes: usize,
}

impl<'a> Staging<'a> {
    pub(super) fn new(repository: &'a Repository, upload: &'a Upload<'a>) -> Self {
        Self { repository, upload, staged: Mutex::default() }
    }

    /// Uploads the collected nodes.
    pub(super) fn store(&self) -> Result<()> {
        let staged = std::mem::take(&mut *self.lock());
        staged.nodes.into_values().try_for_each(|(object, bytes)| {
            Nodes(self.repository).keep(object.digest, &bytes);
            self.upload.put(&object, bytes)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock()
    }
}

impl ObjectSource for Staging<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let found = self.lock().nodes.get(&object.digest).map(|(_, bytes)| bytes.clone());
        found.map_or_else(|| Nodes(self.repository).fetch(object), Ok)
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
}
