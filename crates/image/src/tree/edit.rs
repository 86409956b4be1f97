//! Makes a new tree from an old one. It reads and writes only the nodes on the paths to changed leaves; both trees
//! share all other nodes.

use std::ops::Range;

use base::Result;
use base::limits::TREE_FANOUT;

use super::{DecryptedNodes, Root, entries, span};
use crate::cipher::Cipher;
use crate::extents::ChunkSize;
use crate::leaf::Leaf;
use crate::manifest::Statistics;
use crate::node::{Child, Node};
use crate::objects::{ObjectSink, ObjectSource};

/// Changes leaves of a tree in ascending order. It holds one node of each level. It never reads a node that it has
/// put, so source and sink may be different stores.
///
/// ```
/// use image::{ChunkExtents, ChunkSize, Child, Cipher, Leaf, MemoryObjects, Root, TreeEditor};
/// let (objects, size) = (MemoryObjects::new(), ChunkSize::from_log2(18).unwrap());
/// let empty = Root { child: Child::Free, height: 4, chunk_count: 1 << 28 };
/// let mut editor = TreeEditor::new((&objects, &objects), &Cipher::None, size, &empty, Default::default());
/// editor.set(1 << 27, Leaf::Zero(ChunkExtents::full(size)))?;
/// let (root, statistics) = editor.finish()?;
/// assert_eq!((objects.count(), statistics.zero_chunks), (4, 1));
/// # assert_eq!(root.height, 4);
/// # Ok::<(), base::Error>(())
/// ```
pub struct TreeEditor<'a> {
    source: &'a dyn ObjectSource,
    sink: &'a dyn ObjectSink,
    cipher: &'a Cipher,
    size: ChunkSize,
    chunk_count: u64,
    /// The whole tree, without the changes in nodes that are still open.
    child: Child,
    /// The open node of each level, from the leaves up.
    levels: Vec<Option<Open>>,
    /// The lowest chunk that may still be read or changed: after the last leaf that was set, and not before the first
    /// chunk of the leaf node that was opened last.
    next: u64,
    statistics: Statistics,
}

/// A decoded node that may still change.
struct Open {
    /// Index of the node among all nodes of its level.
    number: u64,
    node: Node,
    changed: bool,
}

impl<'a> TreeEditor<'a> {
    /// An editor of the tree of `root`, whose chunks have `size` and whose counts are `statistics`. It reads nodes
    /// from `source` and puts new ones into `sink`; both are encrypted with `cipher`.
    #[must_use]
    pub fn new(
        (source, sink): (&'a dyn ObjectSource, &'a dyn ObjectSink),
        cipher: &'a Cipher,
        size: ChunkSize,
        root: &Root,
        statistics: Statistics,
    ) -> Self {
        let levels = (0..root.height).map(|_| None).collect();
        let (child, chunk_count) = (root.child, root.chunk_count);
        Self { source, sink, cipher, size, chunk_count, child, levels, next: 0, statistics }
    }

    /// Extends the image to `chunk_count` chunks, if it has fewer; the new chunks are free. Call it before any other
    /// method.
    pub fn grow(&mut self, chunk_count: u64) {
        assert!(self.levels.iter().all(Option::is_none), "a tree grows before it is changed");
        let more = chunk_count.saturating_sub(self.chunk_count);
        self.statistics.add(&Leaf::Free, more);
        self.chunk_count += more;
        // The old tree becomes the first child of a node of the first new level. The nodes of the new levels stay
        // open, since the next change may be in them and a node that was put can't be read again.
        let mut first = (self.child != Child::Free).then(|| vec![self.child]);
        for _ in self.height()..Root::height_of(self.chunk_count) {
            let node = first.as_mut().map(|first| Node::Children(std::mem::take(first)));
            self.levels.push(node.map(|node| Open { number: 0, changed: node.len() > 0, node }));
        }
    }

    /// Reads chunk `index`. It must be above all chunks that were set, and not before the first chunk of the leaf
    /// node that was read last. Errors are those of source and sink, and `Corrupt` if a node is not valid.
    ///
    /// # Panics
    /// If `index` is too low, or not below the number of chunks.
    pub fn get(&mut self, index: u64) -> Result<Leaf> {
        self.open(index)?;
        Ok(self.leaves().get(slot(index)).cloned().unwrap_or(Leaf::Free))
    }

    /// The first chunk of `range` that is not free; `None` if there is none. The rules of [`Self::get`] apply to the
    /// start of `range`. Skips free subtrees, and reads no leaf node after `range`.
    pub fn next_allocated(&mut self, range: Range<u64>) -> Result<Option<u64>> {
        let (mut index, end) = (range.start, range.end.min(self.chunk_count));
        while index < end {
            self.open(index)?;
            let leaves = self.leaves().get(slot(index)..).unwrap_or_default();
            if let Some((at, _)) = (index..end).zip(leaves).find(|(_, leaf)| **leaf != Leaf::Free) {
                return Ok(Some(at));
            }
            index = self.behind(index);
        }
        Ok(None)
    }

