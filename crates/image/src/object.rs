//! Objects: the units in which an image is stored and sent.
//!
//! An object is a chunk or a tree node in its stored form. Its BLAKE3 digest names it, and its bytes never change.

use base::{Digest, Result};
use base::{Error, limits::SEALED_BYTES_MORE};
use bytes::Bytes;

/// Whether an object is a chunk or a node. Stores keep the two kinds in separate places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// The encoded content of a chunk.
    Chunk,
    /// A node of the tree.
    Node,
}

/// The name of an object: its kind, its length and the digest of its bytes.
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

    /// Verifies that `bytes` are the object with this name, and returns them. `Corrupt` if they are not.
    pub fn verified(&self, bytes: Bytes) -> Result<Verified> {
        self.verify(&bytes).map(|()| Verified { bytes, was_sealed: false })
    }

    /// `Corrupt` unless `bytes` are the object with this name.
    pub fn verify(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 != u64::from(self.len) {
            return Err(Error::corrupt(format!(
                "{self} should have {} bytes and has {}",
                self.len,
                bytes.len()
            )));
        }
        match Digest::of(bytes) {
            digest if digest == self.digest => Ok(()),
            digest => Err(Error::corrupt(format!("{self} has other content, of digest {}", digest.short()))),
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

/// The bytes of an object after a check: they have the object's digest, or the cipher decrypted and authenticated
/// them. Only such bytes are parsed, decompressed or written.
#[derive(Debug, Clone)]
pub struct Verified {
    bytes: Bytes,
    /// Whether `bytes` are the plaintext of an encrypted object.
    was_sealed: bool,
}

impl Verified {
    /// The plaintext of an encrypted object, which the cipher authenticated.
    pub(crate) fn opened(plain: Vec<u8>) -> Self {
        Self { bytes: plain.into(), was_sealed: true }
    }

    /// How many bytes encryption adds to each object that this node names: 0 if the node was not encrypted, since
    /// then they are not encrypted either.
    pub(crate) fn sealed_bytes_more(&self) -> u32 {
        if self.was_sealed { SEALED_BYTES_MORE } else { 0 }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
