//! Reuse: what a target holds already is neither fetched nor decoded again.
//!
//! First each chunk is compared in its place. A chunk that is not there may lie elsewhere on the target: in the place
//! of another chunk, or, if asked for, in space that the image leaves free; a partition that moved by whole chunks is
//! the usual case. It is found by its plain digest, if all its sectors are allocated, and copied before anything else
//! is written. Each copy is checked again when it is read to be written, so a wrong plan costs fetches and no content.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Digest, Result, is_zero};
use parking_lot::Mutex;

use crate::extents::ChunkExtents;
use crate::progress::Stage;

use super::check::{find_zeros, for_each, for_each_chunk};
use super::options::{FreeSpace, InstallOptions, Reuse};
use super::shared::{Shared, State};
use super::writer::Writer;

/// How many chunks are looked at to find out whether reuse pays, spread evenly over the image.
const SAMPLES: usize = 32;
/// If none of the first ones is right, the others are not looked at.
const FIRST_SAMPLES: usize = 8;

/// Whether comparing the whole target pays: it reads everything once, and saves fetching, writing and reading back what
/// is right. Looks at a sample, of which one half must be right.
pub(super) fn pays(shared: &Shared, threads: usize) -> Result<bool> {
    let chunks = &shared.plan.chunks;
    let count = chunks.len().min(SAMPLES);
    let right = AtomicUsize::new(0);
    let look = |numbers: Range<usize>| {
        for_each(shared, threads, numbers.start as u64..numbers.end as u64, |writer, number| {
            // An odd factor spreads the first samples, too.
            let index = number * 13 % count as u64 * chunks.len() as u64 / count as u64;
            let chunk = &chunks[usize::try_from(index).expect("less than there are")];
            let read = |buf: &mut [u8], offset: u64| shared.read_medium(buf, offset);
            let wrong = writer.other_content(shared, chunk, &mut chunk.places().take(1), read);
            right.fetch_add(usize::from(wrong.is_ok_and(|wrong| wrong.is_empty())), Ordering::Relaxed);
            Ok(())
        })?;
        Ok(right.load(Ordering::Relaxed))
    };
    let first = count.min(FIRST_SAMPLES);
    let right = if look(0..first)? > 0 { look(first..count)? } else { 0 };
    Ok(2 * right >= count && right > 0)
}

/// Marks the chunks that the target holds in their places as done, and moves those that it holds elsewhere: in places
/// of other chunks, and in free space if asked for. A chunk that can't be read counts as missing. Errors are those of
/// the target's writes.
pub(super) fn reuse(shared: &Shared, threads: usize, options: &InstallOptions) -> Result<()> {
    // The comparison reads the medium, past the page cache.
    shared.target.sync().map_err(|e| e.within(format!("make `{}` durable", shared.target.name())))?;
    let mut found = compare(shared, threads)?;
    // With free space, allocated zeros are written, too.
    if options.free != FreeSpace::Zero {
        find_zeros(shared, threads)?;
    }
    let needed = needed(shared);
    if options.reuse == Reuse::Always && !needed.is_empty() {
        search_free_space(shared, threads, &needed, &mut found)?;
    }
    for (digest, place) in found.contents {
        if let Some(id) = needed.get(&digest) {
            found.sources.entry(*id).or_insert(place);
        }
    }
    let chunk_bytes = u64::from(shared.plan.layout.chunk.bytes());
    let lifted_max = usize::try_from(options.memory_bytes / 4 / chunk_bytes).unwrap_or(usize::MAX);
    Moves::new(shared, found.sources, lifted_max)?.run()
}

/// What a comparison found.
#[derive(Default)]
struct Found {
    /// Places that hold chunks which are missing elsewhere, by the number of the chunk.
    sources: HashMap<u64, u64>,
    /// What lies in places that hold something else than they should, or nothing: whole chunks.
    contents: Vec<(Digest, u64)>,
}

/// Compares each chunk with the target.
fn compare(shared: &Shared, threads: usize) -> Result<Found> {
    shared.progress.begin(Stage::Resume, shared.plan.bytes());
    let found = Mutex::new(Found::default());
    for_each_chunk(shared, threads, |writer, id, chunk| {
        let read = |buf: &mut [u8], offset: u64| shared.read_medium(buf, offset);
        match writer.other_content(shared, chunk, &mut chunk.places(), read) {
            Ok(wrong) if wrong.is_empty() => {
                if shared.change(id, State::Needed, State::Kept) {
                    shared.counters.kept.fetch_add(chunk.bytes(), Ordering::Relaxed);
                }
            }
            Ok(wrong) => {
                let mut found = found.lock();
                if let Some(right) =
                    chunk.places().find(|place| wrong.iter().all(|(_, other)| other != place))
                {
                    found.sources.insert(id, right);
                }
                if chunk.extents.is_full() {
                    found.contents.extend(wrong);
                }
            }
            Err(_) => {}
        }
        shared.progress.advance(Stage::Resume, chunk.bytes());
        Ok(())
    })?;
    Ok(found.into_inner())
}

/// The chunks that are missing, if all their sectors are allocated, by plain digest.
fn needed(shared: &Shared) -> HashMap<Digest, u64> {
    let missing = shared.missing().into_iter().flatten();
    let chunks = missing.filter_map(|id| Some((shared.plan.chunk(id)?, id)));
    chunks.filter(|(chunk, _)| chunk.extents.is_full()).map(|(chunk, id)| (chunk.plain, id)).collect()
}

