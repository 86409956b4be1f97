//! Reads XFS, versions 4 and 5 ("XFS Algorithms & Data Structures", 3rd edition, and fs/xfs/libxfs/xfs_format.h of
//! Linux). Free is what both trees of free space of an allocation group say, if they agree.

mod fields;
mod groups;
mod log;

use base::Result;

use super::checksum::crc32c;
use super::{Allocation, AllocationReader, Why, require, units};
use crate::volume::Volume;
use crate::{Filesystem, text};
use fields::{u16_at, u32_at, u64_at};

/// Bits of the features that this reader knows to leave the trees of free space as they are.
mod feature {
    /// In the fourth version; the others change what files and folders look like.
    pub(super) const VERSION_2_LOG: u16 = 0x0400;
    /// Free inode tree, reverse map, shared extents, counts of the inode trees.
    pub(super) const RO_COMPAT: u32 = 0xF;
    /// File types, sparse inodes, another UUID in metadata, late times, large extent counts, exchanged ranges, parents.
    pub(super) const INCOMPAT: u32 = 0xEF;
    pub(super) const META_UUID: u32 = 4;
    pub(super) const NEEDS_REPAIR: u32 = 0x10;
}

/// Bytes of the superblock that this reader looks at.
const SUPERBLOCK_BYTES: usize = 264;
const CHECKSUM_AT: usize = 224;

/// Reads XFS filesystems.
pub(super) struct Xfs;

/// The superblock. Places and counts are in blocks.
struct Superblock {
    version: u16,
    block_bytes: u64,
    sector_bytes: usize,
    blocks: u64,
    group_blocks: u64,
    groups: u64,
    /// Bits of a block's number that count inside its group.
    group_log: u32,
    log_start: u64,
    log_blocks: u64,
    free_blocks: u64,
    uuid: [u8; 16],
    /// The UUID in the headers of metadata.
    inner_uuid: [u8; 16],
    label: Option<String>,
    /// Why the filesystem is captured whole, if its features say so.
    strange: Option<&'static str>,
}

impl Superblock {
    fn read(volume: &Volume) -> Result<Option<Self>> {
        let Some(bytes) = volume.peek(0, SUPERBLOCK_BYTES)? else { return Ok(None) };
        Ok(if bytes.starts_with(b"XFSB") { Self::parse(&bytes) } else { None })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (block_bytes, sector_bytes) = (u32_at(bytes, 4), u16_at(bytes, 102));
        let version = u16_at(bytes, 100);
        let is_plausible = block_bytes.is_power_of_two()
            && (512..=65_536).contains(&block_bytes)
            && sector_bytes.is_power_of_two()
            && (512..=32_768).contains(&sector_bytes)
            && u32::from(sector_bytes) <= block_bytes
            && matches!(version & 0xF, 4 | 5);
        if !is_plausible {
            return None;
        }
        let uuid = *bytes[32..].first_chunk()?;
        let incompat = u32_at(bytes, 216);
        let has_inner = version & 0xF == 5 && incompat & feature::META_UUID != 0;
        Some(Self {
            version: version & 0xF,
            block_bytes: block_bytes.into(),
            sector_bytes: sector_bytes.into(),
            blocks: u64_at(bytes, 8),
            group_blocks: u32_at(bytes, 84).into(),
            groups: u32_at(bytes, 88).into(),
            group_log: bytes[124].into(),
            log_start: u64_at(bytes, 48),
            log_blocks: u32_at(bytes, 96).into(),
            free_blocks: u64_at(bytes, 144),
            uuid,
            inner_uuid: if has_inner { *bytes[248..].first_chunk()? } else { uuid },
            label: text::label(&bytes[108..120]),
            strange: Self::strange(bytes),
        })
    }

