//! Parses the superblock of ext and checks its features, its layout and its state.

use base::Result;
use base::limits::SECTOR_BYTES;
use base::wire::{Reader, Truncated};

use super::super::checksum::crc32c;
use super::super::{Why, require};
use crate::text;
use crate::volume::Volume;

/// Offset of the superblock in bytes, the same for every block size.
pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;
const CHECKSUM_OFFSET: usize = SUPERBLOCK_BYTES - 4;
const MAGIC: u16 = 0xEF53;
/// Largest `log_block`: blocks of 64 KiB.
const LOG_BLOCK_MAX: u32 = 6;
/// The smallest number of blocks per group that mke2fs allows.
const GROUP_BLOCKS_MIN: u64 = 256;
/// Largest `log_cluster`: clusters of 1 GiB.
const LOG_CLUSTER_MAX: u32 = 20;

/// Feature bits that this reader accepts or checks. The names are those of e2fsprogs.
pub(super) mod feature {
    pub(in super::super) const HAS_JOURNAL: u32 = 0x4;
    pub(in super::super) const SPARSE_SUPER2: u32 = 0x200;
    /// dir_prealloc, imagic, has_journal, ext_attr, resize_inode, dir_index, sparse_super2, fast_commit, stable_inodes,
    /// orphan_file.
    pub(in super::super) const COMPAT_KNOWN: u32 =
        0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x200 | 0x400 | 0x800 | 0x1000;

    pub(in super::super) const RECOVER: u32 = 0x4;
    pub(in super::super) const JOURNAL_DEV: u32 = 0x8;
    pub(in super::super) const META_BG: u32 = 0x10;
    pub(in super::super) const BITS64: u32 = 0x80;
    pub(in super::super) const MMP: u32 = 0x100;
    pub(in super::super) const FLEX_BG: u32 = 0x200;
    pub(in super::super) const CSUM_SEED: u32 = 0x2000;
    /// filetype, needs_recovery and journal_dev (refused by checks of their own), meta_bg, extents, 64bit, mmp,
    /// flex_bg, ea_inode, dirdata, csum_seed, largedir, inline_data, encrypt, casefold.
    pub(in super::super) const INCOMPAT_KNOWN: u32 = 0x2
        | 0x4
        | 0x8
        | 0x10
        | 0x40
        | 0x80
        | 0x100
        | 0x200
        | 0x400
        | 0x1000
        | 0x2000
        | 0x4000
        | 0x8000
        | 0x1_0000
        | 0x2_0000;
    /// Features that ext3 may have: filetype, needs_recovery, meta_bg.
    pub(in super::super) const INCOMPAT_EXT3: u32 = 0x2 | 0x4 | 0x10;

    pub(in super::super) const SPARSE_SUPER: u32 = 0x1;
    pub(in super::super) const GDT_CSUM: u32 = 0x10;
    pub(in super::super) const BIGALLOC: u32 = 0x200;
    pub(in super::super) const METADATA_CSUM: u32 = 0x400;
    pub(in super::super) const ORPHAN_PRESENT: u32 = 0x1_0000;
    /// sparse_super, large_file, btree_dir, huge_file, uninit_bg, dir_nlink, extra_isize, quota, bigalloc,
    /// metadata_csum, read-only, project, verity, orphan_present.
    pub(in super::super) const RO_COMPAT_KNOWN: u32 = 0x1
        | 0x2
        | 0x4
        | 0x8
        | 0x10
        | 0x20
        | 0x40
        | 0x100
        | 0x200
        | 0x400
        | 0x1000
        | 0x2000
        | 0x8000
        | 0x1_0000;
    /// Features that ext3 may have: sparse_super, large_file, btree_dir.
    pub(in super::super) const RO_COMPAT_EXT3: u32 = 0x1 | 0x2 | 0x4;
}

/// The three words of feature bits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Features {
    pub(super) compat: u32,
    pub(super) incompat: u32,
    pub(super) ro_compat: u32,
}

