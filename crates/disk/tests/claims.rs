//! Tests ranges with more than one signature. A survey leaves out free space only if a single signature claims the
//! range: stacked filesystems, members of arrays and tables that disagree are captured whole, with a warning that names
//! both. Zeros outside filesystems count as allocated.

use std::path::{Path, PathBuf};

use base::Extent;
use disk::{DiskMap, TableKind};

use crate::common::stack::raid_superblock;
use crate::common::{Bench, ends, have, map_of, mib, put, read_at, run, run_with_input, write_at};

/// A disk with a GPT and one partition of 48 MiB at 1 MiB. `make` fills a file with the partition's contents.
fn partition_of(bench: &Bench, make: impl Fn(&Path)) -> PathBuf {
    let disk = bench.sparse_file("disk", 64 << 20);
    run("sgdisk -o -n 1:1M:+48M", &[&disk]);
    let image = bench.sparse_file("p.img", 48 << 20);
    make(&image);
    write_at(&disk, 1 << 20, &std::fs::read(&image).unwrap());
    disk
}

fn assert_whole(map: &DiskMap, extent: Extent, words: &[&str]) {
    assert!(map.allocated.contains(extent), "{:?}", map.warnings);
    let warned = map.warnings.iter().any(|warning| words.iter().all(|word| warning.contains(word)));
    assert!(warned, "{words:?} in {:?}", map.warnings);
}

/// A swap header that claims the whole partition, over the partition table of a guest.
#[test]
fn table_of_a_guest_in_a_swap_space() {
    if !have(&["sgdisk", "sfdisk", "mkswap", "mke2fs"]) {
        return;
    }
    for table in ["2048,,83\n", "label: gpt\nsize=20M\n"] {
        let bench = Bench::new();
        let disk = partition_of(&bench, |image| {
            run("mkswap", &[&image]);
            let header = read_at(image, Extent::new(0, 8));
            run_with_input("sfdisk -q --force", image, table);
            // sfdisk may have wiped the header of the swap space: write it again.
            write_at(image, 4086, &header[4086..]);
            put(&bench, image, mib(1, 20), "mke2fs -q -F -t ext4");
        });
        let kind = if table.starts_with("label") { "gpt" } else { "mbr" };
        assert_whole(&map_of(&disk), mib(1, 48), &["swap", &format!("a {kind} partition table")]);
    }
}

/// The reverse: the partition table of a guest over the remains of an ext4.
#[test]
fn old_ext4_under_the_table_of_a_guest() {
    if !have(&["sgdisk", "sfdisk", "mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = partition_of(&bench, |image| {
        run("mke2fs -q -F -t ext4", &[&image]);
        run_with_input("sfdisk -q --force --wipe never", image, "69632,,83\n");
        put(&bench, image, mib(34, 10), "mke2fs -q -F -t ext2");
    });
    assert_whole(&map_of(&disk), mib(1, 48), &["ext", "a mbr partition table"]);
}

/// A swap space ends where its header says.
#[test]
fn swap_smaller_than_its_partition() {
    if !have(&["sgdisk", "mkswap"]) {
        return;
    }
    let bench = Bench::new();
    let disk = partition_of(&bench, |image| {
        run("mkswap", &[&image, &"16384"]);
        write_at(image, 30 << 20, b"behind the swap space");
    });
    let map = map_of(&disk);
    assert!(map.partitions[0].filesystem.as_ref().unwrap().understood);
    assert_eq!(map.warnings, [""; 0]);
    // Everything after the end of the swap space is allocated, even zeros.
    let free = map.allocated.gaps_within(map.window);
    assert_eq!(free.runs(), [Extent::between((1 << 11) + 256, 17 << 11)]);
    assert!(ends(mib(1, 48)).into_iter().all(|end| map.allocated.contains(end)));
}

#[test]
fn swap_on_a_mirror_with_its_superblock_at_the_end() {
    if !have(&["sgdisk", "mkswap", "blkid"]) {
        return;
    }
    let bench = Bench::new();
    let disk = partition_of(&bench, |image| {
        run("mkswap", &[&image, &"49000"]);
        let offset = (48 << 20) - 8192;
        write_at(image, offset, &raid_superblock(offset, 48 << 11));
        assert!(run("blkid -p", &[&image]).contains("linux_raid_member"), "blkid knows it");
    });
    assert_whole(&map_of(&disk), mib(1, 48), &["swap", "linux_raid_member"]);
}

