//! Tests btrfs as mkfs.btrfs makes it and Linux fills it: a disk restored from its allocated sectors alone is intact,
//! and what `btrfs inspect-internal` does not list as allocated is left out.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{Chance, Extent, ExtentSet};
use disk::device::MemoryDisk;
use disk::{SurveyOptions, WriteAt, open_source, survey};

use crate::common::{
    self, Bench, Mounted, age, assert_noticed, assert_understood, assert_whole, ends, have, is_root, map_of,
    paths, populate, run,
};

const TOOLS: &[&str] = &["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "getfattr"];
const KEPT: [Extent; 2] = [Extent::new(0, 2048), Extent::new(131_072, 8)];

/// As `btrfs inspect-internal` knows it.
const FREE_SPACE_TREE: &str = "10";

/// mkfs.btrfs options, mount options, and size in MiB.
const MATRIX: &[(&str, &str, u64)] = &[
    ("", "", 200),
    ("-m single -d single --csum xxhash", "compress-force=zstd", 200),
    ("-m dup -d dup --csum sha256", "space_cache=v2", 300),
    ("-M --csum blake2", "", 100),
    ("-M -m dup -d dup -n 4096", "autodefrag", 300),
    ("-m raid0 -d raid0 -n 65536", "compress=lzo", 200),
    ("-R ^free-space-tree -O ^no-holes,^extref", "space_cache=v1", 200),
    ("-R ^free-space-tree -O ^skinny-metadata", "nospace_cache,nodatacow", 200),
    ("-R quota", "noatime,nodatasum", 200),
];

/// A filled filesystem, with subvolumes and a snapshot of one.
fn make(bench: &Bench, options: &str, mount: &str, mib: u64) -> PathBuf {
    let image = bench.random_file("image", mib << 20, mib);
    run(&format!("mkfs.btrfs -q -f -L label {options}"), &[&image]);
    let options = if mount.is_empty() { String::new() } else { format!("-o {mount}") };
    let mounted = Mounted::by(&format!("mount -t btrfs {options}"), &image, bench.tree("filled"));
    let volume = mounted.folder.join("volume");
    run("btrfs subvolume create", &[&volume]);
    populate(&volume, mib);
    age(&volume, mib);
    run("btrfs subvolume snapshot -r", &[&volume, &mounted.folder.join("snapshot")]);
    age(&volume, mib + 1);
    fs::write(volume.join("source"), [7; 100_000]).unwrap();
    run("cp --reflink=always", &[&volume.join("source"), &mounted.folder.join("shared")]);
    run("fallocate -l 5M", &[&mounted.folder.join("reserved")]);
    drop(mounted);
    image
}

/// The numbers after a word of a line.
fn after(line: &str, word: &str) -> u64 {
    let rest = line.split_once(word).unwrap_or_else(|| panic!("`{word}` in {line}")).1;
    rest.trim_start().split([' ', ')']).next().unwrap().parse().unwrap()
}

/// What `btrfs inspect-internal` lists as allocated, in sectors of the device.
fn allocated_by_progs(image: &Path) -> ExtentSet {
    let dump = |tree: &str| run(&format!("btrfs inspect-internal dump-tree -t {tree}"), &[&image]);
    let mut chunks: Vec<(u64, u64, Vec<u64>)> = Vec::new();
    for line in dump("chunk").lines() {
        if line.contains("(FIRST_CHUNK_TREE CHUNK_ITEM") {
            chunks.push((after(line, "CHUNK_ITEM"), 0, Vec::new()));
        } else if let Some(chunk) = chunks.last_mut() {
            match line.trim() {
                line if line.starts_with("length ") => chunk.1 = after(line, "length"),
                line if line.starts_with("stripe ") => chunk.2.push(after(line, "offset")),
                _ => {}
            }
        }
    }
    let super_block = run("btrfs inspect-internal dump-super", &[&image]);
    let node_bytes = super_block.lines().find(|line| line.starts_with("nodesize")).unwrap();
    let node_bytes: u64 = node_bytes.split_whitespace().nth(1).unwrap().parse().unwrap();
    let mut allocated = ExtentSet::new();
    for line in dump("extent").lines().filter(|line| line.trim_start().starts_with("item ")) {
        let bytes = match line {
            line if line.contains(" EXTENT_ITEM ") => after(line, "EXTENT_ITEM"),
            line if line.contains(" METADATA_ITEM ") => node_bytes,
            _ => continue,
        };
        let logical = after(line, "key (");
        let (start, _, stripes) =
            chunks.iter().find(|(start, len, _)| (*start..start + len).contains(&logical)).unwrap();
        for stripe in stripes {
            allocated.insert(Extent::new((stripe + logical - start) / 512, bytes / 512));
        }
    }
    allocated
}

fn assert_same(bench: &Bench, image: &Path, restored: &Path, context: &str) {
    run("btrfs check --readonly --check-data-csum", &[&restored]);
    // Both have the same UUID, and only one of them may be known at a time.
    let [before, after] = [image, restored].map(|image| {
        let mounted = Mounted::by("mount -t btrfs -o ro", image, bench.tree("there"));
        let tell = |name: &PathBuf| {
            let path = mounted.folder.join(name);
            let meta = path.symlink_metadata().unwrap();
            let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let facts = [meta.ino(), meta.mode().into(), meta.uid().into(), meta.gid().into(), meta.nlink()];
            (name.clone(), bytes, fs::read_link(&path).ok(), facts, meta.mtime())
        };
        let files: Vec<_> = paths(&mounted.folder).iter().map(tell).collect();
        let attributes = run("getfattr -R -h -d -m -", &[&mounted.folder]);
        let told = (files, attributes);
        drop(mounted);
        run("btrfs device scan --forget", &[]);
        told
    });
    assert!(before.0.len() > 600 && before.1.contains("user.diskcast"), "{context}");
    for (one, other) in before.0.iter().zip(&after.0) {
        assert!(one == other, "{:?}, {context}", one.0);
    }
    assert_eq!((before.0.len(), before.1), (after.0.len(), after.1), "{context}");
}

#[test]
fn allocated_is_what_btrfs_progs_list_and_restored_disks_are_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    for &(options, mount, mib) in MATRIX {
        let context = format!("mkfs.btrfs {options}, {mount}");
        let bench = Bench::new();
        let image = make(&bench, options, mount, mib);
        let map = map_of(&image);
        assert_understood(&map, &image, &context);

        let mut expected = allocated_by_progs(&image);
        KEPT.into_iter().chain(ends(map.window)).for_each(|kept| expected.insert(kept));
        assert_eq!(map.allocated, expected, "{context}");
        assert!(map.allocated.sectors() < map.window.count / 2, "{context}: {}", map.allocated.sectors());

        let restored = bench.restore(&image, &map);
        assert_same(&bench, &image, &restored, &context);
    }
}

