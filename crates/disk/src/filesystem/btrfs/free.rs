//! Reads the tree of free space, which Linux keeps beside the extent tree: what one lists, the other lacks.

use super::super::{Why, bitmap, require};
use super::key::Key;
use super::tree::Trees;

const FREE_SPACE_TREE: u64 = 10;
const EXTENT: u8 = 199;
const BITMAP: u8 = 200;

/// Free runs, by logical address: first byte, and the first one after it.
pub(super) struct Free {
    runs: Vec<(u64, u64)>,
    next: usize,
}

impl Free {
    /// The free space that the tree lists.
    pub(super) fn read(trees: &Trees) -> Result<Self, Why> {
        let mut free = Self { runs: Vec::new(), next: 0 };
        let sector = u64::from(trees.superblock.sector_bytes);
        trees.walk(&trees.root_of(FREE_SPACE_TREE)?, Key::MIN..=Key::MAX, &mut |key, item| {
            // mkfs.btrfs leaves the free space of a chunk that it removed.
            if trees.chunks.find(key.object, key.offset).is_err() {
                return Ok(());
            }
            match key.kind {
                EXTENT => free.add(key.object, key.object + key.offset),
                BITMAP => {
                    let bits = key.offset / sector;
                    require(item.len() as u64 * 8 >= bits, || "a bitmap of it is too short".to_owned())?;
                    bitmap::runs(item, bits).try_for_each(|(first, end)| {
                        free.add(key.object + first * sector, key.object + end * sector)
                    })
                }
                _ => Ok(()),
            }
        })?;
        Ok(free)
    }

    fn add(&mut self, start: u64, end: u64) -> Result<(), Why> {
        let behind = self.runs.last().map_or(0, |last| last.1);
        require(start >= behind && end > start, || "its free runs overlap".to_owned())?;
        self.runs.push((start, end));
        Ok(())
    }

    /// Whether none of the next extent is free. Extents come in their order.
    pub(super) fn has_nothing_of(&mut self, start: u64, end: u64) -> bool {
        while self.runs.get(self.next).is_some_and(|run| run.1 <= start) {
            self.next += 1;
        }
        self.runs.get(self.next).is_none_or(|run| run.0 >= end)
    }

    /// How many bytes are free.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }
}