/// Boot code is not a partition table, and an empty table claims nothing.
#[test]
fn boot_sectors_are_no_tables() {
    if !have(&["sgdisk", "mke2fs", "mkfs.fat"]) {
        return;
    }
    let mut code = vec![0x90; 512];
    code[510..].copy_from_slice(&[0x55, 0xAA]);
    let mut empty = vec![0; 512];
    empty[..446].fill(0x90);
    empty[510..].copy_from_slice(&[0x55, 0xAA]);
    for sector in [code, empty] {
        let bench = Bench::new();
        let disk = partition_of(&bench, |image| {
            run("mke2fs -q -F -t ext4", &[&image]);
            write_at(image, 0, &sector);
        });
        let map = map_of(&disk);
        assert_eq!(map.warnings, [""; 0]);
        assert!(map.partitions[0].filesystem.as_ref().unwrap().understood);
    }
    // The boot sector of FAT ends with the magic of a table. If it also has a partition entry, the range is ambiguous.
    for fat in ["-F 16", "-F 32 -s 1"] {
        let bench = Bench::new();
        let disk = partition_of(&bench, |image| drop(run(&format!("mkfs.fat {fat}"), &[&image])));
        assert_eq!(map_of(&disk).warnings, [""; 0], "mkfs.fat {fat}");
        let mut slot = [0; 16];
        (slot[4], slot[9], slot[13]) = (0x83, 8, 8);
        write_at(&disk, (1 << 20) + 446, &slot);
        assert_whole(&map_of(&disk), mib(1, 48), &["vfat", "a mbr partition table"]);
    }
}

/// A superblock of an old btrfs in free space is no reason to distrust an ext4, but it makes a swap header doubtful.
#[test]
fn copies_of_superblocks() {
    if !have(&["mke2fs", "mkswap"]) {
        return;
    }
    for (mkfs, understood) in [("mke2fs -q -F -t ext4", true), ("mkswap", false)] {
        let bench = Bench::new();
        let disk = bench.sparse_file("disk", 100 << 20);
        run(mkfs, &[&disk]);
        write_at(&disk, (64 << 20) + 0x40, b"_BHRfS_M");
        assert_eq!(!map_of(&disk).allocated.contains(mib(0, 100)), understood, "{mkfs}");
    }
}

/// Each filesystem that is understood, with a second signature at the start, inside or at the end of its range.
#[test]
fn every_second_signature_means_whole() {
    if !have(&["mke2fs", "mkswap", "mkfs.fat"]) {
        return;
    }
    let size = 40 << 20;
    let seconds: [(&str, u64, &[u8]); 12] = [
        ("crypto_LUKS", 0, b"LUKS\xBA\xBE"),
        ("crypto_LUKS", 4 << 20, b"SKUL\xBA\xBE"),
        ("LVM2_member", 1536 + 0x18, b"LVM2 001"),
        ("btrfs", (64 << 10) + 0x40, b"_BHRfS_M"),
        ("ufs", (256 << 10) + 0x55C, b"\x19\x01\x54\x19"),
        ("zfs_member", size - (128 << 10) + 4096, b"\x0C\xB1\xBA\0\0\0\0\0"),
        ("linux_raid_member", size - (64 << 10), b"\xFC\x4E\x2B\xA9"),
        ("linux_raid_member", 4096, b"\xFC\x4E\x2B\xA9"),
        ("isw_raid_member", size - 1024, b"Intel Raid ISM Cfg Sig. "),
        ("VMFS_volume_member", 1 << 20, b"\x0D\xD0\x01\xC0"),
        ("a gpt partition table", size - 4096, b"EFI PART"),
        ("a bsd partition table", 512, b"\x57\x45\x56\x82"),
    ];
    for (mkfs, first) in [("mke2fs -q -F -t ext4", "ext"), ("mkswap", "swap"), ("mkfs.fat -F 16", "vfat")] {
        let bench = Bench::new();
        let disk = bench.sparse_file("disk", size);
        run(mkfs, &[&disk]);
        assert!(!map_of(&disk).allocated.contains(mib(0, 40)), "{mkfs}");
        for (second, offset, magic) in seconds {
            // The sectors that the magic touches, to restore them afterwards.
            let sectors = Extent::new(offset / 512, 2.min((size - offset / 512 * 512) / 512));
            let before = read_at(&disk, sectors);
            write_at(&disk, offset, magic);
            assert_whole(&map_of(&disk), mib(0, 40), &[first, second]);
            write_at(&disk, sectors.offset_bytes(), &before);
        }
    }
}