/// The block groups are in a tree of their own, which newer tools make.
#[test]
fn a_tree_of_block_groups_is_read() {
    if !have(TOOLS) || !have(&["zstd"]) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let packed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/disk/btrfs-block-group-tree.img.zst");
    let image = bench.path("image");
    run("zstd -q -d -o", &[&image, &packed]);
    let map = map_of(&image);
    assert_understood(&map, &image, "a tree of block groups");
    let mut expected = allocated_by_progs(&image);
    KEPT.into_iter().chain(ends(map.window)).for_each(|kept| expected.insert(kept));
    assert_eq!(map.allocated, expected);
    let restored = bench.restore(&image, &map);
    run("btrfs check --readonly --check-data-csum", &[&restored]);
}

/// Where the stripes of a tree's root begin on the device.
fn root_of(image: &Path, tree: &str) -> Vec<u64> {
    let text = run(&format!("btrfs inspect-internal dump-tree -t {tree}"), &[&image]);
    let line = text.lines().find(|line| line.starts_with("node ") || line.starts_with("leaf ")).unwrap();
    let logical: u64 = line.split(' ').nth(1).unwrap().parse().unwrap();
    let places = run(&format!("btrfs-map-logical -l {logical}"), &[&image]);
    places.lines().map(|line| after(line, "physical")).collect()
}

