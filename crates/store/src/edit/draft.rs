//! Drafts: a client composes a new version from changes, with objects in any source and sink (a repository or a
//! server). Nothing is published here.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::limits::SECTOR_BYTES;
use base::{Digest, Error, ErrorKind, Result, RunSet};
use bytes::Bytes;
use image::manifest::Parent;
use image::{
    ChunkExtents, Cipher, DecryptedNodes, Differences, Layout, Leaf, Manifest, ObjectKind, ObjectRef,
    ObjectSink, ObjectSource, SignedManifest,
};
use parking_lot::Mutex;

use super::apply::Edit;
use super::blob::Changes;
use super::compose::CodecPool;
use super::describe;
use super::dirty_ranges::DirtyRanges;
use super::ranges::{bytes_of, next_chunk};
use crate::parallel::parallel_by;
use crate::record::Stamp;

/// Most bytes of nodes in the read cache, and most bytes of new nodes that are collected before they are stored.
const NODE_BYTES_MAX: usize = 8 << 20;
/// Most ranges that are listed in an error.
const NAMED_MAX: usize = 8;

/// Composes drafts.
pub struct Drafter<'a> {
    /// Where the objects of the old version are read from.
    pub source: &'a dyn ObjectSource,
    /// Where the objects of the draft are stored; an object that is stored there already is not sent again.
    pub sink: &'a dyn ObjectSink,
    /// How the objects of both are encrypted.
    pub cipher: &'a Cipher,
    /// Chunks that are composed and sent at the same time. Use more than the number of cores if the sink is far away.
    pub threads: usize,
}

/// A version that has no number yet. All its objects are in the sink.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Its manifest, with number 0.
    pub manifest: Manifest,
    /// Bytes of objects that were sent to the sink.
    pub stored_bytes: u64,
}

impl Drafter<'_> {
    /// Applies `changes` to the version `over`. Errors are those of source and sink, and `Refused` if a change is
    /// after the end of the image.
    pub fn draft(&self, over: &SignedManifest, changes: &Changes<'_>, stamp: &Stamp) -> Result<Draft> {
        let dirty = DirtyRanges::new(changes.written, changes.freed);
        self.compose(&Nodes::new(self), over, (&dirty, changes), &|_| true, stamp)
    }

    /// Applies `changes`, which were made to the version `base`, to the newer version `newest`. If both changed the
    /// same sector to other bytes than in `base`, `Refused` with the names of both versions and the ranges.
    pub fn draft_onto(
        &self,
        base: &SignedManifest,
        newest: &SignedManifest,
        changes: &Changes<'_>,
        stamp: &Stamp,
    ) -> Result<Draft> {
        let dirty = DirtyRanges::new(changes.written, changes.freed);
        let nodes = Nodes::new(self);
        self.check_apart(&nodes, base, newest, &dirty)?;
        // The whole chunks that the writer has belong to `base`, so they must not be used.
        self.compose(&nodes, newest, (&dirty, changes), &|_| false, stamp)
    }

    fn compose(
        &self,
        nodes: &Nodes<'_>,
        over: &SignedManifest,
        (dirty, changes): (&DirtyRanges, &Changes<'_>),
        is_known: &(dyn Fn(u64) -> bool + Sync),
        stamp: &Stamp,
    ) -> Result<Draft> {
        let from = &over.manifest;
        let failed = |error: Error| error.within(format!("draft a version from `{}`", name(over)));
        let layout = from.layout().map_err(failed)?;
        if dirty.all.end() > layout.size_bytes() {
            let text = format!(
                "change `{}` up to byte {}: it has {}",
                name(over),
                dirty.all.end(),
                layout.size_bytes()
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let sink = Counted { sink: self.sink, bytes: AtomicU64::new(0) };
        let (codecs, threads, content) = (&CodecPool::default(), self.threads, changes.content);
        let edit = Edit {
            nodes: (nodes, nodes),
            chunks: (self.source, &sink),
            cipher: self.cipher,
            codecs,
            threads,
            dirty,
            content,
        };
        let made = edit.over(&layout, (&from.root, from.statistics), is_known);
        let (root, statistics) = made.map_err(failed)?;
        nodes.store().map_err(failed)?;
        let parent = Parent { image: from.image.clone(), number: from.number, digest: over.digest() };
        let mut manifest =
            Manifest { number: 0, root, statistics, ..describe::child_of(from, parent, stamp) };
        describe::mark(&mut manifest, &dirty.all, layout.size_sectors);
        Ok(Draft { manifest, stored_bytes: sink.bytes.into_inner() + nodes.stored.load(Relaxed) })
    }

    /// `Refused` if dirty bytes are different in `newest` and `base`.
    fn check_apart(
        &self,
        nodes: &Nodes<'_>,
        base: &SignedManifest,
        newest: &SignedManifest,
        dirty: &DirtyRanges,
    ) -> Result<()> {
        let (from, to) = (&base.manifest, &newest.manifest);
        let failed = |error: Error| error.within(format!("compare `{}` with `{}`", name(base), name(newest)));
        let (layout, theirs) = (from.layout().map_err(failed)?, to.layout().map_err(failed)?);
        let is_cut_alike = layout.chunk == theirs.chunk
            && layout.logical_sector_bytes == theirs.logical_sector_bytes
            && layout.size_sectors <= theirs.size_sectors;
        if !is_cut_alike {
            let text =
                format!("`{}` cannot be merged with `{}`: their sizes differ", name(newest), name(base));
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let nodes = DecryptedNodes { source: nodes, cipher: self.cipher };
        let differences = Differences::new(layout.chunk, (nodes, &from.root), (nodes, &to.root));
        let mut both = Vec::new();
        for difference in differences {
            let difference = difference.map_err(failed)?;
            let (mut at, end) = (difference.first, difference.first + difference.count);
            while let Some(index) = next_chunk(&dirty.all, &layout, at).filter(|&index| index < end) {
                let part: Vec<Range<u64>> = dirty.all.within(bytes_of(layout.chunk_extent(index))).collect();
                let leaves = (&difference.before, &difference.after);
                both.extend(self.meeting(&layout, index, leaves, &part).map_err(failed)?);
                at = index + 1;
            }
        }
        let both = RunSet::from_iter(both);
        if both.end() == 0 { Ok(()) } else { Err(conflict(base, newest, &both)) }
    }

    /// The sectors of chunk `index` in `dirty` that differ between the two leaves: in their bytes, or in whether they
    /// are free, which their bytes do not tell.
    fn meeting(
        &self,
        layout: &Layout,
        index: u64,
        (before, after): (&Leaf, &Leaf),
        dirty: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>> {
        let codecs = CodecPool::default();
        let mut borrowed = codecs.borrow(self.cipher);
        let codec = borrowed.codec()?;
        let old = codec.open(self.source, layout.chunk, before)?.to_vec();
        let new = codec.open(self.source, layout.chunk, after)?;
        let start = layout.chunk_offset(index);
        let sectors =
            dirty.iter().flat_map(|part| (part.start / SECTOR_BYTES)..part.end.div_ceil(SECTOR_BYTES));
        let is_allocated = |leaf: &Leaf, number: u64| {
            let mut runs = leaf.extents().into_iter().flat_map(ChunkExtents::runs);
            runs.any(|run| (u64::from(run.start)..u64::from(run.end())).contains(&number))
        };
        let differs = |sector: &u64| {
            let offset = sector * SECTOR_BYTES - start;
            let at = usize::try_from(offset).expect("inside the chunk");
            let end = at + usize::try_from(SECTOR_BYTES).expect("a sector");
            let number = offset / SECTOR_BYTES;
            old[at..end] != new[at..end] || is_allocated(before, number) != is_allocated(after, number)
        };
        Ok(sectors.filter(differs).map(|sector| sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES).collect())
    }
}

fn name(sealed: &SignedManifest) -> String {
    format!("{}@{}", sealed.manifest.image, sealed.manifest.number)
}

fn conflict(base: &SignedManifest, newest: &SignedManifest, both: &RunSet) -> Error {
    let named: Vec<String> =
        both.iter().take(NAMED_MAX).map(|range| format!("{} to {}", range.start, range.end - 1)).collect();
    let more = both.iter().count().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} ranges more") } else { String::new() };
    let text = format!(
        "`{}` conflicts with what was written since `{}`: both changed the bytes {}{more}",
        name(newest),
        name(base),
        named.join(", ")
    );
    Error::new(ErrorKind::Refused, text)
}

/// A sink that counts the bytes put.
struct Counted<'a> {
    sink: &'a dyn ObjectSink,
    bytes: AtomicU64,
}

impl ObjectSink for Counted<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.sink.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.sink.put(object, bytes)
    }
}

