//! The parts of a target that no chunk object fills: finds allocated zeros and free space, and treats them as asked.

use std::sync::atomic::Ordering;

use base::{Error, ErrorKind, limits::SECTOR_BYTES};
use base::{Extent, Result, is_zero};

use crate::buffer::AlignedBuffer;
use crate::catalogue::Catalogue;
use crate::leaf::Leaf;

use super::options::FreeSpace;
use super::shared::Shared;

/// Why no chunk object fills a part of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blank {
    /// Allocated, and must read as zeros.
    Zero,
    /// Not allocated, or after the end of the image.
    Free,
}

/// Largest extent that is handled in one call, in sectors: 1 GiB. An install can stop only between two calls.
const PIECE_SECTORS: u64 = 1 << 21;
/// Runs of zeros shorter than this, in sectors, are written as bytes: 64 KiB. For short runs a write is faster than a
/// request to the device or filesystem to make zeros.
const SHORT_SECTORS: u64 = 128;
/// Short runs with at most this distance between them, in sectors, are handled together: 32 KiB.
const NEAR_SECTORS: u64 = 64;
/// Short runs that are handled together lie within this many bytes.
pub(super) const GROUP_BYTES: usize = 256 << 10;

/// Calls `each` with all blank parts of a target of `target_sectors`: either with one extent of at most 1 GiB, or with
/// several short runs of zeros that lie within [`GROUP_BYTES`]. Free extents ascend. So do extents of zeros, but a
/// group of short runs may come later than parts that lie after it on the disk. If `zero_free`, free space counts as
/// [`Blank::Zero`].
///
/// Errors are those of `each`, and of a damaged tree.
pub(super) fn for_each_blank(
    catalogue: &Catalogue,
    target_sectors: u64,
    zero_free: bool,
    mut each: impl FnMut(Blank, &[Extent]) -> Result<()>,
) -> Result<()> {
    let layout = *catalogue.layout();
    let free = if zero_free { Blank::Zero } else { Blank::Free };
    let mut walk = Walk { free, pending: None, group: Vec::new(), position: 0, each: &mut each };
    for run in catalogue.leaves() {
        let run = run?;
        let Some(extents) = run.leaf.extents() else { continue };
        let is_zero = matches!(run.leaf, Leaf::Zero(_));
        if run.count > 1 {
            let first = layout.chunk_extent(run.first);
            walk.allocated(Extent::new(first.start, first.count * run.count), is_zero)?;
        } else {
            for extent in layout.extents_of(run.first, extents) {
                walk.allocated(extent, is_zero)?;
            }
        }
    }
    walk.finish(target_sectors)
}

/// Joins adjacent blank extents of one kind, splits long ones, and groups short runs of zeros.
struct Walk<'a, F> {
    /// The kind that free space counts as.
    free: Blank,
    /// The last blank extent. The next one may extend it.
    pending: Option<(Blank, Extent)>,
    /// Short runs of zeros near each other, which `each` has not seen yet.
    group: Vec<Extent>,
    /// End of the last allocated extent, in sectors. Free space begins here, if there is a gap.
    position: u64,
    each: &'a mut F,
}

impl<F: FnMut(Blank, &[Extent]) -> Result<()>> Walk<'_, F> {
    /// Takes the next allocated extent; the gap before it is free.
    fn allocated(&mut self, extent: Extent, is_zero: bool) -> Result<()> {
        self.blank(self.free, Extent::between(self.position, extent.start))?;
        if is_zero {
            self.blank(Blank::Zero, extent)?;
        }
        self.position = extent.end();
        Ok(())
    }

    /// Takes the next blank extent.
    fn blank(&mut self, kind: Blank, extent: Extent) -> Result<()> {
        if extent.is_empty() {
            return Ok(());
        }
        match &mut self.pending {
            Some((last, pending)) if *last == kind && pending.end() == extent.start => {
                pending.count += extent.count;
                Ok(())
            }
            pending => match pending.replace((kind, extent)) {
                Some((kind, extent)) => self.emit(kind, extent),
                None => Ok(()),
            },
        }
    }

    /// Passes an extent that can't grow any more to `each`, in pieces if it is long.
    fn emit(&mut self, kind: Blank, extent: Extent) -> Result<()> {
        if kind == Blank::Zero && extent.count < SHORT_SECTORS {
            return self.gather(extent);
        }
        let starts = (extent.start..extent.end()).step_by(usize::try_from(PIECE_SECTORS).expect("fits"));
        for start in starts {
            (self.each)(kind, &[Extent::between(start, extent.end().min(start + PIECE_SECTORS))])?;
        }
        Ok(())
    }

    /// Adds a short run of zeros to the group. If it does not fit, first passes the group to `each` and begins another.
    fn gather(&mut self, run: Extent) -> Result<()> {
        let fits = |first: &Extent, last: &Extent| {
            run.start - last.end() <= NEAR_SECTORS
                && (run.end() - first.start) * SECTOR_BYTES <= GROUP_BYTES as u64
        };
        if let (Some(first), Some(last)) = (self.group.first(), self.group.last())
            && !fits(first, last)
        {
            (self.each)(Blank::Zero, &self.group)?;
            self.group.clear();
        }
        self.group.push(run);
        Ok(())
    }

    /// Handles the free space up to the end of the target, and what is still pending.
    fn finish(mut self, target_sectors: u64) -> Result<()> {
        self.blank(self.free, Extent::between(self.position, target_sectors))?;
        if let Some((kind, extent)) = self.pending.take() {
            self.emit(kind, extent)?;
        }
        if self.group.is_empty() { Ok(()) } else { (self.each)(Blank::Zero, &self.group) }
    }
}

