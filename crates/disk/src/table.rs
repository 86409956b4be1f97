//! Partition tables: which one a disk has, and what it says.

mod gpt;
mod mbr;

use base::limits::SECTOR_BYTES;
use base::{Extent, Result};

use crate::signature::Claim;
use crate::volume::Volume;
use crate::{ReadAt, TableKind};

/// What a partition table says.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its kind.
    pub(crate) kind: TableKind,
    /// GUID or signature of the disk.
    pub(crate) disk_id: Option<String>,
    /// Its partitions by ascending number, all inside the disk.
    pub(crate) entries: Vec<Entry>,
    /// Sectors that are captured whatever they contain: the table itself, and space whose owner a damaged chain does
    /// not tell.
    pub(crate) own: Vec<Extent>,
    /// Why the disk must be captured whole.
    pub(crate) distrust: Option<String>,
    /// Notes for the user.
    pub(crate) warnings: Vec<String>,
}

/// A partition as its table describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u32,
    pub(crate) extent: Extent,
    pub(crate) type_id: String,
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    /// Whether the table allows it to extend past the end of the disk.
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

    /// Whether a claim to the disk comes from this table.
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
/// disk fails; any problem with the table is described in the result.
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

/// A disk in its own logical sectors, which are the unit of tables.
struct Blocks<'a> {
    volume: Volume<'a>,
    /// Bytes of a logical sector.
    bytes: u64,
    /// Number of logical sectors of the disk.
    count: u64,
}

impl<'a> Blocks<'a> {
    fn of(disk: &'a dyn ReadAt) -> Self {
        let bytes = u64::from(disk.geometry().logical_sector_bytes).max(SECTOR_BYTES);
        Self { volume: Volume::whole(disk), bytes, count: disk.geometry().size_bytes / bytes }
    }

    /// `count` blocks from `start`; `None` if the disk ends before.
    fn read(&self, start: u64, count: u64) -> Result<Option<Vec<u8>>> {
        if start.checked_add(count).is_none_or(|end| end > self.count) {
            return Ok(None);
        }
        let len = usize::try_from(count * self.bytes).expect("a table, whose size was checked");
        self.volume.peek(start * self.bytes, len)
    }

    /// The sectors of `count` blocks from `start`, cut at the end of the disk.
    fn extent(&self, start: u64, count: u64) -> Extent {
        let scale = self.bytes / SECTOR_BYTES;
        let end = start.saturating_add(count).min(self.count);
        Extent::between(start.min(self.count) * scale, end * scale)
    }

    /// Whether `count` blocks from `start` extend past the end of the disk.
    fn cuts(&self, start: u64, count: u64) -> bool {
        start.checked_add(count).is_none_or(|end| end > self.count)
    }
}
