//! Reads a target after an install and compares it with the image.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result, is_zero};
use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use crate::buffer::AlignedBuffer;
use crate::progress::Stage;

use super::blank::{Blank, GROUP_BYTES, for_each_blank, hull, part};
use super::plan::PlannedChunk;
use super::shared::Shared;
use super::writer::Writer;

/// Length in sectors of a piece of zeros that one thread reads: 2 MiB.
const PIECE_SECTORS: usize = 1 << 12;
/// How many offsets an error message lists at most.
const OFFSETS_SHOWN: usize = 8;

/// Calls `each` for all `numbers`, in their order, on `threads` threads. Stops at the first error and returns it.
pub(super) fn for_each(
    shared: &Shared,
    threads: usize,
    numbers: Range<u64>,
    each: impl Fn(&mut Writer, u64) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicU64::new(numbers.start);
    let work = || -> Result<()> {
        let mut writer = Writer::new(shared)?;
        while !shared.group.is_stopped() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                break;
            }
            each(&mut writer, number)?;
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

/// Calls `each` for all chunk objects in the order of their numbers.
pub(super) fn for_each_chunk(
    shared: &Shared,
    threads: usize,
    each: impl Fn(&mut Writer, u64, &PlannedChunk) -> Result<()> + Sync,
) -> Result<()> {
    let ids = shared.plan.heads..shared.plan.heads + shared.plan.chunks.len() as u64;
    for_each(shared, threads, ids, |writer, id| match shared.plan.chunk(id) {
        Some(chunk) => each(writer, id, chunk),
        None => Ok(()),
    })
}

/// Reads back what was written, past the page cache if the target allows it. `Verification` with the first offsets if
/// anything differs; `Io` if a read fails.
pub(super) fn verify(shared: &Shared, threads: usize) -> Result<()> {
    shared.progress.begin(Stage::Verify, shared.plan.bytes());
    let read = |buf: &mut [u8], offset: u64| shared.read_medium(buf, offset);
    let wrong = Mutex::new(Vec::new());
    let note = |offsets: Vec<u64>| wrong.lock().extend(offsets);
    for_each_chunk(shared, threads, |writer, id, chunk| {
        // What was kept was read before the install.
        if !shared.is_kept(id) {
            let other = writer.other_content(shared, chunk, &mut chunk.places(), read)?;
            note(other.into_iter().map(|(_, place)| shared.plan.layout.chunk_offset(place)).collect());
        }
        shared.counters.verified.fetch_add(chunk.bytes(), Ordering::Relaxed);
        shared.progress.advance(Stage::Verify, chunk.bytes());
        Ok(())
    })?;
    let verified = &shared.counters.verified;
    if shared.zeros_are_right.load(Ordering::Relaxed) {
        verified.fetch_add(shared.counters.kept_zeros.load(Ordering::Relaxed), Ordering::Relaxed);
    } else {
        read_zeros(shared, threads, verified, read, note)?;
    }
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

/// Notes whether all allocated zeros of the target are there. Zeros that can't be read are not.
pub(super) fn find_zeros(shared: &Shared, threads: usize) -> Result<()> {
    let (all, kept) = (&shared.zeros_are_right, &shared.counters.kept_zeros);
    all.store(true, Ordering::Relaxed);
    let read = |buf: &mut [u8], offset: u64| {
        // The rest need not be read once one is not zero.
        if !all.load(Ordering::Relaxed) || shared.read_medium(buf, offset).is_err() {
            buf.fill(0xFF);
        }
        Ok(())
    };
    read_zeros(shared, threads, kept, read, |offsets| {
        if !offsets.is_empty() {
            all.store(false, Ordering::Relaxed);
        }
    })
}

/// Reads all allocated zeros with `read`, on `threads` threads, counts them in `counter`, and calls `note` with the
/// offsets of runs that are not zeros.
fn read_zeros(
    shared: &Shared,
    threads: usize,
    counter: &AtomicU64,
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
            counter.fetch_add(bytes, Ordering::Relaxed);
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
                let send =
                    |runs| queue.send(runs).expect("the threads take groups until the queue is closed");
                match runs {
                    // In pieces, so that all threads read.
                    [run] => (run.start..run.end())
                        .step_by(PIECE_SECTORS)
                        .map(|start| Extent::between(start, run.end().min(start + PIECE_SECTORS as u64)))
                        .for_each(|piece| send(vec![piece])),
                    group => send(group.to_vec()),
                }
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
