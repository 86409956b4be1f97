//! Reads any bytes of any version. A version never changes, so readers need no lock and never wait.

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;

use base::{Error, ErrorKind, Extent, ExtentSet, Result};
use bytes::Bytes;
use image::{DiskPart, Layout, Leaf, LeafRun, Leaves, Manifest};
use parking_lot::Mutex;

use super::ranges::bytes_of;
use crate::digest_cache::DigestCache;
use crate::names::Reference;
use crate::nodes::Nodes;
use crate::parallel::parallel_by;
use crate::repository::Repository;

/// Chunks that one read fetches at the same time: enough to use the full bandwidth of a network with objects of 100
/// KB.
const READERS: usize = 8;
/// Most bytes of chunks that are kept because only a part of them was read: a reader of small ranges, or of a file
/// whose clusters do not begin where chunks do, reads the rest soon.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Size of the buffer for copying a range, in bytes.
const PIECE_BYTES: u64 = 8 << 20;

/// One version, for reading.
#[derive(Debug, Clone)]
pub struct Snapshot<'a> {
    repository: Cow<'a, Repository>,
    manifest: Manifest,
    layout: Layout,
}

impl Repository {
    /// Opens the version that `reference` names, for reading. `NotFound` if it does not exist or was removed.
    pub fn snapshot(&self, reference: &Reference) -> Result<Snapshot<'_>> {
        self.snapshot_of(self.resolve(reference)?)
    }

    /// Opens the version of `manifest`, for reading.
    pub(crate) fn snapshot_of(&self, manifest: Manifest) -> Result<Snapshot<'_>> {
        let layout = manifest.layout();
        let layout =
            layout.map_err(|error| error.within(format!("read `{}@{}`", manifest.image, manifest.number)))?;
        Ok(Snapshot { repository: Cow::Borrowed(self), manifest, layout })
    }
}

/// Whole chunks by the digest of their object.
#[derive(Debug, Default)]
struct ChunkCache(DigestCache<KEPT_BYTES_MAX>);

/// A chunk that a read touches: its part of the target buffer, the offset of that part in the chunk, and the leaf.
type Item<'a> = (Mutex<&'a mut [u8]>, usize, Leaf);

