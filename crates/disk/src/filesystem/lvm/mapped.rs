//! A logical volume as a disk of its own.

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result};

use super::group::{Logical, Segment};
use crate::coverage::Coverage;
use crate::volume::Volume;
use crate::{Geometry, ReadAt};

/// The sectors of a logical volume, each where its segments put it.
pub(super) struct Mapped<'a> {
    physical: Volume<'a>,
    segments: &'a [Segment],
    name: &'a str,
    sectors: u64,
}

impl<'a> Mapped<'a> {
    /// `None` if the volume does not hold what its user wrote.
    pub(super) fn new(physical: Volume<'a>, logical: &'a Logical) -> Option<Self> {
        let sectors = logical.segments.last().filter(|_| logical.is_plain)?.end();
        Some(Self { physical, segments: &logical.segments, name: &logical.name, sectors })
    }

    /// Adds a run of its sectors to those of the physical volume.
    pub(super) fn place(&self, run: Extent, used: &mut Coverage) {
        let first = self.segments.partition_point(|segment| segment.end() <= run.start);
        for segment in self.segments[first..].iter().take_while(|segment| segment.start < run.end()) {
            let (start, end) = (run.start.max(segment.start), run.end().min(segment.end()));
            let (rows, stripes) = segment.rows(start, end);
            if rows.is_empty() {
                self.parts(Extent::between(start, end)).for_each(|part| used.add(part));
                continue;
            }
            self.parts(Extent::between(start, rows.start)).for_each(|part| used.add(part));
            stripes.into_iter().for_each(|stripe| used.add(stripe));
            self.parts(Extent::between(rows.end(), end)).for_each(|part| used.add(part));
        }
    }

    /// Where the sectors of a run lie, in their order.
    fn parts(&self, run: Extent) -> impl Iterator<Item = Extent> + '_ {
        let mut at = run.start;
        std::iter::from_fn(move || {
            let index = self.segments.partition_point(|segment| segment.end() <= at);
            let segment = self.segments.get(index).filter(|_| at < run.end())?;
            let there = segment.run(at);
            let count = there.count.min(run.end() - at);
            at += count;
            Some(Extent::new(there.start, count))
        })
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (first, skip) = (offset / SECTOR_BYTES, offset % SECTOR_BYTES);
        let end = (offset + buf.len() as u64).div_ceil(SECTOR_BYTES);
        let (mut rest, mut skip) = (buf, skip);
        for part in self.parts(Extent::between(first, end)) {
            let len = (part.len_bytes() - skip).min(rest.len() as u64);
            let (here, after) = rest.split_at_mut(usize::try_from(len).expect("in memory"));
            self.physical.read(here, part.offset_bytes() + skip)?;
            (rest, skip) = (after, 0);
        }
        Ok(())
    }
}

impl ReadAt for Mapped<'_> {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.sectors * SECTOR_BYTES;
        Geometry { size_bytes, logical_sector_bytes: 512, physical_sector_bytes: 512 }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.sectors * SECTOR_BYTES) {
            let context = format!("read beyond the end of logical volume `{}`", self.name);
            return Err(Error::new(ErrorKind::Malformed, context));
        }
        self.read(buf, offset)
    }

    fn name(&self) -> &str {
        self.name
    }
}
