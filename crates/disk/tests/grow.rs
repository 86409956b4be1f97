//! Disks that are put on larger ones and grow there, judged by the tools of partition tables and filesystems.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test that fails says where")]

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use base::ErrorKind;
use common::*;
use disk::grow::grow;

/// Sizes of the disk before and after, in bytes.
const OLD: u64 = 400 << 20;
const NEW: u64 = 900 << 20;

/// Makes a disk with the partition table `table`, and puts a filesystem of `kind` with files into its last partition,
/// which begins at sector `start`.
fn some_disk(bench: &Bench, table: &str, start: u64, mkfs: &str, mount: &str) -> PathBuf {
    let disk = bench.sparse_file("disk", OLD);
    run_with_input("sfdisk -q", &disk, table);
    let bytes = map_of(&disk).partitions.last().unwrap().extent.len_bytes();
    let part = bench.sparse_file("part", bytes);
    run(mkfs, &[&part]);
    if !mount.is_empty() {
        let mounted = Mounted::by(mount, &part, bench.tree("mount"));
        populate(&mounted.folder, 5);
        run("sync -f", &[&mounted.folder]);
    }
    run(
        &format!("dd bs=1M conv=notrunc,sparse oflag=seek_bytes status=none seek={}", start * 512),
        &[&format!("if={}", part.display()), &format!("of={}", disk.display())],
    );
    disk
}

/// Mounts the last partition of `disk`.
fn open_last(bench: &Bench, disk: &Path, mount: &str) -> (Loop, Mounted) {
    let extent = map_of(disk).partitions.last().unwrap().extent;
    let device =
        Loop::over(disk, &format!("-o {} --sizelimit {}", extent.offset_bytes(), extent.len_bytes()));
    let mounted = Mounted::by(mount, &device.0, bench.tree("after"));
    (device, mounted)
}

fn last_bytes(disk: &Path) -> u64 {
    map_of(disk).partitions.last().unwrap().extent.len_bytes()
}

const GPT: &str = "label: gpt\nstart=2048, size=20480, type=U\nstart=22528, size=794624, type=L\n";
const MBR: &str = "label: dos\nstart=2048, size=20480, type=c\nstart=22528, type=83\n";
const LOGICAL: &str =
    "label: dos\nstart=2048, size=20480, type=c\nstart=22528, type=f\nstart=24576, type=83\n";
/// The extended partition has number 4, and 2 and 3 are empty.
const FOURTH: &str =
    "label: dos\n1 : start=2048, size=20480, type=c\n4 : start=22528, type=f\n5 : start=24576, type=83\n";

#[test]
fn the_last_partition_and_its_filesystem_fill_a_larger_disk() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mkntfs", "ntfs-3g", "sgdisk"])
    {
        return;
    }
    let cases = [
        ("ext4", GPT, 22528, "mkfs.ext4 -q -F", "mount", "e2fsck -fn"),
        ("ext4 on MBR", MBR, 22528, "mkfs.ext4 -q -F -O ^64bit,^metadata_csum", "mount", "e2fsck -fn"),
        ("logical ext4", LOGICAL, 24576, "mkfs.ext4 -q -F", "mount", "e2fsck -fn"),
        ("logical in the fourth", FOURTH, 24576, "mkfs.ext4 -q -F", "mount", "e2fsck -fn"),
        ("ext2", GPT, 22528, "mkfs.ext2 -q -F", "mount", "e2fsck -fn"),
        ("xfs", GPT, 22528, "mkfs.xfs -q", "mount", "xfs_repair -n"),
        ("btrfs", GPT, 22528, "mkfs.btrfs -q", "mount", "btrfs check"),
        ("ntfs", MBR, 22528, "mkntfs -q -F -f", "ntfs-3g", "ntfsresize --info --force"),
    ];
    for (name, table, start, mkfs, mount, check) in cases {
        let bench = Bench::new();
        let disk = some_disk(&bench, table, start, mkfs, mount);
        let (device, before) = open_last(&bench, &disk, mount);
        let copy = bench.tree("copy");
        run("cp -a", &[&before.folder, &copy]);
        drop((before, device));
        let old = last_bytes(&disk);
        // Nothing to gain: nothing changes but what the tools note.
        if table != GPT {
            assert_eq!(grow(&disk, None).unwrap(), None, "{name}");
            assert_eq!(last_bytes(&disk), old, "{name}");
        }
        File::options().write(true).open(&disk).unwrap().set_len(NEW).unwrap();
        let grown = grow(&disk, None).unwrap().unwrap();
        assert_eq!(grown.bytes, (old, last_bytes(&disk)), "{name}");
        assert!(NEW - last_bytes(&disk) - start * 512 <= 2 << 20, "{name}: {}", last_bytes(&disk));
        if table == GPT {
            let told = run("sgdisk -v", &[&disk]);
            assert!(told.contains("No problems found"), "{name}: {told}");
        }
        let extent = map_of(&disk).partitions.last().unwrap().extent;
        let part = bench.path("check");
        fs::write(&part, read_at(&disk, extent)).unwrap();
        run(check, &[&part]);
        let (device, after) = open_last(&bench, &disk, mount);
        let stat = rustix::fs::statvfs(&after.folder).unwrap();
        assert!(stat.f_blocks * stat.f_frsize > NEW / 10 * 8, "{name}: {} blocks", stat.f_blocks);
        assert_same_files(&copy, &after.folder, &["lost+found"], name);
        drop((after, device));
        // A second call does no harm.
        assert_eq!(grow(&disk, None).unwrap(), None, "{name}");
    }
}

