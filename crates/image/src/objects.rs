//! The two interfaces for objects, [`ObjectSource`] to read and [`ObjectSink`] to write, with a store in memory.

use std::collections::HashMap;

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use parking_lot::RwLock;

use crate::object::{ObjectRef, Verified};

/// Where objects come from: a repository, a server, memory. Many threads call it at the same time.
pub trait ObjectSource: Send + Sync {
    /// The bytes of `object`. `NotFound` if the source does not have it. The caller must verify the bytes: the source
    /// need not check them.
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes>;

    /// Says that `object` will be fetched soon. A source that is a disk may begin to read it; others do nothing.
    /// Returns without waiting for the bytes. Errors are left to [`Self::fetch`].
    fn read_ahead(&self, object: &ObjectRef) {
        let _ = object;
    }

    /// The bytes of `object`, of which the caller has a `damaged` copy: a source that is far away may send only what
    /// differs. Errors as for [`Self::fetch`].
    fn mend(&self, object: &ObjectRef, damaged: Vec<u8>) -> Result<Bytes> {
        drop(damaged);
        self.fetch(object)
    }

    /// The bytes of `object`, verified. `NotFound` as for [`Self::fetch`]; `Corrupt` if the source has only damaged
    /// copies. A source with several copies tries them in turn.
    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        object.verified(self.fetch(object)?)
    }
}

/// Where objects go to. Many threads call it at the same time.
pub trait ObjectSink: Send + Sync {
    /// Whether the sink holds `object` already.
    fn contains(&self, object: &ObjectRef) -> Result<bool>;

    /// Stores `bytes`, which are the object that `object` names. To put an object twice is not an error and costs
    /// little.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()>;
}

/// Objects in memory: a source and sink for tests and measurements.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    objects: RwLock<HashMap<Digest, Bytes>>,
}

impl MemoryObjects {
    /// A store without objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.read().len()
    }

    /// The length of all objects together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let objects = self.objects.read();
        objects.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Stores `bytes` under the name of `object` without a check, for tests with bad input. `None` removes the
    /// object.
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
