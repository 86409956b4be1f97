//! Tree nodes: 256 leaves, or 256 smaller trees, as one object. `formats/image.md`, "Node".
//!
//! As for chunks, a node does not say where it belongs: equal subtrees are one object.

use base::limits::{NODE_BYTES_MAX, TREE_FANOUT, TREE_HEIGHT_MAX};
use base::wire::Reader;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;

use crate::cipher::Cipher;
use crate::extents::ChunkSize;
use crate::leaf::Leaf;
use crate::object::{ObjectKind, ObjectRef, Verified};

const MAGIC: [u8; 4] = *b"DCND";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const COUNT_AT: usize = 10;

/// A subtree, as described in its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// All its chunks are free.
    Free,
    /// All its chunks are fully allocated and hold zeros.
    Zero,
    /// It has a node.
    Node {
        /// Length of the node's object in bytes.
        len: u32,
        /// Digest of the node's object.
        digest: Digest,
    },
}

const FREE: u8 = 0;
const ZERO: u8 = 1;
const NODE: u8 = 2;

impl Child {
    /// The node's object; `None` if the subtree is free or zero.
    #[must_use]
    pub fn object(&self) -> Option<ObjectRef> {
        match *self {
            Self::Node { len, digest } => Some(ObjectRef { kind: ObjectKind::Node, len, digest }),
            Self::Free | Self::Zero => None,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Free => out.push(FREE),
            Self::Zero => out.push(ZERO),
            Self::Node { len, digest } => {
                out.push(NODE);
                out.extend(len.to_le_bytes());
                out.extend(digest.0);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let cut = |_| Error::corrupt("a tree node ends early");
        match reader.u8().map_err(cut)? {
            FREE => Ok(Self::Free),
            ZERO => Ok(Self::Zero),
            NODE => {
                let len = reader.u32().map_err(cut)?;
                if len as usize <= HEADER_BYTES || len > NODE_BYTES_MAX {
                    return Err(Error::corrupt(format!("a tree node names a child of {len} bytes")));
                }
                Ok(Self::Node { len, digest: Digest(reader.array().map_err(cut)?) })
            }
            tag => Err(Error::corrupt(format!("unknown state {tag} of a subtree"))),
        }
    }
}

/// The contents of a node. Missing entries are free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Level 0: up to 256 chunks.
    Leaves(Vec<Leaf>),
    /// Any higher level: up to 256 subtrees of the level below.
    Children(Vec<Child>),
}

impl Node {
    /// Reads a node of `level` (0: of leaves) in an image with chunks of `size`. `Corrupt` if it is not a valid node of
    /// this level; `Unsupported` if it has a newer format.
    pub fn decode(object: &Verified, level: u8, size: ChunkSize) -> Result<Self> {
        let cut = |_| Error::corrupt("a tree node ends early");
        let mut reader = Reader::new(object.bytes());
        if reader.array().map_err(cut)? != MAGIC {
            return Err(Error::corrupt("this object is no tree node"));
        }
        let [version, cipher, flags, log2, found_level, pad] = reader.array::<6>().map_err(cut)?;
        let count = reader.u16().map_err(cut)?;
        let padding = reader.u32().map_err(cut)?;
        if version != VERSION || cipher != 0 || flags != 0 || pad != 0 || padding != 0 {
            let text = format!("a tree node of version {version}, cipher {cipher}, flags {flags:#x}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if (found_level, log2) != (level, size.log2()) {
            let text =
                format!("a node of level {found_level} of 2^{log2}-byte chunks stands at level {level}");
            return Err(Error::corrupt(text));
        }
        if count == 0 || u64::from(count) > TREE_FANOUT {
            return Err(Error::corrupt(format!("a tree node of {count} entries")));
        }
        let (node, last_is_free) = if level == 0 {
            let leaves: Vec<Leaf> = (0..count)
                .map(|_| Leaf::decode(&mut reader, size, object.sealed_bytes_more()))
                .collect::<Result<_>>()?;
            let last_is_free = leaves.last() == Some(&Leaf::Free);
            (Self::Leaves(leaves), last_is_free)
        } else {
            let children: Vec<Child> =
                (0..count).map(|_| Child::decode(&mut reader)).collect::<Result<_>>()?;
            let last_is_free = children.last() == Some(&Child::Free);
            (Self::Children(children), last_is_free)
        };
        if last_is_free || reader.remaining() > 0 {
            return Err(Error::corrupt("a tree node holds more than it needs"));
        }
        Ok(node)
    }
}

impl Node {
    /// How many entries there are.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "only a subtree that is free has no entries, and that has no node"
    )]
    pub fn len(&self) -> usize {
        match self {
            Self::Leaves(leaves) => leaves.len(),
            Self::Children(children) => children.len(),
        }
    }

