//! Reads FAT12, FAT16 and FAT32 (Microsoft, "FAT: General Overview of On-Disk Format" 1.03). How the three are told
//! apart, and the marks of an unclean unmount, follow Linux (fs/fat/inode.c).

mod files;

use base::Result;
use base::limits::SECTOR_BYTES;
use base::wire::{Reader, Truncated};

use super::{Allocation, AllocationReader, Why, require, units};
use crate::coverage::Coverage;
use crate::volume::Volume;
use crate::{Filesystem, text};
pub(crate) use files::FatFiles;

/// Bytes of a table that one read takes. It is a multiple of 2, 4 and 3 (a pair of 12-bit entries), so no read ends
/// inside an entry.
const PIECE_BYTES: u64 = 3 << 18;
/// Number of the first data cluster.
const FIRST_CLUSTER: u64 = 2;

/// The range of bytes in the boot sector that describes the layout.
const LAYOUT_START: usize = 11;
const LAYOUT_END: usize = 52;

/// Reads FAT filesystems.
pub(super) struct Fat;

/// Width of a table's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Fat12,
    Fat16,
    Fat32,
}

impl Width {
    /// The bits of an entry that have a meaning: the upper four of FAT32 are reserved.
    fn mask(self) -> u32 {
        match self {
            Self::Fat12 => 0xFFF,
            Self::Fat16 => 0xFFFF,
            Self::Fat32 => 0x0FFF_FFFF,
        }
    }

    /// Bits of the table's second entry that a system clears while the filesystem is mounted, or after an error. FAT12
    /// has none.
    fn clean_bits(self) -> u32 {
        match self {
            Self::Fat12 => 0,
            Self::Fat16 => 0xC000,
            Self::Fat32 => 0x0C00_0000,
        }
    }

    /// Bytes that `count` entries take.
    fn table_bytes(self, count: u64) -> u64 {
        match self {
            Self::Fat12 => (count * 3).div_ceil(2),
            Self::Fat16 => count * 2,
            Self::Fat32 => count * 4,
        }
    }

    /// The entries in `bytes`, in order.
    fn entries(self, bytes: &[u8]) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Self::Fat12 => Box::new(bytes.as_chunks::<3>().0.iter().flat_map(|&[a, b, c]| {
                let (a, b, c) = (u32::from(a), u32::from(b), u32::from(c));
                [a | (b & 0xF) << 8, b >> 4 | c << 4]
            })),
            Self::Fat16 => {
                Box::new(bytes.as_chunks().0.iter().map(|&pair| u32::from(u16::from_le_bytes(pair))))
            }
            Self::Fat32 => {
                Box::new(bytes.as_chunks().0.iter().map(|&quad| u32::from_le_bytes(quad) & 0x0FFF_FFFF))
            }
        }
    }
}

/// The boot sector. Its counts are in sectors of `sector_bytes`.
struct Boot {
    sector_bytes: u64,
    cluster_sectors: u64,
    reserved_sectors: u64,
    tables: u64,
    root_entries: u64,
    total_sectors: u64,
    media: u8,
    table_sectors: u64,
    width: Width,
    mirrored: bool,
    /// Sector of the copy of the boot sector (FAT32); 0 if there is none.
    backup: u64,
    state: u8,
    serial: u32,
    label: Option<String>,
}

impl Boot {
    fn read(volume: &Volume) -> Result<Option<Self>> {
        let Some(sector) = volume.peek(0, 512)? else { return Ok(None) };
        if !matches!((sector[0], sector[2]), (0xEB, 0x90) | (0xE9, _)) || sector[510..] != [0x55, 0xAA] {
            return Ok(None);
        }
        Ok(Self::parse(&sector).ok().filter(Self::is_plausible))
    }

    fn parse(sector: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(sector);
        reader.bytes(11)?;
        let (sector_bytes, cluster_sectors) = (u64::from(reader.u16()?), u64::from(reader.u8()?));
        let (reserved_sectors, tables) = (u64::from(reader.u16()?), u64::from(reader.u8()?));
        let (root_entries, total_short) = (u64::from(reader.u16()?), u64::from(reader.u16()?));
        let (media, table_short) = (reader.u8()?, u64::from(reader.u16()?));
        reader.bytes(8)?;
        let total_long = u64::from(reader.u32()?);
        let (mut table_sectors, mut flags, mut backup) = (table_short, 0, 0);
        if table_short == 0 {
            table_sectors = u64::from(reader.u32()?);
            flags = reader.u16()?;
            reader.bytes(8)?;
            backup = u64::from(reader.u16()?);
            reader.bytes(12)?;
        }
        let (_drive, state, extended) = (reader.u8()?, reader.u8()?, reader.u8()?);
        let (serial, label) = (reader.u32()?, text::label(reader.bytes(11)?));
        let mut boot = Self {
            sector_bytes,
            cluster_sectors,
            reserved_sectors,
            tables,
            root_entries,
            total_sectors: if total_short != 0 { total_short } else { total_long },
            media,
            table_sectors,
            width: Width::Fat32,
            mirrored: flags & 0x80 == 0,
            backup,
            state,
            // 0x28 marks a boot sector with a serial number, 0x29 one with a label as well.
            serial: if matches!(extended, 0x28 | 0x29) { serial } else { 0 },
            label: label.filter(|label| extended == 0x29 && label != "NO NAME"),
        };
        // The number of clusters alone tells FAT12 from FAT16.
        if table_short != 0 {
            boot.width = if boot.clusters() > 4084 { Width::Fat16 } else { Width::Fat12 };
        }
        Ok(boot)
    }

