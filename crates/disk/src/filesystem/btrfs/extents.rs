//! Reads the extent tree: everything that is allocated, by logical address.

use super::super::little_endian::u64_at;
use super::super::{Why, require};
use super::free::Free;
use super::key::Key;
use super::sectors;
use super::tree::Trees;
use crate::coverage::Coverage;

/// Trees, by the objects of their roots in the tree of roots.
const EXTENT_TREE: u64 = 2;
const BLOCK_GROUP_TREE: u64 = 11;
/// Kinds of items.
const EXTENT: u8 = 168;
const METADATA: u8 = 169;
const BLOCK_GROUP: u8 = 192;

/// What is known of the extents so far.
struct Extents<'a> {
    trees: &'a Trees<'a, 'a>,
    /// The sectors, one for each stripe of a chunk: each in order.
    used: [Coverage; 2],
    /// For each chunk, the bytes of its extents, and those that its block group tells.
    bytes: Vec<u64>,
    told: Vec<Option<u64>>,
    /// Where the last extent ends.
    end: u64,
    /// What is free, if a tree tells.
    free: Option<Free>,
}

/// The sectors in use.
pub(super) fn read(trees: &Trees) -> Result<Coverage, Why> {
    let chunks = trees.chunks.all().len();
    let mut extents = Extents {
        trees,
        used: Default::default(),
        bytes: vec![0; chunks],
        told: vec![None; chunks],
        end: 0,
        free: trees.superblock.has_free_space_tree.then(|| Free::read(trees)).transpose()?,
    };
    let all = || Key::MIN..=Key::MAX;
    trees.walk(&trees.root_of(EXTENT_TREE)?, all(), &mut |key, item| extents.take(key, item))?;
    if trees.superblock.groups_have_tree {
        trees
            .walk(&trees.root_of(BLOCK_GROUP_TREE)?, all(), &mut |key, item| extents.take_group(key, item))?;
    }
    extents.finish()
}

impl Extents<'_> {
    fn take(&mut self, key: Key, item: &[u8]) -> Result<(), Why> {
        match key.kind {
            EXTENT => self.add(key.object, key.offset),
            METADATA => self.add(key.object, self.trees.superblock.node_bytes.into()),
            BLOCK_GROUP => self.take_group(key, item),
            _ => Ok(()),
        }
    }

    fn add(&mut self, logical: u64, bytes: u64) -> Result<(), Why> {
        require(bytes > 0 && logical >= self.end, || {
            format!("extents overlap at logical address {logical}")
        })?;
        let index = self.trees.chunks.find(logical, bytes)?;
        let is_free = |free: &mut Free| !free.has_nothing_of(logical, logical + bytes);
        require(!self.free.as_mut().is_some_and(is_free), || {
            format!("the extent at logical address {logical} is listed as free, too")
        })?;
        let chunk = &self.trees.chunks.all()[index];
        self.end = logical + bytes;
        self.bytes[index] += bytes;
        for (used, stripe) in self.used.iter_mut().zip(&chunk.stripes) {
            let start = stripe + (logical - chunk.logical);
            used.add(sectors(start, start + bytes));
        }
        Ok(())
    }

    fn take_group(&mut self, key: Key, item: &[u8]) -> Result<(), Why> {
        if key.kind != BLOCK_GROUP {
            return Ok(());
        }
        let damaged = || format!("its block group at logical address {} is damaged", key.object);
        let index = self.trees.chunks.find(key.object, key.offset)?;
        let chunk = &self.trees.chunks.all()[index];
        let is_right = (chunk.logical, chunk.bytes) == (key.object, key.offset) && item.len() >= 24;
        require(is_right && self.told[index].is_none(), damaged)?;
        self.told[index] = Some(u64_at(item, 0));
        Ok(())
    }

    /// Compares the sums.
    fn finish(self) -> Result<Coverage, Why> {
        for ((bytes, told), chunk) in self.bytes.iter().zip(&self.told).zip(self.trees.chunks.all()) {
            require(*told == Some(*bytes), || {
                let told = told.map_or("nothing".to_owned(), |told| told.to_string());
                format!("its block group at {} counts {told} bytes, its extents {bytes}", chunk.logical)
            })?;
        }
        let (all, told) = (self.bytes.iter().sum::<u64>(), self.trees.superblock.used_bytes);
        require(all == told, || format!("its superblock counts {told} bytes in use, its extents {all}"))?;
        let room: u64 = self.trees.chunks.all().iter().map(|chunk| chunk.bytes).sum();
        require(self.free.is_none_or(|free| free.bytes() == room - all), || {
            "its lists of extents and of free space leave something out".to_owned()
        })?;
        let [mut used, copies] = self.used;
        used.add_moved(copies, 0);
        Ok(used)
    }
}
