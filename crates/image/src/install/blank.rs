//! The parts of a target that no chunk fills: allocated zeros, and free space.

use std::sync::atomic::Ordering;

use base::Extent;

use crate::Result;
use crate::catalogue::Catalogue;
use crate::error::from_disk;
use crate::leaf::Leaf;

use super::FreeSpace;
use super::shared::Shared;

/// Why a part of the target gets no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blank {
    /// Allocated, and must read as zeros.
    Zero,
    /// Not allocated, or behind the image's end.
    Free,
}

/// Largest extent that is handled in one call, in sectors: 1 GiB, so that nobody waits long to stop it.
const PIECE_SECTORS: u64 = 1 << 21;

/// Calls `each` with all blank parts of a target of `target_sectors`, ascending, each at most 1 GiB.
pub(super) fn for_each_blank(
    catalogue: &Catalogue,
    target_sectors: u64,
    mut each: impl FnMut(Blank, Extent) -> Result<()>,
) -> Result<()> {
    let layout = *catalogue.layout();
    let mut walk = Walk { pending: None, position: 0, each: &mut each };
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

struct Walk<'a, F> {
    pending: Option<(Blank, Extent)>,
    position: u64,
    each: &'a mut F,
}

impl<F: FnMut(Blank, Extent) -> Result<()>> Walk<'_, F> {
    /// The next allocated extent.
    fn allocated(&mut self, extent: Extent, is_zero: bool) -> Result<()> {
        self.blank(Blank::Free, Extent::between(self.position, extent.start))?;
        if is_zero {
            self.blank(Blank::Zero, extent)?;
        }
        self.position = extent.end();
        Ok(())
    }

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

    fn emit(&mut self, kind: Blank, extent: Extent) -> Result<()> {
        let starts = (extent.start..extent.end()).step_by(usize::try_from(PIECE_SECTORS).expect("fits"));
        for start in starts {
            (self.each)(kind, Extent::between(start, extent.end().min(start + PIECE_SECTORS)))?;
        }
        Ok(())
    }

    fn finish(mut self, target_sectors: u64) -> Result<()> {
        self.blank(Blank::Free, Extent::between(self.position, target_sectors))?;
        match self.pending.take() {
            Some((kind, extent)) => self.emit(kind, extent),
            None => Ok(()),
        }
    }
}

/// Pages of a kernel's cache, in sectors.
const PAGE_SECTORS: u64 = 8;

/// Makes the target's zeros, and treats its free space as asked.
pub(super) fn make_all(shared: &Shared, free: FreeSpace) -> Result<()> {
    let counters = &shared.counters;
    for_each_blank(&shared.catalogue, shared.target.geometry().size_bytes / 512, |kind, extent| {
        if shared.group.is_stopped() {
            return Ok(());
        }
        let counter = match (kind, free) {
            (Blank::Free, FreeSpace::Skip) => &counters.skipped,
            (Blank::Free, FreeSpace::Discard) if discard(shared, extent)? => &counters.discarded,
            (Blank::Free, FreeSpace::Discard) => &counters.skipped,
            (Blank::Zero, _) | (Blank::Free, FreeSpace::Zero) => {
                zero(shared, extent)?;
                &counters.zeroed
            }
        };
        counter.fetch_add(extent.len_bytes(), Ordering::Relaxed);
        Ok(())
    })
}

/// The whole pages inside `extent`, and what lies before and behind them. Others write their sectors of the pages at
/// both ends at the same time, and what works beside the page cache must not touch those.
fn split_at_pages(extent: Extent) -> (Extent, [Extent; 2]) {
    let from = extent.start.next_multiple_of(PAGE_SECTORS).min(extent.end());
    let to = (extent.end() - extent.end() % PAGE_SECTORS).max(from);
    (Extent::between(from, to), [Extent::between(extent.start, from), Extent::between(to, extent.end())])
}

fn zero(shared: &Shared, extent: Extent) -> Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let failed = |extent: Extent| {
        let (offset, len) = (extent.offset_bytes(), extent.len_bytes());
        move |error| from_disk(error, format!("write {len} zeros at offset {offset}"))
    };
    let (pages, ends) = split_at_pages(extent);
    for end in ends.into_iter().filter(|end| !end.is_empty()) {
        let len = usize::try_from(end.len_bytes()).expect("less than a page");
        shared.target.write_all_at(&ZEROS[..len], end.offset_bytes()).map_err(failed(end))?;
    }
    if pages.is_empty() {
        return Ok(());
    }
    shared.target.write_zeroes(pages.offset_bytes(), pages.len_bytes()).map_err(failed(pages))
}

/// Whether the target knows how to discard.
fn discard(shared: &Shared, extent: Extent) -> Result<bool> {
    let (pages, _) = split_at_pages(extent);
    if pages.is_empty() {
        return Ok(true);
    }
    let (offset, len) = (pages.offset_bytes(), pages.len_bytes());
    match shared.target.discard(offset, len) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == disk::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(from_disk(error, format!("discard {len} bytes at offset {offset}"))),
    }
}
