//! The objects of an image, and which of them a boot reads: those of the recording, and others between them.

use std::collections::{BTreeMap, HashMap};

use base::limits::TREE_FANOUT;

use super::layout::Content;
use crate::cloud::Boot;

/// Chunks with data of the image that the boot was recorded from, and the bytes of their objects.
const CHUNKS: usize = 834 * 4;
const ENCODED_BYTES: u64 = 295 << 20;
/// Length of a leaf node, as in the images of the bench.
const NODE_BYTES: u64 = 20_000;

/// An image as it lies in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its objects in the order in which they were stored: chunks in the order of the disk, then nodes.
    pub(super) contents: Vec<Content>,
    /// Those that a boot reads, in order.
    pub(super) boot: Vec<usize>,
}

impl Image {
    /// The image of the recorded boot. Of the chunks that the boot does not touch, only their number and the sum of
    /// their bytes are known: they have equal lengths, and lie where the disk has room from its beginning on.
    #[must_use]
    pub fn recorded() -> Self {
        Self::of(&Boot::recorded())
    }

    fn of(boot: &Boot) -> Self {
        let mut chunks: BTreeMap<u64, u64> =
            boot.touches.iter().map(|touch| (touch.chunk, u64::from(touch.bytes))).collect();
        let others = CHUNKS.saturating_sub(chunks.len());
        let each = (ENCODED_BYTES - boot.object_bytes()) / others.max(1) as u64;
        let untouched: Vec<u64> = (0..).filter(|chunk| !chunks.contains_key(chunk)).take(others).collect();
        chunks.extend(untouched.into_iter().map(|chunk| (chunk, each)));
        // As long as the names of objects, which are digests.
        let name = |kind: &str, number: u64| format!("objects/{kind}/{number:059x}");
        let mut contents: Vec<Content> = chunks
            .iter()
            .map(|(chunk, bytes)| Content { name: name("chunk", *chunk), bytes: *bytes })
            .collect();
        let places: HashMap<u64, usize> = chunks.keys().copied().zip(0..).collect();
        let mut leaves: Vec<u64> = chunks.keys().map(|chunk| chunk / TREE_FANOUT).collect();
        leaves.dedup();
        let leaf_places: HashMap<u64, usize> = leaves.iter().copied().zip(contents.len()..).collect();
        contents.extend(leaves.iter().map(|leaf| Content { name: name("leaf", *leaf), bytes: NODE_BYTES }));
        let mut read = Vec::new();
        for touch in &boot.touches {
            let leaf = leaf_places[&(touch.chunk / TREE_FANOUT)];
            if !read.contains(&leaf) {
                read.push(leaf);
            }
            read.push(places[&touch.chunk]);
        }
        Self { contents, boot: read }
    }

    /// Bytes of all objects that a boot reads.
    #[must_use]
    pub fn boot_bytes(&self) -> u64 {
        self.boot.iter().map(|&content| self.contents[content].bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_what_its_boot_reads_and_more() {
        let (image, boot) = (Image::recorded(), Boot::recorded());
        let sum: u64 = image.contents.iter().map(|content| content.bytes).sum();
        let leaves = image.contents.len() - CHUNKS;
        assert!(sum.abs_diff(ENCODED_BYTES + leaves as u64 * NODE_BYTES) < CHUNKS as u64, "{sum}");
        let nodes = image.boot.len() - boot.touches.len();
        assert!((10..=leaves).contains(&nodes), "{nodes}");
        assert_eq!(image.boot_bytes(), boot.object_bytes() + nodes as u64 * NODE_BYTES);
    }
}
