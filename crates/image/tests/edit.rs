//! Tests edits of trees, ranges of trees and differences between trees: compares them with plain maps of leaves.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use base::{Chance, ErrorKind, Result};
use image::manifest::Statistics;
use image::tree::NodeSource;
use image::{
    ChunkExtents, Cipher, Differences, Leaf, Leaves, MemoryObjects, ObjectRef, ObjectSource, Root,
    TreeEditor, Verified,
};

use crate::common::{build, flatten, plain, random_leaf, small};

type Map = BTreeMap<u64, Leaf>;

/// A few clusters of leaves, and sometimes a long run of zeros, so that subtrees of all kinds occur.
fn random_map(chance: &mut Chance, chunk_count: u64) -> Map {
    let mut map = Map::new();
    for _ in 0..chance.below(6) {
        let first = chance.below(chunk_count);
        let zeros = chance.hits(300_000);
        let count = if zeros { chance.below(70_000) } else { chance.below(300) };
        for index in first..(first + count).min(chunk_count) {
            let full = Leaf::Zero(ChunkExtents::full(small()));
            map.insert(index, if zeros { full } else { random_leaf(chance, small()) });
        }
    }
    map
}

/// A few ranges of chunks with their new leaves.
fn random_changes(chance: &mut Chance, chunk_count: u64) -> Map {
    let mut changes = Map::new();
    for _ in 0..1 + chance.below(5) {
        let first = chance.below(chunk_count);
        let leaf = match chance.below(3) {
            0 => Leaf::Free,
            1 => Leaf::Zero(ChunkExtents::full(small())),
            _ => random_leaf(chance, small()),
        };
        let count = if chance.hits(200_000) { chance.below(600) } else { 1 + chance.below(3) };
        changes.extend((first..(first + count).min(chunk_count)).map(|index| (index, leaf.clone())));
    }
    changes
}

fn tree(chunk_count: u64, map: &Map, objects: &MemoryObjects) -> Root {
    let leaves: Vec<_> = map.iter().map(|(index, leaf)| (*index, leaf.clone())).collect();
    build(chunk_count, &leaves, objects).unwrap()
}

/// The statistics of the leaves in `map`.
fn count(chunk_count: u64, map: &Map) -> Statistics {
    let mut statistics = Statistics::default();
    map.values().for_each(|leaf| statistics.add(leaf, 1));
    statistics.add(&Leaf::Free, chunk_count - map.len() as u64);
    statistics
}

/// Grows the tree under `root` to `grown` chunks and applies `changes`. The first of the pair has the old tree's nodes,
/// the second takes the new ones.
fn edited(
    (objects, made): (&MemoryObjects, &MemoryObjects),
    root: &Root,
    map: &Map,
    grown: u64,
    changes: &Map,
) -> (Root, Statistics) {
    let mut editor =
        TreeEditor::new((objects, made), &Cipher::None, small(), root, count(root.chunk_count, map));
    editor.grow(grown);
    for (index, leaf) in changes {
        assert_eq!(editor.get(*index).unwrap(), map.get(index).cloned().unwrap_or(Leaf::Free));
        editor.set(*index, leaf.clone()).unwrap();
    }
    editor.finish().unwrap()
}

fn apply(map: &mut Map, changes: &Map) {
    map.extend(changes.clone());
    map.retain(|_, leaf| *leaf != Leaf::Free);
}

#[test]
fn an_edited_tree_is_the_tree_of_the_edited_leaves() {
    for seed in 0..300 {
        let mut chance = Chance::from_seed(seed);
        let chunk_count = 1 + chance.below([300, 70_000, 20_000_000][usize::try_from(seed % 3).unwrap()]);
        let objects = MemoryObjects::new();
        let mut map = random_map(&mut chance, chunk_count);
        let root = tree(chunk_count, &map, &objects);
        let grown = chunk_count + if chance.hits(400_000) { chance.below(20_000_000) } else { 0 };
        let changes = random_changes(&mut chance, grown);
        // The editor reads from `objects` and writes to `made`, so it fails if it reads a node that it has written.
        let made = MemoryObjects::new();
        let (found, statistics) = edited((&objects, &made), &root, &map, grown, &changes);
        apply(&mut map, &changes);
        assert_eq!(found, tree(grown, &map, &objects), "seed {seed}");
        assert_eq!(statistics, count(grown, &map), "seed {seed}");
    }
}

