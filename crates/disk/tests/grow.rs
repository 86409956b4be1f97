//! Disks that are put on larger ones and grow there, judged by the tools of partition tables and filesystems.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use base::{ErrorKind, Extent};
use disk::grow::{Wish, grow};

use crate::common::*;

fn of(number: Option<u32>) -> Wish {
    Wish { number, ..Wish::default() }
}

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
/// 90 MiB in the last partition.
const SMALL: &str = "label: dos\nstart=4096, size=184320, type=83\n";
const SMALL_LOGICAL: &str = "label: dos\nstart=2048, size=186368, type=f\nstart=4096, size=184320, type=83\n";
const SMALL_GPT: &str = "label: gpt\nstart=4096, size=184320, type=L\n";
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
            assert_eq!(grow(&disk, &of(None)).unwrap(), None, "{name}");
            assert_eq!(last_bytes(&disk), old, "{name}");
        }
        File::options().write(true).open(&disk).unwrap().set_len(NEW).unwrap();
        let grown = grow(&disk, &of(None)).unwrap().unwrap();
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
        assert_eq!(grow(&disk, &of(None)).unwrap(), None, "{name}");
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
    grow(&bare, &of(None)).unwrap();
    let told = run("dumpe2fs -h", &[&bare]);
    assert_eq!(number(&told, "Block count:") * number(&told, "Block size:"), NEW);

    let table = "label: gpt\nstart=2048, size=204800, type=L\nstart=206848, size=204800, type=S\n";
    let disk = bench.sparse_file("swap", OLD);
    run_with_input("sfdisk -q", &disk, table);
    let part = Loop::over(&disk, &format!("-o {} --sizelimit {}", 206_848 * 512, 204_800 * 512));
    run("mkswap -U 6b1d8f9c-4b5e-4a52-9d3a-0f0f5a2f1c11 -L mine", &[&part.0]);
    drop(part);
    assert_eq!(grow(&disk, &of(None)).unwrap_err().kind(), ErrorKind::Refused);
    assert!(grow(&disk, &of(Some(2))).unwrap().is_some());
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
    assert!(grow(&disk, &of(None)).unwrap().is_some());
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

/// A disk with a volume group in its only partition. Its volumes have these names and sizes in extents of 4 MiB, and
/// lie one after the other. Each gets what the line makes in it.
fn group(bench: &Bench, file: &str, volumes: &[(&str, u64, &str)]) -> PathBuf {
    let disk = bench.sparse_file(file, OLD);
    run_with_input("sfdisk -q", &disk, "label: gpt\nstart=2048, size=409600, type=V\n");
    let device = Loop::over(&disk, &format!("-o {} --sizelimit {}", 2048 * 512, 409_600 * 512));
    let devices = format!("--driverloaded n --devices {}", device.0.display());
    run(&format!("pvcreate -q {devices}"), &[&device.0]);
    run(&format!("vgcreate -q {devices} group"), &[&device.0]);
    for (name, extents, _) in volumes {
        run(&format!("lvcreate -q {devices} -an -Zn -Wn -y -l {extents} -n {name} group"), &[]);
    }
    drop(device);
    let mut at = 0;
    for (_, extents, make) in volumes {
        let part = volume(&disk, at, *extents);
        run(make, &[&part.0]);
        at += extents;
    }
    disk
}

/// A logical volume that begins at an extent, as a device.
fn volume(disk: &Path, at: u64, extents: u64) -> Loop {
    Loop::over(disk, &format!("-o {} --sizelimit {}", (2 << 20) + (at << 22), extents << 22))
}

fn lengthen(disk: &Path) {
    File::options().write(true).open(disk).unwrap().set_len(NEW).unwrap();
}

