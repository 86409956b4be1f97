//! Damages every kind of table and filesystem at random: a survey neither panics nor hangs, its map stays within the
//! disk, and every sector that was allocated before the damage still is.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use base::{Chance, ExtentSet};
use disk::device::MemoryDisk;
use disk::{SurveyOptions, WriteAt, survey};

use crate::common::{Bench, Mounted, have, is_root, run, run_with_input};

const TOOLS: &[&str] = &[
    "mke2fs",
    "mkfs.fat",
    "mcopy",
    "mkfs.exfat",
    "mount.exfat-fuse",
    "mkntfs",
    "ntfs-3g",
    "mkfs.xfs",
    "mkfs.btrfs",
    "mount",
    "umount",
    "mkswap",
    "sgdisk",
    "sfdisk",
];

/// The command that makes each image on a file of random bytes, and the size of the file in KiB.
const IMAGES: &[(&str, u64)] = &[
    ("mke2fs -q -F -t ext4 -b 1024 -g 512 -d TREE", 4096),
    ("mke2fs -q -F -t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode,^flex_bg -d TREE", 4096),
    ("mke2fs -q -F -t ext4 -b 1024 -O bigalloc -C 4096 -d TREE", 8192),
    ("mke2fs -q -F -t ext4 -b 4096 -O mmp -d TREE", 8192),
    ("mke2fs -q -F -t ext4 -b 1024 -g 512 -O ^metadata_csum,uninit_bg -d TREE", 4096),
    ("mke2fs -q -F -t ext2 -b 1024 -g 512 -d TREE", 2048),
    ("mkfs.fat -F 12 -s 4", 2048),
    ("mkfs.fat -F 16 -s 1", 4096),
    ("mkfs.fat -F 32 -s 1", 34_000),
    ("mkfs.exfat -c 4K", 8192),
    ("mkntfs -Q -F -q -c 1024", 8192),
    ("env TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1 mkfs.xfs -q -f -d agcount=2", 64 << 10),
    ("env TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1 mkfs.xfs -q -f -d agcount=2 -m crc=0", 64 << 10),
    ("mkfs.btrfs -q -f -m single", 128 << 10),
    ("mkswap", 1024),
    ("sgdisk -o -n 1:40:+1M -n 2:+0:+500K -n 3:+0:+1M", 6144),
    ("sfdisk -q", 4096),
];

fn make(line: &str, kib: u64) -> Vec<u8> {
    let bench = Bench::new();
    let image = bench.random_file("image", kib << 10, 11);
    let tree = bench.tree("tree");
    fs::create_dir_all(tree.join("folder")).unwrap();
    for n in 0..20 {
        fs::write(tree.join(format!("folder/file {n}")), vec![b'x'; 1000 * n]).unwrap();
    }
    if line.starts_with("sfdisk") {
        let script = "label: dos\nstart=64, size=1000, type=83\nstart=2000, size=6000, type=5\n\n\n\
                      start=2100, size=1000\nstart=4000, size=1000\nstart=6000, size=1000\n";
        run_with_input(
            line,
            &image,
            &script.replace("\n\n\n", "\nstart=1100, size=100\nstart=1300, size=100\n"),
        );
    } else if line.starts_with("sgdisk") {
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 34 * 512], 0).unwrap();
        run(line, &[&image]);
    } else {
        run(&line.replace("TREE", tree.to_str().unwrap()), &[&image]);
    }
    if line.starts_with("mkfs.fat") {
        for n in 0..20 {
            let file: PathBuf = tree.join(format!("folder/file {n}"));
            run("mcopy -i", &[&image, &file, &"::"]);
        }
    }
    let mount = [
        ("mkfs.exfat", "mount.exfat-fuse"),
        ("mkntfs", "ntfs-3g"),
        ("mkfs.xfs", "mount -t xfs"),
        ("mkfs.btrfs", "mount -t btrfs"),
    ];
    let mount = mount.iter().find(|(make, _)| line.contains(make) && !line.contains("crc=0"));
    if let Some((_, mount)) = mount {
        let mounted = Mounted::by(mount, &image, bench.tree("mounted"));
        run("cp -r", &[&tree.join("folder"), &mounted.folder]);
    }
    fs::read(&image).unwrap()
}

fn allocated(disk: &MemoryDisk, context: &str) -> ExtentSet {
    let map = survey(disk, &SurveyOptions::default()).unwrap_or_else(|e| panic!("{context}: {e:?}"));
    assert!(map.allocated.runs().iter().all(|run| run.end() <= map.window.end()), "{context}");
    map.allocated
}

/// One to four offsets with their new bytes, most of them in tables and metadata.
fn damage(sound: &[u8], chance: &mut Chance) -> Vec<(usize, u8)> {
    let len = sound.len() as u64;
    (0..=chance.below(4))
        .map(|_| {
            let at = match chance.below(8) {
                0 => chance.below(len),
                1 => len - 1 - chance.below(40 * 512),
                2 | 3 => chance.below(512),
                4 | 5 => 1024 + chance.below(1024),
                _ => chance.below(68 << 10),
            } as usize;
            let byte = match chance.below(4) {
                0 => 0,
                1 => 0xFF,
                2 => sound[at] ^ (1 << chance.below(8)),
                _ => chance.below(256) as u8,
            };
            (at, byte)
        })
        .collect()
}

/// Whether the damage changes the number of root folder entries of a FAT12 or FAT16. This number has no copy and no
/// checksum: a wrong one moves all files, and a survey cannot notice.
fn moves_files(line: &str, (at, _): (usize, u8)) -> bool {
    line.starts_with("mkfs.fat") && matches!(at, 17 | 18)
}

#[test]
fn damage_never_loses_what_was_allocated() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    for &(line, kib) in IMAGES {
        let sound = make(line, kib);
        let disk = MemoryDisk::new(sound.clone());
        let before = allocated(&disk, line);
        let is_table = line.starts_with("sgdisk") || line.starts_with("sfdisk");
        assert!(is_table || before.sectors() < kib * 2, "{line}: it is captured whole");
        for seed in 0..1500 {
            let mut places = damage(&sound, &mut Chance::from_seed(seed));
            places.retain(|place| !moves_files(line, *place));
            places.iter().for_each(|&(at, byte)| disk.write_all_at(&[byte], at as u64).unwrap());
            let context = format!("{line}, seed {seed}, offsets and bytes {places:x?}");
            let after = allocated(&disk, &context);
            let lost = before.runs().iter().find(|run| !after.contains(**run));
            assert_eq!(lost, None, "{context}: no longer allocated");
            places.iter().for_each(|&(at, _)| disk.write_all_at(&sound[at..=at], at as u64).unwrap());
        }
    }
}

/// A disk that is shorter than its table and filesystems say, down to an empty one.
#[test]
fn truncation_is_no_panic() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    for &(line, kib) in IMAGES {
        let sound = make(line, kib);
        for sectors in (0..40).chain((1..60).map(|part| sound.len() / 512 * part / 60)) {
            let disk = MemoryDisk::new(sound[..sectors * 512].to_vec());
            let after = allocated(&disk, &format!("{line}, first {sectors} sectors"));
            assert!(sectors > 33 || after.sectors() == sectors as u64, "{line}, first {sectors} sectors");
        }
    }
}