    /// Whether the fields are possible for a FAT, so that the sector is not some other boot sector.
    fn is_plausible(&self) -> bool {
        self.sector_bytes.is_power_of_two()
            && (512..=4096).contains(&self.sector_bytes)
            && self.cluster_sectors.is_power_of_two()
            && self.reserved_sectors > 0
            && (1..=4).contains(&self.tables)
            && (self.media == 0xF0 || self.media >= 0xF8)
            && self.table_sectors > 0
    }

    /// Sectors before the first data cluster: reserved sectors, tables, and the root folder of FAT12 and FAT16.
    fn head_sectors(&self) -> u64 {
        let root_sectors = (self.root_entries * 32).div_ceil(self.sector_bytes.max(1));
        self.reserved_sectors + self.tables * self.table_sectors + root_sectors
    }

    /// Number of data clusters; sectors after the last whole cluster belong to none.
    fn clusters(&self) -> u64 {
        self.total_sectors.saturating_sub(self.head_sectors()) / self.cluster_sectors.max(1)
    }

    /// Checks that the parts of the layout agree with each other and fit in the volume, and that the state is clean.
    fn check(&self, volume: &Volume) -> std::result::Result<(), Why> {
        require(self.total_sectors * self.sector_bytes <= volume.len_bytes(), || {
            "the filesystem claims to be larger than its partition".to_owned()
        })?;
        require(self.clusters() > 0, || "it has no clusters".to_owned())?;
        require((self.width == Width::Fat32) == (self.root_entries == 0), || {
            "its boot sector is neither that of FAT32 nor that of FAT12 or FAT16".to_owned()
        })?;
        require((self.root_entries * 32).is_multiple_of(self.sector_bytes), || {
            "its root folder does not fill whole sectors".to_owned()
        })?;
        // The tables' reserved values (end of file, bad cluster) limit the number of clusters.
        let most = if self.width == Width::Fat32 { 0x0FFF_FFF4 } else { 65_524 };
        let needed = self.width.table_bytes(self.clusters() + FIRST_CLUSTER);
        require(self.clusters() <= most && needed <= self.table_sectors * self.sector_bytes, || {
            "it has more clusters than its tables have entries".to_owned()
        })?;
        require(self.mirrored, || "its tables are not mirrored".to_owned())?;
        require(self.state & 3 == 0, || "it was not unmounted cleanly".to_owned())
    }
}

impl Boot {
    /// Compares the layout with the one in the copy of the boot sector, if there is a copy.
    fn check_backup(&self, volume: &Volume) -> std::result::Result<(), Why> {
        if self.backup == 0 || self.backup >= self.reserved_sectors {
            return Ok(());
        }
        let (mut first, mut copy) = ([0; LAYOUT_END], [0; LAYOUT_END]);
        volume.read(&mut first, 0)?;
        volume.read(&mut copy, self.backup * self.sector_bytes)?;
        require(first[LAYOUT_START..] == copy[LAYOUT_START..], || {
            "its boot sector and the copy of it differ".to_owned()
        })
    }
}

/// Reads the first table from start to end, and compares the other tables with it.
struct Walk<'a, 'v> {
    boot: &'a Boot,
    volume: &'a Volume<'v>,
    used: Coverage,
    /// Index of the next entry.
    cluster: u64,
}