    fn strange(bytes: &[u8]) -> Option<&'static str> {
        let version = u16_at(bytes, 100);
        if bytes[126] != 0 {
            return Some("mkfs.xfs or xfs_repair did not end");
        }
        if u64_at(bytes, 16) != 0 {
            return Some("it has a real-time device");
        }
        if u64_at(bytes, 48) == 0 {
            return Some("its journal is on another device");
        }
        if version & 0xF == 4 {
            // Without it, records of the journal have another form.
            return (version & feature::VERSION_2_LOG == 0).then_some("its journal is of version 1");
        }
        let (ro_compat, incompat, log) = (u32_at(bytes, 212), u32_at(bytes, 216), u32_at(bytes, 220));
        if incompat & feature::NEEDS_REPAIR != 0 {
            return Some("it is marked for xfs_repair");
        }
        let unknown = (ro_compat & !feature::RO_COMPAT) | (incompat & !feature::INCOMPAT) | log;
        (unknown != 0).then_some("it has features that are not known")
    }

    /// The number of blocks of a group; the last may be shorter.
    fn blocks_of(&self, group: u64) -> u64 {
        self.group_blocks.min(self.blocks - group * self.group_blocks)
    }

    /// The offset in bytes of a block of a group.
    fn offset(&self, group: u64, block: u64) -> u64 {
        (group * self.group_blocks + block) * self.block_bytes
    }

    fn check(&self, volume: &Volume) -> std::result::Result<(), Why> {
        if let Some(strange) = self.strange {
            return Err(Why::Whole(strange.to_owned()));
        }
        let bytes = self.blocks.checked_mul(self.block_bytes);
        require(bytes.is_some_and(|bytes| bytes <= volume.len_bytes()), || {
            "the filesystem claims to be larger than its partition".to_owned()
        })?;
        let agrees = self.group_blocks > 0
            && self.group_log < 32
            && self.group_blocks <= 1 << self.group_log
            && self.groups == self.blocks.div_ceil(self.group_blocks);
        require(agrees, || "its groups do not fit".to_owned())?;
        self.check_sum(volume)
    }

    /// Compares the superblock with its checksum, and the layout with that in the copy in the second group, if there is
    /// one: a version 4 has no checksum.
    fn check_sum(&self, volume: &Volume) -> std::result::Result<(), Why> {
        let mut first = vec![0; self.sector_bytes];
        volume.read(&mut first, 0)?;
        if self.version == 5 {
            check_sum(&first, CHECKSUM_AT, || "the checksum of its superblock is wrong".to_owned())?;
        }
        if self.groups > 1 {
            let mut copy = vec![0; self.sector_bytes];
            volume.read(&mut copy, self.offset(1, 0))?;
            // Size and layout; not the label, the counters and the flags, which only the first has right.
            let same = [0..16, 84..100, 102..108, 120..126]
                .into_iter()
                .all(|part| first[part.clone()] == copy[part]);
            require(same, || "its superblock and the copy of it differ".to_owned())?;
        }
        Ok(())
    }
}

/// Compares a block with the crc32c in it, which was made with zeros in its place.
fn check_sum(bytes: &[u8], at: usize, why: impl FnOnce() -> String) -> std::result::Result<(), Why> {
    let told = u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside a block"));
    let sum = !crc32c(!0, &[&bytes[..at], &[0; 4], &bytes[at + 4..]]);
    require(told == sum, why)
}

impl AllocationReader for Xfs {
    fn family(&self) -> &'static str {
        "xfs"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let filesystem = |superblock: Superblock| Filesystem {
            kind: "xfs",
            uuid: text::some_uuid(&superblock.uuid),
            label: superblock.label,
            block_bytes: u32::try_from(superblock.block_bytes).expect("at most 64 KiB"),
            understood: false,
        };
        Ok(Superblock::read(volume)?.map(filesystem))
    }

    fn end_bytes(&self, volume: &Volume) -> Result<Option<u64>> {
        Ok(Superblock::read(volume)?.map(|found| found.blocks.saturating_mul(found.block_bytes)))
    }

    fn allocated(&self, volume: &Volume, _: bool) -> std::result::Result<Allocation, Why> {
        let superblock =
            Superblock::read(volume)?.ok_or_else(|| Why::Whole("it has no XFS superblock".to_owned()))?;
        superblock.check(volume)?;
        log::check(volume, &superblock)?;
        let used = groups::read(volume, &superblock)?;
        Ok(Allocation {
            used,
            end_sectors: units(0, superblock.blocks, superblock.block_bytes / 512).end(),
            doubts: Vec::new(),
        })
    }
}