/// The nodes of a draft: recently read ones, and new ones that will be stored together.
struct Nodes<'a> {
    source: &'a dyn ObjectSource,
    sink: &'a dyn ObjectSink,
    threads: usize,
    read: Mutex<(HashMap<Digest, Bytes>, usize)>,
    made: Mutex<(Vec<(ObjectRef, Bytes)>, usize)>,
    stored: AtomicU64,
}

impl<'a> Nodes<'a> {
    fn new(drafter: &Drafter<'a>) -> Self {
        let Drafter { source, sink, threads, .. } = *drafter;
        let (read, made, stored) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Self { source, sink, threads, read, made, stored }
    }

    /// Stores the new nodes in parallel.
    fn store(&self) -> Result<()> {
        let (made, _) = std::mem::take(&mut *self.made.lock());
        let put = |(): &mut (), (object, bytes): &(ObjectRef, Bytes)| {
            if self.sink.contains(object)? {
                return Ok(());
            }
            self.stored.fetch_add(bytes.len() as u64, Relaxed);
            self.sink.put(object, bytes.clone())
        };
        parallel_by(self.threads, &made, || (), put).into_iter().collect()
    }
}

impl ObjectSource for Nodes<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        if let Some(bytes) = self.read.lock().0.get(&object.digest) {
            return Ok(bytes.clone());
        }
        let bytes = self.source.fetch(object)?;
        let mut read = self.read.lock();
        if read.1 > NODE_BYTES_MAX {
            *read = Default::default();
        }
        read.1 += bytes.len();
        read.0.insert(object.digest, bytes.clone());
        Ok(bytes)
    }
}

impl ObjectSink for Nodes<'_> {
    fn contains(&self, _: &ObjectRef) -> Result<bool> {
        // Checked only when the node is stored.
        Ok(false)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        debug_assert_eq!(object.kind, ObjectKind::Node, "chunks go elsewhere");
        let mut made = self.made.lock();
        made.1 += bytes.len();
        made.0.push((*object, bytes));
        let is_full = made.1 > NODE_BYTES_MAX;
        drop(made);
        if is_full { self.store() } else { Ok(()) }
    }
}