/// A member of an array of whole disks: its superblock is at the end of the disk, after the last partition.
#[test]
fn a_signature_beside_the_table_of_a_disk() {
    if !have(&["sfdisk", "mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", 64 << 20);
    run_with_input("sfdisk -q", &disk, "2048,65536,83\n67584,32768,82\n");
    put(&bench, &disk, mib(1, 32), "mke2fs -q -F -t ext4");
    put(&bench, &disk, mib(33, 16), "mkswap");
    let good = map_of(&disk);
    assert_eq!(good.warnings, [""; 0]);
    assert!(good.allocated.contains(mib(49, 15)), "the gap behind the last partition");
    write_at(&disk, (64 << 20) - 512, b"\xDE\x11\xDE\x11");
    assert_whole(&map_of(&disk), mib(0, 64), &["the disk", "ddf_raid_member"]);
}

/// If the disk and its last partition end at the same place, a signature there belongs to the partition.
#[test]
fn the_last_partition_of_a_disk_may_be_a_member() {
    if !have(&["sfdisk", "mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", 64 << 20);
    run_with_input("sfdisk -q", &disk, "2048,65536,83\n67584,,fd\n");
    put(&bench, &disk, mib(1, 32), "mke2fs -q -F -t ext4");
    write_at(&disk, (64 << 20) - (64 << 10), b"\xFC\x4E\x2B\xA9");
    let map = map_of(&disk);
    assert!(!map.allocated.contains(mib(1, 32)), "{:?}", map.warnings);
    assert_whole(&map, mib(33, 31), &["partition 2", "linux_raid_member"]);
}

/// A survey recognises what the tools of each format make, and names it as blkid does.
#[test]
fn what_tools_make_is_known() {
    const MAKERS: [(&str, &str); 14] = [
        ("mkfs.jfs -q", "jfs"),
        ("mkreiserfs -q -f", "reiserfs"),
        ("mkfs.f2fs -q", "f2fs"),
        ("mkntfs -Q -F -q", "ntfs"),
        ("mkfs.exfat", "exfat"),
        ("mkudffs", "udf"),
        ("mkfs.btrfs -q", "btrfs"),
        ("mkfs.minix -1", "minix"),
        ("mkfs.minix -2", "minix"),
        ("mkfs.minix -3", "minix"),
        ("mkfs.bfs", "bfs"),
        ("make-bcache -B", "bcache"),
        (
            "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --key-file /etc/hostname",
            LUKS,
        ),
        (
            "cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \
             --key-file /etc/hostname",
            LUKS,
        ),
    ];
    const LUKS: &str = "crypto_LUKS";
    let tools: Vec<_> = MAKERS.iter().map(|(line, _)| line.split(' ').next().unwrap()).collect();
    if !have(&tools) || !have(&["blkid"]) {
        return;
    }
    for (line, kind) in MAKERS {
        let bench = Bench::new();
        let disk = bench.sparse_file("disk", 160 << 20);
        run(line, &[&disk]);
        assert_eq!(run("blkid -p -s TYPE -o value", &[&disk]).trim(), kind, "{line}");
        let map = map_of(&disk);
        let filesystem = map.partitions[0].filesystem.as_ref().unwrap();
        assert_eq!(filesystem.kind, kind, "{line}: {:?}", map.warnings);
        assert_eq!(
            filesystem.understood,
            matches!(kind, "btrfs" | "ntfs" | "exfat"),
            "{line}: {:?}",
            map.warnings
        );
        if !filesystem.understood {
            let unknown = format!("the free space of {kind} is not known");
            assert_whole(&map, mib(0, 160), &[if kind == LUKS { "it is encrypted" } else { &unknown }]);
        }
        // Together with a swap header, whose magic overwrites hardly any of the other formats.
        write_at(&disk, 4086, b"SWAPSPACE2");
        assert_whole(&map_of(&disk), mib(0, 160), &["swap", kind]);
    }
}

/// Partition tables of other systems are recognised, but not understood.
#[test]
fn tables_of_other_systems() {
    if !have(&["sfdisk", "parted", "mke2fs"]) {
        return;
    }
    for label in ["sun", "sgi", "bsd", "mac", "amiga", "atari", "aix"] {
        let bench = Bench::new();
        let disk = bench.sparse_file("disk", 64 << 20);
        match label {
            // The partition starts at sector 0, as on Solaris.
            "sun" => run_with_input("sfdisk -q", &disk, "label: sun\n1: start=0, size=112455, type=83\n"),
            "sgi" => run_with_input("sfdisk -q", &disk, "label: sgi\n"),
            "aix" => write_at(&disk, 0, b"\xC9\xC2\xD4\xC1"),
            _ => drop(run("parted -s", &[&disk, &"mklabel", &label])),
        }
        if label == "atari" {
            run("parted -s", &[&disk, &"mkpart", &"primary", &"ext2", &"1MiB", &"20MiB"]);
        }
        let name = format!("a {label} partition table");
        let map = map_of(&disk);
        assert_eq!((map.table, map.partitions.len()), (TableKind::None, 1), "{label}");
        assert_eq!(map.partitions[0].filesystem.as_ref().unwrap().kind, label);
        assert_whole(&map, mib(0, 64), &[&name]);
        // Together with an ext4 that starts at sector 0, and together with a boot record.
        let sector = read_at(&disk, Extent::new(0, 32));
        if label != "amiga" {
            run("mke2fs -q -F -t ext4 -b 4096", &[&disk]);
            write_at(&disk, 0, &sector[..1024]);
            assert_whole(&map_of(&disk), mib(0, 64), &["ext", &name]);
        }
        if label != "sun" && label != "atari" {
            let disk = bench.sparse_file("both", 64 << 20);
            run_with_input("sfdisk -q", &disk, "2048,65536,83\n");
            let record = read_at(&disk, Extent::new(0, 1));
            write_at(&disk, 0, &sector);
            write_at(&disk, 440, &record[440..]);
            assert_whole(&map_of(&disk), mib(0, 64), &["a partition table, but also", &name]);
        }
    }
}

/// A disk of 100 MiB with a GPT: partition 1 at 1 MiB holds an ext4, the rest is zeros.
fn gpt(bench: &Bench) -> PathBuf {
    let disk = bench.sparse_file("disk", 100 << 20);
    run("sgdisk -o -n 1:1M:+40M", &[&disk]);
    put(bench, &disk, mib(1, 40), "mke2fs -q -F -t ext4");
    assert_eq!(map_of(&disk).warnings, [""; 0]);
    disk
}

#[test]
fn boot_record_and_gpt_that_disagree() {
    if !have(&["sgdisk", "mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = gpt(&bench);
    let sector = read_at(&disk, Extent::new(0, 1));
    // A partition at 60 MiB that is only in the boot record.
    let mut slot = [0; 16];
    slot[4] = 0x83;
    slot[8..12].copy_from_slice(&(60u32 << 11).to_le_bytes());
    slot[12..].copy_from_slice(&(10u32 << 11).to_le_bytes());
    write_at(&disk, 446 + 16, &slot);
    assert_whole(&map_of(&disk), mib(0, 100), &["a partition that the GPT lacks"]);
    write_at(&disk, 0, &sector);
    // With this protective entry Linux does not look for a GPT, but other programs do.
    write_at(&disk, 446 + 8, &[2]);
    assert_whole(&map_of(&disk), mib(0, 100), &["does not begin with the second block"]);
}

#[test]
fn copies_of_a_gpt_that_disagree() {
    if !have(&["sgdisk", "mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = gpt(&bench);
    // A difference in names only is accepted.
    let before = read_at(&disk, Extent::new(0, 34));
    run("sgdisk -c 1:renamed", &[&disk]);
    write_at(&disk, 0, &before);
    let map = map_of(&disk);
    assert_eq!(map.warnings, ["the GPT and its backup differ; the primary counts"]);
    assert!(!map.allocated.contains(mib(1, 40)));
    // A second partition that is only in the backup.
    run("sgdisk -n 2:60M:+10M", &[&disk]);
    write_at(&disk, 0, &before);
    assert_whole(&map_of(&disk), mib(0, 100), &["its backup disagree"]);
}

/// A backup at the end of the disk counts, even if the primary says that its backup is elsewhere.
#[test]
fn old_backup_of_a_gpt_at_the_end_of_a_disk() {
    if !have(&["sgdisk", "sfdisk", "mke2fs"]) {
        return;
    }
    let bench = Bench::new();
    let larger = gpt(&bench);
    // Write the image of a smaller disk over it: the new backup is at 80 MiB, and the old one at the end remains.
    let disk = bench.sparse_file("smaller", 80 << 20);
    run("sgdisk -o -n 1:2M:+30M", &[&disk]);
    write_at(&larger, 0, &std::fs::read(&disk).unwrap());
    assert_whole(&map_of(&larger), mib(0, 100), &["its backup disagree"]);
    // Without the old backup, the disk looks like one that has grown.
    write_at(&larger, (100 << 20) - 512, &[0; 512]);
    assert_eq!(
        map_of(&larger).warnings[0],
        "partition 1 is captured whole: it holds no filesystem that is known"
    );
    // A boot record replaces the GPT, but the backup of the GPT remains.
    let disk = bench.sparse_file("third", 64 << 20);
    run("sgdisk -o -n 1:1M:+30M", &[&disk]);
    let end = read_at(&disk, Extent::new((64 << 11) - 33, 33));
    run_with_input("sfdisk -q --wipe always", &disk, "label: dos\n2048,65536,83\n");
    assert!(!map_of(&disk).warnings.iter().any(|warning| warning.contains("the disk")));
    write_at(&disk, (64 << 20) - 33 * 512, &end);
    assert_whole(&map_of(&disk), mib(0, 64), &["a partition table, but also", "gpt"]);
}