/// Each case damages a sound filesystem, whose free space can then not be trusted.
#[test]
fn unclean_strange_or_damaged_is_taken_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let whole = |image: &Path, why: &str| assert_whole(&map_of(image), why, "");
    let image = make(&bench, "-m single", "", 120);
    let at = |tree: &str| root_of(&image, tree)[0] as usize;
    assert_noticed(
        &image,
        &[
            (65_536 + 120, &[1], "checksum of its superblock"),
            (at("extent") + 4000, b"damage", "is damaged"),
            (at("root") + 4000, b"damage", "is damaged"),
            (at("chunk") + 4000, b"damage", "is damaged"),
        ],
    );

    // Nothing in it tells whether it is mounted.
    let live = SurveyOptions { live: true, ..SurveyOptions::default() };
    let map = survey(&open_source(&image).unwrap(), &live).unwrap();
    assert_whole(&map, "may be written meanwhile", "live");

    // The tree of free space has a run that is shorter than that between two extents.
    let (at, sound) = (root_of(&image, FREE_SPACE_TREE)[0], fs::read(&image).unwrap());
    let mut leaf = sound[at as usize..][..16_384].to_vec();
    let key = (101..16_384).step_by(25).find(|key| leaf[key + 8] == 199).unwrap();
    let bytes = u64::from_le_bytes(*leaf[key + 9..].first_chunk().unwrap());
    leaf[key + 9..key + 17].copy_from_slice(&(bytes - 4096).to_le_bytes());
    resum(&mut leaf);
    common::write_at(&image, at, &leaf);
    whole(&image, "leave something out");
    common::write_at(&image, at, &sound[at as usize..][..16_384]);

    // Files that were synced are in the log, and their extents only there.
    let mounted = Mounted::by("mount -t btrfs", &image, bench.tree("busy"));
    run("dd if=/dev/urandom bs=64K count=4 conv=fsync status=none", &[&of(&mounted.folder.join("new"))]);
    let copy = bench.path("copy");
    fs::copy(&image, &copy).unwrap();
    drop(mounted);
    whole(&copy, "its log is to be replayed");

    run("btrfstune -f -S 1", &[&image]);
    whole(&image, "as a seed");

    let pair = ["one", "other"].map(|name| bench.random_file(name, 120 << 20, 3));
    run("mkfs.btrfs -q -f -d single -m raid1", &[&pair[0], &pair[1]]);
    whole(&pair[0], "several devices");
    whole(&pair[1], "several devices");
}

fn of(path: &Path) -> String {
    format!("of={}", path.display())
}

/// Linux and this reader both use the second copy of a node whose first is damaged.
#[test]
fn a_node_with_a_right_copy_is_read() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-m dup", "", 120);
    let sound = map_of(&image).allocated;
    let copies = root_of(&image, "extent");
    assert_eq!(copies.len(), 2);
    common::write_at(&image, copies[0] + 4000, b"damage");
    let map = map_of(&image);
    assert_eq!(map.warnings, [""; 0]);
    assert_eq!(map.allocated, sound);
    run("btrfs check --readonly", &[&image]);
}

/// Gives a block the right checksum.
fn resum(block: &mut [u8]) {
    let sum = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&block[32..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Damage under a right checksum: what the reader takes from a superblock or a node is never believed without a look.
#[test]
fn hostile_metadata_is_no_panic_and_no_hang() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-m single", "", 120);
    let sound = fs::read(&image).unwrap();
    let mut blocks = vec![(65_536, 4096)];
    blocks.extend(
        ["chunk", "root", "extent", FREE_SPACE_TREE].map(|tree| (root_of(&image, tree)[0] as usize, 16_384)),
    );
    let disk = MemoryDisk::new(sound.clone());
    let options = SurveyOptions::default();
    assert!(survey(&disk, &options).unwrap().warnings.is_empty());
    let mut understood = 0;
    for seed in 0..4000 {
        let mut chance = Chance::from_seed(seed);
        let (at, len) = blocks[chance.below(5) as usize];
        let mut block = sound[at..at + len].to_vec();
        for _ in 0..=chance.below(3) {
            // Most of them where fields are: in the header, the heads of items, and the first items.
            let place = match chance.below(4) {
                0 => 32 + chance.below(80) as usize,
                1 => len - 1 - chance.below(800) as usize,
                2 => 101 + chance.below(900) as usize,
                _ => 32 + chance.below(len as u64 - 32) as usize,
            };
            block[place] = [0, 0xFF, block[place] ^ 1, chance.below(256) as u8][chance.below(4) as usize];
        }
        resum(&mut block);
        disk.write_all_at(&block, at as u64).unwrap();
        let map = survey(&disk, &options).unwrap();
        assert!(map.allocated.runs().iter().all(|run| run.end() <= map.window.end()), "seed {seed}");
        understood += u64::from(map.warnings.is_empty());
        disk.write_all_at(&sound[at..at + len], at as u64).unwrap();
    }
    assert!((100..3900).contains(&understood), "{understood}");
}
