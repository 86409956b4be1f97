//! Tests XFS as mkfs.xfs makes it and Linux fills it: a disk restored from its allocated sectors alone is intact, and
//! what xfs_db says is free is left out.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use base::{Extent, ExtentSet};

use crate::common::{
    Bench, Mounted, age, assert_understood, assert_whole, ends, have, is_root, map_of, paths, populate, run,
};

const TOOLS: &[&str] = &["mkfs.xfs", "xfs_repair", "xfs_db", "mount", "umount", "losetup", "getfattr"];
/// Lets mkfs.xfs make filesystems of less than 300 MiB.
const SMALL: &str = "env TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1";

/// mkfs.xfs options, and size in MiB.
const MATRIX: &[(&str, u64)] = &[
    ("-b size=1024 -d agcount=7", 120),
    ("-m reflink=1,rmapbt=1", 120),
    ("-m finobt=0,reflink=0,inobtcount=0,bigtime=0", 64),
    ("-i size=1024 -n size=8192 -d agcount=2", 64),
    ("-s size=4096 -i sparse=0", 100),
    ("-b size=2048 -l size=8m,su=32k -d agcount=9", 160),
    ("-m crc=0", 64),
    ("-m crc=0 -b size=512 -d agcount=4", 64),
];

fn make(bench: &Bench, options: &str, mib: u64) -> PathBuf {
    let image = bench.random_file("image", mib << 20, mib);
    let make = format!("{SMALL} mkfs.xfs -q -f -L label {options}");
    if is_old(options) {
        run(&format!("{make} -p {}", prototype(bench).display()), &[&image]);
        return image;
    }
    run(&make, &[&image]);
    let mounted = Mounted::by("mount -t xfs", &image, bench.tree("filled"));
    populate(&mounted.folder, mib);
    age(&mounted.folder, mib);
    drop(mounted);
    image
}

/// Whether Linux mounts it no more: version 4. mkfs.xfs fills it.
fn is_old(options: &str) -> bool {
    options.contains("crc=0")
}

/// A description of files, from which mkfs.xfs fills a filesystem.
fn prototype(bench: &Bench) -> PathBuf {
    let mut text = "/\n0 0\nd--755 0 0\nfolder d--755 0 0\n".to_owned();
    for (number, kib) in [0, 1, 4, 63, 1000, 3000].into_iter().enumerate() {
        let file = bench.random_file(&format!("file {number}").replace(' ', "-"), kib << 10, kib);
        writeln!(text, "file{number} ---644 0 0 {}", file.display()).unwrap();
    }
    text.push_str("$\n$\n");
    let path = bench.path("prototype");
    fs::write(&path, text).unwrap();
    path
}

