//! Reads the master boot record and the chain of extended boot records, as Linux does (block/partitions/msdos.c).

use base::limits::LOGICAL_PARTITIONS_MAX;
use base::wire::{Reader, Truncated};
use base::{Extent, Result};

use super::{Blocks, Entry, Table};
use crate::TableKind;

/// Offset of the four slots in bytes.
const SLOTS_OFFSET: usize = 446;
/// Offset of the disk's signature in bytes.
const DISK_ID_OFFSET: usize = 440;

/// The partition type that announces a GPT.
const PROTECTIVE: u8 = 0xEE;

/// The partition table in a boot record.
#[derive(Debug)]
pub(super) struct BootRecord {
    disk_id: u32,
    slots: Vec<Slot>,
}

/// One of the four slots of a boot record. `start` and `count` are in logical sectors.
#[derive(Debug, Clone, Copy)]
struct Slot {
    flag: u8,
    kind: u8,
    start: u32,
    count: u32,
}

impl Slot {
    fn parse(reader: &mut Reader) -> std::result::Result<Self, Truncated> {
        let flag = reader.u8()?;
        reader.bytes(3)?;
        let kind = reader.u8()?;
        reader.bytes(3)?;
        Ok(Self { flag, kind, start: reader.u32()?, count: reader.u32()? })
    }

    fn is_used(self) -> bool {
        self.kind != 0 && self.count != 0
    }

    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

impl BootRecord {
    /// The table in the first 512 bytes of `sector`, if its signature is there.
    pub(super) fn parse(sector: &[u8]) -> Option<Self> {
        if sector.get(510..512)? != [0x55, 0xAA] {
            return None;
        }
        let disk_id = Reader::new(&sector[DISK_ID_OFFSET..]).u32().ok()?;
        let mut reader = Reader::new(&sector[SLOTS_OFFSET..510]);
        let slots = (0..4).map(|_| Slot::parse(&mut reader)).collect::<std::result::Result<_, _>>().ok()?;
        Some(Self { disk_id, slots })
    }

    /// Whether a slot has the type that announces a GPT.
    pub(super) fn is_protective(&self) -> bool {
        self.slots.iter().any(|slot| slot.kind == PROTECTIVE)
    }

    /// Whether Linux would look for a GPT: it does so only if the slot that announces it starts at block 1.
    pub(super) fn announces_gpt(&self) -> bool {
        self.slots.iter().any(|slot| slot.kind == PROTECTIVE && slot.start == 1)
    }

    /// The sectors of its partitions, without the slots that announce a GPT.
    pub(super) fn extents(&self, blocks: &Blocks) -> impl Iterator<Item = Extent> {
        let used = self.slots.iter().filter(|slot| slot.is_used() && slot.kind != PROTECTIVE);
        used.map(|slot| blocks.extent(u64::from(slot.start), u64::from(slot.count)))
    }

    /// Whether its slots look like a table, and not like code or text in the boot sector of a filesystem.
    pub(super) fn is_plausible(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot.flag, 0 | 0x80))
    }

    /// Whether no slot is in use.
    pub(super) fn is_empty(&self) -> bool {
        !self.slots.iter().any(|slot| slot.is_used())
    }
}

/// Reads the MBR table of a disk whose first sector is `record`, with its logical partitions. `Io` if the disk fails.
pub(super) fn read(blocks: &Blocks, record: &BootRecord) -> Result<Table> {
    let mut table = Table::new(TableKind::Mbr);
    let disk_id = format!("{:08x}", record.disk_id);
    table.own.push(blocks.extent(0, 1));
    for (number, slot) in (1..).zip(&record.slots) {
        if slot.is_used() && !slot.is_extended() {
            push(&mut table, blocks, &disk_id, number, u64::from(slot.start), *slot);
        }
    }
    for slot in record.slots.iter().filter(|slot| slot.is_used() && slot.is_extended()) {
        if let Err(damage) = follow(&mut table, blocks, &disk_id, *slot)? {
            table.own.push(blocks.extent(u64::from(slot.start), u64::from(slot.count)));
            table.warnings.push(format!(
                "the extended partition at sector {} is captured whole: {damage}",
                blocks.extent(u64::from(slot.start), 0).start
            ));
        }
    }
    table.disk_id = Some(disk_id);
    Ok(table)
}

/// The problem of a chain, as text for the user.
type Damage = String;

/// Follows the chain of boot records in the extended partition `extended` and adds its logical partitions. The outer
/// error is `Io`, the inner one is damage to the chain.
fn follow(
    table: &mut Table,
    blocks: &Blocks,
    disk_id: &str,
    extended: Slot,
) -> Result<std::result::Result<(), Damage>> {
    let base = u64::from(extended.start);
    let mut visited = Vec::new();
    let mut next = Some(base);
    while let Some(at) = next {
        if visited.contains(&at) {
            return Ok(Err("the chain of logical partitions forms a loop".to_owned()));
        }
        if visited.len() == LOGICAL_PARTITIONS_MAX {
            return Ok(Err(format!("it has more than {LOGICAL_PARTITIONS_MAX} logical partitions")));
        }
        visited.push(at);
        let record = match blocks.read(at, 1)? {
            Some(sector) => BootRecord::parse(&sector),
            None => return Ok(Err("the chain of logical partitions leaves the disk".to_owned())),
        };
        let Some(record) = record.filter(BootRecord::is_plausible) else {
            return Ok(Err("a boot record in the chain of logical partitions is damaged".to_owned()));
        };
        table.own.push(blocks.extent(at, 1));
        for slot in record.slots.iter().filter(|slot| slot.is_used() && !slot.is_extended()) {
            // Logical partitions begin with number 5, even if there are fewer primary ones.
            let number = table.entries.last().map_or(5, |last: &Entry| (last.number + 1).max(5));
            push(table, blocks, disk_id, number, at + u64::from(slot.start), *slot);
        }
        let link = record.slots.iter().find(|slot| slot.is_used() && slot.is_extended());
        // Links count from the start of the extended partition, partitions from their own boot record.
        next = link.map(|link| base + u64::from(link.start));
    }
    Ok(Ok(()))
}

/// Adds the partition of `slot` at block `start`, or a warning if it lies outside the disk.
fn push(table: &mut Table, blocks: &Blocks, disk_id: &str, number: u32, start: u64, slot: Slot) {
    let count = u64::from(slot.count);
    let extent = blocks.extent(start, count);
    if extent.is_empty() {
        table.warnings.push(format!("partition {number} lies beyond the end of the disk and is left out"));
        return;
    }
    table.entries.push(Entry {
        number,
        extent,
        type_id: format!("{:02x}", slot.kind),
        name: None,
        uuid: Some(format!("{disk_id}-{number:02x}")),
        cut: blocks.cuts(start, count),
    });
}
