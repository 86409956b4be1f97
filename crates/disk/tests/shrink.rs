//! Disks that shrink, judged by the tools of partition tables and filesystems.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use base::{ErrorKind, Extent};
use disk::shrink::{plan, shrink};

use crate::common::*;

const OLD: u64 = 900 << 20;
const NEW: u64 = 600 << 20;

/// Boot code, as a loader may have put it before the table.
const BOOT: [u8; 440] = [0xB0; 440];

/// Partitions with what makes a filesystem, and a mount for it.
type Parts<'a> = &'a [(&'a str, &'a str)];

/// Makes a disk with `table`, and in its partitions, by number, filesystems with files.
fn some_disk(bench: &Bench, table: &str, parts: Parts<'_>) -> PathBuf {
    let disk = bench.sparse_file("disk", OLD);
    if !table.is_empty() {
        run_with_input("sfdisk -q", &disk, table);
        File::options().write(true).open(&disk).unwrap().write_all_at(&BOOT, 0).unwrap();
    }
    let extents: Vec<Extent> = match table {
        "" => vec![Extent::new(0, OLD / 512)],
        _ => map_of(&disk).partitions.iter().map(|partition| partition.extent).collect(),
    };
    assert_eq!(extents.len(), parts.len());
    for (index, (extent, (mkfs, mount))) in extents.iter().zip(parts).enumerate() {
        let part = bench.sparse_file(&format!("part{index}"), extent.len_bytes());
        // What makes FAT and NTFS takes the number of the first sector as an argument.
        run(&mkfs.replace("START", &extent.start.to_string()), &[&part]);
        if !mount.is_empty() {
            let mounted = Mounted::by(mount, &part, bench.tree(&format!("mount{index}")));
            populate(&mounted.folder, 5 + index as u64);
            run("sync -f", &[&mounted.folder]);
        }
        run(
            &format!(
                "dd bs=1M conv=notrunc,sparse oflag=seek_bytes status=none seek={}",
                extent.offset_bytes()
            ),
            &[&format!("if={}", part.display()), &format!("of={}", disk.display())],
        );
    }
    disk
}

fn extents(disk: &Path) -> Vec<Extent> {
    map_of(disk).partitions.iter().map(|partition| partition.extent).collect()
}

fn mounted(bench: &Bench, disk: &Path, extent: Extent, mount: &str, name: &str) -> (Loop, Mounted) {
    let device =
        Loop::over(disk, &format!("-o {} --sizelimit {}", extent.offset_bytes(), extent.len_bytes()));
    let mounted = Mounted::by(mount, &device.0, bench.tree(name));
    (device, mounted)
}

const GPT: &str = "label: gpt\nstart=2048, size=20480, type=U, name=\"EFI system\"\nstart=22528, size=1400000, \
    type=L, attrs=\"LegacyBIOSBootable\"\nstart=1423360, size=409600, type=S\n";
const LOGICAL: &str = "label: dos\nlabel-id: 0x12345678\nstart=2048, size=20480, type=c, bootable\nstart=22528, \
    type=f\nstart=24576, size=1300000, type=83\nstart=1329152, size=204800, type=82\n";
const WINDOWS: &str = "label: dos\nstart=2048, size=102400, type=7, bootable\nstart=104448, \
    size=1500000, type=7\nstart=1605632, type=27\n";

/// The partition table of `disk` as text; empty if it has none.
fn described(table: &str, disk: &Path) -> String {
    if table.is_empty() { String::new() } else { run("sfdisk -d", &[&disk]) }
}

/// Checks that the table is sound, and has changed in places and sizes alone.
fn check_table(name: &str, table: &str, disk: &Path, old: &str) {
    if table.is_empty() {
        return;
    }
    assert_eq!(read_at(disk, Extent::new(0, 1))[..440], BOOT, "{name}: the boot code");
    let told = run("sfdisk -V", &[&disk]);
    assert!(told.contains("No errors detected"), "{name}: {told}");
    let words = |table: &str| -> Vec<String> {
        let is_place = |field: &str| ["start=", "size=", "last-lba"].iter().any(|word| field.contains(word));
        let fields = table.lines().flat_map(|line| line.split([',', ' ']).map(str::trim));
        let is_word = |field: &&str| !field.is_empty() && !is_place(field) && field.parse::<u64>().is_err();
        fields.filter(is_word).map(str::to_owned).collect()
    };
    assert_eq!(words(&described(table, disk)), words(old), "{name}");
    if table == GPT {
        let told = run("sgdisk -v", &[&disk]);
        assert!(told.contains("No problems found"), "{name}: {told}");
    }
}