/// A random number below `bound`. In half of the cases it is below 40, so that one node of leaves sees many such steps.
fn below(chance: &mut Chance, bound: u64) -> u64 {
    let near = chance.hits(500_000);
    chance.below(if near { bound.min(40) } else { bound })
}

#[test]
fn freed_ranges_are_free_and_what_is_allocated_is_found() {
    for seed in 0..300 {
        let mut chance = Chance::from_seed(seed);
        let chunk_count = 1 + chance.below([300, 70_000, 20_000_000][usize::try_from(seed % 3).unwrap()]);
        let objects = MemoryObjects::new();
        let mut map = random_map(&mut chance, chunk_count);
        let root = tree(chunk_count, &map, &objects);
        let statistics = count(chunk_count, &map);
        let made = MemoryObjects::new();
        let mut editor = TreeEditor::new((&objects, &made), &Cipher::None, small(), &root, statistics);
        let mut at = 0;
        while at < chunk_count {
            let first = at + below(&mut chance, chunk_count - at);
            let behind = first + below(&mut chance, chunk_count - first + 1);
            let looked = chance.below(behind - first + 1);
            let expected = map.range(first..first + looked).next().map(|(index, _)| *index);
            assert_eq!(editor.next_allocated(first..first + looked).unwrap(), expected, "seed {seed}");
            let first = expected.unwrap_or(first + looked);
            editor.free(first..behind).unwrap();
            map.retain(|index, _| !(first..behind).contains(index));
            if behind < chunk_count && chance.hits(500_000) {
                let leaf = random_leaf(&mut chance, small());
                editor.set(behind, leaf.clone()).unwrap();
                map.insert(behind, leaf);
            }
            at = behind + 1;
        }
        assert_eq!(editor.finish().unwrap(), (tree(chunk_count, &map, &objects), count(chunk_count, &map)));
    }
}

/// A node of leaves covers 256 chunks, so all these changes are in one node. The editor must write it only once.
#[test]
fn what_is_free_already_keeps_the_changed_node_open() {
    let (objects, made, mut chance) = (MemoryObjects::new(), MemoryObjects::new(), Chance::from_seed(5));
    let map = Map::from([(800, random_leaf(&mut chance, small()))]);
    let root = tree(1024, &map, &objects);
    let mut editor = TreeEditor::new((&objects, &made), &Cipher::None, small(), &root, count(1024, &map));
    let leaf = random_leaf(&mut chance, small());
    editor.set(4, leaf.clone()).unwrap();
    editor.free(8..12).unwrap();
    editor.set(16, leaf.clone()).unwrap();
    let changed: Map = map.into_iter().chain([(4, leaf.clone()), (16, leaf)]).collect();
    assert_eq!(editor.finish().unwrap(), (tree(1024, &changed, &objects), count(1024, &changed)));
    assert_eq!(made.count(), 2, "one node of each level, each made once");
}

#[test]
fn a_large_image_is_freed_by_the_nodes_that_hold_something() {
    let objects = MemoryObjects::new();
    let mut chance = Chance::from_seed(1);
    let far = 1 << 40;
    let map: Map = [3, far].into_iter().map(|index| (index, random_leaf(&mut chance, small()))).collect();
    let root = tree(far + 1, &map, &objects);
    let mut editor =
        TreeEditor::new((&objects, &objects), &Cipher::None, small(), &root, count(far + 1, &map));
    editor.free(0..far + 1).unwrap();
    assert_eq!(editor.finish().unwrap(), (tree(far + 1, &Map::new(), &objects), count(far + 1, &Map::new())));
}

/// Counts the nodes that a test reads.
struct Counting<'a>(&'a MemoryObjects, Cell<u64>);

impl NodeSource for &Counting<'_> {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        self.1.set(self.1.get() + 1);
        object.verified(self.0.fetch(object)?)
    }
}