impl Snapshot<'_> {
    /// The manifest of the version.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Chunk size, image size and sector size.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The repository that holds it.
    pub(crate) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The same version, with a handle of its own for the repository.
    pub(crate) fn into_owned(self) -> Snapshot<'static> {
        Snapshot { repository: Cow::Owned(self.repository.into_owned()), ..self }
    }

    /// The chunks that are not free, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Result<LeafRun>> + '_ {
        self.runs_within(&(0..self.layout.size_bytes()))
    }

    /// The chunks that overlap `range` (in bytes) and are not free, ascending.
    pub(crate) fn runs_within(&self, range: &Range<u64>) -> impl Iterator<Item = Result<LeafRun>> + use<'_> {
        self.leaves(range).map(|run| run.map_err(|error| self.failed(error)))
    }

    /// Fills `into` with the bytes from `offset` on; free sectors read as zeros. Every chunk is verified before its
    /// bytes are used: `Corrupt` or `NotFound`, with the name of the object, if it is damaged or missing. `Refused`
    /// if the range ends after the end of the image.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_parts(vec![DiskPart { offset, into }])
    }

    /// [`Self::read`] for several ranges, whose chunks are all read in parallel.
    pub(crate) fn read_parts(&self, parts: Vec<DiskPart<'_>>) -> Result<()> {
        let mut items: Vec<Item<'_>> = Vec::new();
        for DiskPart { offset, into } in parts {
            let range = self.check(offset, into.len() as u64)?;
            into.fill(0);
            let (mut rest, mut at) = (into, offset);
            for run in self.leaves(&range) {
                let LeafRun { first, leaf, .. } = run.map_err(|error| self.failed(error))?;
                if !matches!(leaf, Leaf::Data(..)) {
                    continue;
                }
                let chunk = bytes_of(self.layout.chunk_extent(first));
                let (from, until) = (chunk.start.max(range.start), chunk.end.min(range.end));
                let (_, behind) = rest.split_at_mut(length(from - at));
                let (part, behind) = behind.split_at_mut(length(until - from));
                items.push((Mutex::new(part), length(from - chunk.start), leaf));
                (rest, at) = (behind, until);
            }
        }
        let codecs = &self.repository.blobs().codecs;
        let read = parallel_by(
            READERS,
            &items,
            || codecs.borrow(self.repository.cipher()),
            |borrowed, (part, from, leaf)| {
                let (mut part, kept) = (part.lock(), &self.repository.memory.get::<ChunkCache>().0);
                let inside = *from..*from + part.len();
                let is_part = inside.len() < self.layout.chunk.bytes() as usize;
                let name = match leaf {
                    Leaf::Data(_, chunk) if is_part => Some(chunk.encoded),
                    _ => None,
                };
                if let Some(whole) = name.and_then(|name| kept.get(&name)) {
                    part.copy_from_slice(&whole[inside]);
                    return Ok(());
                }
                let whole = borrowed.codec()?.open(&*self.repository, self.layout.chunk, leaf)?;
                part.copy_from_slice(&whole[inside]);
                name.iter().for_each(|name| kept.keep(*name, &Bytes::copy_from_slice(whole)));
                Ok(())
            },
        );
        read.into_iter().collect::<Result<()>>().map_err(|error| self.failed(error))
    }

    /// Writes `bytes` bytes from `offset` on to `to`, using bounded memory. Errors are those of [`Self::read`] and of
    /// `to`.
    pub fn copy_to(&self, offset: u64, bytes: u64, to: &mut dyn Write) -> Result<()> {
        let range = self.check(offset, bytes)?;
        let mut piece = Vec::new();
        for start in range.clone().step_by(length(PIECE_BYTES)) {
            piece.resize(length(PIECE_BYTES.min(range.end - start)), 0);
            self.read(start, &mut piece)?;
            to.write_all(&piece)
                .map_err(|error| Error::from_io(format!("copy from {}", self.name()), error))?;
        }
        Ok(())
    }

    /// The allocated sectors in `window`.
    pub fn allocated(&self, window: Extent) -> Result<ExtentSet> {
        let mut set = ExtentSet::new();
        for run in self.leaves(&bytes_of(window)) {
            let run = run.map_err(|error| self.failed(error))?;
            let Some(extents) = run.leaf.extents() else { continue };
            if run.count > 1 {
                let last = self.layout.chunk_extent(run.first + run.count - 1);
                let whole = Extent::between(self.layout.chunk_extent(run.first).start, last.end());
                set.insert(whole.intersection(window).unwrap_or_default());
                continue;
            }
            let parts = self.layout.extents_of(run.first, extents);
            parts.filter_map(|part| part.intersection(window)).for_each(|part| set.insert(part));
        }
        Ok(set)
    }

    /// The leaves of chunks that overlap `range` (in bytes) and are not free, ascending.
    fn leaves(&self, range: &Range<u64>) -> impl Iterator<Item = Result<LeafRun>> + use<'_> {
        let bytes = u64::from(self.layout.chunk.bytes());
        let chunks = range.start / bytes..range.end.div_ceil(bytes).min(self.layout.chunk_count());
        let leaves = Leaves::within(Nodes(&self.repository), self.layout.chunk, &self.manifest.root, chunks);
        leaves.map(|run| run.and_then(|run| self.layout.check_run(&run).map(|()| run)))
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<Range<u64>> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.layout.size_bytes());
        let end = end.ok_or_else(|| {
            let size = self.layout.size_bytes();
            let text = format!("read {bytes} bytes at {offset} of {}: it has {size}", self.name());
            Error::new(ErrorKind::Refused, text)
        })?;
        Ok(offset..end)
    }

    fn name(&self) -> String {
        format!("`{}@{}`", self.manifest.image, self.manifest.number)
    }

    pub(super) fn failed(&self, error: Error) -> Error {
        error.within(format!("read {}", self.name()))
    }
}

/// Converts a number of bytes to `usize`.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("what is read fits memory")
}
