//! Reads the list of bad blocks of ext: the blocks of inode 1 (e2fsprogs lib/ext2fs/bb_inode.c). `mke2fs -c` and
//! `e2fsck -c` put blocks there that can't be read. They count as in use, and no file has them.

use base::wire::{Reader, Truncated};
use base::{Extent, ExtentSet};

use super::super::checksum::crc32c;
use super::super::{Why, require};
use super::superblock::{Superblock, feature};
use crate::volume::Volume;

/// Number of the inode.
const NUMBER: u32 = 1;
/// Size of the part of an inode that every filesystem has, in bytes.
const BASE_BYTES: usize = 128;
/// Offsets in an inode.
const FLAGS: usize = 0x20;
const BLOCKS: usize = 0x28;
const GENERATION: usize = 0x64;
const CHECKSUM_LOW: usize = 0x7C;
const EXTRA_BYTES: usize = 0x80;
const CHECKSUM_HIGH: usize = 0x82;
/// Blocks that the inode names itself. After these come a block of numbers, a block of such blocks, and one of those.
const DIRECT: usize = 12;
const DEPTH_MAX: usize = 3;
/// `EXT4_EXTENTS_FL`: its blocks are told in another way, which no tool uses for this inode.
const HAS_EXTENTS: u32 = 0x8_0000;
/// A list of more blocks, with those that hold it, is not believed.
const LISTED_MAX: usize = 1 << 20;

/// The blocks that the filesystem lists as bad. `inode_table` is the first block of the inodes of the first group. The
/// blocks that hold the list are not among them.
pub(super) fn blocks(volume: &Volume, superblock: &Superblock, inode_table: u64) -> Result<ExtentSet, Why> {
    let mut inode = vec![0; superblock.inode_bytes()];
    volume.read(&mut inode, inode_table * superblock.block_bytes())?;
    let places = numbers(&inode[BLOCKS..][..4 * (DIRECT + DEPTH_MAX)]);
    let flags = Reader::new(&inode[FLAGS..]).u32()?;
    if places.iter().all(|&block| block == 0) || flags & HAS_EXTENTS != 0 {
        return Ok(ExtentSet::new());
    }
    // What e2fsck expects of it (e2fsck/pass1.c): no mode, owner, group or links.
    let is_sound = [0x00, 0x02, 0x18, 0x1A].into_iter().all(|at| inode[at..at + 2] == [0, 0])
        && checksum_holds(superblock, &inode)?;
    require(is_sound, damaged)?;
    let mut list = List { volume, superblock, found: Vec::new(), seen: 0 };
    list.take(&places[..DIRECT], 0)?;
    for (&place, depth) in places[DIRECT..].iter().zip(1..) {
        list.take(&[place], depth)?;
    }
    let mut found = list.found;
    found.sort_unstable();
    Ok(found.into_iter().map(|block| Extent::new(block, 1)).collect())
}

fn damaged() -> String {
    "its list of bad blocks is damaged".to_owned()
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&number| u32::from_le_bytes(number)).collect()
}

/// Whether the checksum of the inode is right, if the filesystem has such checksums (Linux, fs/ext4/inode.c).
fn checksum_holds(superblock: &Superblock, inode: &[u8]) -> Result<bool, Truncated> {
    if !superblock.features.has_ro_compat(feature::METADATA_CSUM) {
        return Ok(true);
    }
    let field = |at: usize| Reader::new(inode.get(at..).unwrap_or_default()).u16();
    let is_wide =
        inode.len() > BASE_BYTES && usize::from(field(EXTRA_BYTES)?) + EXTRA_BYTES >= CHECKSUM_HIGH + 2;
    let mut expected = u32::from(field(CHECKSUM_LOW)?);
    let mut covered = inode.to_vec();
    covered[CHECKSUM_LOW..CHECKSUM_LOW + 2].fill(0);
    if is_wide {
        expected |= u32::from(field(CHECKSUM_HIGH)?) << 16;
        covered[CHECKSUM_HIGH..CHECKSUM_HIGH + 2].fill(0);
    }
    let generation = &inode[GENERATION..GENERATION + 4];
    let sum = crc32c(superblock.checksum_seed, &[&NUMBER.to_le_bytes(), generation, &covered]);
    Ok(expected == if is_wide { sum } else { sum & 0xFFFF })
}

/// The list, as far as it was read.
struct List<'a, 'v> {
    volume: &'a Volume<'v>,
    superblock: &'a Superblock,
    found: Vec<u64>,
    /// How many blocks it named, also to hold it.
    seen: usize,
}

impl List<'_, '_> {
    /// Adds `places`: blocks that are bad, or with `depth` above 0 blocks of numbers of such.
    fn take(&mut self, places: &[u32], depth: usize) -> Result<(), Why> {
        for place in places.iter().map(|&place| u64::from(place)).filter(|&place| place != 0) {
            self.seen += 1;
            require(place < self.superblock.blocks && self.seen <= LISTED_MAX, damaged)?;
            if depth == 0 {
                self.found.push(place);
                continue;
            }
            let mut bytes = vec![0; usize::try_from(self.superblock.block_bytes()).expect("at most 64 KiB")];
            self.volume.read(&mut bytes, place * self.superblock.block_bytes())?;
            self.take(&numbers(&bytes), depth - 1)?;
        }
        Ok(())
    }
}
