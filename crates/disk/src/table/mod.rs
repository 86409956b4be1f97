//! Reads the partition table of a disk: its kind, its partitions, and whether it can be trusted.

mod gpt;
mod mbr;

use base::limits::SECTOR_BYTES;
use base::{Extent, Result};

use crate::signature::Claim;
use crate::volume::Volume;
use crate::{ReadAt, TableKind};

/// The contents of a partition table.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its kind.
    pub(crate) kind: TableKind,
    /// The GUID (GPT) or the signature (MBR) of the disk, as text.
    pub(crate) disk_id: Option<String>,
    /// Its partitions by ascending number, all inside the disk.
    pub(crate) entries: Vec<Entry>,
    /// Sectors that are always captured: the table itself, and an extended partition whose chain is damaged.
    pub(crate) own: Vec<Extent>,
    /// The reason to capture the disk whole, if there is one.
    pub(crate) distrust: Option<String>,
    /// Messages for the user.
    pub(crate) warnings: Vec<String>,
}

/// A partition as the table describes it. The fields are those of [`crate::Partition`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u32,
    pub(crate) extent: Extent,
    pub(crate) type_id: String,
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    /// Whether it passes the end of the disk in the table; `extent` is cut there.
    pub(crate) cut: bool,
}

impl Table {
    fn new(kind: TableKind) -> Self {
        Self {
            kind,
            disk_id: None,
            entries: Vec::new(),
            own: Vec::new(),
            distrust: None,
            warnings: Vec::new(),
        }
    }

    /// Whether `claim`, found in the whole disk, is the signature of this table.
    pub(crate) fn is_own(&self, claim: &Claim) -> bool {
        let stands_here = || self.own.iter().any(|own| own.offset_bytes() == claim.offset);
        match self.kind {
            TableKind::None => false,
            TableKind::Mbr => claim.kind == "mbr",
            TableKind::Gpt => claim.kind == "mbr" || claim.kind == "gpt" && stands_here(),
        }
    }
}

/// Reads the partition table of `disk`. As in Linux, a GPT counts only if the boot record announces it. `Io` if the
/// disk fails; any problem of the table itself is recorded in its `distrust` or its `warnings`.
pub(crate) fn read(disk: &dyn ReadAt) -> Result<Table> {
    let blocks = Blocks::of(disk);
    let record = match blocks.read(0, 1)? {
        Some(sector) => mbr::BootRecord::parse(&sector),
        None => None,
    };
    match &record {
        Some(record) if record.is_protective() => gpt::read(&blocks, record),
        Some(record) if record.is_plausible() && !record.is_empty() => mbr::read(&blocks, record),
        _ => Ok(Table::new(TableKind::None)),
    }
}

/// A disk in blocks, which are its logical sectors: the unit of partition tables.
struct Blocks<'a> {
    volume: Volume<'a>,
    /// Size of a block in bytes, at least 512.
    bytes: u64,
    /// Number of blocks of the disk.
    count: u64,
}

impl<'a> Blocks<'a> {
    fn of(disk: &'a dyn ReadAt) -> Self {
        let bytes = u64::from(disk.geometry().logical_sector_bytes).max(SECTOR_BYTES);
        Self { volume: Volume::whole(disk), bytes, count: disk.geometry().size_bytes / bytes }
    }

    /// Reads `count` blocks from block `start`; `None` if the disk ends before.
    fn read(&self, start: u64, count: u64) -> Result<Option<Vec<u8>>> {
        if start.checked_add(count).is_none_or(|end| end > self.count) {
            return Ok(None);
        }
        let len = usize::try_from(count * self.bytes).expect("a table, whose size was checked");
        self.volume.peek(start * self.bytes, len)
    }

    /// The 512-byte sectors of `count` blocks from block `start`, cut at the end of the disk.
    fn extent(&self, start: u64, count: u64) -> Extent {
        let scale = self.bytes / SECTOR_BYTES;
        let end = start.saturating_add(count).min(self.count);
        Extent::between(start.min(self.count) * scale, end * scale)
    }

    /// Whether `count` blocks from block `start` pass the end of the disk.
    fn cuts(&self, start: u64, count: u64) -> bool {
        start.checked_add(count).is_none_or(|end| end > self.count)
    }
}