#[test]
fn a_filesystem_without_a_table_and_swap_and_lvm_grow() {
    if !is_root() || !have(&["mkfs.ext4", "mkswap", "pvcreate", "vgcreate", "pvs"]) {
        return;
    }
    let bench = Bench::new();
    let bare = bench.sparse_file("bare", OLD);
    run("mkfs.ext4 -q -F", &[&bare]);
    File::options().write(true).open(&bare).unwrap().set_len(NEW).unwrap();
    // A survey ends the disk where the file does, so nothing of it grows but the filesystem.
    grow(&bare, None).unwrap();
    let told = run("dumpe2fs -h", &[&bare]);
    assert_eq!(number(&told, "Block count:") * number(&told, "Block size:"), NEW);

    let table = "label: gpt\nstart=2048, size=204800, type=L\nstart=206848, size=204800, type=S\n";
    let disk = bench.sparse_file("swap", OLD);
    run_with_input("sfdisk -q", &disk, table);
    let part = Loop::over(&disk, &format!("-o {} --sizelimit {}", 206_848 * 512, 204_800 * 512));
    run("mkswap -U 6b1d8f9c-4b5e-4a52-9d3a-0f0f5a2f1c11 -L mine", &[&part.0]);
    drop(part);
    assert_eq!(grow(&disk, None).unwrap_err().kind(), ErrorKind::Refused);
    assert!(grow(&disk, Some(2)).unwrap().is_some());
    let swap = map_of(&disk).partitions.pop().unwrap().filesystem.unwrap();
    assert_eq!(swap.uuid.as_deref(), Some("6b1d8f9c-4b5e-4a52-9d3a-0f0f5a2f1c11"));
    assert_eq!(swap.label.as_deref(), Some("mine"));

    let table = "label: gpt\nstart=2048, size=409600, type=V\n";
    let disk = bench.sparse_file("lvm", OLD);
    run_with_input("sfdisk -q", &disk, table);
    let device = Loop::over(&disk, &format!("-o {} --sizelimit {}", 2048 * 512, 409_600 * 512));
    let devices = format!("--driverloaded n --devices {}", device.0.display());
    run(&format!("pvcreate -q {devices}"), &[&device.0]);
    run(&format!("vgcreate -q {devices} group"), &[&device.0]);
    drop(device);
    assert!(grow(&disk, None).unwrap().is_some());
    let device = Loop::over(&disk, &format!("-o {}", 2048 * 512));
    let told = run(
        &format!(
            "pvs --noheadings --units m --nosuffix -o pv_size --driverloaded n --devices {}",
            device.0.display()
        ),
        &[],
    );
    assert!(told.trim().parse::<f64>().unwrap() > 380.0, "{told}");
}

#[test]
fn what_can_not_grow_is_left_as_it_was() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4", "mkfs.vfat"]) {
        return;
    }
    let bench = Bench::new();
    // FAT does not grow.
    let disk = some_disk(&bench, MBR, 22528, "mkfs.vfat -F 32", "");
    let before = fs::read(&disk).unwrap();
    for wanted in [None, Some(1), Some(9)] {
        assert_eq!(grow(&disk, wanted).unwrap_err().kind(), ErrorKind::Refused);
    }
    assert!(fs::read(&disk).unwrap() == before);
    // A disk in use.
    let disk = some_disk(&bench, MBR, 22528, "mkfs.ext4 -q -F", "");
    let before = fs::read(&disk).unwrap();
    let (device, mounted) = open_last(&bench, &disk, "mount -o ro");
    assert_eq!(grow(&disk, None).unwrap_err().kind(), ErrorKind::Refused);
    drop((mounted, device));
    assert!(fs::read(&disk).unwrap() == before);
}
