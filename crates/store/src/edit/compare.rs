//! Compares a disk with a version, to find what a commit of the disk has to write. formats/repository.md, "Writing".
//!
//! An unchanged chunk is recognized by its plain digest, without decoding the stored object. The object is still read
//! and verified, since the next version will rely on it; if it is damaged, the disk has its bytes and they are
//! written again.

use std::ops::Range;

use base::{Error, limits::SECTOR_BYTES};
use base::{ErrorKind, Result, is_zero};
use image::chunk::PlainHasher;
use image::{AlignedBuffer, ChunkExtents, ChunkRef, Leaf};

use super::compose::{Borrowed, Content};
use super::ranges::bytes_of;
use super::read::Snapshot;
use crate::parallel::{cores, parallel_by};

/// Chunks whose leaves are in memory at the same time.
const WINDOW_CHUNKS: u64 = 1024;
/// Chunks that are read at the same time from a store in a network.
const READERS_FAR: usize = 16;

/// Buffers and codec of one thread.
struct Scratch<'a> {
    borrowed: Borrowed<'a>,
    hasher: PlainHasher,
    /// The allocated sectors of the chunk, one run after the other.
    plain: Vec<u8>,
}

impl Snapshot<'_> {
    /// The ranges of bytes in which `disk`, which has the same size, differs from this version: ascending, in whole
    /// sectors of 512 bytes, including all allocated sectors of chunks whose objects are damaged. Free sectors count
    /// as zeros. If there are more than `ranges_max` ranges, the last one is extended over equal bytes. Errors are
    /// those of reading the disk and the store.
    pub fn differences(&self, disk: &dyn Content, ranges_max: usize) -> Result<Vec<Range<u64>>> {
        let (layout, repository) = (self.layout(), self.repository());
        let threads = if repository.backend.is_far() { READERS_FAR } else { cores() };
        let scratch = || {
            let borrowed = repository.blobs().codecs.borrow(repository.cipher());
            let scratch = Scratch { borrowed, hasher: PlainHasher::default(), plain: Vec::new() };
            // Holds a chunk of the disk. Aligned, since the disk may be read with direct I/O.
            (AlignedBuffer::new(layout.chunk.bytes() as usize), scratch)
        };
        let mut differing: Vec<Range<u64>> = Vec::new();
        let count = layout.chunk_count();
        for first in (0..count).step_by(usize::try_from(WINDOW_CHUNKS).expect("it is small")) {
            let chunks = self.chunks(first..(first + WINDOW_CHUNKS).min(count))?;
            let compared = parallel_by(threads, &chunks, scratch, |(here, scratch), item| {
                self.unlike(here, scratch, disk, item)
            });
            for ranges in compared {
                for range in ranges.map_err(|error| self.failed(error))? {
                    let full = differing.len() >= ranges_max;
                    match differing.last_mut() {
                        Some(last) if last.end == range.start || full => last.end = range.end,
                        _ => differing.push(range),
                    }
                }
            }
        }
        Ok(differing)
    }

    /// The ranges in which the disk differs from the version in one chunk.
    fn unlike(
        &self,
        here: &mut AlignedBuffer,
        scratch: &mut Scratch<'_>,
        disk: &dyn Content,
        (index, leaf): &(u64, Leaf),
    ) -> Result<Vec<Range<u64>>> {
        let window = bytes_of(self.layout().chunk_extent(*index));
        let bytes = window.end - window.start;
        let is_empty = disk.is_known_zero(window.start, bytes);
        if is_empty && !matches!(leaf, Leaf::Data(..)) {
            return Ok(Vec::new());
        }
        let here = here.front(usize::try_from(bytes).expect("a chunk fits memory"));
        if is_empty {
            here.fill(0);
        } else {
            disk.read_at(window.start, here).map_err(|error| {
                let text = format!("read the disk at offset {}", window.start);
                Error::from_source(ErrorKind::Io, text, error)
            })?;
        }
        let Leaf::Data(extents, chunk) = leaf else {
            return Ok(if is_zero(here) { Vec::new() } else { unequal(here, &[], window.start) });
        };
        let is_same = scratch.is_same(here, extents, chunk);
        if is_same && self.repository().is_good(&chunk.object())? {
            return Ok(Vec::new());
        }
        let whole = || runs(extents).map(|run| run.start + window.start..run.end + window.start).collect();
        if is_same {
            return Ok(whole());
        }
        match scratch.borrowed.codec()?.open(self.repository(), self.layout().chunk, leaf) {
            Ok(there) => Ok(unequal(here, there, window.start)),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                let beside = unequal(&free_of(here, extents), &[], window.start);
                let mut all: Vec<Range<u64>> = whole().into_iter().chain(beside).collect();
                all.sort_unstable_by_key(|range| range.start);
                Ok(all)
            }
            Err(error) => Err(error),
        }
    }
}

impl Scratch<'_> {
    /// Whether the disk has the same content as the chunk, and zeros in the chunk's free sectors.
    fn is_same(&mut self, here: &[u8], extents: &ChunkExtents, chunk: &ChunkRef) -> bool {
        if extents.is_full() {
            return self.hasher.digest(extents, here) == chunk.plain;
        }
        self.plain.clear();
        runs(extents).for_each(|run| self.plain.extend_from_slice(&here[place(&run)]));
        self.hasher.digest(extents, &self.plain) == chunk.plain && is_zero(&free_of(here, extents))
    }
}

/// The content of the disk in the chunk's free sectors, with zeros in all others.
fn free_of(here: &[u8], extents: &ChunkExtents) -> Vec<u8> {
    let mut free = here.to_vec();
    runs(extents).for_each(|run| free[place(&run)].fill(0));
    free
}

/// The bytes of each allocated run, counted from the start of the chunk.
fn runs(extents: &ChunkExtents) -> impl Iterator<Item = Range<u64>> {
    extents.runs().map(|run| u64::from(run.start) * SECTOR_BYTES..u64::from(run.end()) * SECTOR_BYTES)
}

fn place(run: &Range<u64>) -> Range<usize> {
    let at = |offset: u64| usize::try_from(offset).expect("a chunk fits memory");
    at(run.start)..at(run.end)
}

/// The sectors in which `here`, at `offset`, differs from `there`, or is not zero after the end of `there`; adjacent
/// ones are joined.
fn unequal(here: &[u8], there: &[u8], offset: u64) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for (sector, bytes) in (0..).zip(here.chunks(512)) {
        let at = sector * 512;
        let is_equal = match there.get(at..at + bytes.len()) {
            Some(there) => bytes == there,
            None => is_zero(bytes),
        };
        if is_equal {
            continue;
        }
        let start = offset + at as u64;
        match found.last_mut() {
            Some(last) if last.end == start => last.end += bytes.len() as u64,
            _ => found.push(start..start + bytes.len() as u64),
        }
    }
    found
}
