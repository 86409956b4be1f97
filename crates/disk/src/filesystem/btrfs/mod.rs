//! Reads btrfs on one device ("On-disk format" of the documentation of btrfs; include/uapi/linux/btrfs_tree.h and
//! fs/btrfs of Linux). Allocated is what the extent tree lists, where the chunk tree puts it on the device. The sums
//! that the block groups and the superblock tell must agree with it, and so must the tree of free space, if it has one.

mod chunks;
mod extents;
mod free;
mod key;
mod sums;
mod tree;

use base::Result;
use base::limits::SECTOR_BYTES;

use super::little_endian::{u16_at, u32_at, u64_at};
use super::{Allocation, AllocationReader, Why, require, unmarked};
use crate::volume::Volume;
use crate::{Filesystem, text};
use chunks::Chunks;
use sums::Sum;
use tree::{Root, Trees};

/// Where the superblock lies, and how long it is. Its copies lie at 64 MiB and 256 GiB.
const SUPERBLOCK_AT: u64 = 64 << 10;
const SUPERBLOCK_BYTES: usize = 4096;
const COPIES_AT: [u64; 2] = [64 << 20, 256 << 30];
/// Nothing is allocated before this byte; a boot loader may lie there.
const RESERVED_BYTES: u64 = 1 << 20;

/// Bits of the features that this reader knows to leave the trees that it reads as they are.
mod feature {
    /// Free space tree, which is valid; fs-verity; block groups in a tree of their own.
    pub(super) const RO_COMPAT: u64 = 0xF;
    pub(super) const BLOCK_GROUP_TREE: u64 = 8;
    /// It is there, and valid.
    pub(super) const FREE_SPACE_TREE: u64 = 3;
    /// All up to RAID1 with three and four copies, and simple quotas. Not zoned devices, the second version of the
    /// extent tree, the tree of RAID stripes, and what is newer.
    pub(super) const INCOMPAT: u64 = 0x1_0FFF;
    /// Without it, extents are listed in another form.
    pub(super) const MIXED_BACKREF: u64 = 1;
    pub(super) const METADATA_UUID: u64 = 1 << 10;
    /// Written, relocated. The other flags tell of an error, a seed, a dump, or a conversion under way.
    pub(super) const FLAGS: u64 = 3;
}

/// Reads btrfs filesystems.
pub(super) struct Btrfs;

/// The superblock. Places and lengths are in bytes.
struct Superblock {
    uuid: [u8; 16],
    /// The UUID in the headers of tree nodes.
    inner_uuid: [u8; 16],
    label: Option<String>,
    used_bytes: u64,
    sector_bytes: u32,
    node_bytes: u32,
    sum: Option<Sum>,
    root: Root,
    chunk_root: Root,
    /// Keys and chunks that lead to the chunk tree.
    system_chunks: Vec<u8>,
    device: Device,
    groups_have_tree: bool,
    has_free_space_tree: bool,
    /// Why the filesystem is captured whole, if its features or its state say so.
    strange: Option<&'static str>,
}

/// The device, as the superblock tells it.
struct Device {
    number: u64,
    uuid: [u8; 16],
    bytes: u64,
}

