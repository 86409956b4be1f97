//! Reads a target and compares it with the image: before an install to keep chunks that are right already, and after
//! it to verify.

use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result, is_zero};
use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use crate::buffer::AlignedBuffer;
use crate::progress::Stage;

use super::blank::{Blank, GROUP_BYTES, for_each_blank, hull, part};
use super::plan::PlannedChunk;
use super::shared::{Shared, State};
use super::writer::Writer;

/// How many offsets an error message lists at most.
const OFFSETS_SHOWN: usize = 8;

/// Calls `each` for all chunk objects in the order of their numbers, on `threads` threads. Stops at the first error and
/// returns it.
fn for_each_chunk(
    shared: &Shared,
    threads: usize,
    each: impl Fn(&mut Writer, u64, &PlannedChunk) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicU64::new(shared.plan.heads);
    let work = || -> Result<()> {
        let mut writer = Writer::new(shared)?;
        while !shared.group.is_stopped() {
            let id = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = shared.plan.chunk(id) else { break };
            each(&mut writer, id, chunk)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work().unwrap_or_else(|error| shared.group.fail(error)));
        }
    });
    shared.group.take().map_or(Ok(()), Err)
}

/// Marks the chunks that the target holds already as done. A chunk that can't be read counts as wrong, so the install
/// writes it.
pub(super) fn keep_what_is_right(shared: &Shared, threads: usize) -> Result<()> {
    shared.progress.begin(Stage::Resume, shared.plan.bytes());
    for_each_chunk(shared, threads, |writer, id, chunk| {
        let found =
            writer.wrong_places(shared, chunk, |buf, offset| shared.target.read_exact_at(buf, offset));
        if found.is_ok_and(|wrong| wrong.is_empty()) && shared.change(id, State::Needed, State::Done) {
            shared.counters.kept.fetch_add(chunk.bytes(), Ordering::Relaxed);
        }
        shared.progress.advance(Stage::Resume, chunk.bytes());
        Ok(())
    })
}

/// Reads back all content and all allocated zeros, past the page cache if the target allows it. `Verification` with the
/// first offsets if anything differs; `Io` if a read fails.
pub(super) fn verify(shared: &Shared, threads: usize) -> Result<()> {
    shared.progress.begin(Stage::Verify, shared.plan.bytes());
    let read = |buf: &mut [u8], offset: u64| {
        if !shared.target.read_back_at(buf, offset)? {
            shared.counters.through_cache.store(true, Ordering::Relaxed);
        }
        Ok(())
    };
    let wrong = Mutex::new(Vec::new());
    let note = |offsets: Vec<u64>| wrong.lock().extend(offsets);
    for_each_chunk(shared, threads, |writer, _, chunk| {
        note(writer.wrong_places(shared, chunk, read)?);
        shared.counters.verified.fetch_add(chunk.bytes(), Ordering::Relaxed);
        shared.progress.advance(Stage::Verify, chunk.bytes());
        Ok(())
    })?;
    verify_zeros(shared, threads, read, note)?;
    let mut wrong = wrong.into_inner();
    if wrong.is_empty() {
        return Ok(());
    }
    // The threads found them in any order.
    wrong.sort_unstable();
    let shown: Vec<String> = wrong.iter().take(OFFSETS_SHOWN).map(u64::to_string).collect();
    let more = if wrong.len() > OFFSETS_SHOWN { ", …" } else { "" };
    let (count, name) = (wrong.len(), shared.target.name());
    let text = format!("`{name}` differs from what was written to it in {count} places, at offsets");
    Err(Error::new(ErrorKind::Verification, format!("{text} {}{more}", shown.join(", "))))
}

/// Reads all allocated zeros with `read`, on `threads` threads, and calls `note` with the offsets of runs that are not
/// zeros.
fn verify_zeros(
    shared: &Shared,
    threads: usize,
    read: impl Fn(&mut [u8], u64) -> Result<()> + Copy + Send,
    note: impl Fn(Vec<u64>) + Copy + Send,
) -> Result<()> {
    let (queue, groups) = crossbeam_channel::bounded::<Vec<Extent>>(2 * threads);
    let work = move |groups: Receiver<Vec<Extent>>| {
        let mut zeros = Zeros { shared, buffer: AlignedBuffer::new(GROUP_BYTES) };
        for runs in groups {
            match zeros.first_other(&runs, read) {
                Ok(other) => note(other.into_iter().collect()),
                Err(error) => shared.group.fail(error),
            }
            let bytes = runs.iter().map(|run| run.len_bytes()).sum();
            shared.counters.verified.fetch_add(bytes, Ordering::Relaxed);
        }
    };
    std::thread::scope(move |scope| {
        for _ in 0..threads {
            let groups = groups.clone();
            scope.spawn(move || work(groups));
        }
        drop(groups);
        // Moved into this scope, so that the queue closes when the walk ends, even by an error: then the threads end.
        let queue = queue;
        for_each_blank(&shared.catalogue, shared.plan.layout.size_sectors, false, |kind, runs| {
            if kind == Blank::Zero && !shared.group.is_stopped() {
                queue.send(runs.to_vec()).expect("the threads take groups until the queue is closed");
            }
            Ok(())
        })
    })?;
    shared.group.take().map_or(Ok(()), Err)
}

/// Reads sectors that must be zeros, with the buffer of one thread.
struct Zeros<'a> {
    shared: &'a Shared,
    buffer: AlignedBuffer,
}

impl Zeros<'_> {
    /// Returns the offset of the first part of `runs` that is not zeros, or `None`. `runs` is one extent, or a group of
    /// short ones. A long extent is read in pieces of `GROUP_BYTES`; the offset is then that of the piece.
    fn first_other(
        &mut self,
        runs: &[Extent],
        read: impl Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<Option<u64>> {
        let whole = hull(runs);
        let end = whole.end() * SECTOR_BYTES;
        let mut offset = whole.offset_bytes();
        while offset < end && !self.shared.group.is_stopped() {
            // Skip the holes of a sparse target: they are zeros.
            let data = self.shared.target.next_data(offset).min(end) / SECTOR_BYTES * SECTOR_BYTES;
            if data > offset {
                offset = data;
                continue;
            }
            let len = (GROUP_BYTES as u64).min(end - offset);
            let piece = Extent::new(offset / SECTOR_BYTES, len / SECTOR_BYTES);
            let bytes = self.buffer.front(usize::try_from(len).expect("at most a group"));
            read(bytes, offset).map_err(|e| e.within(format!("read back zeros at offset {offset}")))?;
            let inside = runs.iter().filter_map(|run| run.intersection(piece));
            if let Some(other) = inside.into_iter().find(|run| !is_zero(part(bytes, piece, run))) {
                return Ok(Some(other.offset_bytes()));
            }
            offset += len;
        }
        Ok(None)
    }
}
