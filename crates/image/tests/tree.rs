//! Tests trees and catalogues: round trips, huge sparse images, catalogues learned node by node, and hostile nodes.

use base::{Chance, ErrorKind};
use bytes::Bytes;
use image::{
    Catalogue, CatalogueBuilder, Child, ChunkExtents, Cipher, Leaf, LeafRun, Leaves, MemoryObjects,
    ObjectKind, ObjectRef, ObjectSource, Root, TreeBuilder,
};

use crate::common::{build, flatten, manifest, plain, random_leaf, small};

/// Leaves with free gaps and runs of zeros between them.
fn random_leaves(chance: &mut Chance, chunk_count: u64) -> Vec<(u64, Leaf)> {
    let mut leaves = Vec::new();
    let mut index = 0;
    while index < chunk_count {
        match chance.below(8) {
            0 => index += chance.below(chunk_count / 2 + 1),
            1 => {
                let most = if chance.hits(200_000) { 100_000 } else { 600 };
                let end = (index + chance.below(most)).min(chunk_count);
                leaves.extend((index..end).map(|index| (index, Leaf::Zero(ChunkExtents::full(small())))));
                index = end;
            }
            _ => {
                leaves.push((index, random_leaf(chance, small())));
                index += 1;
            }
        }
    }
    leaves
}

/// The same leaves, with adjacent fully allocated zero chunks joined into runs.
fn in_runs(leaves: &[(u64, Leaf)]) -> Vec<LeafRun> {
    let mut runs: Vec<LeafRun> = Vec::new();
    for (index, leaf) in leaves {
        match runs.last_mut() {
            Some(last)
                if last.leaf.is_full_zero() && leaf.is_full_zero() && last.first + last.count == *index =>
            {
                last.count += 1;
            }
            _ => runs.push(LeafRun { first: *index, count: 1, leaf: leaf.clone() }),
        }
    }
    runs
}

#[test]
fn leaves_come_back_in_order_and_equal_trees_have_equal_roots() {
    for seed in 0..150 {
        let mut chance = Chance::from_seed(seed);
        let chunk_count = 1 + chance.below(if seed % 10 == 0 { 200_000 } else { 2_000 });
        let leaves = random_leaves(&mut chance, chunk_count);
        let objects = MemoryObjects::new();
        let root = build(chunk_count, &leaves, &objects).unwrap();
        assert_eq!(root, build(chunk_count, &leaves, &objects).unwrap(), "seed {seed}");
        let mut builder = TreeBuilder::new(small(), chunk_count, &objects, &Cipher::None);
        in_runs(&leaves).iter().try_for_each(|run| builder.push_run(run)).unwrap();
        assert_eq!(root, builder.finish().unwrap(), "seed {seed}: runs of zeros make another tree");
        let back = flatten(Leaves::new(plain(&objects), small(), &root)).unwrap();
        assert!(back == leaves, "seed {seed}: {} leaves of {} came back", back.len(), leaves.len());
    }
}

#[test]
fn nearly_nothing_in_sixteen_exbibytes_costs_nearly_nothing() {
    let size = image::ChunkSize::from_log2(16).unwrap();
    let chunk_count = base::limits::DISK_SECTORS_MAX / u64::from(size.sectors());
    let mut chance = Chance::from_seed(1);
    let leaves: Vec<_> =
        [0, 1 << 40, chunk_count - 1].map(|index| (index, random_leaf(&mut chance, size))).to_vec();
    let objects = MemoryObjects::new();
    let root = build(chunk_count, &leaves, &objects).unwrap();
    assert_eq!(root.height, base::limits::TREE_HEIGHT_MAX);
    assert!(objects.count() <= 18, "{} nodes", objects.count());
    assert_eq!(flatten(Leaves::new(plain(&objects), size, &root)).unwrap(), leaves);
}

#[test]
fn trees_of_nothing_and_of_zeros_have_no_nodes() {
    let objects = MemoryObjects::new();
    assert_eq!(build(1_000_000, &[], &objects).unwrap().child, Child::Free);
    let zeros: Vec<_> = (0..65_536).map(|index| (index, Leaf::Zero(ChunkExtents::full(small())))).collect();
    assert_eq!(build(65_536, &zeros, &objects).unwrap().child, Child::Zero);
    assert_eq!(objects.count(), 0);
}