impl Features {
    /// The name that `blkid` has for a filesystem with these features; `jbd` is an external journal.
    pub(super) fn kind(self) -> &'static str {
        let beyond_ext3 =
            self.incompat & !feature::INCOMPAT_EXT3 != 0 || self.ro_compat & !feature::RO_COMPAT_EXT3 != 0;
        if self.incompat & feature::JOURNAL_DEV != 0 {
            "jbd"
        } else if beyond_ext3 {
            "ext4"
        } else if self.compat & feature::HAS_JOURNAL != 0 {
            "ext3"
        } else {
            "ext2"
        }
    }

    pub(super) fn has_compat(self, bit: u32) -> bool {
        self.compat & bit != 0
    }

    pub(super) fn has_incompat(self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    pub(super) fn has_ro_compat(self, bit: u32) -> bool {
        self.ro_compat & bit != 0
    }

    /// Whether group descriptors have checksums. Without checksums, the flags of a descriptor mean nothing.
    pub(super) fn has_group_checksums(self) -> bool {
        self.has_ro_compat(feature::GDT_CSUM | feature::METADATA_CSUM)
    }
}

/// The superblock. Sizes and places are in blocks of `1024 << log_block` bytes, unless the name has another unit.
#[derive(Debug, Default)]
pub(super) struct Superblock {
    pub(super) features: Features,
    pub(super) uuid: [u8; 16],
    pub(super) label: Option<String>,
    pub(super) blocks: u64,
    pub(super) first_data_block: u64,
    pub(super) blocks_per_group: u64,
    pub(super) inodes_per_group: u64,
    /// Blocks of descriptors that are reserved for growth, after those in use.
    pub(super) reserved_descriptor_blocks: u64,
    pub(super) first_meta_group: u64,
    pub(super) backup_groups: [u32; 2],
    /// The seed of the checksums of group descriptors and bitmaps.
    pub(super) checksum_seed: u32,
    log_block: u32,
    log_cluster: u32,
    clusters_per_group: u64,
    inodes: u64,
    inode_bytes: u64,
    descriptor_bytes: u64,
    blocks_high: u32,
    state: u16,
    revision: u32,
    journal_inode: u32,
    journal_device: u32,
    last_orphan: u32,
    mmp_block: u64,
    checksum_kind: u8,
    checksum_holds: bool,
}

