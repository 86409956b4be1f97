//! A volume: a part of a disk with addresses of its own, from 0. Filesystem readers work on volumes.

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result};

use crate::ReadAt;

/// The sectors that are always captured at each end: 128 KiB.
const EDGE_SECTORS: u64 = (128 << 10) / SECTOR_BYTES;

/// Both ends of a disk, a partition or a logical volume, which are always captured: most signatures are there.
pub(crate) fn edges(extent: Extent) -> [Extent; 2] {
    let count = extent.count.min(EDGE_SECTORS);
    [Extent::new(extent.start, count), Extent::new(extent.end() - count, count)]
}

/// The sectors `extent` of `disk`, with offsets that count from the start of `extent`.
#[derive(Clone, Copy)]
pub(crate) struct Volume<'a> {
    disk: &'a dyn ReadAt,
    extent: Extent,
}

impl<'a> Volume<'a> {
    /// The part of `disk` at `extent`. Panics if `extent` passes the end of the disk.
    pub(crate) fn new(disk: &'a dyn ReadAt, extent: Extent) -> Self {
        assert!(extent.end() <= disk.geometry().size_bytes / SECTOR_BYTES, "volume inside its disk");
        Self { disk, extent }
    }

    /// The whole of `disk`.
    pub(crate) fn whole(disk: &'a dyn ReadAt) -> Self {
        Self::new(disk, Extent::new(0, disk.geometry().size_bytes / SECTOR_BYTES))
    }

    /// Its length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.extent.len_bytes()
    }

    /// Its length in sectors of 512 bytes.
    pub(crate) fn sectors(&self) -> u64 {
        self.extent.count
    }

    /// Fills `buf` from byte `offset`. `Malformed` if the range passes the end of the volume, `Io` if the disk fails.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len_bytes()) {
            let context = format!("{len} bytes at offset {offset} lie beyond the volume's end");
            return Err(Error::new(ErrorKind::Malformed, context));
        }
        self.disk.read_exact_at(buf, self.extent.offset_bytes() + offset)
    }

    /// Reads `len` bytes from byte `offset`; `None` if the volume ends before. `Io` if the disk fails.
    pub(crate) fn peek(&self, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len_bytes()) {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.read(&mut bytes, offset).map(|()| Some(bytes))
    }
}