/// Adds what lies in the free space of the image and behind its end, chunk by chunk.
fn search_free_space(
    shared: &Shared,
    threads: usize,
    needed: &HashMap<Digest, u64>,
    found: &mut Found,
) -> Result<()> {
    let mut planned: Vec<u64> = shared.plan.chunks.iter().flat_map(|chunk| chunk.places()).collect();
    planned.sort_unstable();
    let layout = &shared.plan.layout;
    let whole = ChunkExtents::full(layout.chunk);
    let size = u64::from(layout.chunk.bytes());
    let contents = Mutex::new(Vec::new());
    let places = shared.target.geometry().size_bytes / size;
    shared.progress.begin(Stage::Resume, places * size);
    for_each(shared, threads, 0..places, |writer, place| {
        let offset = place * size;
        let is_free = planned.binary_search(&place).is_err();
        if is_free && shared.target.next_data(offset) < offset + size {
            let read = |buf: &mut [u8]| match shared.target.read_exact_at(buf, offset) {
                Ok(()) => !is_zero(buf),
                Err(_) => false,
            };
            let digest = writer.digest_of(&whole, read).filter(|digest| needed.contains_key(digest));
            contents.lock().extend(digest.map(|digest| (digest, place)));
        }
        shared.progress.advance(Stage::Resume, size);
        Ok(())
    })?;
    found.contents.append(&mut contents.into_inner());
    Ok(())
}

/// Where a chunk is that is to be copied.
enum Held {
    Place(u64),
    /// In memory, since its place was needed.
    Lifted(Vec<u8>),
}

/// Chunks that are to be copied inside the target.
struct Moves<'a> {
    shared: &'a Shared,
    writer: Writer,
    sources: HashMap<u64, Held>,
    /// Which chunk a place is the source of.
    holds: HashMap<u64, u64>,
    /// How many chunks may be in memory, and are.
    lifted_max: usize,
    lifted: usize,
}

impl<'a> Moves<'a> {
    fn new(shared: &'a Shared, sources: HashMap<u64, u64>, lifted_max: usize) -> Result<Self> {
        let holds = sources.iter().map(|(&id, &place)| (place, id)).collect();
        let sources = sources.into_iter().map(|(id, place)| (id, Held::Place(place))).collect();
        Ok(Self { shared, writer: Writer::new(shared)?, sources, holds, lifted_max, lifted: 0 })
    }

    /// Copies all chunks.
    fn run(mut self) -> Result<()> {
        let mut ids: Vec<u64> = self.sources.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.copy_after_others(id)?;
        }
        Ok(())
    }

    /// Copies chunk `first`, but before it what lies in its places, and so on. In a circle, one chunk waits in memory.
    fn copy_after_others(&mut self, first: u64) -> Result<()> {
        let mut path = vec![first];
        let mut on_path = HashSet::from([first]);
        while let Some(&id) = path.last() {
            match self.in_the_way(id) {
                Some(other) if on_path.contains(&other) => self.lift(other),
                Some(other) => {
                    path.push(other);
                    on_path.insert(other);
                }
                None => {
                    self.copy(id)?;
                    path.pop();
                    on_path.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// A chunk that waits to be copied and lies where chunk `id` goes.
    fn in_the_way(&self, id: u64) -> Option<u64> {
        self.sources.get(&id)?;
        let chunk = self.shared.plan.chunk(id)?;
        chunk.places().filter_map(|place| self.holds.get(&place).copied()).find(|other| *other != id)
    }

    /// Reads chunk `id` into memory. If there is no room, or it has changed, it is fetched instead.
    fn lift(&mut self, id: u64) {
        let Some(Held::Place(place)) = self.sources.remove(&id) else { return };
        self.holds.remove(&place);
        if self.lifted < self.lifted_max
            && let Some(bytes) = self.read(id, place)
        {
            self.lifted += 1;
            self.sources.insert(id, Held::Lifted(bytes));
        }
    }

    /// Reads chunk `id` from `place`; `None` if it is not there any more.
    fn read(&mut self, id: u64, place: u64) -> Option<Vec<u8>> {
        let chunk = self.shared.plan.chunk(id)?;
        self.writer.read(self.shared, chunk, place).ok().flatten()
    }

    /// Writes chunk `id` to its places. Does nothing if it is not there any more.
    fn copy(&mut self, id: u64) -> Result<()> {
        let (bytes, source) = match self.sources.remove(&id) {
            None => return Ok(()),
            Some(Held::Lifted(bytes)) => {
                self.lifted -= 1;
                (Some(bytes), None)
            }
            Some(Held::Place(place)) => {
                self.holds.remove(&place);
                (self.read(id, place), Some(place))
            }
        };
        let Some((bytes, chunk)) = bytes.zip(self.shared.plan.chunk(id)) else { return Ok(()) };
        for place in chunk.places().filter(|place| Some(*place) != source) {
            self.shared.write_chunk(chunk, place, &bytes)?;
        }
        if self.shared.change(id, State::Needed, State::Done) {
            self.shared.counters.moved.fetch_add(chunk.bytes(), Ordering::Relaxed);
        }
        Ok(())
    }
}
