//! Reads the block groups of ext: the places of their metadata and their block bitmaps. The layout follows e2fsprogs
//! (closefs.c, `ext2fs_super_and_bgd_loc2`), the checksums follow Linux (fs/ext4/super.c, fs/ext4/bitmap.c).

use base::wire::{Reader, Truncated};
use base::{Extent, ExtentSet};

use super::super::bitmap::runs;
use super::super::checksum::{crc16, crc32c};
use super::super::{Why, require, units};
use super::bad;
use super::superblock::{SUPERBLOCK_OFFSET, Superblock, feature};
use crate::coverage::Coverage;
use crate::volume::Volume;

/// Descriptor flag: the group's block bitmap was never written, and only metadata is in use in the group.
const BLOCK_UNINIT: u16 = 2;
/// Offset of a descriptor's own checksum.
const CHECKSUM_OFFSET: usize = 0x1E;
/// Offset of the high halves of the fields, which only descriptors of the 64bit feature have.
const HIGH_OFFSET: usize = 0x20;

/// A group descriptor. Places are block numbers, counts are in clusters.
#[derive(Debug)]
struct Descriptor {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    free_clusters: u64,
    flags: u16,
    bitmap_checksum: u32,
    /// Whether `bitmap_checksum` has 32 bits; otherwise it has only the low 16.
    wide_checksum: bool,
    checksum: u16,
}

impl Descriptor {
    fn parse(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut low = Reader::new(bytes);
        let places = [low.u32()?, low.u32()?, low.u32()?];
        let free = low.u16()?;
        low.bytes(4)?;
        let flags = low.u16()?;
        low.bytes(4)?;
        let bitmap_checksum = low.u16()?;
        low.bytes(4)?;
        let checksum = low.u16()?;
        let mut high = Reader::new(if bytes.len() > HIGH_OFFSET { &bytes[HIGH_OFFSET..] } else { &[0; 32] });
        let tops = [high.u32()?, high.u32()?, high.u32()?];
        let free_top = high.u16()?;
        high.bytes(10)?;
        let place = |n: usize| u64::from(tops[n]) << 32 | u64::from(places[n]);
        Ok(Self {
            block_bitmap: place(0),
            inode_bitmap: place(1),
            inode_table: place(2),
            free_clusters: u64::from(free_top) << 16 | u64::from(free),
            flags,
            bitmap_checksum: u32::from(high.u16()?) << 16 | u32::from(bitmap_checksum),
            wide_checksum: bytes.len() > HIGH_OFFSET,
            checksum,
        })
    }
}

/// The sectors of `volume` that its ext filesystem uses. The caller has checked `superblock`.
pub(super) fn read(volume: &Volume, superblock: &Superblock) -> std::result::Result<Coverage, Why> {
    let bitmap_bytes = usize::try_from(superblock.block_bytes()).expect("at most 64 KiB");
    let mut walk = Walk {
        volume,
        superblock,
        layout: Layout::of(superblock),
        used: Coverage::default(),
        bad: ExtentSet::new(),
        descriptors: vec![0; bitmap_bytes],
        bitmap: vec![0; bitmap_bytes],
    };
    // With blocks of 1 KiB no bitmap covers the boot block, because the first group starts at block 1.
    walk.mark(0, superblock.first_data_block + 1)?;
    for group in 0..superblock.groups() {
        walk.group(group)?;
    }
    Ok(walk.used)
}

/// The places of the copies of the superblock and of the group descriptors.
struct Layout<'a> {
    superblock: &'a Superblock,
    descriptors_per_block: u64,
    /// Blocks of descriptors after each copy of the superblock, including those reserved for growth.
    old_descriptor_blocks: u64,
    meta_groups: bool,
}

impl<'a> Layout<'a> {
    fn of(superblock: &'a Superblock) -> Self {
        let descriptors_per_block = superblock.block_bytes() / superblock.descriptor_bytes() as u64;
        let meta_groups = superblock.features.has_incompat(feature::META_BG);
        let descriptor_blocks = superblock.groups().div_ceil(descriptors_per_block);
        let old_descriptor_blocks = if meta_groups {
            superblock.first_meta_group.min(descriptor_blocks)
        } else {
            descriptor_blocks + superblock.reserved_descriptor_blocks
        };
        Self { superblock, descriptors_per_block, old_descriptor_blocks, meta_groups }
    }

    /// Whether `group` begins with a copy of the superblock.
    fn has_superblock(&self, group: u64) -> bool {
        let features = self.superblock.features;
        if group == 0 {
            true
        } else if features.has_compat(feature::SPARSE_SUPER2) {
            self.superblock.backup_groups.iter().any(|&backup| u64::from(backup) == group)
        } else if group == 1 || !features.has_ro_compat(feature::SPARSE_SUPER) {
            true
        } else {
            [3, 5, 7].into_iter().any(|base| is_power_of(base, group))
        }
    }

