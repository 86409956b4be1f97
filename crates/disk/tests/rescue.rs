//! Tests disks of which some sectors can't be read, on block devices of the kernel whose reads fail there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::{Extent, ExtentSet};
use disk::{DiskMap, ReadAt, Rescue, SurveyOptions, open_source, survey, survey_failing, unreadable_sector};

use crate::common::bad_disk::{self, BadDisk};
use crate::common::{Bench, have, is_root, mib, put, run, run_with_input};

fn is_here() -> bool {
    is_root() && have(bad_disk::TOOLS) && have(&["mke2fs", "mkfs.fat", "sfdisk"])
}

/// What the device has, with zeros where it can't be read, by reads of single sectors without diskcast.
fn by_sectors(device: &Path) -> (Vec<u8>, ExtentSet) {
    use std::os::unix::fs::OpenOptionsExt as _;
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = File::options().read(true).custom_flags(direct).open(device).unwrap();
    let bytes =
        fs::read(Path::new("/sys/class/block").join(device.file_name().unwrap()).join("size")).unwrap();
    let sectors: u64 = String::from_utf8(bytes).unwrap().trim().parse().unwrap();
    let (mut all, mut bad) = (vec![0; sectors as usize * 512], ExtentSet::new());
    let mut memory = vec![0_u8; 8192];
    let shift = memory.as_ptr().align_offset(4096);
    for (sector, into) in (0..).zip(all.as_chunks_mut::<512>().0) {
        let aligned = &mut memory[shift..shift + 512];
        match file.read_exact_at(aligned, sector * 512) {
            Ok(()) => into.copy_from_slice(aligned),
            Err(error) => {
                assert_eq!(error.raw_os_error(), io::Error::from(rustix::io::Errno::IO).raw_os_error());
                bad.insert(Extent::new(sector, 1));
            }
        }
    }
    (all, bad)
}

/// Every sector that the kernel can read alone is read, though the page cache can't.
#[test]
fn a_device_gives_all_but_its_bad_sectors() {
    if !is_here() {
        return;
    }
    let bench = Bench::new();
    let file = bench.random_file("file", 4 << 20, 5);
    let bad: ExtentSet = [(0, 1), (1000, 3), (1025, 1), (4096, 700), (8191, 1)]
        .map(|(start, count)| Extent::new(start, count))
        .into_iter()
        .collect();
    let disk = BadDisk::of(&file, &bad, &bench.path("bad"));
    let (expected, found_bad) = by_sectors(&disk.device);
    assert_eq!(found_bad, bad);

    let source = open_source(&disk.device).unwrap();
    let rescue = Rescue::new(&source);
    // Long reads, which go past the cache, and short ones at odd places, which go through it.
    for len in [1 << 20, 256 << 10, 4096, 1000] {
        let mut found = vec![7; expected.len()];
        for (index, piece) in found.chunks_mut(len).enumerate() {
            rescue.filled().read_exact_at(piece, (index * len) as u64).unwrap();
        }
        assert!(found == expected, "pieces of {len} bytes");
    }
    assert_eq!(rescue.unreadable(), bad);

    let rescue = Rescue::new(&source);
    let mut bytes = vec![0; 256 << 10];
    let error = rescue.read_exact_at(&mut bytes, 2 << 20).unwrap_err();
    assert_eq!(unreadable_sector(&error), Some(4096));
    let text = base::chain(&error);
    assert!(text.contains(&format!("sector 4096 of `{}` can't be read", disk.device.display())), "{text}");
    // A file on such a disk, by its name.
    let source = open_source(&disk.file()).unwrap();
    let rescue = Rescue::new(&source);
    let mut found = vec![7; expected.len()];
    rescue.filled().read_exact_at(&mut found, 0).unwrap();
    assert!(found == expected);
}

/// The map of a disk, read from one where `bad` can't be read.
fn map_with(bench: &Bench, file: &Path, bad: &[Extent]) -> (DiskMap, ExtentSet) {
    let _ = fs::remove_dir_all(bench.path("bad"));
    let disk = BadDisk::of(file, &bad.iter().copied().collect(), &bench.path("bad"));
    let source = open_source(&disk.device).unwrap();
    let rescue = Rescue::new(&source);
    let map = survey_failing(&rescue, &SurveyOptions::default()).unwrap();
    let strict = survey(&Rescue::new(&source), &SurveyOptions::default());
    let named = strict.as_ref().err().and_then(unreadable_sector);
    assert_eq!(named.is_some(), !rescue.unreadable().is_empty());
    assert!(
        named.is_none_or(|sector| bad.iter().any(|run| run.intersection(Extent::new(sector, 1)).is_some()))
    );
    (map, rescue.unreadable())
}

