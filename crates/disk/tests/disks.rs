//! Tests whole disks that sfdisk and sgdisk have partitioned. A disk restored from its allocated sectors alone has
//! intact tables and filesystems. Damaged or unknown parts are captured whole, and a warning says why.

use std::fs;
use std::path::{Path, PathBuf};

use base::{ErrorKind, Extent, Result};
use disk::{DiskMap, SurveyOptions, TableKind, open_source, survey};

use crate::common::{Bench, have, map_of, mib, put, read_at, run, run_with_input, write_at};

const TOOLS: &[&str] = &["sfdisk", "sgdisk", "mke2fs", "e2fsck", "mkfs.fat", "fsck.fat", "mkswap"];

/// Runs a check over one partition of a disk.
fn check(bench: &Bench, disk: &Path, extent: Extent, fsck: &str) {
    let image = bench.path("part");
    fs::write(&image, read_at(disk, extent)).unwrap();
    run(fsck, &[&image]);
}

fn survey_with(disk: &Path, options: &SurveyOptions) -> Result<DiskMap> {
    survey(&open_source(disk).unwrap(), options)
}

fn numbers(map: &DiskMap) -> Vec<(u32, Option<&'static str>)> {
    map.partitions.iter().map(|p| (p.number, p.filesystem.as_ref().map(|fs| fs.kind))).collect()
}

/// A disk with a GPT: BIOS boot, EFI system, root, swap and an unknown partition; gaps before and after the swap space.
fn gpt_disk(bench: &Bench) -> PathBuf {
    let disk = bench.sparse_file("disk", 160 << 20);
    let layout = "-n 1:1M:+1M -t 1:ef02 -n 2:2M:+40M -t 2:ef00 -c 2:EFI -n 3:42M:+64M -c 3:root -n 4:120M:+16M \
                  -t 4:8200 -n 5:140M:+8M -U 01234567-89AB-CDEF-0123-456789ABCDEF";
    run(&format!("sgdisk -o {layout}"), &[&disk]);
    write_at(&disk, 1 << 20, b"boot loader");
    put(bench, &disk, mib(2, 40), "mkfs.fat -F 16");
    put(bench, &disk, mib(42, 64), "mke2fs -q -F -t ext4 -U 11111111-2222-3333-4444-555555555555");
    put(bench, &disk, mib(120, 16), "mkswap -L pages");
    disk
}

/// Restores `disk` from its map, and checks the tables and filesystems of the copy.
fn assert_restores(bench: &Bench, disk: &Path, map: &DiskMap) {
    let restored = bench.restore(disk, map);
    assert_eq!(
        run("sfdisk -d", &[&disk]).replace(disk.to_str().unwrap(), ""),
        run("sfdisk -d", &[&restored]).replace(restored.to_str().unwrap(), "")
    );
    for partition in &map.partitions {
        match partition.filesystem.as_ref().map(|filesystem| filesystem.kind) {
            Some("ext4" | "ext2") => check(bench, &restored, partition.extent, "e2fsck -fn"),
            Some("vfat") => check(bench, &restored, partition.extent, "fsck.fat -n"),
            Some("swap") => {
                let header = Extent::new(partition.extent.start, 8);
                assert!(read_at(disk, header) == read_at(&restored, header));
            }
            _ => assert!(read_at(disk, partition.extent) == read_at(&restored, partition.extent)),
        }
    }
}