/// What xfs_db prints to commands.
fn ask(image: &Path, commands: &[&str]) -> String {
    let mut command = Command::new("/usr/sbin/xfs_db");
    command.arg("-r");
    for text in commands {
        command.args(["-c", text]);
    }
    let output = command.arg(image).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What xfs_db says is free, in sectors, and the block size in sectors.
fn free_by_xfsprogs(image: &Path) -> (ExtentSet, u64) {
    let number = |name: &str| -> u64 {
        let said = ask(image, &["sb 0", &format!("p {name}")]);
        said.rsplit(' ').next().unwrap().trim().parse().unwrap()
    };
    let (sectors, group_blocks) = (number("blocksize") / 512, number("agblocks"));
    let text = ask(image, &["freesp -d"]);
    let lines = text.lines().map(|line| line.split_whitespace().map(str::parse::<u64>).collect::<Vec<_>>());
    let free = lines.filter_map(|fields| match &fields[..] {
        [Ok(group), Ok(first), Ok(count)] => {
            Some(Extent::new((group * group_blocks + first) * sectors, count * sectors))
        }
        _ => None,
    });
    (free.collect(), sectors)
}

fn assert_same(bench: &Bench, image: &Path, restored: &Path, context: &str) {
    run("xfs_repair -n", &[&restored]);
    if is_old(context) {
        return assert_same_as_told(image, restored);
    }
    // Both have the same UUID, and only one of them may be mounted at a time.
    let [before, after] = [image, restored].map(|image| {
        let mounted = Mounted::by("mount -t xfs -o ro,norecovery", image, bench.tree("there"));
        let names = paths(&mounted.folder);
        let tell = |name: &PathBuf| {
            let path = mounted.folder.join(name);
            let meta = path.symlink_metadata().unwrap();
            let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let link = fs::read_link(&path).ok();
            let facts = [meta.ino(), meta.mode().into(), meta.uid().into(), meta.gid().into(), meta.nlink()];
            (name.clone(), bytes, link, facts, meta.mtime(), meta.blocks())
        };
        let files: Vec<_> = names.iter().map(tell).collect();
        let attributes = run("getfattr -R -h -d -m -", &[&mounted.folder]);
        (files, attributes)
    });
    assert!(before.0.len() > 300 && before.1.contains("user.diskcast"), "{context}");
    for (one, other) in before.0.iter().zip(&after.0) {
        assert!(one == other, "{:?}, {context}", one.0);
    }
    assert_eq!(before.0.len(), after.0.len(), "{context}");
    assert_eq!(before.1, after.1, "{context}");
}

/// What xfs_db and xfs_metadump tell of the files is the same, and so is all that is not free.
fn assert_same_as_told(image: &Path, restored: &Path) {
    let [one, other] =
        [image, restored].map(|image| ask(image, &["blockget -n", "ls /folder", "blockuse", "check"]));
    assert_eq!(one, other);
}

#[test]
fn free_space_is_what_xfs_db_says_and_restored_disks_are_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    for &(options, mib) in MATRIX {
        let bench = Bench::new();
        let image = make(&bench, options, mib);
        let map = map_of(&image);
        assert_understood(&map, &image, options);

        let (mut expected, block_sectors) = free_by_xfsprogs(&image);
        ends(map.window).into_iter().for_each(|end| expected.remove(end));
        let free = map.allocated.gaps_within(map.window);
        let wrong = free.runs().iter().find(|run| !expected.contains(**run));
        assert_eq!(wrong, None, "mkfs.xfs {options}: left out, and not free");
        // Blocks that are kept for the growth of the trees are captured: at most a few in a group.
        let kept = (expected.sectors() - free.sectors()) / block_sectors;
        assert!(kept <= 16 * 10, "mkfs.xfs {options}: {kept} free blocks captured");

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
    for (options, older) in [("-d agcount=3", false), ("-m crc=0 -d agcount=3", true)] {
        let image = make(&bench, options, 64);
        let sound = fs::read(&image).unwrap();
        let number = |at: usize| u32::from_be_bytes(*sound[at..].first_chunk().unwrap()) as usize;
        let tree = number(512 + 16) * 4096;
        let head = if older { 16 } else { 56 };
        let cases: [(usize, &str); 6] = [
            (151, if older { "its superblock counts" } else { "checksum of its superblock" }),
            (126, "did not end"),
            (512 + 55, if older { "not as many as it says" } else { "group 0 is damaged" }),
            (tree, "is damaged"),
            (tree + head + 3, if older { "differ" } else { "checksum of a tree" }),
            (number(84) * 4096 + 87, "copy of it differ"),
        ];
        for (offset, why) in cases {
            let disk = File::options().write(true).open(&image).unwrap();
            disk.write_all_at(&[sound[offset] ^ 1], offset as u64).unwrap();
            assert_whole(&map_of(&image), why, &format!("{options}, {offset}"));
            disk.write_all_at(&sound[offset..=offset], offset as u64).unwrap();
        }
        assert_eq!(map_of(&image).warnings, [""; 0]);
        if older {
            continue;
        }
        // A copy that is made while the filesystem is mounted has work in its journal.
        let mounted = Mounted::by("mount -t xfs", &image, bench.tree("busy"));
        fs::write(mounted.folder.join("new"), "new").unwrap();
        run("sync", &[]);
        let copy = bench.path("copy");
        fs::copy(&image, &copy).unwrap();
        drop(mounted);
        assert_whole(&map_of(&copy), "not unmounted cleanly", options);
    }
}