/// A partition whose filesystem can't be read in full is captured whole, and the others are not.
#[test]
fn a_filesystem_that_cant_be_read_is_taken_whole() {
    if !is_here() {
        return;
    }
    let bench = Bench::new();
    let file = bench.random_file("file", 64 << 20, 6);
    let table = "label: gpt\nstart=2048, size=40960, type=linux\nstart=43008, size=81920, type=linux\n";
    run_with_input("sfdisk -q", &file, table);
    let (first, second) = (mib(1, 20), mib(21, 40));
    put(&bench, &file, first, "mkfs.fat -F 16 -n FIRST");
    put(&bench, &file, second, "mke2fs -q -F -t ext4 -b 1024 -L second");
    let sound = survey(&open_source(&file).unwrap(), &SurveyOptions::default()).unwrap();
    assert_eq!(sound.warnings, [""; 0]);

    // Free space: nobody notices.
    let free = *sound.allocated.gaps_within(second).runs().iter().max_by_key(|run| run.count).unwrap();
    let (map, seen) = map_with(&bench, &file, &[Extent::new(free.start + 9, 1)]);
    assert_eq!((map.allocated, map.warnings), (sound.allocated.clone(), Vec::new()));
    assert!(seen.is_empty());

    // The block bitmap of the first group.
    let text = run("dumpe2fs", &[&bench.path("part")]);
    let place = text.lines().find_map(|line| line.trim().strip_prefix("Block bitmap at ")).unwrap();
    let block: u64 = place.split([' ', ',']).next().unwrap().parse().unwrap();
    let bitmap = Extent::new(second.start + block * 2 + 1, 1);
    let (map, seen) = map_with(&bench, &file, &[bitmap]);
    assert_eq!(seen, ExtentSet::of(bitmap));
    let warning = format!(
        "partition 2 (ext4) is captured whole: sector {}, which describes it, can't be read",
        bitmap.start
    );
    assert_eq!(map.warnings, [warning]);
    assert!(map.allocated.contains(second));
    assert_eq!(map.allocated.gaps_within(first), sound.allocated.gaps_within(first));

    // The superblock, without which nothing is known of it, and a sector of the other's table of clusters.
    let bad = [Extent::new(first.start + 20, 1), Extent::new(second.start + 2, 1)];
    let (map, _) = map_with(&bench, &file, &bad);
    assert!(map.allocated.contains(first) && map.allocated.contains(second));
    let begin = |number| format!("partition {number}");
    assert!(
        map.warnings.len() == 2 && (0..2).all(|at| map.warnings[at].starts_with(&begin(at + 1))),
        "{:?}",
        map.warnings
    );
    assert_eq!(map.partitions[1].filesystem, None);
}

/// A disk whose boot record or table can't be read in full is captured whole.
#[test]
fn a_table_that_cant_be_read_counts_as_damaged() {
    if !is_here() {
        return;
    }
    let bench = Bench::new();
    let file = bench.random_file("file", 32 << 20, 6);
    run_with_input("sfdisk -q", &file, "label: gpt\nstart=2048, size=40960, type=linux\n");
    put(&bench, &file, mib(1, 20), "mke2fs -q -F -t ext4 -b 4096");
    let sound = survey(&open_source(&file).unwrap(), &SurveyOptions::default()).unwrap();
    let sectors = 32 << 11;
    let (header, backup) = (Extent::new(1, 1), Extent::new(sectors - 1, 1));

    // One copy tells the partitions, but not what else may be where the other was.
    for (copy, warning) in [
        (header, "the primary GPT is damaged; its backup is used"),
        (backup, "the backup of the GPT is missing or damaged"),
    ] {
        let (map, _) = map_with(&bench, &file, &[copy]);
        let whole =
            format!("the disk is captured whole: sector {}, which describes it, can't be read", copy.start);
        assert_eq!(map.warnings, [warning.to_owned(), whole]);
        let places = |map: &DiskMap| map.partitions.iter().map(|one| one.extent).collect::<Vec<_>>();
        assert_eq!(places(&map), places(&sound));
        assert!(map.allocated.contains(map.window));
    }
    for bad in [&[header, backup][..], &[Extent::new(0, 1)]] {
        let (map, _) = map_with(&bench, &file, bad);
        assert!(map.allocated.contains(map.window), "{bad:?}");
        assert!(
            map.warnings.iter().any(|why| why.starts_with("the disk is captured whole")),
            "{:?}",
            map.warnings
        );
    }
}