#[test]
fn a_logical_volume_and_its_filesystem_grow_where_no_kernel_knows_it() {
    if !is_root() || !have(&["mkfs.ext4", "mkfs.btrfs", "mkswap", "lvcreate", "lvextend", "vgs"]) {
        return;
    }
    let bench = Bench::new();
    for make in ["mkfs.ext4 -q", "mkfs.btrfs -q"] {
        let disk = group(&bench, &make[5..9], &[("swap", 4, "mkswap"), ("root", 32, make)]);
        lengthen(&disk);
        let grown = grow(&disk, &Wish::default()).unwrap().unwrap();
        let volume_grown = grown.volume.clone().unwrap();
        assert_eq!((volume_grown.name.as_str(), volume_grown.bytes.0), ("root", 32 << 22), "{grown:?}");
        // All but what the tables, LVM's metadata and the rest of an extent take.
        assert!(volume_grown.bytes.1 > NEW - (16 << 20) - (4 << 22), "{grown:?}");
        let part = volume(&disk, 4, volume_grown.bytes.1 >> 22);
        if make.contains("ext4") {
            run("e2fsck -fn", &[&part.0]);
            let told = run("dumpe2fs -h", &[&part.0]);
            assert_eq!(number(&told, "Block count:") * number(&told, "Block size:"), volume_grown.bytes.1);
        } else {
            run("btrfs check", &[&part.0]);
            let told = run("btrfs inspect-internal dump-super", &[&part.0]);
            assert_eq!(number(&told, "total_bytes"), volume_grown.bytes.1);
        }
        drop(part);
        // LVM's own check, and a second time.
        let device = Loop::over(&disk, &format!("-o {}", 2048 * 512));
        run(&format!("vgck -q --driverloaded n --devices {} group", device.0.display()), &[]);
        drop(device);
        assert_eq!(grow(&disk, &Wish::default()).unwrap(), None);
        assert_eq!(map_of(&disk).warnings, Vec::<String>::new());
    }
}

#[test]
fn which_volume_is_meant_is_not_guessed() {
    if !is_root() || !have(&["mkfs.ext4", "mkswap", "lvcreate", "lvextend", "vgs"]) {
        return;
    }
    let bench = Bench::new();
    let has_mapper = Command::new("dmsetup").arg("targets").output().is_ok_and(|told| told.status.success());
    let wish = |name: &str| Wish { volume: Some(name.to_owned()), ..Wish::default() };
    // Two that could.
    let disk = group(&bench, "two", &[("home", 8, "mkfs.ext4 -q"), ("root", 8, "mkfs.ext4 -q")]);
    lengthen(&disk);
    for (name, words) in [("srv", "there is no logical volume `srv`; there are: "), ("home", "second piece")]
    {
        // Where the kernel has a device mapper, the second piece is no obstacle.
        if name == "home" && has_mapper {
            continue;
        }
        let error = grow(&disk, &wish(name)).unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(words), "{error}");
        assert!(map_of(&disk).partitions[0].extent.count == 409_600, "the partition has changed");
    }
    let grown = grow(&disk, &Wish::default()).unwrap().unwrap();
    assert_eq!(grown.volume, None, "the physical volume alone");
    let grown = grow(&disk, &wish("root")).unwrap().unwrap();
    assert_eq!(grown.volume.as_ref().unwrap().name, "root");
    run("e2fsck -fn", &[&volume(&disk, 8, grown.volume.unwrap().bytes.1 >> 22).0]);
    run("e2fsck -fn", &[&volume(&disk, 0, 8).0]);
    // Swap space is not meant, and what no partition has is said.
    let disk = group(&bench, "swap", &[("root", 8, "mkfs.ext4 -q"), ("swap", 8, "mkswap")]);
    lengthen(&disk);
    let error = grow(&disk, &wish("swap")).unwrap_err();
    assert!(error.to_string().contains("can't grow: it holds swap"), "{error}");
    let bare = bench.sparse_file("bare", OLD);
    run("mkfs.ext4 -q -F", &[&bare]);
    let error = grow(&bare, &wish("root")).unwrap_err();
    assert!(error.to_string().contains("no logical volumes"), "{error}");
}

/// A disk of 400 MiB that became one of `bytes`.
fn lengthened(bench: &Bench, table: &str, start: u64, mkfs: &str, mount: &str, bytes: u64) -> PathBuf {
    let disk = some_disk(bench, table, start, mkfs, mount);
    File::options().write(true).open(&disk).unwrap().set_len(bytes).unwrap();
    disk
}