    /// Makes the chunks of `range` free. The rules of [`Self::get`] apply to the start of `range`.
    pub fn free(&mut self, range: Range<u64>) -> Result<()> {
        let mut index = range.start;
        while let Some(allocated) = self.next_allocated(index..range.end)? {
            self.set(allocated, Leaf::Free)?;
            index = allocated + 1;
        }
        Ok(())
    }

    /// The first chunk of the next subtree that is not free, after the open leaf node with chunk `index`. If there is
    /// none, a chunk after the image's end.
    fn behind(&mut self, index: u64) -> u64 {
        let mut next = (index / span(1) + 1) * span(1);
        for level in 1..self.height() {
            let number = next / span(level);
            if next / span(level + 1) != index / span(level + 1) {
                // `next` is already after the open node of this level.
                continue;
            }
            let children = self.children(usize::from(level)).get(slot(number)..).unwrap_or_default();
            match (0..).zip(children).find(|(_, child)| **child != Child::Free) {
                Some((at, _)) => return next + at * span(level),
                None => next = (index / span(level + 1) + 1) * span(level + 1),
            }
        }
        next
    }

    /// Changes chunk `index` to `leaf`. The rules of [`Self::get`] apply to `index`.
    pub fn set(&mut self, index: u64, leaf: Leaf) -> Result<()> {
        let before = self.get(index)?;
        self.next = index + 1;
        if before == leaf {
            return Ok(());
        }
        self.statistics.remove(&before, 1);
        self.statistics.add(&leaf, 1);
        let leaves = self.leaves();
        if leaves.len() <= slot(index) {
            leaves.resize(slot(index) + 1, Leaf::Free);
        }
        leaves[slot(index)] = leaf;
        self.levels[0].as_mut().expect("it was opened").changed = true;
        Ok(())
    }

    /// Finishes the new tree. Returns its root and the counts of its chunks. Errors are those of the sink, and
    /// `Refused` if nodes are encrypted and there is no key.
    pub fn finish(mut self) -> Result<(Root, Statistics)> {
        self.close(self.levels.len() - 1)?;
        let root = Root { child: self.child, height: self.height(), chunk_count: self.chunk_count };
        Ok((root, self.statistics))
    }

    fn height(&self) -> u8 {
        u8::try_from(self.levels.len()).expect("a tree has few levels")
    }

    fn leaves(&mut self) -> &mut Vec<Leaf> {
        match &mut self.levels[0].as_mut().expect("it was opened").node {
            Node::Leaves(leaves) => leaves,
            Node::Children(_) => unreachable!("level 0 holds leaves"),
        }
    }

    fn children(&mut self, level: usize) -> &mut Vec<Child> {
        match &mut self.levels[level].as_mut().expect("it was opened").node {
            Node::Children(children) => children,
            Node::Leaves(_) => unreachable!("only level 0 holds leaves"),
        }
    }

    /// Opens the nodes on the path to chunk `index`, and closes those that are not on it.
    fn open(&mut self, index: u64) -> Result<()> {
        assert!(index >= self.next && index < self.chunk_count, "changes ascend, inside the image");
        // From the root down, since a node's parent names it.
        for level in (0..self.height()).rev() {
            let (at, number) = (usize::from(level), index / span(level + 1));
            if self.levels[at].as_ref().is_some_and(|open| open.number == number) {
                continue;
            }
            self.close(at)?;
            let child = match at + 1 < self.levels.len() {
                true => self.children(at + 1).get(slot(number)).copied().unwrap_or(Child::Free),
                false => self.child,
            };
            let first = number * span(level + 1);
            let nodes = DecryptedNodes { source: self.source, cipher: self.cipher };
            let node = entries(&nodes, self.size, self.chunk_count, first, level + 1, child)?;
            self.levels[at] = Some(Open { number, node, changed: false });
        }
        self.next = self.next.max(index / span(1) * span(1));
        Ok(())
    }

    /// Closes the open nodes of levels 0 to `last`: puts each that changed, and changes its parent's entry.
    fn close(&mut self, last: usize) -> Result<()> {
        for level in 0..=last {
            let Some(open) = self.levels[level].take().filter(|open| open.changed) else { continue };
            let child = self.put(&open.node, u8::try_from(level).expect("a tree has few levels"))?;
            if level + 1 == self.levels.len() {
                self.child = child;
                continue;
            }
            let children = self.children(level + 1);
            if children.len() <= slot(open.number) {
                children.resize(slot(open.number) + 1, Child::Free);
            }
            children[slot(open.number)] = child;
            self.levels[level + 1].as_mut().expect("parents close after their children").changed = true;
        }
        Ok(())
    }

    /// Puts `node` into the sink, if its subtree needs a node.
    fn put(&self, node: &Node, level: u8) -> Result<Child> {
        let (child, bytes) = node.encode(level, self.size, self.cipher)?;
        if let (Some(bytes), Some(object)) = (bytes, child.object()) {
            self.sink.put(&object, bytes)?;
        }
        Ok(child)
    }
}

/// The slot of entry `index` of a level in its node.
fn slot(index: u64) -> usize {
    usize::try_from(index % TREE_FANOUT).expect("below the fan-out")
}
