//! Walks trees. A node counts only if its checksum and header are right and its keys are where its parent says.

use std::ops::RangeInclusive;

use super::super::little_endian::{u32_at, u64_at};
use super::super::{Why, require};
use super::Superblock;
use super::chunks::Chunks;
use super::key::Key;
use super::sums::Sum;
use crate::volume::Volume;

/// Bytes of a node's header, of an item's head in a leaf, and of a pointer in an inner node.
const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const POINTER_BYTES: usize = 33;
/// The kind of the item of a root, and its bytes up to the level.
const ROOT: u8 = 132;
const ROOT_BYTES: usize = 239;
/// Trees of btrfs are not higher.
const LEVEL_MAX: u8 = 7;

/// Where a tree begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root {
    pub(super) logical: u64,
    pub(super) generation: u64,
    pub(super) level: u8,
}

/// What reading trees needs.
pub(super) struct Trees<'a, 'v> {
    pub(super) volume: &'a Volume<'v>,
    pub(super) superblock: &'a Superblock,
    pub(super) sum: Sum,
    pub(super) chunks: Chunks,
}

/// Takes an item of a leaf.
pub(super) type Visit<'a> = dyn FnMut(Key, &[u8]) -> Result<(), Why> + 'a;

/// A node whose header is right.
struct Node {
    bytes: Vec<u8>,
    level: u8,
    count: usize,
}

impl Trees<'_, '_> {
    /// The root of a tree, by its number in the tree of roots.
    pub(super) fn root_of(&self, tree: u64) -> Result<Root, Why> {
        let first = Key { object: tree, kind: ROOT, offset: 0 };
        let mut root = None;
        self.walk(&self.superblock.root, first..=Key { offset: u64::MAX, ..first }, &mut |_, item| {
            require(item.len() >= ROOT_BYTES, || "the root of a tree of it is damaged".to_owned())?;
            root = Some(Root { generation: u64_at(item, 160), logical: u64_at(item, 176), level: item[238] });
            Ok(())
        })?;
        root.ok_or_else(|| Why::Whole(format!("it has no tree {tree}")))
    }

    /// Visits the items of a tree whose keys are in `range`, in their order.
    pub(super) fn walk(
        &self,
        root: &Root,
        range: RangeInclusive<Key>,
        visit: &mut Visit<'_>,
    ) -> Result<(), Why> {
        require(root.level <= LEVEL_MAX, || format!("a tree of it has {} levels", root.level))?;
        self.descend(&self.node(root)?, None, &range, visit)
    }

    /// `bound`: all keys of the node are less. Keys grow from node to node, so that a walk ends.
    fn descend(
        &self,
        node: &Node,
        bound: Option<Key>,
        range: &RangeInclusive<Key>,
        visit: &mut Visit<'_>,
    ) -> Result<(), Why> {
        let keys = || (0..node.count).map(|index| node.key(index));
        let is_bound = keys().next_back().is_none_or(|last| bound.is_none_or(|bound| last < bound));
        require(is_bound && keys().is_sorted_by(|one, next| one < next), unordered)?;
        for (index, key) in keys().enumerate() {
            if node.level == 0 {
                let item = node.item(index).ok_or_else(|| Why::Whole(unordered()))?;
                if range.contains(&key) {
                    visit(key, item)?;
                }
                continue;
            }
            let next = (index + 1 < node.count).then(|| node.key(index + 1));
            if key > *range.end() || next.is_some_and(|next| next <= *range.start()) {
                continue;
            }
            let child = self.node(&node.pointer(index))?;
            require(child.count > 0 && child.key(0) == key, unordered)?;
            self.descend(&child, next.or(bound), range, visit)?;
        }
        Ok(())
    }

    /// Reads a node, or the copy of it that is right.
    fn node(&self, root: &Root) -> Result<Node, Why> {
        let chunk = &self.chunks.all()[self.chunks.find(root.logical, self.superblock.node_bytes.into())?];
        let mut bytes = vec![0; self.superblock.node_bytes as usize];
        for stripe in &chunk.stripes {
            self.volume.read(&mut bytes, stripe + (root.logical - chunk.logical))?;
            if let Some((level, count)) = self.parse(&bytes, root) {
                return Ok(Node { bytes, level, count });
            }
        }
        Err(Why::Whole(format!("the node at logical address {} is damaged", root.logical)))
    }

    /// The level of a node and how much it has, if its header is right.
    fn parse(&self, bytes: &[u8], root: &Root) -> Option<(u8, usize)> {
        let (level, count) = (bytes[100], u32_at(bytes, 96) as usize);
        let each = if level == 0 { ITEM_BYTES } else { POINTER_BYTES };
        let is_right = self.sum.matches(bytes)
            && bytes[32..48] == self.superblock.inner_uuid
            && u64_at(bytes, 48) == root.logical
            && u64_at(bytes, 80) == root.generation
            && level == root.level
            && count <= (bytes.len() - HEADER_BYTES) / each;
        is_right.then_some((level, count))
    }
}

impl Node {
    /// Where the head of an item, or a pointer, begins.
    fn at(&self, index: usize) -> usize {
        HEADER_BYTES + index * if self.level == 0 { ITEM_BYTES } else { POINTER_BYTES }
    }

    fn key(&self, index: usize) -> Key {
        Key::at(&self.bytes, self.at(index))
    }

    fn item(&self, index: usize) -> Option<&[u8]> {
        let at = self.at(index) + Key::BYTES;
        let (offset, len) = (u32_at(&self.bytes, at) as usize, u32_at(&self.bytes, at + 4) as usize);
        let start = HEADER_BYTES.checked_add(offset)?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    fn pointer(&self, index: usize) -> Root {
        let at = self.at(index) + Key::BYTES;
        Root {
            logical: u64_at(&self.bytes, at),
            generation: u64_at(&self.bytes, at + 8),
            level: self.level - 1,
        }
    }
}

fn unordered() -> String {
    "the items of a tree of it are not in order".to_owned()
}