#[test]
fn an_edit_reads_and_writes_the_way_to_what_changed_only() {
    let objects = MemoryObjects::new();
    let mut chance = Chance::from_seed(7);
    let map: Map = (0..100_000).map(|index| (index, random_leaf(&mut chance, small()))).collect();
    let root = tree(1 << 20, &map, &objects);
    let before = objects.count();
    let changes: Map = (300..310).map(|index| (index, Leaf::Zero(ChunkExtents::full(small())))).collect();
    let (after, _) = edited((&objects, &objects), &root, &map, root.chunk_count, &changes);
    assert_eq!(objects.count() - before, 3, "one node of each level is new");
    let (old, new) = (Counting(&objects, Cell::new(0)), Counting(&objects, Cell::new(0)));
    let found = Differences::new(small(), (&old, &root), (&new, &after)).map(|found| found.unwrap());
    assert!(found.map(|found| found.first).eq(300..310));
    assert_eq!((old.1.get(), new.1.get()), (3, 3), "equal subtrees are not read");
    let (unchanged, _) = edited((&objects, &objects), &root, &map, root.chunk_count, &Map::new());
    assert_eq!(unchanged, root);
}

#[test]
fn differences_are_those_of_the_leaves() {
    for seed in 0..300 {
        let mut chance = Chance::from_seed(seed);
        let objects = MemoryObjects::new();
        let chunks = [1 + chance.below(70_000), 1 + chance.below(17_000_000)];
        let old = random_map(&mut chance, chunks[0]);
        let mut new = if chance.hits(500_000) { old.clone() } else { random_map(&mut chance, chunks[1]) };
        apply(&mut new, &random_changes(&mut chance, chunks[1]));
        new.retain(|&index, _| index < chunks[1]);
        let roots = [tree(chunks[0], &old, &objects), tree(chunks[1], &new, &objects)];
        let source = plain(&objects);
        let mut found = Vec::new();
        for difference in Differences::new(small(), (source, &roots[0]), (source, &roots[1])) {
            let difference = difference.unwrap();
            let each = difference.first..difference.first + difference.count;
            found.extend(each.map(|index| (index, difference.before.clone(), difference.after.clone())));
        }
        let indices: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
        let leaf = |map: &Map, index: u64| map.get(&index).cloned().unwrap_or(Leaf::Free);
        let expected: Vec<_> = indices
            .into_iter()
            .map(|index| (index, leaf(&old, index), leaf(&new, index)))
            .filter(|(_, before, after)| before != after)
            .collect();
        assert!(found == expected, "seed {seed}: {} differ instead of {}", found.len(), expected.len());
    }
}

#[test]
fn a_range_of_a_tree_holds_the_leaves_in_it() {
    for seed in 0..200 {
        let mut chance = Chance::from_seed(seed);
        let chunk_count = 1 + chance.below(200_000);
        let objects = MemoryObjects::new();
        let map = random_map(&mut chance, chunk_count);
        let root = tree(chunk_count, &map, &objects);
        let first = chance.below(chunk_count);
        let range = first..(first + chance.below(chunk_count)).min(chunk_count);
        let leaves = Leaves::within(plain(&objects), small(), &root, range.clone());
        let expected: Vec<_> = map.range(range).map(|(index, leaf)| (*index, leaf.clone())).collect();
        assert!(flatten(leaves).unwrap() == expected, "seed {seed}");
    }
}

#[test]
fn a_damaged_node_stops_an_edit_and_a_comparison() {
    let objects = MemoryObjects::new();
    let mut chance = Chance::from_seed(3);
    let map: Map = (0..600).map(|index| (index, random_leaf(&mut chance, small()))).collect();
    let root = tree(1000, &map, &objects);
    let changes = Map::from([(5, Leaf::Free)]);
    let (after, _) = edited((&objects, &objects), &root, &map, 1000, &changes);
    objects.tamper(&after.child.object().unwrap(), Some(bytes::Bytes::from_static(b"no node")));
    let source = plain(&objects);
    let found: Vec<_> = Differences::new(small(), (source, &root), (source, &after)).collect();
    assert!(matches!(&found[..], [Err(error)] if error.kind() == ErrorKind::Corrupt));
    let mut editor =
        TreeEditor::new((&objects, &objects), &Cipher::None, small(), &after, Statistics::default());
    assert_eq!(editor.get(0).unwrap_err().kind(), ErrorKind::Corrupt);
    objects.tamper(&root.child.object().unwrap(), None);
    let mut editor =
        TreeEditor::new((&objects, &objects), &Cipher::None, small(), &root, Statistics::default());
    assert_eq!(editor.set(0, Leaf::Free).unwrap_err().kind(), ErrorKind::NotFound);
}