#[test]
fn a_partition_of_an_mbr_ends_where_its_32_bits_do() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4", "mkswap"]) {
        return;
    }
    // The sectors that an MBR reaches.
    const REACH: u64 = u32::MAX as u64;
    const LARGEST: u64 = 2 << 40;
    let cases = [
        ("ext4", MBR, "mkfs.ext4 -q -F -b 4096 -i 4194304", 22528, Some(2), LARGEST + (60 << 20)),
        ("swap", MBR, "mkswap -q", 22528, Some(2), 2 * LARGEST + (60 << 20)),
        ("swap, logical", LOGICAL, "mkswap -q", 24576, Some(5), LARGEST + (700 << 20)),
        ("swap, one sector less", MBR, "mkswap -q", 22528, Some(2), (REACH - 1) * 512),
    ];
    for (name, table, mkfs, start, wanted, bytes) in cases {
        let bench = Bench::new();
        let disk = lengthened(&bench, table, start, mkfs, "", bytes);
        let old = last_bytes(&disk);
        let grown = grow(&disk, &of(wanted)).unwrap().unwrap();
        let end = REACH.min(bytes / 512);
        assert_eq!(grown.bytes, (old, (end - start) * 512), "{name}");
        assert_eq!(disk::grow::out_of_reach(&disk).unwrap(), bytes - end * 512, "{name}");
        let told = run("sfdisk -d", &[&disk]);
        let size = told.lines().last().unwrap().split("size=").nth(1).unwrap();
        assert_eq!(
            size.trim().split(',').next().unwrap().trim().parse::<u64>().unwrap(),
            end - start,
            "{name}: {told}"
        );
        if name == "ext4" {
            let part = Loop::over(&disk, &format!("-o {} --sizelimit {}", start * 512, grown.bytes.1));
            run("e2fsck -fn", &[&part.0]);
            let told = run("dumpe2fs -h", &[&part.0]);
            assert_eq!(number(&told, "Block count:"), grown.bytes.1 / 4096, "{name}");
        }
        assert_eq!(grow(&disk, &of(wanted)).unwrap(), None, "{name}");
    }
}

#[test]
fn a_disk_whose_filesystem_refuses_is_as_it_was() {
    if !is_root() || !have(&["sfdisk", "sgdisk", "mkfs.ext4", "lvcreate", "lvextend", "vgs"]) {
        return;
    }
    // So many groups of 8 MiB have no room for their table.
    const FAR: u64 = (2 << 40) + (60 << 20);
    let mkfs = "mkfs.ext4 -q -F -b 1024";
    for (name, table) in [("MBR", SMALL), ("logical", SMALL_LOGICAL), ("GPT", SMALL_GPT)] {
        let bench = Bench::new();
        let disk = lengthened(&bench, table, 4096, mkfs, "mount", FAR);
        let (device, mounted) = open_last(&bench, &disk, "mount");
        let copy = bench.tree("copy");
        run("cp -a", &[&mounted.folder, &copy]);
        drop((mounted, device));
        let (before, front) = (map_of(&disk), read_at(&disk, Extent::new(0, 4096)));
        let end = Extent::new(FAR / 512 - 4096, 4096);
        let error = grow(&disk, &of(None)).unwrap_err();
        let told = base::chain(&error);
        assert!(error.kind() == ErrorKind::Io && told.contains("did not grow"), "{name}: {told}");
        assert!(told.contains("resize2fs"), "{name}: {told}");
        assert!(read_at(&disk, Extent::new(0, 4096)) == front, "{name}: the table has changed");
        assert!(read_at(&disk, end).iter().all(|byte| *byte == 0), "{name}: the end has changed");
        let after = map_of(&disk);
        assert_eq!((&after.partitions, &after.warnings), (&before.partitions, &before.warnings), "{name}");
        let (device, mounted) = open_last(&bench, &disk, "mount");
        assert_same_files(&copy, &mounted.folder, &["lost+found"], name);
        drop(mounted);
        run("e2fsck -fn", &[&device.0]);
    }
    // In LVM the group and the volume are as they were, too.
    let bench = Bench::new();
    let disk = group(&bench, "lvm", &[("root", 22, mkfs)]);
    File::options().write(true).open(&disk).unwrap().set_len(FAR).unwrap();
    let (before, front) = (map_of(&disk), read_at(&disk, Extent::new(0, 4096)));
    let told = base::chain(&grow(&disk, &of(None)).unwrap_err());
    assert!(told.contains("did not grow") && told.contains("resize2fs"), "{told}");
    let after = map_of(&disk);
    assert_eq!((&after.partitions, &after.warnings), (&before.partitions, &before.warnings));
    assert!(read_at(&disk, Extent::new(0, 4096)) == front, "the table or LVM's metadata has changed");
    run("e2fsck -fn", &[&volume(&disk, 0, 22).0]);
}