/// Checks that both copies of the boot sector of the NTFS at `extent` say where it starts.
fn check_hidden_sectors(disk: &Path, extent: Extent) {
    let bytes = read_at(disk, extent);
    for boot in [&bytes[..512], &bytes[bytes.len() - 512..]] {
        assert_eq!(boot[0x1C..0x20], u32::try_from(extent.start).unwrap().to_le_bytes());
    }
}

/// Checks that the filesystem in a partition is sound, and that a capture looks into it.
fn check_filesystem(bench: &Bench, disk: &Path, index: usize, check: &str) {
    let (map, part) = (map_of(disk), bench.path("check"));
    fs::write(&part, read_at(disk, map.partitions[index].extent)).unwrap();
    run(check, &[&part]);
    assert!(map.partitions[index].filesystem.as_ref().unwrap().understood, "{:?}", map.warnings);
}

#[test]
fn a_partition_shrinks_and_those_behind_it_move() {
    let tools = ["sfdisk", "mkfs.ext4", "mkfs.btrfs", "mkntfs", "mkfs.vfat", "ntfs-3g", "sgdisk", "mkswap"];
    if !is_root() || !have(&tools) {
        return;
    }
    let (vfat, swap) = ("mkfs.vfat -h START", "mkswap -q");
    let (ext, btrfs, ntfs) = ("mkfs.ext4 -q -F", "mkfs.btrfs -q", "mkntfs -q -F -f -p START");
    let cases: [(&str, &str, Parts<'_>, usize, &str); 6] = [
        ("ext4", GPT, &[(vfat, ""), (ext, "mount"), (swap, "")], 1, "e2fsck -fn"),
        ("btrfs", GPT, &[(vfat, ""), (btrfs, "mount"), (swap, "")], 1, "btrfs check"),
        ("logical", LOGICAL, &[(vfat, ""), (ext, "mount"), (swap, "")], 1, "e2fsck -fn"),
        (
            "Windows",
            WINDOWS,
            &[(ntfs, "ntfs-3g"), (ntfs, "ntfs-3g"), (ntfs, "ntfs-3g")],
            1,
            "ntfsresize --info --force",
        ),
        ("no table", "", &[(ext, "mount")], 0, "e2fsck -fn"),
        ("no table, btrfs", "", &[(btrfs, "mount")], 0, "btrfs check"),
    ];
    for (name, table, parts, shrinks, check) in cases {
        let bench = Bench::new();
        let disk = some_disk(&bench, table, parts);
        let before = extents(&disk);
        let mut copies = Vec::new();
        for (index, (_, mount)) in parts.iter().enumerate().filter(|(_, (_, mount))| !mount.is_empty()) {
            let (device, from) = mounted(&bench, &disk, before[index], mount, &format!("before{index}"));
            let copy = bench.tree(&format!("copy{index}"));
            run("cp -a", &[&from.folder, &copy]);
            copies.push((index, copy));
            drop((from, device));
        }
        let old_table = described(table, &disk);
        let planned = plan(&disk, NEW, None).unwrap();
        shrink(&disk, &planned).unwrap();
        assert_eq!(disk.metadata().unwrap().len(), NEW, "{name}");
        let after = extents(&disk);
        let by = before[shrinks].count - after[shrinks].count;
        assert!(
            by * 512 >= OLD - NEW || before[before.len() - 1].end() * 512 < OLD - (1 << 20),
            "{name}: {by}"
        );
        for (index, (old, new)) in before.iter().zip(&after).enumerate() {
            let moves = if index > shrinks { by } else { 0 };
            assert_eq!(new.start, old.start - moves, "{name}: partition {index}");
            assert_eq!(
                new.count,
                old.count - if index == shrinks { by } else { 0 },
                "{name}: partition {index}"
            );
        }
        check_filesystem(&bench, &disk, shrinks, check);
        for (index, copy) in copies {
            let name = format!("{name}: partition {index}");
            let (device, now) =
                mounted(&bench, &disk, after[index], parts[index].1, &format!("after{index}"));
            assert_same_files(&copy, &now.folder, &["lost+found"], &name);
            drop((now, device));
        }
        check_table(name, table, &disk, &old_table);
        if table == WINDOWS {
            check_hidden_sectors(&disk, after[2]);
        }
    }
}

/// The boot records of the logical partitions lie where something moves to, at some of the sizes.
#[test]
fn logical_partitions_move_by_any_distance() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4", "mkswap"]) {
        return;
    }
    // As Debian makes it, with a record two sectors before each logical partition; and with more of them.
    const DEBIAN: &str = "label: dos\nstart=2048, size=481280, type=83, bootable\nstart=485374, size=126978, \
        type=5\nstart=485376, size=126976, type=82\n";
    const SEVERAL: &str = "label: dos\nstart=2048, size=481280, type=83, bootable\nstart=485374, size=126978, \
        type=5\nstart=485376, size=40960, type=82\nstart=526338, size=2046, type=83\nstart=528386, size=4094, \
        type=83\nstart=532482, size=65536, type=83\n";
    const SECTORS: u64 = 614_400;
    for (name, table, sizes) in
        [("Debian", DEBIAN, &[2100, 100_000][..]), ("several", SEVERAL, &[4097, 20_000, 130_000])]
    {
        let bench = Bench::new();
        let made = bench.sparse_file("made", SECTORS * 512);
        run_with_input("sfdisk -q", &made, table);
        let before = extents(&made);
        for (index, extent) in before.iter().enumerate() {
            let part = bench.random_file("part", extent.len_bytes(), index as u64);
            run(if index == 0 { "mkfs.ext4 -q -F" } else { "mkswap -q" }, &[&part]);
            let file = File::options().write(true).open(&made).unwrap();
            file.write_all_at(&fs::read(&part).unwrap(), extent.offset_bytes()).unwrap();
        }
        let old_table = run("sfdisk -d", &[&made]);
        for fewer in sizes {
            let disk = bench.path("disk");
            run("cp", &[&made, &disk]);
            let name = format!("{name}: {fewer} sectors fewer");
            let planned = plan(&disk, (SECTORS - fewer) * 512, None).unwrap();
            shrink(&disk, &planned).unwrap();
            let after = extents(&disk);
            let by = before[0].count - after[0].count;
            assert!(after.last().unwrap().end() <= SECTORS - fewer, "{name}: {by}");
            for (old, new) in before.iter().zip(&after).skip(1) {
                assert_eq!((new.start, new.count), (old.start - by, old.count), "{name}");
                assert!(read_at(&disk, *new) == read_at(&made, *old), "{name}: {old:?}");
            }
            let told = run("sfdisk -V", &[&disk]);
            assert!(told.contains("No errors detected"), "{name}: {told}");
            let kinds = |table: &str| -> Vec<String> {
                let lines = table.lines().filter(|line| line.contains("type="));
                lines.map(|line| line.split("type=").nth(1).unwrap().to_owned()).collect()
            };
            assert_eq!(kinds(&run("sfdisk -d", &[&disk])), kinds(&old_table), "{name}");
            run("e2fsck -fn", &[&Loop::over(&disk, &format!("-o {}", 2048 * 512)).0]);
        }
    }
}

