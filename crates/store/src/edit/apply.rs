//! Applies a write to a tree: composes the changed chunks in parallel, and builds the nodes above them again.

use base::Result;
use image::manifest::Statistics;
use image::{Cipher, Layout, Leaf, ObjectSink, ObjectSource, Root, TreeEditor};

use super::compose::{CodecPool, Content};
use super::dirty_ranges::{DirtyRanges, Step};
use crate::parallel::parallel_by;

/// Most chunks that are composed in one batch: enough for all threads, with little memory.
const BATCH_CHUNKS_MAX: usize = 256;

/// Where objects are read from, and where they are written to.
pub(super) type Through<'a> = (&'a dyn ObjectSource, &'a dyn ObjectSink);

/// A write, with the stores and threads that carry it out.
pub(super) struct Edit<'a> {
    pub(super) nodes: Through<'a>,
    pub(super) chunks: Through<'a>,
    /// How the objects of all four are encrypted.
    pub(super) cipher: &'a Cipher,
    pub(super) codecs: &'a CodecPool,
    pub(super) threads: usize,
    pub(super) dirty: &'a DirtyRanges,
    pub(super) content: &'a dyn Content,
}

impl Edit<'_> {
    /// Applies the write to the tree of `root`, with the given layout and statistics; returns the new root and
    /// statistics. If `is_known(index)`, the writer may have the whole content of chunk `index`.
    pub(super) fn over(
        &self,
        layout: &Layout,
        (root, statistics): (&Root, Statistics),
        is_known: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<(Root, Statistics)> {
        let mut editor = TreeEditor::new(self.nodes, self.cipher, layout.chunk, root, statistics);
        editor.grow(layout.chunk_count());
        let mut base = Leafs::new(self.nodes, self.cipher, layout, root);
        let mut steps = self.dirty.steps(layout).peekable();
        while steps.peek().is_some() {
            let batch: Vec<Step> = steps.by_ref().take(BATCH_CHUNKS_MAX).collect();
            let window = batch.iter().filter_map(|step| match step {
                Step::Compose(index) => Some(base.get(*index).map(|leaf| (*index, leaf))),
                Step::Free(_) => None,
            });
            let window = window.collect::<Result<Vec<_>>>()?;
            let mut composed = self.compose(layout, &window, is_known)?.into_iter();
            for step in batch {
                match step {
                    Step::Free(chunks) => editor.free(chunks)?,
                    Step::Compose(index) => editor.set(index, composed.next().expect("one for each"))?,
                }
            }
        }
        editor.finish()
    }

    /// The new leaves of the chunks in `window`, given with their old leaves. The new objects are in the sink.
    pub(super) fn compose(
        &self,
        layout: &Layout,
        window: &[(u64, Leaf)],
        is_known: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Vec<Leaf>> {
        let composed = parallel_by(
            self.threads,
            window,
            || self.codecs.borrow(self.cipher),
            |borrowed, (index, base)| {
                let write = (self.dirty, self.content, is_known(*index));
                borrowed.codec()?.compose(self.chunks, layout, *index, base, write)
            },
        );
        composed.into_iter().collect()
    }
}

/// Reads leaves of a tree in ascending order. Chunks after its end are free.
pub(super) struct Leafs<'a> {
    cursor: TreeEditor<'a>,
    chunk_count: u64,
}

impl<'a> Leafs<'a> {
    pub(super) fn new(through: Through<'a>, cipher: &'a Cipher, layout: &Layout, root: &Root) -> Self {
        let cursor = TreeEditor::new(through, cipher, layout.chunk, root, Statistics::default());
        Self { cursor, chunk_count: root.chunk_count }
    }

    pub(super) fn get(&mut self, index: u64) -> Result<Leaf> {
        if index < self.chunk_count { self.cursor.get(index) } else { Ok(Leaf::Free) }
    }
}
