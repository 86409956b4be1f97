//! Where logical addresses lie on the device: chunks, each with one or more stripes.

use super::super::little_endian::{u16_at, u64_at};
use super::super::{Why, require};
use super::key::Key;
use super::tree::Trees;
use super::{Device, Superblock};

/// The object and the kind of a chunk's key.
const CHUNK_TREE: u64 = 256;
const CHUNK_ITEM: u8 = 228;
/// Bytes of a chunk before its stripes, and of a stripe.
const CHUNK_BYTES: usize = 48;
const STRIPE_BYTES: usize = 32;

/// The profiles in a chunk's flags.
const PROFILES: u64 = 0x7F8;
const RAID0: u64 = 1 << 3;
const DUP: u64 = 1 << 5;

/// All bytes of a chunk lie one after another in each of its stripes.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) logical: u64,
    pub(super) bytes: u64,
    /// Where its stripes begin on the device, in bytes.
    pub(super) stripes: Vec<u64>,
}

impl Chunk {
    fn parse(key: Key, item: &[u8], device: &Device) -> Result<Self, Why> {
        let damaged = || "a chunk of it is damaged".to_owned();
        require((key.object, key.kind) == (CHUNK_TREE, CHUNK_ITEM) && item.len() >= CHUNK_BYTES, damaged)?;
        let (logical, bytes, flags) = (key.offset, u64_at(item, 0), u64_at(item, 24));
        let count = usize::from(u16_at(item, 44));
        require(item.len() == CHUNK_BYTES + count * STRIPE_BYTES && bytes > 0, damaged)?;
        require(logical.checked_add(bytes).is_some(), damaged)?;
        let is_known = match flags & PROFILES {
            0 | RAID0 => count == 1,
            DUP => count == 2,
            _ => false,
        };
        require(is_known, || "it has a chunk that is meant for several devices".to_owned())?;
        let mut stripes = Vec::new();
        for stripe in item[CHUNK_BYTES..].chunks_exact(STRIPE_BYTES) {
            let (number, offset) = (u64_at(stripe, 0), u64_at(stripe, 8));
            require(number == device.number && stripe[16..32] == device.uuid, || {
                "it has a chunk on another device".to_owned()
            })?;
            let end = offset.checked_add(bytes);
            require(end.is_some_and(|end| end <= device.bytes), damaged)?;
            stripes.push(offset);
        }
        Ok(Self { logical, bytes, stripes })
    }

    pub(super) fn end(&self) -> u64 {
        self.logical + self.bytes
    }
}

/// The chunks, by their logical addresses.
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    /// Those that the superblock tells; the chunk tree lies in them.
    pub(super) fn of_system(superblock: &Superblock) -> Result<Self, Why> {
        let mut rest = &superblock.system_chunks[..];
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let damaged = || Why::Whole("the list of chunks in its superblock is damaged".to_owned());
            let (key, after) = rest.split_at_checked(Key::BYTES).ok_or_else(damaged)?;
            let head = after.get(..CHUNK_BYTES).ok_or_else(damaged)?;
            let bytes = CHUNK_BYTES + usize::from(u16_at(head, 44)) * STRIPE_BYTES;
            let (item, after) = after.split_at_checked(bytes).ok_or_else(damaged)?;
            chunks.push(Chunk::parse(Key::at(key, 0), item, &superblock.device)?);
            rest = after;
        }
        Self::of(chunks)
    }

    /// All chunks.
    pub(super) fn read(trees: &Trees) -> Result<Self, Why> {
        let mut chunks = Vec::new();
        let first = Key { object: CHUNK_TREE, kind: CHUNK_ITEM, offset: 0 };
        let last = Key { offset: u64::MAX, ..first };
        trees.walk(&trees.superblock.chunk_root, first..=last, &mut |key, item| {
            chunks.push(Chunk::parse(key, item, &trees.superblock.device)?);
            Ok(())
        })?;
        Self::of(chunks)
    }

    fn of(mut chunks: Vec<Chunk>) -> Result<Self, Why> {
        chunks.sort_unstable_by_key(|chunk| chunk.logical);
        require(chunks.is_sorted_by(|one, next| one.end() <= next.logical), || {
            "its chunks overlap".to_owned()
        })?;
        let mut places: Vec<_> =
            chunks.iter().flat_map(|of| of.stripes.iter().map(|at| (*at, at + of.bytes))).collect();
        places.sort_unstable();
        require(places.is_sorted_by(|one, next| one.1 <= next.0), || {
            "its chunks overlap on the device".to_owned()
        })?;
        Ok(Self(chunks))
    }

    pub(super) fn all(&self) -> &[Chunk] {
        &self.0
    }

    /// The index of the chunk that has all of a logical range.
    pub(super) fn find(&self, logical: u64, bytes: u64) -> Result<usize, Why> {
        let outside = || Why::Whole(format!("logical address {logical} is in no chunk of it"));
        let index =
            self.0.partition_point(|chunk| chunk.logical <= logical).checked_sub(1).ok_or_else(outside)?;
        let end = logical.checked_add(bytes).ok_or_else(outside)?;
        if end <= self.0[index].end() { Ok(index) } else { Err(outside()) }
    }
}