impl Superblock {
    /// The superblock of `volume`, if its magic number is there. Nothing else is checked. `Io` if the disk fails.
    pub(super) fn read(volume: &Volume) -> Result<Option<Self>> {
        let Some(bytes) = volume.peek(SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES)? else { return Ok(None) };
        Ok(Self::parse(&bytes).ok().flatten())
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Option<Self>, Truncated> {
        let mut superblock = Self::default();
        let mut reader = Reader::new(bytes);
        let magic = superblock.parse_first(&mut reader)?;
        superblock.parse_second(&mut reader)?;
        superblock.parse_late(bytes)?;
        Ok((magic == MAGIC).then_some(superblock))
    }

    /// Bytes 0 to 0x60.
    fn parse_first(&mut self, reader: &mut Reader) -> std::result::Result<u16, Truncated> {
        self.inodes = reader.u32()?.into();
        self.blocks = reader.u32()?.into();
        reader.bytes(12)?;
        self.first_data_block = reader.u32()?.into();
        (self.log_block, self.log_cluster) = (reader.u32()?, reader.u32()?);
        self.blocks_per_group = reader.u32()?.into();
        self.clusters_per_group = reader.u32()?.into();
        self.inodes_per_group = reader.u32()?.into();
        reader.bytes(12)?;
        let magic = reader.u16()?;
        self.state = reader.u16()?;
        reader.bytes(16)?;
        self.revision = reader.u32()?;
        reader.bytes(8)?;
        self.inode_bytes = reader.u16()?.into();
        reader.bytes(2)?;
        self.features.compat = reader.u32()?;
        Ok(magic)
    }

    /// Bytes 0x60 to 0x104.
    fn parse_second(&mut self, reader: &mut Reader) -> std::result::Result<(), Truncated> {
        (self.features.incompat, self.features.ro_compat) = (reader.u32()?, reader.u32()?);
        self.uuid = reader.array()?;
        self.label = text::label(reader.bytes(16)?);
        reader.bytes(64 + 4 + 2)?;
        self.reserved_descriptor_blocks = reader.u16()?.into();
        reader.bytes(16)?;
        (self.journal_inode, self.journal_device, self.last_orphan) =
            (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.bytes(16 + 2)?;
        self.descriptor_bytes = reader.u16()?.into();
        reader.bytes(4)?;
        self.first_meta_group = reader.u32()?.into();
        if self.revision == 0 {
            // Revision 0 has inodes of 128 bytes, and its fields from `s_first_ino` on mean nothing.
            self.features = Features::default();
            self.inode_bytes = 128;
        }
        if !self.features.has_incompat(feature::BITS64) {
            self.descriptor_bytes = 32;
        }
        Ok(())
    }

    /// Single fields after 0x104, each by its offset.
    fn parse_late(&mut self, bytes: &[u8]) -> std::result::Result<(), Truncated> {
        let at = |offset: usize| Reader::new(bytes.get(offset..).unwrap_or_default());
        self.blocks_high = at(0x150).u32()?;
        if self.features.has_incompat(feature::BITS64) {
            self.blocks |= u64::from(self.blocks_high) << 32;
        }
        self.mmp_block = at(0x168).u64()?;
        self.checksum_kind = at(0x175).u8()?;
        self.backup_groups = [at(0x24C).u32()?, at(0x250).u32()?];
        self.checksum_seed = if self.features.has_incompat(feature::CSUM_SEED) {
            at(0x270).u32()?
        } else {
            crc32c(!0, &[&self.uuid])
        };
        self.checksum_holds = at(CHECKSUM_OFFSET).u32()? == crc32c(!0, &[&bytes[..CHECKSUM_OFFSET]]);
        Ok(())
    }

    /// Size of a block in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        1024 << self.log_block.min(LOG_BLOCK_MAX)
    }

    /// Blocks per cluster, which is the unit of the bitmaps. It is 1 unless the filesystem has bigalloc.
    pub(super) fn cluster_blocks(&self) -> u64 {
        if self.features.has_ro_compat(feature::BIGALLOC) {
            1 << (self.log_cluster - self.log_block)
        } else {
            1
        }
    }

    /// Size of a block in sectors of 512 bytes.
    pub(super) fn block_sectors(&self) -> u64 {
        self.block_bytes() / SECTOR_BYTES
    }

    /// Number of groups; the last may be shorter.
    pub(super) fn groups(&self) -> u64 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    /// First block of a group.
    pub(super) fn group_start(&self, group: u64) -> u64 {
        self.first_data_block + group * self.blocks_per_group
    }

    /// Number of blocks in `group`.
    pub(super) fn group_blocks(&self, group: u64) -> u64 {
        self.blocks_per_group.min(self.blocks - self.group_start(group))
    }

    /// Number of blocks in each group's inode table.
    pub(super) fn inode_table_blocks(&self) -> u64 {
        (self.inodes_per_group * self.inode_bytes).div_ceil(self.block_bytes())
    }

    /// Size of an inode in bytes, at least 128.
    pub(super) fn inode_bytes(&self) -> usize {
        usize::try_from(self.inode_bytes).expect("16 bits")
    }

    /// Size of a group descriptor in bytes.
    pub(super) fn descriptor_bytes(&self) -> usize {
        usize::try_from(self.descriptor_bytes).expect("16 bits")
    }

    /// The block of multiple mount protection, if the filesystem has that feature.
    pub(super) fn multiple_mount_block(&self) -> std::result::Result<Option<u64>, Why> {
        if !self.features.has_incompat(feature::MMP) {
            return Ok(None);
        }
        let inside = self.first_data_block < self.mmp_block && self.mmp_block < self.blocks;
        require(inside, || "the block of its multiple mount protection lies outside".to_owned())?;
        Ok(Some(self.mmp_block))
    }

    /// Refuses a filesystem with a feature, revision, journal or checksum type that this reader does not support.
    pub(super) fn check_known(&self) -> std::result::Result<(), Why> {
        use feature::{
            COMPAT_KNOWN, HAS_JOURNAL, INCOMPAT_KNOWN, JOURNAL_DEV, METADATA_CSUM, RO_COMPAT_KNOWN,
        };
        let Features { compat, incompat, ro_compat } = self.features;
        for (word, bits) in [
            ("compat", compat & !COMPAT_KNOWN),
            ("incompat", incompat & !INCOMPAT_KNOWN),
            ("ro_compat", ro_compat & !RO_COMPAT_KNOWN),
        ] {
            require(bits == 0, || format!("it has a feature that is not known ({word} {bits:#x})"))?;
        }
        require(self.revision <= 1, || format!("its revision {} is not known", self.revision))?;
        require(incompat & JOURNAL_DEV == 0, || {
            "it is the external journal of another filesystem".to_owned()
        })?;
        let external = compat & HAS_JOURNAL != 0 && (self.journal_inode == 0 || self.journal_device != 0);
        require(!external, || "its journal is on another device".to_owned())?;
        require(ro_compat & METADATA_CSUM == 0 || self.checksum_kind == 1, || {
            "its kind of checksum is not known".to_owned()
        })
    }

    /// Refuses a filesystem that is not clean, or whose superblock contradicts itself or `volume`.
    pub(super) fn check_sound(&self, volume: &Volume) -> std::result::Result<(), Why> {
        let checked = self.features.has_ro_compat(feature::METADATA_CSUM);
        require(!checked || self.checksum_holds, || "the checksum of its superblock is wrong".to_owned())?;
        require(!self.features.has_incompat(feature::RECOVER), || {
            "its journal has not been replayed: it is mounted, or was not unmounted cleanly".to_owned()
        })?;
        // Bits of `s_state`: 1 unmounted cleanly, 2 errors found, 4 orphans are being recovered.
        require(self.state & 1 != 0, || "it is mounted, or was not unmounted cleanly".to_owned())?;
        require(self.state & 2 == 0, || "the kernel found errors in it".to_owned())?;
        let orphans = self.state & 4 != 0 || self.features.has_ro_compat(feature::ORPHAN_PRESENT);
        require(!orphans && self.last_orphan == 0, || {
            "it has deleted files that are still in use".to_owned()
        })?;
        require(self.has_layout(), || "its superblock contradicts itself".to_owned())?;
        let len = u128::from(self.blocks) * u128::from(self.block_bytes());
        require(len <= volume.len_bytes().into(), || "it claims to be larger than its partition".to_owned())
    }

    /// Whether the numbers of its layout agree with each other. The conditions are those of Linux (fs/ext4/super.c).
    fn has_layout(&self) -> bool {
        let bigalloc = self.features.has_ro_compat(feature::BIGALLOC);
        let cluster_fits = if bigalloc {
            (self.log_block..=LOG_CLUSTER_MAX).contains(&self.log_cluster)
        } else {
            self.log_cluster == self.log_block
        };
        let bits64 = self.features.has_incompat(feature::BITS64);
        if self.log_block > LOG_BLOCK_MAX || !cluster_fits || !bits64 && self.blocks_high != 0 {
            return false;
        }
        let block_bytes = self.block_bytes();
        // With clusters of 1 KiB the boot block fills block 0, so the data begins at block 1.
        self.first_data_block == u64::from(self.log_cluster == 0)
            && self.blocks > self.first_data_block
            && self.blocks_per_group >= GROUP_BLOCKS_MIN
            && self.groups() <= u64::from(u32::MAX)
            && self.clusters_per_group.is_multiple_of(8)
            && self.clusters_per_group <= 8 * block_bytes
            && self.clusters_per_group * self.cluster_blocks() == self.blocks_per_group
            && self.inode_bytes.is_power_of_two()
            && (128..=block_bytes).contains(&self.inode_bytes)
            && (1..=8 * block_bytes).contains(&self.inodes_per_group)
            && self.groups() * self.inodes_per_group == self.inodes
            && self.descriptor_bytes.is_power_of_two()
            && (if bits64 { 64..=1024 } else { 32..=32 }).contains(&self.descriptor_bytes)
            && self.descriptor_bytes <= block_bytes
    }
}
