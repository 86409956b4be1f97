//! Reads NTFS 1.2, 3.0 and 3.1. Microsoft describes the format only in part; the source is the documentation of the
//! Linux-NTFS project (attributes, file records, $Bitmap, $LogFile, $Volume) and what ntfs-3g checks before it mounts.
//!
//! The bitmap of clusters has no checksum and no copy: it counts only if every cluster of every file is marked in it.
//! The contents of the files for swapping and hibernation are left out, unless a system sleeps in the volume.

mod files;
mod log;
mod record;
mod table;

use base::Result;
use base::limits::SECTOR_BYTES;
use base::wire::{Reader, Truncated};

use super::{Allocation, AllocationReader, Why, bitmap, require, units, unmarked};
use crate::Filesystem;
use crate::coverage::Coverage;
use crate::volume::Volume;
use record::{Record, Run};
use table::Table;

/// The range of bytes in the boot sector that describes the layout.
const LAYOUT_START: usize = 11;
const LAYOUT_END: usize = 80;

/// Reads NTFS filesystems.
pub(super) struct Ntfs;

/// The boot sector.
struct Boot {
    sector_bytes: u64,
    cluster_bytes: u64,
    total_sectors: u64,
    /// The first cluster of the file table.
    table: u64,
    record_bytes: usize,
    serial: u64,
}

impl Boot {
    fn read(volume: &Volume) -> Result<Option<Self>> {
        let Some(sector) = volume.peek(0, 512)? else { return Ok(None) };
        if sector[3..11] != *b"NTFS    " || sector[510..] != [0x55, 0xAA] {
            return Ok(None);
        }
        Ok(Self::parse(&sector).ok().flatten())
    }

    fn parse(sector: &[u8]) -> std::result::Result<Option<Self>, Truncated> {
        let mut reader = Reader::new(sector);
        reader.bytes(11)?;
        let (sector_bytes, per_cluster) = (u64::from(reader.u16()?), reader.u8()?);
        reader.bytes(26)?;
        let (total_sectors, table) = (reader.u64()?, reader.u64()?);
        reader.bytes(8)?;
        let record = reader.u8()?.cast_signed();
        reader.bytes(7)?;
        let serial = reader.u64()?;
        // More than 128 sectors are told as a negative power of two.
        let sectors = match per_cluster {
            0..=0x80 => u64::from(per_cluster),
            shift => 1 << (0x100 - u32::from(shift)).min(63),
        };
        let cluster_bytes = sectors.saturating_mul(sector_bytes);
        let record_bytes = match record {
            1.. => u64::from(record.unsigned_abs()).saturating_mul(cluster_bytes),
            _ => 1 << u32::from(record.unsigned_abs()).min(63),
        };
        let is_plausible = sector_bytes.is_power_of_two()
            && (512..=4096).contains(&sector_bytes)
            && cluster_bytes.is_power_of_two()
            && (sector_bytes..=2 << 20).contains(&cluster_bytes)
            && record_bytes.is_power_of_two()
            && (1024..=64 << 10).contains(&record_bytes);
        Ok(is_plausible.then(|| Self {
            sector_bytes,
            cluster_bytes,
            total_sectors,
            table,
            record_bytes: usize::try_from(record_bytes).expect("at most 64 KiB"),
            serial,
        }))
    }

    fn clusters(&self) -> u64 {
        self.total_sectors / (self.cluster_bytes / self.sector_bytes)
    }

    /// Whether the volume has the clusters of a run.
    fn has(&self, (first, count): Run) -> bool {
        first.is_none_or(|first| first.checked_add(count).is_some_and(|behind| behind <= self.clusters()))
    }

    fn check(&self, volume: &Volume) -> std::result::Result<(), Why> {
        let bytes = self.total_sectors.checked_mul(self.sector_bytes);
        require(bytes.is_some_and(|bytes| bytes <= volume.len_bytes()), || {
            "the filesystem claims to be larger than its partition".to_owned()
        })?;
        require(self.table < self.clusters(), || "its file table lies behind its end".to_owned())?;
        self.end_with_copy(volume).map(drop)
    }

    /// Where the filesystem ends with the copy of its boot sector, in bytes. Nothing else tells that, so the layout is
    /// compared with the one in the copy. mkntfs and Windows have it behind the last sector; ntfsresize counts only
    /// whole clusters, and puts it into the last sector of the partition all the same.
    fn end_with_copy(&self, volume: &Volume) -> std::result::Result<u64, Why> {
        let mut first = [0; LAYOUT_END];
        volume.read(&mut first, 0)?;
        let last = (volume.len_bytes() / self.sector_bytes).saturating_sub(1);
        for sector in [self.total_sectors, last] {
            let mut copy = [0; LAYOUT_END];
            let there = volume.read(&mut copy, sector * self.sector_bytes);
            if there.is_ok() && first[LAYOUT_START..] == copy[LAYOUT_START..] {
                return Ok((sector + 1) * self.sector_bytes);
            }
        }
        Err(Why::Whole("its boot sector and the copy of it differ".to_owned()))
    }
}

/// The label in the file `$Volume`, if that can be read.
fn label(boot: &Boot, volume: &Volume) -> Result<Option<String>> {
    let found = boot.check(volume).and_then(|()| {
        let mut bytes = vec![0; boot.record_bytes];
        Table::open(boot, volume)?.read_record(files::VOLUME, &mut bytes)?;
        Ok(Record::parse(&mut bytes, files::VOLUME)?
            .map(|record| files::label(&record))
            .transpose()?
            .flatten())
    });
    match found {
        Ok(label) => Ok(label),
        Err(Why::Whole(_)) => Ok(None),
        Err(Why::Failed(error)) => Err(error),
    }
}

impl AllocationReader for Ntfs {
    fn family(&self) -> &'static str {
        "ntfs"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let Some(boot) = Boot::read(volume)? else { return Ok(None) };
        Ok(Some(Filesystem {
            kind: "ntfs",
            uuid: Some(format!("{:016X}", boot.serial)),
            label: label(&boot, volume)?,
            block_bytes: u32::try_from(boot.cluster_bytes).expect("at most 2 MiB"),
            understood: false,
        }))
    }

    fn end_bytes(&self, volume: &Volume) -> Result<Option<u64>> {
        // With the copy of the boot sector.
        let sectors = |boot: Boot| boot.total_sectors.saturating_add(1).saturating_mul(boot.sector_bytes);
        Ok(Boot::read(volume)?.map(sectors))
    }

    fn allocated(&self, volume: &Volume, live: bool) -> std::result::Result<Allocation, Why> {
        require(!live, unmarked)?;
        let boot = Boot::read(volume)?.ok_or_else(|| Why::Whole("it has no NTFS boot sector".to_owned()))?;
        boot.check(volume)?;
        let map = files::checked_bitmap(&boot, volume)?;
        let cluster_sectors = boot.cluster_bytes / SECTOR_BYTES;
        let mut used = Coverage::default();
        // The boot sectors and the code behind them.
        used.add(units(0, (8 << 10) / SECTOR_BYTES, 1));
        for (first, behind) in bitmap::runs(&map, boot.clusters()) {
            used.add(units(first, behind - first, cluster_sectors));
        }
        // Sectors after the last whole cluster, and the copy of the boot sector.
        let end_sectors = boot.end_with_copy(volume)? / SECTOR_BYTES;
        let data_end = boot.clusters() * cluster_sectors;
        used.add(base::Extent::between(data_end, end_sectors));
        Ok(Allocation { used, end_sectors, doubts: Vec::new() })
    }
}
