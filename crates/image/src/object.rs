//! Objects: what an image is stored as and sent in, and the two seams through which they come and go.
//!
//! An object is a chunk or a tree node: bytes that are named by their BLAKE3 digest and never change.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use base::Digest;
use base::limits::SEALED_BYTES_MORE;
use bytes::Bytes;

use crate::cipher::Cipher;
use crate::error::corrupt;
use crate::{Error, ErrorKind, Result};

/// Which of the two an object is. Stores keep them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// The encoded content of a chunk.
    Chunk,
    /// A node of the tree.
    Node,
}

/// Names one object: what it is, the digest of its bytes, and how many they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Chunk or node.
    pub kind: ObjectKind,
    /// Length of the object in bytes.
    pub len: u32,
    /// BLAKE3 of the object's bytes.
    pub digest: Digest,
}

impl ObjectRef {
    /// The name of `bytes` as an object of `kind`.
    #[must_use]
    pub fn of(kind: ObjectKind, bytes: &[u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("objects are limited to OBJECT_BYTES_MAX");
        Self { kind, len, digest: Digest::of(bytes) }
    }

    /// `bytes` as the object that this names; `Corrupt` if they are anything else.
    pub fn verified(&self, bytes: Bytes) -> Result<Verified> {
        self.verify(&bytes).map(|()| Verified { bytes, was_sealed: false })
    }

    /// `Corrupt` unless `bytes` are the object that this names.
    pub fn verify(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 != u64::from(self.len) {
            return Err(corrupt(format!("{self} should have {} bytes and has {}", self.len, bytes.len())));
        }
        match Digest::of(bytes) {
            digest if digest == self.digest => Ok(()),
            digest => Err(corrupt(format!("{self} has other content, of digest {}", digest.short()))),
        }
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            ObjectKind::Chunk => "chunk",
            ObjectKind::Node => "node",
        };
        write!(f, "{kind} {}", self.digest.short())
    }
}

/// The bytes of an object that were held against its digest, or that opened with its key. Only such bytes are parsed, decompressed or written.
#[derive(Debug, Clone)]
pub struct Verified {
    bytes: Bytes,
    was_sealed: bool,
}

impl Verified {
    /// What an object says that was sealed, and opened with its key.
    pub(crate) fn opened(plain: Vec<u8>) -> Self {
        Self { bytes: plain.into(), was_sealed: true }
    }

    /// Bytes that sealing adds to the objects that this one names: it is sealed as they are.
    pub(crate) fn sealed_bytes_more(&self) -> u32 {
        if self.was_sealed { SEALED_BYTES_MORE } else { 0 }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Where objects come from: a repository, a server, memory. Called by many threads at once.
pub trait ObjectSource: Send + Sync {
    /// The bytes of `object`. `NotFound` if the source has no such object. What comes back is not trusted: the
    /// caller verifies it against the reference.
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes>;

    /// The same, held against its name: `Corrupt` if the source has nothing else. A source that has several copies tries them.
    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        object.verified(self.fetch(object)?)
    }

    /// How its objects are kept. What it fetches is opened with that, and not by itself: who passes objects on needs no
    /// key.
    fn cipher(&self) -> Cipher {
        Cipher::None
    }
}

/// Where objects go. Called by many threads at once.
pub trait ObjectSink: Send + Sync {
    /// Whether the sink holds `object` already.
    fn contains(&self, object: &ObjectRef) -> Result<bool>;

    /// Keeps `bytes`, which are what `object` names. Putting an object twice is no error and costs little.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()>;

    /// How its objects are to be kept: whoever makes one seals it with that before it gets its name.
    fn cipher(&self) -> Cipher {
        Cipher::None
    }
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

    /// How many objects it holds.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// How many bytes its objects have together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Puts `bytes` under the name of `object` even if they are not what it names, for tests of bad input. `None`
    /// takes the object away.
    pub fn tamper(&self, object: &ObjectRef, bytes: Option<Bytes>) {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        match bytes {
            Some(bytes) => objects.insert(object.digest, bytes),
            None => objects.remove(&object.digest),
        };
    }
}

impl ObjectSource for MemoryObjects {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        let found = objects.get(&object.digest).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{object} is not in memory")))
    }
}

impl ObjectSink for MemoryObjects {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        Ok(self.objects.read().unwrap_or_else(PoisonError::into_inner).contains_key(&object.digest))
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        debug_assert!(object.verify(&bytes).is_ok());
        self.objects.write().unwrap_or_else(PoisonError::into_inner).entry(object.digest).or_insert(bytes);
        Ok(())
    }
}