impl Superblock {
    fn read(volume: &Volume) -> Result<Option<(Self, Vec<u8>)>> {
        let Some(bytes) = volume.peek(SUPERBLOCK_AT, SUPERBLOCK_BYTES)? else { return Ok(None) };
        Ok(if bytes[64..72] == *b"_BHRfS_M" {
            Self::parse(&bytes).map(|parsed| (parsed, bytes))
        } else {
            None
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (sector_bytes, node_bytes) = (u32_at(bytes, 144), u32_at(bytes, 148));
        let is_plausible = sector_bytes.is_power_of_two()
            && (512..=65_536).contains(&sector_bytes)
            && node_bytes.is_power_of_two()
            && (sector_bytes..=65_536).contains(&node_bytes)
            && u64_at(bytes, 48) == SUPERBLOCK_AT;
        if !is_plausible {
            return None;
        }
        let uuid = *bytes[32..].first_chunk()?;
        let has_inner = u64_at(bytes, 188) & feature::METADATA_UUID != 0;
        let generation = u64_at(bytes, 72);
        let system = bytes[811..811 + 2048].get(..u32_at(bytes, 160) as usize)?;
        Some(Self {
            uuid,
            inner_uuid: if has_inner { *bytes[571..].first_chunk()? } else { uuid },
            label: text::label(&bytes[299..555]),
            used_bytes: u64_at(bytes, 120),
            sector_bytes,
            node_bytes,
            sum: Sum::of_kind(u16_at(bytes, 196)),
            root: Root { logical: u64_at(bytes, 80), generation, level: bytes[198] },
            chunk_root: Root {
                logical: u64_at(bytes, 88),
                generation: u64_at(bytes, 164),
                level: bytes[199],
            },
            system_chunks: system.to_vec(),
            device: Device {
                number: u64_at(bytes, 201),
                uuid: *bytes[267..].first_chunk()?,
                bytes: u64_at(bytes, 209),
            },
            groups_have_tree: u64_at(bytes, 180) & feature::BLOCK_GROUP_TREE != 0,
            has_free_space_tree: u64_at(bytes, 180) & feature::FREE_SPACE_TREE == feature::FREE_SPACE_TREE,
            strange: Self::strange(bytes),
        })
    }

    fn strange(bytes: &[u8]) -> Option<&'static str> {
        let (ro_compat, incompat) = (u64_at(bytes, 180), u64_at(bytes, 188));
        let unknown = (ro_compat & !feature::RO_COMPAT) | (incompat & !feature::INCOMPAT);
        if unknown != 0 || incompat & feature::MIXED_BACKREF == 0 {
            return Some("it has features that are not known");
        }
        if u64_at(bytes, 56) & !feature::FLAGS != 0 {
            return Some("it is marked as damaged, as a seed or as being converted");
        }
        if u64_at(bytes, 136) != 1 {
            return Some("it lies on several devices");
        }
        (u64_at(bytes, 96) != 0).then_some("it was not unmounted cleanly: its log is to be replayed")
    }

    fn check(&self, bytes: &[u8], volume: &Volume) -> std::result::Result<Sum, Why> {
        let whole = |why: &str| Why::Whole(why.to_owned());
        let sum = self.sum.ok_or_else(|| whole("its checksums are of a kind that is not known"))?;
        require(sum.matches(bytes), || "the checksum of its superblock is wrong".to_owned())?;
        self.strange.map_or(Ok(()), |strange| Err(whole(strange)))?;
        require(self.device.bytes <= volume.len_bytes(), || {
            "the filesystem claims to be larger than its partition".to_owned()
        })?;
        Ok(sum)
    }
}

impl AllocationReader for Btrfs {
    fn family(&self) -> &'static str {
        "btrfs"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let filesystem = |(superblock, _): (Superblock, _)| Filesystem {
            kind: "btrfs",
            uuid: text::some_uuid(&superblock.uuid),
            label: superblock.label,
            block_bytes: superblock.sector_bytes,
            understood: false,
        };
        Ok(Superblock::read(volume)?.map(filesystem))
    }

    fn end_bytes(&self, volume: &Volume) -> Result<Option<u64>> {
        Ok(Superblock::read(volume)?.map(|(found, _)| found.device.bytes))
    }

    fn allocated(&self, volume: &Volume, live: bool) -> std::result::Result<Allocation, Why> {
        require(!live, unmarked)?;
        let (superblock, bytes) =
            Superblock::read(volume)?.ok_or_else(|| Why::Whole("it has no btrfs superblock".to_owned()))?;
        let sum = superblock.check(&bytes, volume)?;
        let chunks = Chunks::of_system(&superblock)?;
        let mut trees = Trees { volume, superblock: &superblock, sum, chunks };
        trees.chunks = Chunks::read(&trees)?;
        let mut used = extents::read(&trees)?;
        let end = superblock.device.bytes;
        let mut keep = |start: u64, end: u64| used.add(sectors(start, end));
        keep(0, RESERVED_BYTES.min(end));
        for at in COPIES_AT.into_iter().filter(|at| at + SUPERBLOCK_BYTES as u64 <= end) {
            keep(at, at + SUPERBLOCK_BYTES as u64);
        }
        Ok(Allocation { used, end_sectors: end.div_ceil(SECTOR_BYTES), doubts: Vec::new() })
    }
}

/// The sectors of a range of bytes.
fn sectors(start: u64, end: u64) -> base::Extent {
    base::Extent::between(start / SECTOR_BYTES, end.div_ceil(SECTOR_BYTES))
}
