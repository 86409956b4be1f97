//! The tree of an image, with 256 entries per node and one leaf for each chunk. `formats/image.md`, "Tree".
//!
//! It is the segment tree of BlobSeer as a Merkle tree: a new version writes only the nodes on the paths to the
//! leaves that changed. Free subtrees have no node, so an image of 64 TiB with little content has few nodes.

use std::ops::Range;

use base::limits::{TREE_FANOUT, TREE_HEIGHT_MAX};
use base::{Digest, Error, Result};

use crate::cipher::Cipher;
use crate::extents::{ChunkExtents, ChunkSize};
use crate::leaf::Leaf;
use crate::node::{Child, Node, NodeBuilder};
use crate::object::{ObjectRef, Verified};
use crate::objects::{ObjectSink, ObjectSource};

mod diff;
mod edit;

pub use diff::{Difference, Differences};
pub use edit::TreeEditor;

/// The root of a tree, and the tree's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The whole tree as one subtree.
    pub child: Child,
    /// Number of levels, at least 1. The node of the root, if there is one, has level `height - 1`.
    pub height: u8,
    /// Number of chunks of the image, free ones included.
    pub chunk_count: u64,
}

impl Root {
    /// The height of a tree of `chunk_count` chunks: the smallest one that has room for them, at least 1.
    #[must_use]
    pub fn height_of(chunk_count: u64) -> u8 {
        (1..TREE_HEIGHT_MAX).find(|&height| chunk_count <= span(height)).unwrap_or(TREE_HEIGHT_MAX)
    }

    /// One name for all that the tree describes: the digest of its root node; of an image without data, that of what
    /// the root says instead.
    #[must_use]
    pub fn name(&self) -> Digest {
        match self.child {
            Child::Node { digest, .. } => digest,
            Child::Free => Digest::of(b"free"),
            Child::Zero => Digest::of(b"zero"),
        }
    }
}

/// The number of chunks in a full subtree of `height`, whose node has level `height - 1`; 1 for height 0.
fn span(height: u8) -> u64 {
    TREE_FANOUT.pow(u32::from(height))
}

/// Builds a tree from leaves in ascending order. Chunks that are skipped are free.
pub struct TreeBuilder<'a> {
    sink: &'a dyn ObjectSink,
    cipher: Cipher,
    /// One unfinished node of each level, from the leaves up.
    levels: Vec<Level>,
    chunk_count: u64,
    /// The lowest chunk that may still be added.
    next: u64,
}

struct Level {
    /// Index of the node among all nodes of its level.
    number: u64,
    node: NodeBuilder,
}

impl<'a> TreeBuilder<'a> {
    /// A builder for a tree of `chunk_count` chunks of `size`. It encrypts nodes with `cipher` and puts them into
    /// `sink`.
    #[must_use]
    pub fn new(size: ChunkSize, chunk_count: u64, sink: &'a dyn ObjectSink, cipher: &Cipher) -> Self {
        let levels = (0..Root::height_of(chunk_count))
            .map(|level| Level { number: 0, node: NodeBuilder::new(level, size) })
            .collect();
        Self { sink, cipher: cipher.clone(), levels, chunk_count, next: 0 }
    }

    /// Adds chunk `index`, which must be higher than all chunks before. Errors are those of the sink, and `Refused`
    /// if nodes are encrypted and there is no key.
    pub fn push(&mut self, index: u64, leaf: &Leaf) -> Result<()> {
        assert!(index >= self.next && index < self.chunk_count, "leaves ascend and lie inside the image");
        self.next = index + 1;
        if *leaf == Leaf::Free {
            return Ok(());
        }
        let slot = self.open_node(0, index)?;
        self.levels[0].node.push_leaf(slot, leaf);
        Ok(())
    }

