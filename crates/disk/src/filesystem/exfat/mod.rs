//! Reads exFAT (Microsoft, "exFAT file system specification" 1.00). The bitmap of clusters has no checksum and no copy:
//! it counts only if every cluster of every file and folder is marked in it.

mod chains;
mod folder;
mod tree;

use base::Result;
use base::limits::SECTOR_BYTES;
use base::wire::{Reader, Truncated};

use super::{Allocation, AllocationReader, Why, bitmap, require, units, unmarked};
use crate::coverage::Coverage;
use crate::volume::Volume;
use crate::{Filesystem, text};
use chains::Chains;

/// Number of the first cluster.
const FIRST_CLUSTER: u64 = 2;
/// Sectors of the boot region before its checksum, and of the region with its copy.
const BOOT_SECTORS: u64 = 11;
const REGION_SECTORS: u64 = 24;
/// Bytes of the boot sector that change while the filesystem is in use; the checksum leaves them out.
const CHANGING: [usize; 3] = [106, 107, 112];

/// Reads exFAT filesystems.
pub(super) struct Exfat;

/// The boot sector. Places and counts are in sectors of `sector_bytes`, or in clusters.
struct Boot {
    sector_bytes: u64,
    cluster_sectors: u64,
    total_sectors: u64,
    table_start: u64,
    table_sectors: u64,
    heap_start: u64,
    clusters: u64,
    /// The first cluster of the root folder.
    root: u64,
    serial: u32,
    revision: u16,
    flags: u16,
    tables: u8,
}

impl Boot {
    fn read(volume: &Volume) -> Result<Option<Self>> {
        let Some(sector) = volume.peek(0, 512)? else { return Ok(None) };
        if sector[3..11] != *b"EXFAT   " || sector[510..] != [0x55, 0xAA] {
            return Ok(None);
        }
        Ok(Self::parse(&sector).ok().flatten())
    }

    fn parse(sector: &[u8]) -> std::result::Result<Option<Self>, Truncated> {
        let mut reader = Reader::new(sector);
        reader.bytes(72)?;
        let total_sectors = reader.u64()?;
        let (table_start, table_sectors) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
        let (heap_start, clusters) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
        let (root, serial) = (u64::from(reader.u32()?), reader.u32()?);
        let (revision, flags) = (reader.u16()?, reader.u16()?);
        let (sector_shift, cluster_shift, tables) = (reader.u8()?, reader.u8()?, reader.u8()?);
        if !(9..=12).contains(&sector_shift) || cluster_shift > 25 - sector_shift {
            return Ok(None);
        }
        Ok(Some(Self {
            sector_bytes: 1 << sector_shift,
            cluster_sectors: 1 << cluster_shift,
            total_sectors,
            table_start,
            table_sectors,
            heap_start,
            clusters,
            root,
            serial,
            revision,
            flags,
            tables,
        }))
    }

    fn cluster_bytes(&self) -> u64 {
        self.sector_bytes * self.cluster_sectors
    }

    /// The number behind that of the last cluster.
    fn behind(&self) -> u64 {
        self.clusters + FIRST_CLUSTER
    }

    /// Where a cluster begins, in bytes from the start of the volume.
    fn offset(&self, cluster: u64) -> u64 {
        (self.heap_start + (cluster - FIRST_CLUSTER) * self.cluster_sectors) * self.sector_bytes
    }

    /// Checks that the parts of the layout agree with each other and fit in the volume, and that the state is clean.
    fn check(&self, volume: &Volume) -> std::result::Result<(), Why> {
        let fits = self.total_sectors.checked_mul(self.sector_bytes);
        require(fits.is_some_and(|bytes| bytes <= volume.len_bytes()), || {
            "the filesystem claims to be larger than its partition".to_owned()
        })?;
        self.check_sum(volume)?;
        require(self.revision == 0x0100, || "its revision is not known".to_owned())?;
        require(self.tables == 1 && self.flags & 1 == 0, || "it keeps two tables (TexFAT)".to_owned())?;
        let entries = self.table_sectors * self.sector_bytes / 4;
        let heap_end = self.heap_start + self.clusters * self.cluster_sectors;
        let agrees = self.table_start >= REGION_SECTORS
            && self.table_start + self.table_sectors <= self.heap_start
            && (1..=0xFFFF_FFF5).contains(&self.clusters)
            && self.behind() <= entries
            && heap_end <= self.total_sectors;
        require(agrees, || "the parts of its layout do not fit".to_owned())?;
        require(self.flags & 2 == 0, || "it was not unmounted cleanly".to_owned())
    }

    /// Compares the boot region with its checksum (section 3.4).
    fn check_sum(&self, volume: &Volume) -> std::result::Result<(), Why> {
        let region = usize::try_from(BOOT_SECTORS * self.sector_bytes).expect("11 sectors");
        let mut bytes = vec![0; region + 4];
        volume.read(&mut bytes, 0)?;
        let (bytes, told) = bytes.split_at(region);
        let counted = bytes.iter().enumerate().filter(|(at, _)| !CHANGING.contains(at));
        let sum = counted.fold(0u32, |sum, (_, &byte)| sum.rotate_right(1).wrapping_add(byte.into()));
        require(*told == sum.to_le_bytes(), || "the checksum of its boot sectors is wrong".to_owned())
    }

    /// The sectors of `count` clusters from number `first` on.
    fn sectors(&self, first: u64, count: u64) -> base::Extent {
        let start = self.heap_start + (first - FIRST_CLUSTER) * self.cluster_sectors;
        units(start, count * self.cluster_sectors, self.sector_bytes / SECTOR_BYTES)
    }
}

/// The label in the root folder, if that can be read.
fn label(boot: &Boot, volume: &Volume) -> Result<Option<String>> {
    let found = boot.check(volume).and_then(|()| {
        let mut chains = Chains::new(boot, volume);
        let runs = chains.follow(boot.root, None)?;
        folder::parse_root(&chains.contents(&runs)?)
    });
    match found {
        Ok(root) => Ok(root.label),
        Err(Why::Whole(_)) => Ok(None),
        Err(Why::Failed(error)) => Err(error),
    }
}

impl AllocationReader for Exfat {
    fn family(&self) -> &'static str {
        "exfat"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let Some(boot) = Boot::read(volume)? else { return Ok(None) };
        Ok(Some(Filesystem {
            kind: "exfat",
            uuid: Some(text::serial(boot.serial)),
            label: label(&boot, volume)?,
            block_bytes: u32::try_from(boot.cluster_bytes()).unwrap_or(0),
            understood: false,
        }))
    }

    fn allocated(&self, volume: &Volume, live: bool) -> std::result::Result<Allocation, Why> {
        require(!live, unmarked)?;
        let boot = Boot::read(volume)?.ok_or_else(|| Why::Whole("it has no exFAT boot sector".to_owned()))?;
        boot.check(volume)?;
        let map = tree::checked_bitmap(&boot, volume)?;
        let scale = boot.sector_bytes / SECTOR_BYTES;
        let mut used = Coverage::default();
        used.add(units(0, boot.heap_start, scale));
        for (first, behind) in bitmap::runs(&map, boot.clusters) {
            used.add(boot.sectors(first + FIRST_CLUSTER, behind - first));
        }
        // Sectors after the last whole cluster; the bitmap has no bit for them.
        let heap_end = boot.heap_start + boot.clusters * boot.cluster_sectors;
        used.add(units(heap_end, boot.total_sectors - heap_end, scale));
        Ok(Allocation { used, end_sectors: boot.total_sectors * scale, doubts: Vec::new() })
    }
}
