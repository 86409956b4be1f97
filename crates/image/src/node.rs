//! Tree nodes: up to 256 leaves or subtrees, encoded as one object. `formats/image.md`, "Node".
//!
//! Like a chunk, a node does not hold its position in the tree, so equal subtrees are one object.

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
/// Offset of the number of entries in the header.
const COUNT_AT: usize = 10;

/// A subtree, as its parent node describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// All its chunks are free.
    Free,
    /// All its chunks are fully allocated and contain only zeros.
    Zero,
    /// The subtree has a node.
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
    /// The name of the subtree's node; `None` if the subtree is free or zero.
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

/// The entries of a node. It may have fewer than 256: the missing entries are free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Level 0: up to 256 chunks.
    Leaves(Vec<Leaf>),
    /// Any higher level: up to 256 subtrees of the level below.
    Children(Vec<Child>),
}

impl Node {
    /// Reads a node of `level` (0 for a node of leaves) in an image whose chunks have `size`. `Corrupt` if the object
    /// is not a node, or has another level or chunk size; `Unsupported` if it has a newer format.
    pub fn decode(object: &Verified, level: u8, size: ChunkSize) -> Result<Self> {
        let cut = |_| Error::corrupt("a tree node ends early");
        let mut reader = Reader::new(object.bytes());
        if reader.array().map_err(cut)? != MAGIC {
            return Err(Error::corrupt("this object is not a tree node"));
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
        // A free entry at the end would be a second encoding of the same subtree, with another digest.
        if last_is_free || reader.remaining() > 0 {
            return Err(Error::corrupt("a tree node has a free entry or other bytes at its end"));
        }
        Ok(node)
    }
}

impl Node {
    /// How many entries the node has, missing ones not counted.
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

    /// Encodes these entries as a node of `level`. Returns the subtree and the node's object, encrypted with
    /// `cipher`; `None` if the subtree is free or zero and needs no node. `Refused` if `cipher` has no key.
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

/// Encodes one node from its entries, in ascending order.
#[derive(Debug)]
pub(crate) struct NodeBuilder {
    level: u8,
    bytes: Vec<u8>,
    /// Entries so far, free ones included.
    count: u16,
    /// Entries that are full zeros.
    zeros: u16,
}

impl NodeBuilder {
    /// A builder of a node of `level`, without entries so far.
    pub(crate) fn new(level: u8, size: ChunkSize) -> Self {
        assert!(level < TREE_HEIGHT_MAX);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend([VERSION, 0, 0, size.log2(), level, 0]);
        debug_assert_eq!(bytes.len(), COUNT_AT);
        bytes.resize(HEADER_BYTES, 0);
        Self { level, bytes, count: 0, zeros: 0 }
    }

    /// Adds `leaf` at `slot`, 0 to 255, above all slots so far. The slots between are free.
    pub(crate) fn push_leaf(&mut self, slot: u16, leaf: &Leaf) {
        assert_eq!(self.level, 0);
        self.skip_to(slot);
        leaf.encode(&mut self.bytes);
        self.zeros += u16::from(leaf.is_full_zero());
    }

    /// Adds `child` at `slot`, 0 to 255, above all slots so far. The slots between are free.
    pub(crate) fn push_child(&mut self, slot: u16, child: Child) {
        assert!(self.level > 0);
        self.skip_to(slot);
        child.encode(&mut self.bytes);
        self.zeros += u16::from(child == Child::Zero);
    }

    fn skip_to(&mut self, slot: u16) {
        assert!(slot >= self.count && u64::from(slot) < TREE_FANOUT, "entries ascend");
        // A free entry is one byte `FREE`, for leaves and children alike.
        self.bytes.resize(self.bytes.len() + usize::from(slot - self.count), FREE);
        self.count = slot + 1;
    }

    /// Finishes the node. Returns the subtree and the node's object, encrypted with `cipher`; `None` if the subtree
    /// is free or zero and needs no node. The builder is empty afterwards. `Refused` if `cipher` has no key.
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