    /// Adds the chunks of `run`, which must all be higher than the chunks before. A long run costs little,
    /// since a whole subtree of zeros is one entry. Errors are those of [`Self::push`].
    pub fn push_run(&mut self, run: &LeafRun) -> Result<()> {
        if run.count == 1 {
            return self.push(run.first, &run.leaf);
        }
        assert!(run.leaf.is_full_zero(), "only zeros come in runs");
        assert!(
            run.first >= self.next && run.first + run.count <= self.chunk_count,
            "runs ascend, inside the image"
        );
        let (mut index, end) = (run.first, run.first + run.count);
        while index < end {
            // The largest subtree that begins at `index` and lies inside the run becomes one entry of zeros. All
            // nodes below its level hold earlier chunks, so they are finished first.
            let fits = |&level: &u8| index.is_multiple_of(span(level)) && span(level) <= end - index;
            let level = (1..Root::height_of(self.chunk_count)).take_while(fits).last().unwrap_or(0);
            if level == 0 {
                self.push(index, &run.leaf)?;
            } else {
                (0..usize::from(level)).try_for_each(|below| self.close_node(below))?;
                let slot = self.open_node(usize::from(level), index / span(level))?;
                self.levels[usize::from(level)].node.push_child(slot, Child::Zero);
            }
            index += span(level);
        }
        self.next = end;
        Ok(())
    }

    /// Finishes the tree. Errors are those of [`Self::push`].
    pub fn finish(mut self) -> Result<Root> {
        let height = Root::height_of(self.chunk_count);
        for level in 0..usize::from(height) - 1 {
            self.close_node(level)?;
        }
        let child = self.put_node(usize::from(height) - 1)?;
        Ok(Root { child, height, chunk_count: self.chunk_count })
    }

    /// Makes the node that holds entry `index` of `level` the unfinished one. Returns the entry's slot in it.
    fn open_node(&mut self, level: usize, index: u64) -> Result<u16> {
        let number = index / TREE_FANOUT;
        if self.levels[level].number != number {
            self.close_node(level)?;
            self.levels[level].number = number;
        }
        Ok(u16::try_from(index % TREE_FANOUT).expect("below the fan-out"))
    }

    /// Finishes the node of `level` and adds it to its parent.
    fn close_node(&mut self, level: usize) -> Result<()> {
        let child = self.put_node(level)?;
        if child != Child::Free {
            let slot = self.open_node(level + 1, self.levels[level].number)?;
            self.levels[level + 1].node.push_child(slot, child);
        }
        Ok(())
    }

    /// Finishes the node of `level` and puts it into the sink, if it needs a node.
    fn put_node(&mut self, level: usize) -> Result<Child> {
        let (child, bytes) = self.levels[level].node.close(&self.cipher)?;
        if let (Some(bytes), Some(object)) = (bytes, child.object()) {
            self.sink.put(&object, bytes)?;
        }
        Ok(child)
    }
}

/// Consecutive chunks with equal leaves: `count` chunks from `first` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafRun {
    /// Index of the first chunk.
    pub first: u64,
    /// Number of chunks, at least 1; more only for chunks that are fully allocated and zero.
    pub count: u64,
    /// The leaf of each of these chunks; never free.
    pub leaf: Leaf,
}

/// Where a walk over a tree reads nodes.
pub trait NodeSource {
    /// The bytes of the node `object`, verified and decrypted.
    fn node(&self, object: &ObjectRef) -> Result<Verified>;
}

/// The nodes of an object source, decrypted.
#[derive(Clone, Copy)]
pub struct DecryptedNodes<'a> {
    /// Where the stored nodes come from.
    pub source: &'a dyn ObjectSource,
    /// How they are encrypted.
    pub cipher: &'a Cipher,
}

impl NodeSource for DecryptedNodes<'_> {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        self.cipher.decrypt_object(object.kind, &self.source.verified(object)?)
    }
}

/// The entries of subtree `child` of `height`, whose first chunk is `first`. A free subtree has no entries, a zero
/// subtree has 256 zero ones. `Corrupt` if an entry begins after the end of an image of `chunk_count` chunks.
fn entries(
    source: &impl NodeSource,
    size: ChunkSize,
    chunk_count: u64,
    first: u64,
    height: u8,
    child: Child,
) -> Result<Node> {
    let whole = usize::try_from(TREE_FANOUT).expect("a node fits memory");
    let level = height - 1;
    let node = match child.object() {
        Some(object) => Node::decode(&source.node(&object)?, level, size)?,
        None => {
            let count = if child == Child::Zero { whole } else { 0 };
            match level {
                0 => Node::Leaves(vec![Leaf::Zero(ChunkExtents::full(size)); count]),
                _ => Node::Children(vec![Child::Zero; count]),
            }
        }
    };
    let room = chunk_count.saturating_sub(first).div_ceil(span(level));
    if node.len() as u64 > room {
        return Err(Error::corrupt(format!(
            "the subtree of chunk {first} reaches behind the end of the image"
        )));
    }
    Ok(node)
}

