//! Compares two trees, without reading the subtrees that they share.

use base::Result;

use super::{NodeSource, Root, entries, span};
use crate::extents::{ChunkExtents, ChunkSize};
use crate::leaf::Leaf;
use crate::node::{Child, Node};

/// Consecutive chunks that differ between two trees in the same way: `count` chunks from `first` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Index of the first chunk.
    pub first: u64,
    /// Number of chunks, at least 1; more only if all are free in one tree and full zeros in the other.
    pub count: u64,
    /// The leaf of each of these chunks in the first tree.
    pub before: Leaf,
    /// The leaf of each of these chunks in the second tree.
    pub after: Leaf,
}

/// An iterator over the chunks that differ between two trees, in ascending order. Both trees have the same chunk
/// size. It skips equal subtrees, so the work is proportional to the differences. Chunks after the end of the shorter
/// image count as free. It ends after the first error.
pub struct Differences<A, B> {
    size: ChunkSize,
    /// Where each tree's nodes come from, and its number of chunks.
    before: (A, u64),
    after: (B, u64),
    /// Pairs that are still to be compared, the next one last.
    stack: Vec<Pair>,
}

enum Pair {
    Subtrees { first: u64, height: u8, before: Part, after: Part },
    Leaves { index: u64, before: Leaf, after: Leaf },
}

/// A subtree of `height`. To compare it with a higher subtree, it is treated as the only entry, in slot 0, of a node
/// above it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    child: Child,
    height: u8,
}

impl Part {
    const FREE: Self = Self { child: Child::Free, height: 0 };

    fn of(child: Child, height: u8) -> Self {
        if child == Child::Free { Self::FREE } else { Self { child, height } }
    }

    /// The leaf of all chunks, if this is treated as a subtree of `height` and all its chunks have the same leaf.
    fn uniform(self, height: u8, size: ChunkSize) -> Option<Leaf> {
        match self.child {
            Child::Free => Some(Leaf::Free),
            // A lower subtree of zeros does not fill `height`: free chunks follow it.
            Child::Zero if self.height == height => Some(Leaf::Zero(ChunkExtents::full(size))),
            Child::Zero | Child::Node { .. } => None,
        }
    }

    /// The entries, if this is treated as a subtree of `height`.
    fn enter(
        self,
        source: &impl NodeSource,
        size: ChunkSize,
        chunks: u64,
        first: u64,
        height: u8,
    ) -> Result<Entries> {
        if self.height < height && self != Self::FREE {
            return Ok(Entries::Parts(vec![self]));
        }
        Ok(match entries(source, size, chunks, first, height, self.child)? {
            Node::Leaves(leaves) => Entries::Leaves(leaves),
            Node::Children(children) => {
                Entries::Parts(children.into_iter().map(|child| Self::of(child, height - 1)).collect())
            }
        })
    }
}

enum Entries {
    Leaves(Vec<Leaf>),
    Parts(Vec<Part>),
}

impl<A: NodeSource, B: NodeSource> Differences<A, B> {
    /// Compares the tree of `before`, whose nodes come from `from`, with the tree of `after`, whose nodes come from
    /// `to`. The chunks of both have `size`.
    pub fn new(size: ChunkSize, (from, before): (A, &Root), (to, after): (B, &Root)) -> Self {
        let whole = Pair::Subtrees {
            first: 0,
            height: before.height.max(after.height),
            before: Part::of(before.child, before.height),
            after: Part::of(after.child, after.height),
        };
        Self { size, before: (from, before.chunk_count), after: (to, after.chunk_count), stack: vec![whole] }
    }

    /// Puts the entries of two subtrees onto the stack, in pairs.
    fn enter(&mut self, first: u64, height: u8, before: Part, after: Part) -> Result<()> {
        let old = before.enter(&self.before.0, self.size, self.before.1, first, height)?;
        let new = after.enter(&self.after.0, self.size, self.after.1, first, height)?;
        let from = self.stack.len();
        match (old, new) {
            (Entries::Leaves(old), Entries::Leaves(new)) => {
                let pairs = (first..).zip(pairs(old, new, &Leaf::Free));
                self.stack.extend(pairs.map(|(index, (before, after))| Pair::Leaves {
                    index,
                    before,
                    after,
                }));
            }
            (Entries::Parts(old), Entries::Parts(new)) => {
                let (height, step) = (height - 1, span(height - 1));
                let pairs = (0..).zip(pairs(old, new, &Part::FREE));
                self.stack.extend(pairs.map(|(slot, (before, after))| Pair::Subtrees {
                    first: first + slot * step,
                    height,
                    before,
                    after,
                }));
            }
            _ => unreachable!("leaves have the same level in both trees"),
        }
        self.stack[from..].reverse();
        Ok(())
    }
}

/// The entries of two nodes in pairs. The shorter list is extended with `missing`.
fn pairs<T: Clone>(old: Vec<T>, new: Vec<T>, missing: &T) -> impl Iterator<Item = (T, T)> {
    let count = old.len().max(new.len());
    let padded = |entries: Vec<T>| entries.into_iter().chain(std::iter::repeat(missing.clone())).take(count);
    padded(old).zip(padded(new))
}

impl<A: NodeSource, B: NodeSource> Iterator for Differences<A, B> {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(pair) = self.stack.pop() {
            let (first, height, before, after) = match pair {
                Pair::Leaves { before, after, .. } if before == after => continue,
                Pair::Leaves { index, before, after } => {
                    return Some(Ok(Difference { first: index, count: 1, before, after }));
                }
                Pair::Subtrees { before, after, .. } if before == after => continue,
                Pair::Subtrees { first, height, before, after } => (first, height, before, after),
            };
            let uniform = (before.uniform(height, self.size), after.uniform(height, self.size));
            if let (Some(before), Some(after)) = uniform {
                return Some(Ok(Difference { first, count: span(height), before, after }));
            }
            if let Err(error) = self.enter(first, height, before, after) {
                self.stack.clear();
                return Some(Err(error));
            }
        }
        None
    }
}