#[test]
fn gpt_with_everything() {
    if !have(TOOLS) {
        return;
    }
    let bench = Bench::new();
    let disk = gpt_disk(&bench);
    write_at(&disk, (110 << 20) + 12_345, b"between partitions");
    let map = map_of(&disk);
    assert_eq!(map.table, TableKind::Gpt);
    assert_eq!(map.disk_id.as_deref(), Some("01234567-89ab-cdef-0123-456789abcdef"));
    let kinds = [(1, None), (2, Some("vfat")), (3, Some("ext4")), (4, Some("swap")), (5, None)];
    assert_eq!(numbers(&map), kinds);
    assert_eq!(map.partitions[1].name.as_deref(), Some("EFI"));
    assert_eq!(map.partitions[1].type_id, "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
    assert_eq!(map.partitions[2].extent, mib(42, 64));
    let root = map.partitions[2].filesystem.as_ref().unwrap();
    assert_eq!(root.uuid.as_deref(), Some("11111111-2222-3333-4444-555555555555"));
    assert_eq!(map.warnings, ["partition 5 is captured whole: it holds no filesystem that is known"]);
    // Gaps are allocated even if they are zeros. Only both ends of the swap space are allocated.
    assert!(map.allocated.contains(mib(106, 14)) && map.allocated.contains(mib(136, 4)));
    let swap = [Extent::new(120 << 11, 256), Extent::new((136 << 11) - 256, 256)];
    assert_eq!(map.allocated.within(mib(120, 16)).collect::<Vec<_>>(), swap);
    assert!(map.allocated.within(mib(42, 64)).map(|run| run.count).sum::<u64>() < 20 << 11);
    assert_restores(&bench, &disk, &map);
}

#[test]
fn damaged_gpt_falls_back_to_its_backup_and_then_to_the_whole_disk() {
    if !have(TOOLS) {
        return;
    }
    let bench = Bench::new();
    let disk = gpt_disk(&bench);
    let good = map_of(&disk);
    // The name in an entry of the primary table, or its header.
    for (offset, whose) in [(1024 + 60, "entries"), (512 + 40, "header")] {
        let byte = read_at(&disk, Extent::new(offset / 512, 1))[offset as usize % 512];
        write_at(&disk, offset, &[byte ^ 0x10]);
        let map = map_of(&disk);
        assert_eq!(map.partitions, good.partitions, "{whose}");
        assert_eq!(map.allocated, good.allocated, "{whose}");
        assert_eq!(map.warnings[0], "the primary GPT is damaged; its backup is used");
        write_at(&disk, offset, &[byte]);
    }
    // Damage the bounds of a partition: the damaged primary may be newer than its backup, so neither is trusted.
    write_at(&disk, 1024 + 40, &[0x7F]);
    let map = map_of(&disk);
    assert!(map.warnings.iter().any(|warning| warning.contains("disagrees")), "{:?}", map.warnings);
    assert_eq!(map.allocated.runs(), [map.window]);
    write_at(&disk, 1024 + 40, &[0xFF]);
    let last = (160 << 20) - 512;
    write_at(&disk, last + 20, &[1]);
    let map = map_of(&disk);
    assert_eq!(map.partitions, good.partitions);
    assert_eq!(map.warnings[0], "the backup of the GPT is missing or damaged");
    write_at(&disk, 512 + 56, &[0xEE]);
    let map = map_of(&disk);
    assert_eq!(map.warnings, ["the disk is captured whole: both copies of the GPT are damaged"]);
    assert_eq!(map.allocated.runs(), [map.window]);
}

#[test]
fn hybrid_and_forgotten_gpt() {
    if !have(TOOLS) {
        return;
    }
    let bench = Bench::new();
    let disk = gpt_disk(&bench);
    let good = map_of(&disk);
    run("sgdisk -h 2:3", &[&disk]);
    let map = map_of(&disk);
    assert_eq!((map.table, &map.partitions), (TableKind::Gpt, &good.partitions));
    assert_restores(&bench, &disk, &map);
    // Without its protective entry a GPT is not valid, but it may still be in use: the disk is ambiguous.
    write_at(&disk, 446, &[0; 64]);
    let map = map_of(&disk);
    assert_eq!(map.warnings, ["the disk (gpt) is captured whole: it holds a gpt partition table"]);
    assert_eq!(map.allocated.runs(), [map.window]);
}

/// A disk with an MBR: a primary partition, an extended one with three logical partitions, and two more primaries.
fn mbr_disk(bench: &Bench) -> PathBuf {
    let disk = bench.sparse_file("disk", 200 << 20);
    let script = "label: dos\nlabel-id: 0xcafef00d\nstart=1MiB, size=40MiB, type=6, bootable\n\
                  start=42MiB, size=100MiB, type=5\nstart=150MiB, size=20MiB, type=82\n\n\
                  start=43MiB, size=32MiB, type=83\nstart=80MiB, size=8MiB, type=83\n\
                  start=90MiB, size=40MiB, type=83\n";
    // Fill the fourth slot too, so that sfdisk makes the partitions that follow logical.
    let script = script.replace("type=82\n\n", "type=82\nstart=170MiB, size=1MiB, type=da\n");
    run_with_input("sfdisk -q", &disk, &script);
    put(bench, &disk, mib(1, 40), "mkfs.fat -F 16");
    put(bench, &disk, mib(43, 32), "mke2fs -q -F -t ext4");
    put(bench, &disk, mib(80, 8), "mkswap");
    put(bench, &disk, mib(90, 40), "mke2fs -q -F -t ext2");
    put(bench, &disk, mib(150, 20), "mkswap");
    write_at(&disk, 512 * 40, b"a boot loader behind the boot record");
    disk
}

#[test]
fn mbr_with_logical_partitions() {
    if !have(TOOLS) {
        return;
    }
    let bench = Bench::new();
    let disk = mbr_disk(&bench);
    let map = map_of(&disk);
    assert_eq!(map.table, TableKind::Mbr);
    assert_eq!(map.disk_id.as_deref(), Some("cafef00d"));
    let kinds = [
        (1, Some("vfat")),
        (3, Some("swap")),
        (4, None),
        (5, Some("ext4")),
        (6, Some("swap")),
        (7, Some("ext2")),
    ];
    assert_eq!(numbers(&map), kinds);
    assert_eq!(map.partitions[3].extent, mib(43, 32));
    assert_eq!(map.partitions[3].uuid.as_deref(), Some("cafef00d-05"));
    assert_eq!(map.partitions[3].type_id, "83");
    assert_eq!(map.warnings, ["partition 4 is captured whole: it holds no filesystem that is known"]);
    assert!(map.allocated.contains(Extent::new(0, 2048)), "the boot loader behind the boot record");
    assert_restores(&bench, &disk, &map);
}

#[test]
fn damaged_chain_of_logical_partitions_is_taken_whole() {
    if !have(TOOLS) {
        return;
    }
    let bench = Bench::new();
    let disk = mbr_disk(&bench);
    let first = 42 << 20;
    let link = read_at(&disk, Extent::new(first / 512, 1))[462..478].to_vec();
    // Links to the record itself, to a place outside the disk, and to a sector that is not a boot record.
    for start in [0u32, u32::MAX, 5] {
        let mut bad = link.clone();
        bad[8..12].copy_from_slice(&start.to_le_bytes());
        write_at(&disk, first + 462, &bad);
        let map = map_of(&disk);
        assert!(map.allocated.contains(mib(42, 100)), "link to {start}");
        assert!(map.warnings.iter().any(|w| w.contains("extended partition")), "{:?}", map.warnings);
    }
}

#[test]
fn partitions_chosen_and_left_out() {
    if !have(TOOLS) {
        return;
    }
    let bench = Bench::new();
    let disk = gpt_disk(&bench);
    let all = map_of(&disk);
    let only = survey_with(&disk, &SurveyOptions { partition: Some(3), ..Default::default() }).unwrap();
    assert_eq!(only.window, mib(42, 64));
    assert_eq!(only.allocated.runs(), all.allocated.within(mib(42, 64)).collect::<Vec<_>>());
    assert_eq!(numbers(&only), [(3, Some("ext4"))]);

    let without = survey_with(&disk, &SurveyOptions { skip: vec![3, 5], ..Default::default() }).unwrap();
    assert_eq!(numbers(&without), numbers(&all));
    assert_eq!(without.allocated.within(mib(42, 64)).count(), 0);
    assert_eq!(without.allocated.within(mib(140, 8)).count(), 0);
    assert_eq!(without.warnings, [""; 0]);

    let raw = survey_with(&disk, &SurveyOptions { raw: true, skip: vec![5], ..Default::default() }).unwrap();
    assert_eq!(raw.allocated.gaps_within(raw.window).runs(), [mib(140, 8)]);
    assert_eq!(raw.warnings, [""; 0]);

    let none = survey_with(&disk, &SurveyOptions { partition: Some(9), ..Default::default() }).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    assert!(none.to_string().ends_with("has no partition 9; it has 1, 2, 3, 4, 5"), "{none}");
}

#[test]
fn overlapping_partitions_are_taken_whole() {
    if !have(&["sfdisk", "mkswap"]) {
        return;
    }
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", 64 << 20);
    let script = "label: dos\nstart=2048, size=20480, type=82\nsize=10240, type=82\nstart=40960, type=82\n";
    run_with_input("sfdisk -q", &disk, script);
    put(&bench, &disk, Extent::new(2048, 20_480), "mkswap");
    put(&bench, &disk, Extent::new(40_960, 20_480), "mkswap");
    // sfdisk refuses to make such a table, so move the second partition by hand.
    write_at(&disk, 446 + 16 + 8, &10_240u32.to_le_bytes());
    let map = map_of(&disk);
    assert!(map.allocated.contains(Extent::between(2048, 22_528)), "{:?}", map.partitions);
    assert!(map.warnings.iter().any(|w| w.contains("overlaps partition 1")), "{:?}", map.warnings);
}

type Change = fn(&Path);
/// Command that makes the filesystem, size in MiB, change made to it afterwards, and expected warning.
const NOT_UNDERSTOOD: [(&str, u64, Change, &str); 12] = [
    ("mkfs.f2fs -q", 320, |_| {}, "the disk (f2fs) is captured whole: the free space of f2fs is not known"),
    ("mkfs.jfs -q", 128, |_| {}, "the free space of jfs"),
    (
        "mke2fs -q -F -O journal_dev",
        16,
        |_| {},
        "the disk (jbd) is captured whole: it is the external journal",
    ),
    ("mkswap", 16, |disk| write_at(disk, 4086, b"S1SUSPEND\0"), "a hibernated system sleeps"),
    (
        "mke2fs -q -F -t ext4",
        32,
        |disk| ext(disk, "feature needs_recovery"),
        "its journal has not been replayed",
    ),
    ("mke2fs -q -F -t ext4", 32, |disk| ext(disk, "feature FEATURE_I30"), "not known (incompat 0x40000000)"),
    ("mke2fs -q -F -t ext4", 32, |disk| ext(disk, "feature FEATURE_R30"), "not known (ro_compat 0x40000000)"),
    ("mke2fs -q -F -t ext2", 32, |disk| ext(disk, "set_super_value state 0"), "was not unmounted cleanly"),
    ("mke2fs -q -F -t ext2", 32, |disk| ext(disk, "set_super_value state 3"), "found errors"),
    (
        "mke2fs -q -F -t ext4",
        32,
        |disk| ext(disk, "set_super_value journal_inum 0"),
        "journal is on another device",
    ),
    ("mke2fs -q -F -t ext4", 32, |disk| write_at(disk, 1024 + 0x20, &[1, 2]), "checksum of its superblock"),
    ("mke2fs -q -F -t ext2 -b 1024", 32, |disk| ext(disk, "set_bg 2 free_blocks_count 7"), "free clusters"),
];

/// Formats that are recognised but not understood, and states in which an understood format is not trusted.
#[test]
fn what_is_not_understood_is_taken_whole_and_named() {
    if !have(&["mkfs.f2fs", "mkfs.jfs", "mke2fs", "mkswap", "tune2fs", "debugfs"]) {
        return;
    }
    for (mkfs, mib, change, why) in NOT_UNDERSTOOD {
        let bench = Bench::new();
        let disk = bench.random_file("disk", mib << 20, mib);
        // Random bytes at the start could look like a boot record or a filesystem.
        write_at(&disk, 0, &[0; 1 << 17]);
        run(mkfs, &[&disk]);
        change(&disk);
        let map = map_of(&disk);
        assert_eq!(map.allocated.runs(), [map.window], "{mkfs}: {why}");
        assert!(
            map.warnings.iter().any(|warning| warning.contains(why)),
            "{mkfs}: {:?}, not {why}",
            map.warnings
        );
    }
}

fn ext(disk: &Path, command: &str) {
    let script = disk.with_extension("script");
    fs::write(&script, command).unwrap();
    run(&format!("debugfs -w -f {}", script.display()), &[&disk]);
}

#[test]
fn space_behind_a_filesystem_is_allocated() {
    if !have(&["mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", 64 << 20);
    run("mke2fs -q -F -t ext4", &[&disk, &"32M"]);
    let map = map_of(&disk);
    assert!(map.allocated.contains(mib(32, 32)), "zeros as well");
    assert!(map.allocated.sectors() < 50 << 11 && map.partitions[0].filesystem.as_ref().unwrap().understood);
}

#[test]
fn disk_without_anything_known_is_taken_whole() {
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", (8 << 20) + 100);
    let map = map_of(&disk);
    assert_eq!(map.geometry.size_bytes, (8 << 20) + 512, "the last sector is filled up");
    assert_eq!(map.allocated.runs(), [map.window]);
    assert_eq!(map.warnings.len(), 1);
}