/// An iterator over the chunks of a tree that are not free, in ascending order. It reads no nodes of free subtrees.
/// It ends after the first error.
pub struct Leaves<S> {
    source: S,
    size: ChunkSize,
    chunk_count: u64,
    /// The chunks to visit.
    range: Range<u64>,
    /// Subtrees and leaves that are still to be visited, the next one last.
    stack: Vec<Pending>,
}

enum Pending {
    Subtree { first: u64, height: u8, child: Child },
    Leaf { index: u64, leaf: Leaf },
}

impl<S: NodeSource> Leaves<S> {
    /// Walks over all chunks of the tree of `root`, whose chunks have `size`.
    pub fn new(source: S, size: ChunkSize, root: &Root) -> Self {
        Self::within(source, size, root, 0..root.chunk_count)
    }

    /// Walks over the chunks in `range` only. Reads only the nodes on the paths to them.
    pub fn within(source: S, size: ChunkSize, root: &Root, range: Range<u64>) -> Self {
        let whole = Pending::Subtree { first: 0, height: root.height, child: root.child };
        Self { source, size, chunk_count: root.chunk_count, range, stack: vec![whole] }
    }

    /// Puts the entries of a subtree onto the stack, without free ones and those outside the range.
    fn enter(&mut self, first: u64, height: u8, child: Child) -> Result<()> {
        let step = span(height - 1);
        let from = self.stack.len();
        let range = self.range.clone();
        let wanted = |first: u64| first < range.end && first.saturating_add(step) > range.start;
        match entries(&self.source, self.size, self.chunk_count, first, height, child)? {
            Node::Leaves(leaves) => {
                let indexed = (first..).zip(leaves);
                let indexed = indexed.filter(|(index, leaf)| wanted(*index) && *leaf != Leaf::Free);
                self.stack.extend(indexed.map(|(index, leaf)| Pending::Leaf { index, leaf }));
            }
            Node::Children(children) => {
                let indexed = (0..).zip(children).map(|(slot, child)| (first + slot * step, child));
                let indexed = indexed.filter(|(first, child)| wanted(*first) && *child != Child::Free);
                let height = height - 1;
                self.stack.extend(indexed.map(|(first, child)| Pending::Subtree { first, height, child }));
            }
        }
        self.stack[from..].reverse();
        Ok(())
    }

    /// The chunks of a zero subtree that lie in the range. `Corrupt` if the subtree is not completely inside the
    /// image.
    fn zeros(&self, first: u64, height: u8) -> Result<LeafRun> {
        let end = first + span(height);
        if end > self.chunk_count {
            return Err(Error::corrupt("a subtree of zeros reaches behind the end of the image"));
        }
        let (first, end) = (first.max(self.range.start), end.min(self.range.end));
        Ok(LeafRun { first, count: end - first, leaf: Leaf::Zero(ChunkExtents::full(self.size)) })
    }
}

impl<S: NodeSource> Iterator for Leaves<S> {
    type Item = Result<LeafRun>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(pending) = self.stack.pop() {
            let entered = match pending {
                Pending::Leaf { index, leaf } => return Some(Ok(LeafRun { first: index, count: 1, leaf })),
                Pending::Subtree { child: Child::Free, .. } => Ok(()),
                Pending::Subtree { first, height, child: Child::Zero } => match self.zeros(first, height) {
                    Ok(run) => return Some(Ok(run)),
                    Err(error) => Err(error),
                },
                Pending::Subtree { first, height, child } => self.enter(first, height, child),
            };
            if let Err(error) = entered {
                self.stack.clear();
                return Some(Err(error));
            }
        }
        None
    }
}