impl Walk<'_, '_> {
    /// Walks all entries. Adds the sectors of the clusters that are in use.
    fn run(mut self) -> std::result::Result<Coverage, Why> {
        let behind = self.boot.clusters() + FIRST_CLUSTER;
        let table_bytes = self.boot.table_sectors * self.boot.sector_bytes;
        let needed = self.boot.width.table_bytes(behind).next_multiple_of(12).min(table_bytes);
        let mut offset = 0;
        while offset < needed {
            let len = PIECE_BYTES.min(needed - offset);
            let mut piece = self.piece(0, offset, len)?;
            for table in 1..self.boot.tables {
                let same = self.piece(table, offset, len)? == piece;
                require(same, || "its file allocation tables differ".to_owned())?;
            }
            // The last 12-bit entries of a table may end in the middle of three bytes.
            piece.resize(piece.len().next_multiple_of(12), 0);
            for entry in self.boot.width.entries(&piece) {
                if self.cluster < behind {
                    self.entry(entry, behind)?;
                }
            }
            offset += len;
        }
        require(self.cluster == behind, || "its file allocation table ends too early".to_owned())?;
        Ok(self.used)
    }

    /// Reads `len` bytes of table number `table`, from byte `offset` of it.
    fn piece(&self, table: u64, offset: u64, len: u64) -> std::result::Result<Vec<u8>, Why> {
        let start = self.boot.reserved_sectors + table * self.boot.table_sectors;
        let mut piece = vec![0; usize::try_from(len).expect("at most PIECE_BYTES")];
        self.volume.read(&mut piece, start * self.boot.sector_bytes + offset)?;
        Ok(piece)
    }

    /// Checks the next entry, and marks its cluster if that is in use. `behind` is the number of clusters plus 2.
    fn entry(&mut self, entry: u32, behind: u64) -> std::result::Result<(), Why> {
        let (cluster, mask) = (self.cluster, self.boot.width.mask());
        self.cluster += 1;
        match cluster {
            0 => require(entry == mask & (0xFFFF_FF00 | u32::from(self.boot.media)), || {
                "its file allocation table does not begin with the media byte".to_owned()
            }),
            1 => {
                let clean = self.boot.width.clean_bits();
                require(entry & clean == clean, || "it was not unmounted cleanly".to_owned())
            }
            // Free, or bad: nothing is there that can be read.
            _ if entry == 0 || entry == mask - 8 => Ok(()),
            _ => {
                // The next cluster of a file, or the end of a file.
                let valid = (FIRST_CLUSTER..behind).contains(&u64::from(entry)) || entry >= mask - 7;
                require(valid, || format!("the entry of cluster {cluster} points nowhere"))?;
                let start = self.boot.head_sectors() + (cluster - FIRST_CLUSTER) * self.boot.cluster_sectors;
                let scale = self.boot.sector_bytes / SECTOR_BYTES;
                self.used.add(units(start, self.boot.cluster_sectors, scale));
                Ok(())
            }
        }
    }
}

impl AllocationReader for Fat {
    fn family(&self) -> &'static str {
        "vfat"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let filesystem = |boot: Boot| Filesystem {
            kind: "vfat",
            uuid: (boot.serial != 0).then(|| text::serial(boot.serial)),
            block_bytes: u32::try_from(boot.sector_bytes * boot.cluster_sectors).unwrap_or(0),
            label: boot.label,
            understood: false,
        };
        Ok(Boot::read(volume)?.map(filesystem))
    }

    fn allocated(&self, volume: &Volume, _: bool) -> std::result::Result<Allocation, Why> {
        let boot = Boot::read(volume)?.ok_or_else(|| Why::Whole("it has no FAT boot sector".to_owned()))?;
        boot.check(volume)?;
        boot.check_backup(volume)?;
        let scale = boot.sector_bytes / SECTOR_BYTES;
        let mut used = Coverage::default();
        used.add(units(0, boot.head_sectors(), scale));
        let mut used = Walk { boot: &boot, volume, used, cluster: 0 }.run()?;
        // Sectors after the last whole cluster; the tables have no entry for them.
        let data_end = boot.head_sectors() + boot.clusters() * boot.cluster_sectors;
        used.add(units(data_end, boot.total_sectors - data_end, scale));
        Ok(Allocation { used, end_sectors: boot.total_sectors * scale, doubts: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_each_width() {
        let entries = |width: Width, bytes: &[u8]| width.entries(bytes).collect::<Vec<_>>();
        assert_eq!(entries(Width::Fat12, &[0x23, 0x61, 0x45, 0xFF, 0x0F, 0x00]), [0x123, 0x456, 0xFFF, 0]);
        assert_eq!(entries(Width::Fat16, &[0x34, 0x12, 0xF8, 0xFF]), [0x1234, 0xFFF8]);
        assert_eq!(entries(Width::Fat32, &[0x78, 0x56, 0x34, 0xF2]), [0x0234_5678], "four bits are reserved");
        assert_eq!([Width::Fat12, Width::Fat16, Width::Fat32].map(|width| width.table_bytes(3)), [5, 6, 12]);
    }
}
