//! A part of a target as a target of its own.

use std::sync::Arc;

use base::{Error, ErrorKind, Extent, Result};

use crate::{Geometry, ReadAt, WriteAt, table};

/// Where partition `number` of `disk` lies. `Refused`, with the reason, if there is none, or if the table can't be
/// relied on: it is damaged, or the partition passes the end of the disk or overlaps another one. `Io` if the disk
/// fails.
pub fn partition_of(disk: &dyn ReadAt, number: u32) -> Result<Extent> {
    let refused = |why: String| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", disk.name())));
    let table = table::read(disk)?;
    if let Some(why) = &table.distrust {
        return refused(format!("has a partition table that can't be relied on: {why}"));
    }
    let Some(entry) = table.entries.iter().find(|entry| entry.number == number) else {
        let numbers: Vec<_> = table.entries.iter().map(|entry| entry.number.to_string()).collect();
        let has = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
        return refused(format!("has no partition {number}; it has {has}"));
    };
    let meets =
        |other: &&table::Entry| other.number != number && other.extent.intersection(entry.extent).is_some();
    if let Some(other) = table.entries.iter().find(meets) {
        return refused(format!("has partitions {number} and {} at one place", other.number));
    }
    if entry.cut {
        return refused(format!("ends before partition {number} does"));
    }
    Ok(entry.extent)
}

/// The sectors of one partition of a disk, with offsets that count from their start.
pub struct Window {
    disk: Arc<dyn WriteAt>,
    extent: Extent,
    name: String,
}

impl Window {
    /// The part of `disk` at `extent`, which `name` describes. `Refused` if it passes the end of the disk.
    pub fn new(disk: Arc<dyn WriteAt>, extent: Extent, name: String) -> Result<Self> {
        if extent.end() > disk.geometry().size_bytes / base::limits::SECTOR_BYTES {
            return Err(Error::new(ErrorKind::Refused, format!("{name} passes the end of its disk")));
        }
        Ok(Self { disk, extent, name })
    }

    /// The offset on the disk of `len` bytes from `offset`. `Io` if they pass the end of the part.
    fn offset(&self, offset: u64, len: u64) -> Result<u64> {
        if offset.checked_add(len).is_none_or(|end| end > self.extent.len_bytes()) {
            let text = format!("{len} bytes at offset {offset} lie beyond the end of {}", self.name);
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok(self.extent.offset_bytes() + offset)
    }
}

impl ReadAt for Window {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.extent.len_bytes(), ..self.disk.geometry() }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.disk.read_exact_at(buf, self.offset(offset, buf.len() as u64)?)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        let (start, size) = (self.extent.offset_bytes(), self.extent.len_bytes());
        if offset >= size {
            return size;
        }
        (self.disk.next_data(start + offset) - start).min(size)
    }
}

impl WriteAt for Window {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.disk.write_all_at(buf, self.offset(offset, buf.len() as u64)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.write_zeroes(self.offset(offset, len)?, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(self.offset(offset, len)?, len)
    }

    fn sync(&self) -> Result<()> {
        self.disk.sync()
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.disk.read_back_at(buf, self.offset(offset, buf.len() as u64)?)
    }
}
