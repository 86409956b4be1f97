//! The image that every receiver should have at the end.

use std::sync::Arc;

use base::{Chance, Digest};
use proto::multicast::Shape;

/// The objects of the image and their digests.
#[derive(Debug)]
pub(crate) struct Truth {
    pub shape: Shape,
    pub objects: Vec<Vec<u8>>,
    pub digests: Vec<Digest>,
    pub object_bytes: Arc<[u32]>,
    /// Number of the first block of each object, counted through the image; the last entry is the total.
    pub first_block: Vec<usize>,
}

impl Truth {
    /// An image of random objects with the given lengths.
    pub(crate) fn new(shape: Shape, object_bytes: &[u32], chance: &mut Chance) -> Self {
        let fill = |&bytes: &u32| {
            let mut object = vec![0; bytes as usize];
            chance.fill(&mut object);
            object
        };
        let objects: Vec<Vec<u8>> = object_bytes.iter().map(fill).collect();
        let mut first_block = vec![0];
        for &bytes in object_bytes {
            first_block.push(first_block[first_block.len() - 1] + shape.blocks(bytes) as usize);
        }
        let digests = objects.iter().map(|object| Digest::of(object)).collect();
        Self { shape, objects, digests, object_bytes: object_bytes.into(), first_block }
    }

    /// Mean length of an object in bytes.
    pub(crate) fn object_bytes_mean(&self) -> u32 {
        let sum: u64 = self.object_bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        (sum / self.object_bytes.len() as u64) as u32
    }

    /// Number of blocks of the image.
    pub(crate) fn blocks(&self) -> usize {
        self.first_block[self.objects.len()]
    }

    /// Number of blocks of an object.
    pub(crate) fn object_blocks(&self, object: u64) -> u32 {
        (self.first_block[object as usize + 1] - self.first_block[object as usize]) as u32
    }

    /// Number of a block, counted through the whole image.
    pub(crate) fn block(&self, object: u64, block: u16) -> usize {
        self.first_block[object as usize] + usize::from(block)
    }
}