    /// The block of the group's copy of the superblock, if it has one. With blocks of 1 KiB the first superblock is in
    /// block 1, even if the first group starts at block 0.
    fn superblock_place(&self, group: u64) -> u64 {
        let start = self.superblock.group_start(group);
        start.max(SUPERBLOCK_OFFSET / self.superblock.block_bytes())
    }

    /// Whether the descriptor of `group` lies in its meta group, and not after a copy of the superblock.
    fn is_in_meta_group(&self, group: u64) -> bool {
        self.meta_groups && group / self.descriptors_per_block >= self.superblock.first_meta_group
    }

    /// The block that holds the descriptor of `group`.
    fn descriptor_place(&self, group: u64) -> u64 {
        let index = group / self.descriptors_per_block;
        if self.is_in_meta_group(group) {
            let first = index * self.descriptors_per_block;
            self.superblock_place(first) + u64::from(self.has_superblock(first))
        } else {
            self.superblock_place(0) + 1 + index
        }
    }

    /// The number of blocks, from [`Layout::superblock_place`] on, that hold the copies of superblock and descriptors.
    fn head_blocks(&self, group: u64) -> u64 {
        let copy = u64::from(self.has_superblock(group));
        if !self.is_in_meta_group(group) {
            return copy * (1 + self.old_descriptor_blocks);
        }
        let in_meta_group = group % self.descriptors_per_block;
        // The first, second and last group of a meta group hold a copy of its block of descriptors.
        let holds = in_meta_group <= 1 || in_meta_group == self.descriptors_per_block - 1;
        copy + u64::from(holds)
    }
}

/// Whether `number` is a power of `base`, with an exponent of at least 1.
fn is_power_of(base: u64, number: u64) -> bool {
    let mut power = base;
    while power < number {
        power *= base;
    }
    power == number
}

/// A walk over all groups.
struct Walk<'a, 'v> {
    volume: &'a Volume<'v>,
    superblock: &'a Superblock,
    layout: Layout<'a>,
    used: Coverage,
    /// The blocks that the filesystem lists as bad.
    bad: ExtentSet,
    /// The block of descriptors that holds the current group.
    descriptors: Vec<u8>,
    /// The block bitmap of the current group.
    bitmap: Vec<u8>,
}

impl Walk<'_, '_> {
    fn group(&mut self, group: u64) -> std::result::Result<(), Why> {
        let descriptor = self.descriptor(group)?;
        if group == 0 {
            self.bad = bad::blocks(self.volume, self.superblock, descriptor.inode_table)?;
        }
        let head = self.layout.head_blocks(group).min(self.superblock.group_blocks(group));
        self.mark(self.layout.superblock_place(group), head)?;
        self.check_places(group, &descriptor)?;
        self.mark(descriptor.block_bitmap, 1)?;
        self.mark(descriptor.inode_bitmap, 1)?;
        self.mark(descriptor.inode_table, self.superblock.inode_table_blocks())?;
        let uninit = self.superblock.features.has_group_checksums() && descriptor.flags & BLOCK_UNINIT != 0;
        if uninit {
            // Metadata of other groups that lies in this group is marked when the walk visits those groups.
            return Ok(());
        }
        self.volume.read(&mut self.bitmap, descriptor.block_bitmap * self.superblock.block_bytes())?;
        self.check_bitmap(group, &descriptor)?;
        let clusters = self.superblock.group_blocks(group).div_ceil(self.superblock.cluster_blocks());
        let free = self.take_bitmap(group, clusters);
        require(free == descriptor.free_clusters, || {
            let counted = descriptor.free_clusters;
            format!("the bitmap of group {group} has {free} free clusters, its descriptor {counted}")
        })
    }

    /// Marks `count` blocks from `start` as in use, widened to whole clusters. Fails if they pass the filesystem's end.
    fn mark(&mut self, start: u64, count: u64) -> std::result::Result<(), Why> {
        let (blocks, per_cluster) = (self.superblock.blocks, self.superblock.cluster_blocks());
        let end = start.checked_add(count).filter(|&end| end <= blocks);
        let end = end.ok_or_else(|| Why::Whole(format!("metadata at block {start} lies beyond its end")))?;
        if count > 0 {
            // Clusters larger than a block are counted from block 0.
            let first = start / per_cluster * per_cluster;
            let behind = end.next_multiple_of(per_cluster).min(blocks);
            self.used.add(units(first, behind - first, self.superblock.block_sectors()));
        }
        Ok(())
    }