/// The extent from the start of the first to the end of the last of `runs`, which ascend.
pub(super) fn hull(runs: &[Extent]) -> Extent {
    let bounds = runs.first().zip(runs.last());
    bounds.map_or(Extent::default(), |(first, last)| Extent::between(first.start, last.end()))
}

/// The bytes of `run`, out of the `bytes` of the extent `hull` that contains it.
pub(super) fn part<'a>(bytes: &'a [u8], hull: Extent, run: &Extent) -> &'a [u8] {
    let from = usize::try_from((run.start - hull.start) * SECTOR_BYTES).expect("inside a group");
    &bytes[from..from + usize::try_from(run.len_bytes()).expect("a short run")]
}

/// Size of a page of the kernel's page cache, in sectors: 4 KiB.
const PAGE_SECTORS: u64 = 8;

/// Makes all allocated zeros of the target, and treats its free space as `free` says. Returns early, without an error,
/// if the install was stopped.
pub(super) fn make_all(shared: &Shared, free: FreeSpace) -> Result<()> {
    let (counters, zero_free) = (&shared.counters, free == FreeSpace::Zero);
    let target_sectors = shared.target.geometry().size_bytes / SECTOR_BYTES;
    let mut buffer = AlignedBuffer::new(GROUP_BYTES);
    for_each_blank(&shared.catalogue, target_sectors, zero_free, |kind, runs| {
        if shared.group.is_stopped() {
            return Ok(());
        }
        let counter = match (kind, free) {
            (Blank::Zero, FreeSpace::Skip | FreeSpace::Discard)
                if shared.zeros_are_right.load(Ordering::Relaxed) =>
            {
                return Ok(());
            }
            (Blank::Zero, _) => {
                zero(shared, runs, &mut buffer)?;
                &counters.zeroed
            }
            (Blank::Free, FreeSpace::Discard) if discard(shared, hull(runs))? => &counters.discarded,
            // `FreeSpace::Skip`, or a target that can't discard.
            (Blank::Free, _) => &counters.skipped,
        };
        counter.fetch_add(runs.iter().map(|run| run.len_bytes()).sum(), Ordering::Relaxed);
        Ok(())
    })
}

/// Makes `runs` read as zeros: one extent, or a group of short ones.
fn zero(shared: &Shared, runs: &[Extent], buffer: &mut AlignedBuffer) -> Result<()> {
    let hull = hull(runs);
    // A hole of a sparse target reads as zeros already. Leave it sparse.
    if shared.target.is_hole(hull.offset_bytes(), hull.len_bytes()) {
        return Ok(());
    }
    match runs {
        [run] if run.count >= SHORT_SECTORS => zero_long(shared, *run),
        [run] => write_zeros(shared, *run),
        _ => {
            // A write of a part of a page makes the kernel read that page first. One large read brings all pages of
            // the group into the cache, and shows which runs are zeros already. If it fails, write them all.
            let bytes = buffer.front(usize::try_from(hull.len_bytes()).expect("a group"));
            let known = shared.target.read_exact_at(bytes, hull.offset_bytes()).is_ok();
            let is_done = |run: &&Extent| known && is_zero(part(bytes, hull, run));
            runs.iter().filter(|run| !is_done(run)).try_for_each(|run| write_zeros(shared, *run))
        }
    }
}

/// Writes a short run of zeros as bytes.
fn write_zeros(shared: &Shared, run: Extent) -> Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let len = usize::try_from(run.len_bytes()).expect("a short run");
    shared.target.write_all_at(&ZEROS[..len], run.offset_bytes()).map_err(failed(run))
}

/// Adds the extent of zeros to an error.
fn failed(extent: Extent) -> impl Fn(Error) -> Error {
    let (offset, len) = (extent.offset_bytes(), extent.len_bytes());
    move |error| error.within(format!("write {len} zeros at offset {offset}"))
}

/// The whole pages inside `extent`, and the sectors of `extent` before and after them. Other threads may write their
/// sectors of the first and the last page at the same time, through the page cache. A request that bypasses the cache
/// must not touch these two pages.
fn split_at_pages(extent: Extent) -> (Extent, [Extent; 2]) {
    let from = extent.start.next_multiple_of(PAGE_SECTORS).min(extent.end());
    let to = (extent.end() - extent.end() % PAGE_SECTORS).max(from);
    (Extent::between(from, to), [Extent::between(extent.start, from), Extent::between(to, extent.end())])
}

/// Makes a long run of zeros: asks the target for the whole pages, and writes the ends as bytes.
fn zero_long(shared: &Shared, extent: Extent) -> Result<()> {
    let (pages, ends) = split_at_pages(extent);
    ends.into_iter().filter(|end| !end.is_empty()).try_for_each(|end| write_zeros(shared, end))?;
    shared.target.write_zeroes(pages.offset_bytes(), pages.len_bytes()).map_err(failed(pages))
}

/// Discards the whole pages of `extent` and leaves the rest unchanged. Returns false if the target can't discard.
fn discard(shared: &Shared, extent: Extent) -> Result<bool> {
    let (pages, _) = split_at_pages(extent);
    if pages.is_empty() {
        return Ok(true);
    }
    let (offset, len) = (pages.offset_bytes(), pages.len_bytes());
    match shared.target.discard(offset, len) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error.within(format!("discard {len} bytes at offset {offset}"))),
    }
}
