//! Reads the two trees of free space of each allocation group: one by place, one by length.

use super::super::{Why, require, units};
use super::fields::{u16_at, u32_at, u64_at};
use super::{Superblock, check_sum};
use crate::coverage::Coverage;
use crate::volume::Volume;

const GROUP_CHECKSUM_AT: usize = 216;
const BLOCK_CHECKSUM_AT: usize = 52;
/// No block: the end of a row of siblings.
const NONE: u32 = 0xFFFF_FFFF;
/// A tree of 2^32 blocks in blocks of 512 bytes is not higher.
const LEVELS_MAX: u32 = 9;

/// A kind of tree: the magic numbers of its blocks, and where the group's header tells its root and height.
struct Kind {
    name: &'static str,
    magic: [&'static [u8; 4]; 2],
    root_at: usize,
    levels_at: usize,
}

const BY_PLACE: Kind = Kind { name: "place", magic: [b"ABTB", b"AB3B"], root_at: 16, levels_at: 28 };
const BY_LENGTH: Kind = Kind { name: "length", magic: [b"ABTC", b"AB3C"], root_at: 20, levels_at: 32 };

/// The sectors in use.
pub(super) fn read(volume: &Volume, superblock: &Superblock) -> Result<Coverage, Why> {
    let mut used = Coverage::default();
    let mut free = 0;
    for number in 0..superblock.groups {
        let group = Group::open(volume, superblock, number)?;
        let runs = group.free_runs()?;
        free += group.free_blocks + group.reserved_blocks;
        let (start, end) = (number * superblock.group_blocks, superblock.blocks_of(number));
        let mut at = 0;
        for (first, count) in runs.into_iter().chain([(u32::try_from(end).expect("a group"), 0)]) {
            used.add(units(start + at, u64::from(first) - at, superblock.block_bytes / 512));
            at = u64::from(first) + u64::from(count);
        }
    }
    require(free == superblock.free_blocks, || {
        format!("its superblock counts {} free blocks, its groups {free}", superblock.free_blocks)
    })?;
    Ok(used)
}

struct Group<'a, 'v> {
    volume: &'a Volume<'v>,
    superblock: &'a Superblock,
    number: u64,
    header: Vec<u8>,
    free_blocks: u64,
    /// Free blocks that belong to the trees: kept for their growth, and those of them that are in use.
    reserved_blocks: u64,
}

impl<'a, 'v> Group<'a, 'v> {
    fn open(volume: &'a Volume<'v>, superblock: &'a Superblock, number: u64) -> Result<Self, Why> {
        let mut header = vec![0; superblock.sector_bytes];
        volume.read(&mut header, superblock.offset(number, 0) + superblock.sector_bytes as u64)?;
        let damaged = || format!("the header of its group {number} is damaged");
        let is_right = header.starts_with(b"XAGF")
            && u32_at(&header, 4) == 1
            && u64::from(u32_at(&header, 8)) == number
            && u64::from(u32_at(&header, 12)) == superblock.blocks_of(number);
        require(is_right, damaged)?;
        if superblock.version == 5 {
            check_sum(&header, GROUP_CHECKSUM_AT, damaged)?;
            require(header[64..80] == superblock.inner_uuid, damaged)?;
        }
        let count = |at| u64::from(u32_at(&header, at));
        let (free_blocks, reserved_blocks) = (count(52), count(48) + count(60));
        Ok(Self { volume, superblock, number, free_blocks, reserved_blocks, header })
    }

    /// The runs of free blocks, by place: first block and count.
    fn free_runs(&self) -> Result<Vec<(u32, u32)>, Why> {
        let runs = self.leaves(&BY_PLACE)?;
        let mut others = self.leaves(&BY_LENGTH)?;
        others.sort_unstable();
        require(runs == others, || {
            format!("the two trees of free space of its group {} differ", self.number)
        })?;
        let (mut behind, mut sum) = (0, 0);
        for &(first, count) in &runs {
            require(u64::from(first) >= behind && count > 0, || {
                format!("free runs of its group {} overlap", self.number)
            })?;
            behind = u64::from(first) + u64::from(count);
            sum += u64::from(count);
        }
        require(behind <= self.superblock.blocks_of(self.number) && sum == self.free_blocks, || {
            format!("the free blocks of its group {} are not as many as it says", self.number)
        })?;
        Ok(runs)
    }

    /// The records in the leaves of a tree, from left to right.
    fn leaves(&self, kind: &Kind) -> Result<Vec<(u32, u32)>, Why> {
        let levels = u32_at(&self.header, kind.levels_at);
        let damaged = || {
            Why::Whole(format!(
                "the tree of free space by {} of its group {} is damaged",
                kind.name, self.number
            ))
        };
        if !(1..=LEVELS_MAX).contains(&levels) {
            return Err(damaged());
        }
        let mut at = u32_at(&self.header, kind.root_at);
        let head = if self.superblock.version == 5 { 56 } else { 16 };
        let block_bytes = usize::try_from(self.superblock.block_bytes).expect("at most 64 KiB");
        for level in (1..levels).rev() {
            let (block, count) = self.block(kind, at, level)?.ok_or_else(damaged)?;
            let most = (block_bytes - head) / 12;
            if count == 0 || count > most {
                return Err(damaged());
            }
            at = u32_at(&block, head + most * 8);
        }
        let (mut runs, mut passed) = (Vec::new(), 0);
        loop {
            let (block, count) = self.block(kind, at, 0)?.ok_or_else(damaged)?;
            passed += 1;
            // A ring of siblings would have no end.
            if count > (block_bytes - head) / 8 || passed > self.superblock.group_blocks {
                return Err(damaged());
            }
            let records = block[head..head + 8 * count].chunks_exact(8);
            runs.extend(records.map(|record| (u32_at(record, 0), u32_at(record, 4))));
            at = u32_at(&block, 12);
            if at == NONE {
                return Ok(runs);
            }
        }
    }

    /// A block of a tree, and the number of its records; `None` if it is not one of this tree and level.
    fn block(&self, kind: &Kind, at: u32, level: u32) -> Result<Option<(Vec<u8>, usize)>, Why> {
        let superblock = self.superblock;
        if u64::from(at) >= superblock.blocks_of(self.number) {
            return Ok(None);
        }
        let offset = superblock.offset(self.number, at.into());
        let mut bytes = vec![0; usize::try_from(superblock.block_bytes).expect("at most 64 KiB")];
        self.volume.read(&mut bytes, offset)?;
        let newer = superblock.version == 5;
        let is_right =
            bytes.starts_with(kind.magic[usize::from(newer)]) && u32::from(u16_at(&bytes, 4)) == level;
        if !is_right {
            return Ok(None);
        }
        if newer {
            let is_here = u64_at(&bytes, 16) == offset / 512
                && bytes[32..48] == superblock.inner_uuid
                && u64::from(u32_at(&bytes, 48)) == self.number;
            require(is_here, || format!("a tree of its group {} has a block of another one", self.number))?;
            check_sum(&bytes, BLOCK_CHECKSUM_AT, || {
                format!("the checksum of a tree of its group {} is wrong", self.number)
            })?;
        }
        let count = usize::from(u16_at(&bytes, 6));
        Ok(Some((bytes, count)))
    }
}