    /// Reads the descriptor of `group` and verifies its checksum. The caller visits the groups in ascending order,
    /// because a block of descriptors is read only for its first group.
    fn descriptor(&mut self, group: u64) -> std::result::Result<Descriptor, Why> {
        let index = group % self.layout.descriptors_per_block;
        if index == 0 {
            let block = self.layout.descriptor_place(group);
            self.volume.read(&mut self.descriptors, block * self.superblock.block_bytes())?;
        }
        let len = self.superblock.descriptor_bytes();
        let bytes = self.descriptors.chunks_exact(len).nth(usize::try_from(index).expect("inside a block"));
        let bytes = bytes.expect("index below descriptors_per_block");
        let descriptor = Descriptor::parse(bytes)?;
        let expected = self.descriptor_checksum(group, bytes);
        require(expected.is_none_or(|expected| expected == descriptor.checksum), || {
            format!("the checksum of the descriptor of group {group} is wrong")
        })?;
        Ok(descriptor)
    }

    /// The correct checksum of a descriptor, if the filesystem has such checksums.
    fn descriptor_checksum(&self, group: u64, bytes: &[u8]) -> Option<u16> {
        let number = u32::try_from(group).ok()?.to_le_bytes();
        let (head, tail) = (&bytes[..CHECKSUM_OFFSET], &bytes[HIGH_OFFSET..]);
        let features = self.superblock.features;
        if features.has_ro_compat(feature::METADATA_CSUM) {
            // crc32c covers the checksum field as zeros; crc16 below leaves the field out.
            let sum = crc32c(self.superblock.checksum_seed, &[&number, head, &[0; 2], tail]);
            Some((sum & 0xFFFF) as u16)
        } else if features.has_ro_compat(feature::GDT_CSUM) {
            Some(crc16(&[&self.superblock.uuid, &number, head, tail]))
        } else {
            None
        }
    }

    /// Compares the current bitmap with the checksum in the group's descriptor.
    fn check_bitmap(&self, group: u64, descriptor: &Descriptor) -> std::result::Result<(), Why> {
        if !self.superblock.features.has_ro_compat(feature::METADATA_CSUM) {
            return Ok(());
        }
        let clusters = self.superblock.blocks_per_group / self.superblock.cluster_blocks();
        let covered = &self.bitmap[..usize::try_from(clusters / 8).expect("at most a block")];
        let mask = if descriptor.wide_checksum { u32::MAX } else { 0xFFFF };
        let sum = crc32c(self.superblock.checksum_seed, &[covered]) & mask;
        require(sum == descriptor.bitmap_checksum, || {
            format!("the checksum of the bitmap of group {group} is wrong")
        })
    }

    /// Checks the places of a group's bitmaps and inode table. Without flex_bg they must lie in the group itself.
    fn check_places(&self, group: u64, descriptor: &Descriptor) -> std::result::Result<(), Why> {
        let start = self.superblock.group_start(group);
        let end = start + self.superblock.group_blocks(group);
        let table = self.superblock.inode_table_blocks();
        let flexible = self.superblock.features.has_incompat(feature::FLEX_BG);
        let (low, high) = if flexible {
            (self.superblock.first_data_block + 1, self.superblock.blocks)
        } else {
            (start, end)
        };
        let inside = |place: u64, count: u64| {
            low <= place && place.checked_add(count).is_some_and(|behind| behind <= high)
        };
        let all = inside(descriptor.block_bitmap, 1)
            && inside(descriptor.inode_bitmap, 1)
            && inside(descriptor.inode_table, table);
        require(all, || format!("the metadata of group {group} lies outside its valid range"))
    }

    /// Marks the first `clusters` clusters of the group as the current bitmap says, except for bad blocks; returns the
    /// number of free ones.
    fn take_bitmap(&mut self, group: u64, clusters: u64) -> u64 {
        let (start, per_cluster) = (self.superblock.group_start(group), self.superblock.cluster_blocks());
        let sectors = self.superblock.block_sectors();
        let mut free = clusters;
        for (first, behind) in runs(&self.bitmap, clusters) {
            free -= behind - first;
            // The last cluster may pass the end of the filesystem.
            let last = (start + behind * per_cluster).min(self.superblock.blocks);
            let run = start + first * per_cluster;
            for good in self.bad.gaps_within(Extent::between(run, last)).runs() {
                self.used.add(units(good.start, good.count, sectors));
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        assert!([3, 9, 27, 81].into_iter().all(|n| is_power_of(3, n)));
        assert!([1, 2, 6, 15, 26].into_iter().all(|n| !is_power_of(3, n)));
    }
}