    /// The subtree of a node of `level` with these entries. If it needs a node, also the bytes of its object, encrypted
    /// with `cipher`.
    pub(crate) fn encode(
        &self,
        level: u8,
        size: ChunkSize,
        cipher: &Cipher,
    ) -> Result<(Child, Option<Bytes>)> {
        let mut builder = NodeBuilder::new(level, size);
        match self {
            Self::Leaves(leaves) => (0..).zip(leaves).for_each(|(slot, leaf)| {
                if *leaf != Leaf::Free {
                    builder.push_leaf(slot, leaf);
                }
            }),
            Self::Children(children) => (0..).zip(children).for_each(|(slot, child)| {
                if *child != Child::Free {
                    builder.push_child(slot, *child);
                }
            }),
        }
        builder.close(cipher)
    }
}

/// Collects the entries of one node in ascending order.
#[derive(Debug)]
pub(crate) struct NodeBuilder {
    level: u8,
    bytes: Vec<u8>,
    count: u16,
    zeros: u16,
}

impl NodeBuilder {
    pub(crate) fn new(level: u8, size: ChunkSize) -> Self {
        assert!(level < TREE_HEIGHT_MAX);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend([VERSION, 0, 0, size.log2(), level, 0]);
        debug_assert_eq!(bytes.len(), COUNT_AT);
        bytes.resize(HEADER_BYTES, 0);
        Self { level, bytes, count: 0, zeros: 0 }
    }

    pub(crate) fn push_leaf(&mut self, slot: u16, leaf: &Leaf) {
        assert_eq!(self.level, 0);
        self.skip_to(slot);
        leaf.encode(&mut self.bytes);
        self.zeros += u16::from(leaf.is_full_zero());
    }

    pub(crate) fn push_child(&mut self, slot: u16, child: Child) {
        assert!(self.level > 0);
        self.skip_to(slot);
        child.encode(&mut self.bytes);
        self.zeros += u16::from(child == Child::Zero);
    }

    fn skip_to(&mut self, slot: u16) {
        assert!(slot >= self.count && u64::from(slot) < TREE_FANOUT, "entries ascend");
        // A free entry is one zero byte.
        self.bytes.resize(self.bytes.len() + usize::from(slot - self.count), FREE);
        self.count = slot + 1;
    }

    /// The subtree and, if it needs a node, its bytes, encrypted with `cipher`. The builder is empty afterwards.
    pub(crate) fn close(&mut self, cipher: &Cipher) -> Result<(Child, Option<Bytes>)> {
        let (count, zeros) = (std::mem::take(&mut self.count), std::mem::take(&mut self.zeros));
        if count == 0 || u64::from(zeros) == TREE_FANOUT {
            self.bytes.truncate(HEADER_BYTES);
            return Ok((if count == 0 { Child::Free } else { Child::Zero }, None));
        }
        self.bytes[COUNT_AT..COUNT_AT + 2].copy_from_slice(&count.to_le_bytes());
        let bytes = cipher.encrypt_object(ObjectKind::Node, self.bytes.clone())?;
        self.bytes.truncate(HEADER_BYTES);
        let object = ObjectRef::of(ObjectKind::Node, &bytes);
        Ok((Child::Node { len: object.len, digest: object.digest }, Some(bytes)))
    }
}