#[test]
fn a_filesystem_that_resize2fs_would_damage_is_not_touched() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4"]) {
        return;
    }
    let bench = Bench::new();
    // resize2fs 1.47.0 gives up in the middle, and damages the root directory. Others may succeed.
    let disk = lengthened(&bench, SMALL, 4096, "mkfs.ext4 -q -F -b 4096", "", 900 << 30);
    let old = map_of(&disk).partitions;
    let grown = grow(&disk, &of(None));
    let now = map_of(&disk).partitions;
    assert_eq!(grown.is_err(), now == old, "{grown:?}");
    let part = format!("-o {} --sizelimit {}", now[0].extent.offset_bytes(), now[0].extent.len_bytes());
    run("e2fsck -fn", &[&Loop::over(&disk, &part).0]);
}

#[test]
fn a_disk_of_data_gets_a_gpt_to_grow_beyond_an_mbr() {
    if !is_root() || !have(&["sfdisk", "sgdisk", "mkfs.ext4", "mkfs.vfat"]) {
        return;
    }
    const FAR: u64 = (2 << 40) + (700 << 20);
    const DATA: &str = "label: dos\n1 : start=2048, size=20480, type=82\n4 : start=22528, type=5\n5 : \
        start=24576, type=83\n";
    let mkfs = "mkfs.ext4 -q -F -b 4096 -i 4194304";
    let wish = Wish { to_gpt: true, ..Wish::default() };
    let bench = Bench::new();
    let disk = lengthened(&bench, DATA, 24576, mkfs, "", FAR);
    let old = last_bytes(&disk);
    let grown = grow(&disk, &wish).unwrap().unwrap();
    assert_eq!((grown.number, grown.bytes), (5, (old, last_bytes(&disk))));
    assert!(FAR - 24576 * 512 - grown.bytes.1 < 1 << 20, "{grown:?}");
    let told = run("sgdisk -v", &[&disk]);
    assert!(told.contains("No problems found"), "{told}");
    let told = run("sfdisk -d", &[&disk]);
    let ours = ["1 : start=        2048, size=       20480, type=0657FD6D", "5 : start=       24576, size="];
    assert!(told.contains("label: gpt") && ours.iter().all(|line| told.contains(line)), "{told}");
    run("e2fsck -fn", &[&Loop::over(&disk, &format!("-o {} --sizelimit {}", 24576 * 512, grown.bytes.1)).0]);
    // What machines may start from stays as it is, and so does what can't grow.
    let active = DATA.replace("type=82", "type=82, bootable");
    let cases: [(&str, &str, u64, &[u8], &str); 5] = [
        (&active, mkfs, 0, &[], "an active partition"),
        (DATA, mkfs, 0, &[0xEB, 0x63], "boot code"),
        (DATA, mkfs, 8192, b"loader", "a loader may lie"),
        (MBR, mkfs, 0, &[], "may start from partition 1"),
        (DATA, "mkfs.ext4 -q -F -b 1024", 0, &[], "did not grow"),
    ];
    for (table, mkfs, at, bytes, words) in cases {
        let bench = Bench::new();
        let start = if table == MBR { 22528 } else { 24576 };
        let disk = lengthened(&bench, table, start, mkfs, "", FAR);
        write_at(&disk, at, bytes);
        let front = read_at(&disk, Extent::new(0, 22529));
        let told = base::chain(&grow(&disk, &wish).unwrap_err());
        assert!(told.contains(words), "{told}");
        assert!(read_at(&disk, Extent::new(0, 22529)) == front, "{words}: the table has changed");
        let end = read_at(&disk, Extent::new(FAR / 512 - 4096, 4096));
        assert!(end.iter().all(|byte| *byte == 0), "{words}: the end has changed");
    }
    let error = grow(&disk, &wish).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("no MBR"), "{error}");
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
        assert_eq!(grow(&disk, &of(wanted)).unwrap_err().kind(), ErrorKind::Refused);
    }
    assert!(fs::read(&disk).unwrap() == before);
    // A disk in use.
    let disk = some_disk(&bench, MBR, 22528, "mkfs.ext4 -q -F", "");
    let before = fs::read(&disk).unwrap();
    let (device, mounted) = open_last(&bench, &disk, "mount -o ro");
    assert_eq!(grow(&disk, &of(None)).unwrap_err().kind(), ErrorKind::Refused);
    drop((mounted, device));
    assert!(fs::read(&disk).unwrap() == before);
}