#[test]
fn a_catalogue_learned_in_any_order_is_the_one_that_was_loaded() {
    for seed in 0..60 {
        let mut chance = Chance::from_seed(seed);
        let chunk_count = 1 + chance.below(100_000);
        let objects = MemoryObjects::new();
        let root = build(chunk_count, &random_leaves(&mut chance, chunk_count), &objects).unwrap();
        let manifest = manifest(root, small(), chunk_count * 128);
        let loaded = Catalogue::load(&manifest, &objects, &Cipher::None).unwrap();
        let mut builder = CatalogueBuilder::from_manifest(&manifest, Cipher::None).unwrap();
        loop {
            let needed: Vec<u64> = builder.needed().collect();
            let Some(&id) = needed.get(usize::try_from(chance.below(needed.len() as u64)).unwrap()) else {
                break;
            };
            let object = builder.object(id).unwrap();
            assert!(builder.learn(id, Bytes::from_static(b"wrong")).is_err());
            builder.learn(id, objects.fetch(&object).unwrap()).unwrap();
        }
        let learned = builder.finish().unwrap();
        assert_eq!(learned.objects(), loaded.objects(), "seed {seed}");
        assert_eq!(learned.heads(), objects.count() as u64, "seed {seed}");
        for (id, object) in (0..).zip(loaded.objects()) {
            assert_eq!(loaded.id_of(&object.digest), Some(id));
            assert_eq!(object.kind == ObjectKind::Node, id < loaded.heads());
        }
    }
}

#[test]
fn nodes_that_arrive_before_their_parents_are_kept_and_damaged_ones_are_named() {
    for seed in 0..60 {
        let mut chance = Chance::from_seed(seed);
        let chunk_count = 70_000 + chance.below(100_000);
        let objects = MemoryObjects::new();
        let root = build(chunk_count, &random_leaves(&mut chance, chunk_count), &objects).unwrap();
        let manifest = manifest(root, small(), chunk_count * 128);
        let loaded = Catalogue::load(&manifest, &objects, &Cipher::None).unwrap();
        let mut builder = CatalogueBuilder::from_manifest(&manifest, Cipher::None).unwrap();
        let heads = loaded.heads();
        let spoiled = 1 + chance.below(heads - 1);
        // Nodes arrive from the last to the first, so the builder knows no digest but the root's and can't check them.
        for id in (1..heads).rev() {
            let object = &loaded.objects()[usize::try_from(id).unwrap()];
            let bytes =
                if id == spoiled { Bytes::from_static(b"wrong") } else { objects.fetch(object).unwrap() };
            assert_eq!(builder.take(id, bytes).unwrap(), []);
            assert!(builder.has(id) && builder.object(id).is_none());
        }
        assert!(builder.take(0, Bytes::from_static(b"wrong")).is_err());
        let damaged = builder.take(0, objects.fetch(&loaded.objects()[0]).unwrap()).unwrap();
        let name = loaded.objects()[usize::try_from(spoiled).unwrap()];
        assert_eq!(damaged, [(spoiled, name)], "seed {seed}");
        assert!(!builder.has(spoiled));
        assert_eq!(builder.take(spoiled, objects.fetch(&name).unwrap()).unwrap(), []);
        assert_eq!(builder.finish().unwrap().objects(), loaded.objects(), "seed {seed}");
    }
}

#[test]
fn a_tree_that_names_itself_without_end_is_refused() {
    // Each level names the same child 256 times: six small nodes describe 2^48 chunks.
    let objects = MemoryObjects::new();
    let mut chance = Chance::from_seed(3);
    let leaf = std::iter::repeat_with(|| random_leaf(&mut chance, small()))
        .find(|leaf| !leaf.is_full_zero())
        .unwrap();
    let leaves: Vec<_> = (0..256).map(|index| (index, leaf.clone())).collect();
    let mut child = build(256, &leaves, &objects).unwrap().child;
    for level in 1..6u8 {
        let object = child.object().unwrap();
        let mut bytes = [b"DCND".as_slice(), &[1, 0, 0, 16, level, 0, 0, 1, 0, 0, 0, 0]].concat();
        for _ in 0..256 {
            bytes.push(2);
            bytes.extend(object.len.to_le_bytes());
            bytes.extend(object.digest.0);
        }
        let object = ObjectRef::of(ObjectKind::Node, &bytes);
        image::ObjectSink::put(&objects, &object, bytes.into()).unwrap();
        child = Child::Node { len: object.len, digest: object.digest };
    }
    let root = Root { child, height: 6, chunk_count: 1 << 48 };
    let error = Catalogue::load(&manifest(root, small(), 1 << 55), &objects, &Cipher::None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
