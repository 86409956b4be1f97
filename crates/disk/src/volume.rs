//! A part of a disk as a disk of its own, for filesystem readers.

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result};

use crate::ReadAt;

/// Sectors `extent` of a disk, addressed from 0.
#[derive(Clone, Copy)]
pub(crate) struct Volume<'a> {
    disk: &'a dyn ReadAt,
    extent: Extent,
}

impl<'a> Volume<'a> {
    /// The part of `disk` at `extent`, which lies inside it.
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

    /// Fills `buf` from `offset`. `Malformed` if that lies outside the volume, `Io` if the disk fails.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len_bytes()) {
            let context = format!("{len} bytes at offset {offset} lie beyond the volume's end");
            return Err(Error::new(ErrorKind::Malformed, context));
        }
        self.disk.read_exact_at(buf, self.extent.offset_bytes() + offset)
    }

    /// `len` bytes from `offset`, if the volume is that long. `Io` if the disk fails.
    pub(crate) fn peek(&self, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len_bytes()) {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.read(&mut bytes, offset).map(|()| Some(bytes))
    }
}
