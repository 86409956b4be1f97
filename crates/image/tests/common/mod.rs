//! What the tests of this crate share: seeded leaves, manifests and trees.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub(crate) mod disks;

use base::{Chance, Digest, Result};
use bytes::Bytes;
use image::manifest::{DiskRecord, Origin, Statistics};
use image::{
    ChunkExtents, ChunkRef, ChunkSize, Cipher, EncryptionKey, Leaf, LeafRun, Manifest, MemoryObjects,
    ObjectRef, ObjectSink, ObjectSource, Root, Run, TreeBuilder,
};

/// A manifest around a tree.
pub(crate) fn manifest(root: Root, chunk: ChunkSize, size_sectors: u64) -> Manifest {
    Manifest {
        format: 1,
        features: Vec::new(),
        image: "debian".to_owned(),
        number: 7,
        nonce: String::new(),
        parent: None,
        copied: None,
        commit: None,
        root,
        chunk_bytes: chunk.bytes(),
        size_sectors,
        logical_sector_bytes: 512,
        physical_sector_bytes: 4096,
        origin: Origin { disk_sectors: size_sectors, start_sector: 0 },
        disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
        labels: [("role".to_owned(), "node".to_owned())].into(),
        created: "2026-11-20T14:00:00Z".to_owned(),
        creator: "test".to_owned(),
        statistics: Statistics::default(),
        warnings: Vec::new(),
        cipher: "none".to_owned(),
    }
}

/// Objects in memory that are sealed.
#[derive(Default)]
pub(crate) struct Sealing(pub MemoryObjects);

impl Sealing {
    fn key() -> Cipher {
        Cipher::Key(EncryptionKey::from_bytes([5; 32]))
    }
}

impl ObjectSource for Sealing {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.0.fetch(object)
    }

    fn cipher(&self) -> Cipher {
        Self::key()
    }
}

impl ObjectSink for Sealing {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.0.put(object, bytes)
    }

    fn cipher(&self) -> Cipher {
        Self::key()
    }
}

/// A chunk size that tests can afford.
pub(crate) fn small() -> ChunkSize {
    ChunkSize::from_log2(16).unwrap()
}

/// Some extents, full in half of the cases.
pub(crate) fn random_extents(chance: &mut Chance, size: ChunkSize) -> ChunkExtents {
    if chance.hits(500_000) {
        return ChunkExtents::full(size);
    }
    let density = 1_000 + u32::try_from(chance.below(999_000)).unwrap();
    let picked: Vec<u16> = (0..size.sectors()).filter(|_| chance.hits(density)).collect();
    let picked = if picked.is_empty() { vec![3] } else { picked };
    ChunkExtents::from_runs(size, picked.into_iter().map(|start| Run { start, count: 1 })).unwrap()
}

/// Some leaf; one of data names an object that does not exist.
pub(crate) fn random_leaf(chance: &mut Chance, size: ChunkSize) -> Leaf {
    match chance.below(4) {
        0 => Leaf::Zero(random_extents(chance, size)),
        1 => Leaf::Zero(ChunkExtents::full(size)),
        _ => {
            let extents = random_extents(chance, size);
            let tag = chance.below(1000);
            let mut form = Vec::new();
            extents.encode(&mut form);
            let encoded = Digest::of(&[&tag.to_le_bytes()[..], &form].concat());
            let encoded_len = u32::try_from(16 + form.len() + 1).unwrap();
            Leaf::Data(extents, ChunkRef { encoded_len, encoded, plain: Digest::of(&tag.to_le_bytes()) })
        }
    }
}

/// The tree of `leaves` (ascending; the rest is free).
pub(crate) fn build(chunk_count: u64, leaves: &[(u64, Leaf)], sink: &dyn ObjectSink) -> Result<Root> {
    let mut builder = TreeBuilder::new(small(), chunk_count, sink);
    for (index, leaf) in leaves {
        builder.push(*index, leaf)?;
    }
    builder.finish()
}

/// Runs as single chunks.
pub(crate) fn flatten(runs: impl Iterator<Item = Result<LeafRun>>) -> Result<Vec<(u64, Leaf)>> {
    let mut leaves = Vec::new();
    for run in runs {
        let run = run?;
        leaves.extend((run.first..run.first + run.count).map(|index| (index, run.leaf.clone())));
    }
    Ok(leaves)
}