#[test]
fn what_cannot_shrink_is_refused_with_the_reason() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4", "mkfs.xfs", "mkswap", "mkfs.vfat"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, GPT, &[("mkfs.vfat", ""), ("mkfs.xfs -q", "mount"), ("mkswap -q", "")]);
    let said = |bytes, wanted| {
        let error = plan(&disk, bytes, wanted).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        error.to_string()
    };
    assert!(said(NEW, None).contains("no partition can give"));
    assert!(said(NEW, Some(1)).contains("not partition 1"));
    assert!(said(OLD, None).contains("nothing needs to shrink"));
    let bench = Bench::new();
    let disk = some_disk(&bench, "", &[("mkfs.ext4 -q -F", "mount")]);
    let error = plan(&disk, 4 << 20, None).unwrap_err();
    assert!(error.to_string().contains("a disk of"), "{error}");
    // The plan has changed nothing that matters.
    run("e2fsck -fn", &[&disk]);
}

#[test]
fn what_would_be_lost_or_not_start_any_more_is_refused() {
    if !is_root() || !have(&["sfdisk", "sgdisk", "mkfs.ext4", "mkswap", "mkfs.vfat"]) {
        return;
    }
    let bench = Bench::new();
    let parts: Parts<'_> = &[("mkfs.vfat", ""), ("mkfs.ext4 -q -F", ""), ("mkswap -q", "")];
    let made = some_disk(&bench, GPT, parts);
    let swap_end = extents(&made)[2].end() * 512;
    let features = extents(&made)[1].offset_bytes() + 1024 + 0x60;
    let cases: [(&str, &str, Option<u64>); 5] = [
        ("", "in no partition", Some(swap_end + 5000)),
        ("sgdisk -j 1024", "do not follow its header", None),
        ("sgdisk -h 2", "an MBR with partitions of its own", None),
        ("sgdisk -t 3:ef02", "belongs to GRUB", None),
        ("", "", Some(features)),
    ];
    for (tool, reason, spoilt) in cases {
        let disk = bench.path("spoilt");
        run("cp --sparse=always", &[&made, &disk]);
        if !tool.is_empty() {
            run(tool, &[&disk]);
        }
        if let Some(at) = spoilt {
            File::options().write(true).open(&disk).unwrap().write_all_at(&[0xFF; 4], at).unwrap();
        }
        let error = plan(&disk, NEW, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{tool}: {error}");
        assert!(error.to_string().contains(reason), "{tool}: {error}");
    }
    shrink(&made, &plan(&made, NEW, None).unwrap()).unwrap();
}
