//! The traits of a source and a sink of objects, and objects in memory, which implement both.

use std::collections::HashMap;

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use parking_lot::RwLock;

use crate::object::{ObjectRef, Verified};

/// A source of objects: a repository, a server, memory. Called by many threads at once.
pub trait ObjectSource: Send + Sync {
    /// The bytes of `object`. `NotFound` if the source has no such object. The caller must verify the bytes against the
    /// reference.
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes>;

    /// The same, verified: `Corrupt` if the source has only other bytes. A source with several copies tries all of
    /// them.
    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        object.verified(self.fetch(object)?)
    }
}

/// A sink of objects. Called by many threads at once.
pub trait ObjectSink: Send + Sync {
    /// Whether the sink holds `object` already.
    fn contains(&self, object: &ObjectRef) -> Result<bool>;

    /// Stores `bytes`, whose reference is `object`. Storing an object twice is no error and is cheap.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()>;
}

/// Objects in memory: a source and a sink for tests and measurements.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    objects: RwLock<HashMap<Digest, Bytes>>,
}

impl MemoryObjects {
    /// No objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.read().len()
    }

    /// Sum of their lengths, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let objects = self.objects.read();
        objects.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Stores `bytes` under the reference `object` even if they do not match, for tests of bad input. `None` removes
    /// the object.
    pub fn tamper(&self, object: &ObjectRef, bytes: Option<Bytes>) {
        let mut objects = self.objects.write();
        match bytes {
            Some(bytes) => objects.insert(object.digest, bytes),
            None => objects.remove(&object.digest),
        };
    }
}

impl ObjectSource for MemoryObjects {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let objects = self.objects.read();
        let found = objects.get(&object.digest).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{object} is not in memory")))
    }
}

impl ObjectSink for MemoryObjects {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        Ok(self.objects.read().contains_key(&object.digest))
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        debug_assert!(object.verify(&bytes).is_ok());
        self.objects.write().entry(object.digest).or_insert(bytes);
        Ok(())
    }
}
