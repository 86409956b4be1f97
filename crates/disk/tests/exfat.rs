//! Tests exFAT as mkfs.exfat makes it and exfat-fuse fills it: a disk restored from its allocated sectors alone is
//! intact, and its free clusters are left out.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test that fails says where")]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::Chance;
use common::{Bench, Mounted, have, is_root, map_of, paths, run};

const TOOLS: &[&str] = &["mkfs.exfat", "fsck.exfat", "dump.exfat", "mount.exfat-fuse", "umount"];
const TABLE_AT: u64 = 80;
const HEAP_AT: u64 = 88;

/// mkfs.exfat options, size in MiB, and cluster size in bytes.
const MATRIX: &[(&str, u64, u32)] = &[
    ("-c 512", 8, 512),
    ("-c 4K", 40, 4096),
    ("-c 4K --pack-bitmap", 40, 4096),
    ("-c 32K -b 4M", 120, 32_768),
    ("-c 128K", 120, 131_072),
    ("-c 512K -b 1M", 300, 512 << 10),
];

fn fill(root: &Path, mib: u64) {
    fs::create_dir_all(root.join("folder/deeper")).unwrap();
    fs::create_dir_all(root.join("many")).unwrap();
    let mut chance = Chance::from_seed(mib);
    let data = |chance: &mut Chance, most: u64| {
        let mut bytes = vec![0; chance.below(most) as usize];
        chance.fill(&mut bytes);
        bytes
    };
    for n in 0..60 {
        let folder = ["", "folder", "folder/deeper"][n % 3];
        let bytes = data(&mut chance, 20_000);
        fs::write(root.join(folder).join(format!("a long name \u{1F4BE} {n}.data")), bytes).unwrap();
    }
    for n in 0..150 {
        fs::write(root.join(format!("many/{n}")), data(&mut chance, 600)).unwrap();
    }
    for n in (0..60).step_by(4) {
        let folder = ["", "folder", "folder/deeper"][n % 3];
        fs::remove_file(root.join(folder).join(format!("a long name \u{1F4BE} {n}.data"))).unwrap();
    }
    (0..150).step_by(3).for_each(|n| fs::remove_file(root.join(format!("many/{n}"))).unwrap());
    // Two files that grow in turn are in many pieces.
    let mut files = ["one", "other"].map(|name| File::create(root.join(name)).unwrap());
    for _ in 0..20 {
        for file in &mut files {
            file.write_all(&data(&mut chance, 9000)).unwrap();
            file.sync_all().unwrap();
        }
    }
    files[0].set_len(30_000).unwrap();
}

fn make(bench: &Bench, options: &str, mib: u64) -> PathBuf {
    let image = bench.random_file("image", mib << 20, mib);
    run(&format!("mkfs.exfat -L LABEL {options}"), &[&image]);
    fill(&Mounted::by("mount.exfat-fuse", &image, bench.tree("filled")).folder, mib);
    image
}

fn assert_same(bench: &Bench, image: &Path, restored: &Path, options: &str) {
    run("fsck.exfat -n", &[&restored]);
    let [there, here] = [(image, "there"), (restored, "here")]
        .map(|(image, name)| Mounted::by("mount.exfat-fuse -o ro", image, bench.tree(name)));
    assert_eq!(paths(&there.folder), paths(&here.folder), "{options}");
    for name in paths(&there.folder).iter().filter(|name| there.folder.join(name).is_file()) {
        assert!(
            fs::read(there.folder.join(name)).unwrap() == fs::read(here.folder.join(name)).unwrap(),
            "{name:?}"
        );
    }
}

/// A number that dump.exfat prints.
fn number(dump: &str, name: &str) -> u64 {
    let line = dump.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.rsplit([' ', '\t']).next().unwrap().parse().unwrap()
}

#[test]
fn restored_disks_are_whole_and_free_clusters_are_left_out() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    for &(options, mib, cluster_bytes) in MATRIX {
        let bench = Bench::new();
        let image = make(&bench, options, mib);
        let map = map_of(&image);
        assert_eq!(map.warnings, [""; 0], "mkfs.exfat {options}");
        let filesystem = map.partitions[0].filesystem.as_ref().unwrap();
        assert!(filesystem.understood, "mkfs.exfat {options}");
        let tag = |name: &str| run(&format!("blkid -p -o value -s {name}"), &[&image]).trim_end().to_owned();
        assert_eq!(
            (filesystem.uuid.clone(), filesystem.label.clone()),
            (Some(tag("UUID")), Some(tag("LABEL")))
        );
        assert_eq!(filesystem.block_bytes, cluster_bytes, "mkfs.exfat {options}");

        let dump = run("dump.exfat", &[&image]);
        let free = number(&dump, "Free Clusters") * u64::from(cluster_bytes) / 512;
        // A survey captures both ends, used or not.
        let taken_anyway: u64 = common::ends(map.window).iter().map(|end| end.count).sum();
        let left_out = map.allocated.gaps_within(map.window).sectors();
        let range = free.saturating_sub(taken_anyway)..=free;
        assert!(range.contains(&left_out), "{left_out} free sectors, not {range:?}, mkfs.exfat {options}");

        let restored = bench.restore(&image, &map);
        assert_same(&bench, &image, &restored, options);
    }
}

/// Each case damages a sound filesystem, whose free space can then not be trusted.
#[test]
fn dirty_or_contradictory_is_taken_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-c 4K", 40);
    let sound = fs::read(&image).unwrap();
    let sector = |at: u64| u64::from(u32::from_le_bytes(*sound[at as usize..].first_chunk().unwrap())) * 512;
    let (table, heap) = (sector(TABLE_AT), sector(HEAP_AT));
    // The bitmap is the first thing in the heap: mkfs.exfat puts it there.
    let root =
        sound.windows(4).enumerate().skip(heap as usize).find(|(at, bytes)| {
            at.is_multiple_of(32) && bytes[0] == 0x83 && bytes[1] == 5 && bytes[2] == b'L'
        });
    let root = root.unwrap().0 as u64;
    let file = (root..root + 4096).step_by(32).find(|&at| sound[at as usize] == 0x85).unwrap();
    let cases: [(u64, u8, &str); 9] = [
        (106, 2, "unmounted"),
        (106, 1, "TexFAT"),
        (110, 2, "checksum of its boot sectors"),
        (11 * 512, 1, "checksum of its boot sectors"),
        (heap, 0xFE, "free by the bitmap"),
        (table + 2 * 4, 0, "is too long"),
        (file + 2, sound[file as usize + 2] ^ 1, "checksum of a file's entries"),
        (file, 0x84, "unknown type"),
        (root + 32, 0x01, "no bitmap"),
    ];
    for (offset, byte, why) in cases {
        let disk = File::options().write(true).open(&image).unwrap();
        disk.write_all_at(&[byte], offset).unwrap();
        let map = map_of(&image);
        assert!(map.allocated.contains(map.window), "byte {byte:#x} at {offset}, {why}");
        assert!(map.warnings.iter().any(|warning| warning.contains(why)), "{why}: {:?}", map.warnings);
        disk.write_all_at(&sound[offset as usize..=offset as usize], offset).unwrap();
    }
    assert_eq!(map_of(&image).warnings, [""; 0]);
}
