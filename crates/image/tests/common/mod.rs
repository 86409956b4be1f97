//! Helpers that the tests of this crate share: seeded random leaves, manifests, trees, and a whole install.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub(crate) mod disks;

use std::sync::Arc;

use base::{Chance, Digest, Result};
use disk::WriteAt;
use image::manifest::{DiskRecord, Origin, Statistics};
use image::{
    Catalogue, ChunkExtents, ChunkRef, ChunkSize, Cipher, DecryptedNodes, EncryptionKey, InstallOptions,
    InstallReport, Installer, Leaf, LeafRun, Manifest, NoProgress, ObjectSink, ObjectSource, Root, Run,
    TreeBuilder,
};

/// A manifest for the tree under `root`. Its other fields are fixed.
pub(crate) fn manifest(root: Root, chunk: ChunkSize, size_sectors: u64) -> Manifest {
    Manifest {
        format: 1,
        features: Vec::new(),
        image: "debian".to_owned(),
        number: 7,
        nonce: String::new(),
        repository: None,
        parent: None,
        copied: None,
        commit: None,
        made: None,
        members: Vec::new(),
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

/// The key of tests that encrypt objects.
pub(crate) fn key() -> Cipher {
    Cipher::Key(EncryptionKey::from_bytes([5; 32]))
}

/// The tree nodes in `source`, which are not encrypted.
pub(crate) fn plain(source: &dyn ObjectSource) -> DecryptedNodes<'_> {
    DecryptedNodes { source, cipher: &Cipher::None }
}

/// The smallest chunk size, 64 KiB, to keep tests fast.
pub(crate) fn small() -> ChunkSize {
    ChunkSize::from_log2(16).unwrap()
}

/// Random extents. In half of the cases the whole chunk is allocated.
pub(crate) fn random_extents(chance: &mut Chance, size: ChunkSize) -> ChunkExtents {
    if chance.hits(500_000) {
        return ChunkExtents::full(size);
    }
    let density = 1_000 + u32::try_from(chance.below(999_000)).unwrap();
    let picked: Vec<u16> = (0..size.sectors()).filter(|_| chance.hits(density)).collect();
    let picked = if picked.is_empty() { vec![3] } else { picked };
    ChunkExtents::from_runs(size, picked.into_iter().map(|start| Run { start, count: 1 })).unwrap()
}

/// A random leaf. A leaf with data names an object that does not exist.
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

/// Builds the tree of `leaves`, which ascend. All other chunks are free.
pub(crate) fn build(chunk_count: u64, leaves: &[(u64, Leaf)], sink: &dyn ObjectSink) -> Result<Root> {
    let mut builder = TreeBuilder::new(small(), chunk_count, sink, &Cipher::None);
    for (index, leaf) in leaves {
        builder.push(*index, leaf)?;
    }
    builder.finish()
}

/// Splits runs of leaves into one leaf per chunk.
pub(crate) fn flatten(runs: impl Iterator<Item = Result<LeafRun>>) -> Result<Vec<(u64, Leaf)>> {
    let mut leaves = Vec::new();
    for run in runs {
        let run = run?;
        leaves.extend((run.first..run.first + run.count).map(|index| (index, run.leaf.clone())));
    }
    Ok(leaves)
}

/// Installs the version of `manifest` on `target`. Its objects are in `source`, encrypted with `cipher`.
pub(crate) fn install(
    manifest: &Manifest,
    (source, cipher): (&dyn ObjectSource, &Cipher),
    target: Arc<dyn WriteAt>,
    options: InstallOptions,
) -> Result<InstallReport> {
    let catalogue = Arc::new(Catalogue::load(manifest, source, cipher)?);
    let installer = Installer::begin(catalogue, target, options, Arc::new(NoProgress))?;
    installer.pull(source)?;
    installer.finish()
}
