//! Tests trees that a hostile publisher could make: every digest is right, but the content is not valid.

use std::sync::Arc;

use base::{Digest, ErrorKind};
use disk::device::MemoryDisk;
use image::{
    Catalogue, Child, ChunkExtents, ChunkRef, Cipher, InstallOptions, Installer, Leaf, Leaves, Manifest,
    MemoryObjects, NoProgress, ObjectKind, ObjectRef, ObjectSink, Root, Run, TreeBuilder,
};

use crate::common::{self, build, key, manifest, plain, small};

fn runs(runs: &[(u16, u16)]) -> ChunkExtents {
    ChunkExtents::from_runs(small(), runs.iter().map(|&(start, count)| Run { start, count })).unwrap()
}

fn chunk(encoded_len: u32, tag: u8, plain: u8) -> ChunkRef {
    ChunkRef { encoded_len, encoded: Digest([tag; 32]), plain: Digest([plain; 32]) }
}

/// A tree of `leaves` under a manifest that claims `size_sectors` and `sector_bytes`.
fn tree(leaves: &[(u64, Leaf)], size_sectors: u64, sector_bytes: u32) -> (MemoryObjects, Manifest) {
    let objects = MemoryObjects::new();
    let built = build(256, leaves, &objects).unwrap();
    let root = Root { child: built.child, height: 1, chunk_count: size_sectors.div_ceil(128) };
    let mut manifest = manifest(root, small(), size_sectors);
    manifest.logical_sector_bytes = sector_bytes;
    (objects, manifest)
}

/// Loads the catalogue of such a tree, which must fail as `Corrupt`, and returns the error's text.
fn refused(leaves: &[(u64, Leaf)], size_sectors: u64, sector_bytes: u32) -> String {
    let (objects, manifest) = tree(leaves, size_sectors, sector_bytes);
    let error = Catalogue::load(&manifest, &objects, &Cipher::None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    base::chain(&error)
}

#[test]
fn leaves_lie_inside_the_image_in_whole_sectors() {
    let full = || Leaf::Zero(ChunkExtents::full(small()));
    assert!(refused(&[(0, full()), (3, full())], 3 * 128, 512).contains("behind the end"));
    let (objects, manifest) = tree(&[(0, full()), (3, full())], 3 * 128, 512);
    assert!(
        Leaves::new(plain(&objects), small(), &manifest.root).any(|run| run.is_err()),
        "a walk over the leaves finds it, too"
    );
    assert!(refused(&[(2, full())], 3 * 128 - 8, 512).contains("chunk 2"));
    assert!(refused(&[(1, Leaf::Zero(runs(&[(8, 4)])))], 3 * 128, 4096).contains("4096"));
    let (objects, manifest) = tree(&[(1, Leaf::Zero(runs(&[(8, 16)]))), (2, full())], 3 * 128, 4096);
    assert_eq!(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap().leaves().count(), 2);
}

#[test]
fn a_subtree_of_zeros_lies_inside_the_image() {
    let objects = MemoryObjects::new();
    let root = Root { child: Child::Zero, height: 1, chunk_count: 255 };
    let error = Catalogue::load(&manifest(root, small(), 255 * 128), &objects, &Cipher::None).unwrap_err();
    assert!(error.to_string().contains("zeros"), "{error}");
}

#[test]
fn objects_are_as_long_as_a_chunk_can_be() {
    // An object has a header of 16 bytes, here 1 byte of extents, then 1 to 65,536 bytes of content.
    for (len, good) in
        [(0, false), (17, false), (18, true), (65_553, true), (65_554, false), (u32::MAX, false)]
    {
        let (objects, manifest) =
            tree(&[(0, Leaf::Data(ChunkExtents::full(small()), chunk(len, 1, 2)))], 1280, 512);
        assert_eq!(
            Catalogue::load(&manifest, &objects, &Cipher::None).is_ok(),
            good,
            "an object of {len} bytes"
        );
    }
}

/// Encryption adds 36 bytes to an object.
#[test]
fn objects_of_a_sealed_tree_are_longer_by_what_sealing_adds() {
    for (len, good) in [(17 + 36, false), (18 + 36, true), (65_553 + 36, true), (65_554 + 36, false)] {
        let objects = MemoryObjects::new();
        let mut builder = TreeBuilder::new(small(), 10, &objects, &key());
        builder.push(0, &Leaf::Data(ChunkExtents::full(small()), chunk(len, 1, 2))).unwrap();
        let manifest = manifest(builder.finish().unwrap(), small(), 1280);
        assert_eq!(Catalogue::load(&manifest, &objects, &key()).is_ok(), good, "an object of {len} bytes");
    }
}

#[test]
fn one_object_has_one_length_and_one_content() {
    let data = |len, plain| Leaf::Data(ChunkExtents::full(small()), chunk(len, 1, plain));
    assert!(refused(&[(0, data(100, 2)), (1, data(101, 2))], 1280, 512).contains("two ways"));
    let other_extents = Leaf::Data(runs(&[(0, 64)]), chunk(100, 1, 2));
    for second in [data(100, 3), other_extents] {
        let (objects, manifest) = tree(&[(0, data(100, 2)), (1, second)], 1280, 512);
        let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
        let target = Arc::new(MemoryDisk::new(vec![0; 1280 * 512]));
        let begun = Installer::begin(catalogue, target, InstallOptions::default(), Arc::new(NoProgress));
        assert_eq!(begun.err().unwrap().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_node_is_no_chunk_and_stands_at_one_level() {
    let (objects, manifest) = tree(&[(0, Leaf::Zero(runs(&[(0, 8)])))], 1280, 512);
    let node = manifest.root.child.object().unwrap();
    let leaf = Leaf::Data(ChunkExtents::full(small()), ChunkRef { encoded: node.digest, ..chunk(100, 1, 2) });
    let parent = build(256, &[(1, leaf)], &objects).unwrap();
    // A node of level 1 with two children: `node` of level 0, and a node with a leaf that names `node` as its chunk.
    let mut bytes = [b"DCND".as_slice(), &[1, 0, 0, 16, 1, 0, 2, 0, 0, 0, 0, 0]].concat();
    for object in [node, parent.child.object().unwrap()] {
        bytes.push(2);
        bytes.extend(object.len.to_le_bytes());
        bytes.extend(object.digest.0);
    }
    let top = ObjectRef::of(ObjectKind::Node, &bytes);
    objects.put(&top, bytes.into()).unwrap();
    let child = Child::Node { len: top.len, digest: top.digest };
    let root = Root { child, height: 2, chunk_count: 512 };
    let error =
        Catalogue::load(&common::manifest(root, small(), 512 * 128), &objects, &Cipher::None).unwrap_err();
    assert!(error.to_string().contains("two ways"), "{error}");
    // A root of height 2 names the node of level 0, where only a node of level 1 is valid.
    let child = Child::Node { len: node.len, digest: node.digest };
    let root = Root { child, height: 2, chunk_count: 512 };
    let error =
        Catalogue::load(&common::manifest(root, small(), 512 * 128), &objects, &Cipher::None).unwrap_err();
    assert!(error.to_string().contains("level"), "{error}");
}
