//! Compares surveys of disks with randomly stacked signatures with libblkid. If libblkid reports anything in a range
//! that the one filesystem found there does not explain, the whole range must be captured. A disk restored from its
//! allocated sectors alone, onto random bytes, must look to blkid, wipefs, sfdisk and fsck like its source.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use base::{Extent, ExtentSet};
use disk::{DiskMap, TableKind, claims, open_source};

use crate::common::stack::{self, Stacked, stack};
use crate::common::{self, Bench, ends, have, map_of, output, read_at, show};

/// One disk to check, with its survey.
struct Check<'a> {
    bench: &'a Bench,
    disk: &'a Path,
    map: &'a DiskMap,
    context: String,
}

impl Check<'_> {
    fn run(&self) {
        let whole = self.map.window;
        let partitions: Vec<_> =
            self.map.partitions.iter().filter(|partition| partition.number > 0).collect();
        let inside: Vec<_> =
            partitions.iter().map(|partition| (partition.extent, self.reports(partition.extent))).collect();
        for (partition, (extent, reports)) in partitions.iter().zip(&inside) {
            if !self.map.allocated.contains(*extent) {
                let filesystem = partition.filesystem.as_ref().unwrap_or_else(|| panic!("{}", self.context));
                self.assert_explained(*extent, filesystem.kind, reports);
            }
        }
        if !self.map.allocated.contains(whole) {
            let mut reports = self.reports(whole);
            if self.map.table == TableKind::None {
                let kind = self.map.partitions[0].filesystem.as_ref().unwrap().kind;
                self.assert_explained(whole, kind, &reports);
            } else {
                // A signature that is also reported inside a partition belongs to that partition.
                for (extent, found) in inside {
                    let moved: Vec<_> =
                        found.into_iter().map(|(kind, at)| (kind, at + extent.offset_bytes())).collect();
                    reports.retain(|report| !moved.contains(report));
                }
                let strange =
                    reports.iter().find(|(kind, _)| !["dos", "gpt", "PMBR"].contains(&kind.as_str()));
                assert_eq!(strange, None, "{}", self.context);
            }
        }
        self.assert_free_lies_in_filesystems();
    }

    /// The signatures that wipefs reports in a range, each with its offset in bytes. Fails if the survey's own table of
    /// signatures lacks one of them.
    fn reports(&self, range: Extent) -> BTreeSet<(String, u64)> {
        let path = self.bench.path("range");
        fs::write(&path, read_at(self.disk, range)).unwrap();
        let reports = signatures(&path);
        let known = claims(&open_source(self.disk).unwrap(), range).unwrap();
        for (kind, offset) in &reports {
            let kind = family(kind);
            let found = kind.is_empty()
                || kind == "mbr" && self.is_blank_record(range)
                || known.iter().any(|claim| claim.kind == kind);
            assert!(found, "{kind} at {offset} of {range:?} is not known to the survey: {}", self.context);
        }
        reports
    }

    /// Checks that all `reports` of a range belong to the filesystem `kind`, and that it is among them.
    fn assert_explained(&self, range: Extent, kind: &str, reports: &BTreeSet<(String, u64)>) {
        let kinds: BTreeSet<_> = reports.iter().map(|(kind, _)| family(kind)).collect();
        let others: Vec<_> =
            kinds.iter().filter(|other| !other.is_empty() && **other != family(kind)).collect();
        let strange = others.iter().find(|other| ***other != "mbr" || !self.is_blank_record(range));
        assert_eq!(strange, None, "{range:?} is {kind} to the survey: {}", self.context);
        assert!(kinds.contains(family(kind)), "{range:?}: {}", self.context);
    }

    /// Whether the boot record of a range has no partitions. Such a record claims nothing.
    fn is_blank_record(&self, range: Extent) -> bool {
        read_at(self.disk, Extent::new(range.start, 1))[446..510].iter().all(|&byte| byte == 0)
    }

    /// Checks that every free sector lies in a filesystem that is understood, and before the filesystem's end. The ends
    /// of the disk and of each partition must be allocated.
    fn assert_free_lies_in_filesystems(&self) {
        let mut free = self.map.allocated.gaps_within(self.map.window);
        assert!(
            ends(self.map.window).iter().all(|end| self.map.allocated.contains(*end)),
            "{}",
            self.context
        );
        for partition in &self.map.partitions {
            let extent = partition.extent;
            if let Some(filesystem) = partition.filesystem.as_ref().filter(|found| found.understood) {
                let ends_kept = ends(extent).iter().all(|end| self.map.allocated.contains(*end));
                assert!(ends_kept, "ends of {extent:?}: {}", self.context);
                free.remove(Extent::new(extent.start, self.end_of(extent, filesystem.kind)));
            }
        }
        assert_eq!(free, ExtentSet::new(), "left out: {}: {}", show(&free), self.context);
    }

    /// Size of the filesystem at `extent` in sectors, according to its own superblock or header.
    fn end_of(&self, extent: Extent, kind: &str) -> u64 {
        let head = read_at(self.disk, Extent::new(extent.start, 8));
        let u16_at = |at: usize| u64::from(u16::from_le_bytes(head[at..at + 2].try_into().unwrap()));
        let u32_at = |at: usize| u64::from(u32::from_le_bytes(head[at..at + 4].try_into().unwrap()));
        match family(kind) {
            "ext" => u32_at(1024 + 4) * (2 << u32_at(1024 + 24)),
            "vfat" if u16_at(19) != 0 => u16_at(19),
            "vfat" => u32_at(32),
            "swap" => {
                let page = (12..=16).map(|log| 1u64 << log).find(|page| {
                    let end = Extent::new(extent.start + page / 512 - 1, 1);
                    read_at(self.disk, end)[502..] == *b"SWAPSPACE2"
                });
                (u32_at(1028) + 1) * page.unwrap() / 512
            }
            _ => panic!("{kind}: {}", self.context),
        }
    }

    /// Checks that the tools print the same for a restored copy as for the source.
    fn assert_restores(&self) {
        let copy = self.bench.restore(self.disk, self.map);
        let mut ranges = vec![(self.map.window, None)];
        let described = self.map.partitions.iter().map(|p| (p.extent, p.filesystem.as_ref()));
        ranges.extend(described.filter(|(extent, _)| !self.map.allocated.contains(*extent)));
        for (range, filesystem) in ranges {
            let check = match filesystem.map(|found| family(found.kind)) {
                Some("ext") => "e2fsck -fn",
                Some("vfat") => "fsck.fat -n",
                _ => "sfdisk -d",
            };
            let seen = [self.disk, &copy].map(|disk| {
                let path = self.bench.path("range");
                fs::write(&path, read_at(disk, range)).unwrap();
                let out = |line: &str| {
                    let output = output(line, &[&path]);
                    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
                };
                ["wipefs -n", "blkid -p", check].map(out)
            });
            // A filesystem that a later layer has damaged may use blocks that it marks as free, and those are not
            // restored. So compare the output of fsck only if it succeeds on the source.
            let compared = if seen[0][2].0 == Some(0) { 3 } else { 2 };
            assert_eq!(seen[0][..compared], seen[1][..compared], "{range:?}: {}", self.context);
        }
    }
}

/// The signatures that `wipefs -n` finds in a file, each with its offset in bytes.
fn signatures(path: &Path) -> BTreeSet<(String, u64)> {
    let text = common::run("wipefs -n -O OFFSET,TYPE --noheadings -p", &[&path]);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (offset, kind) = line.split_once(',').unwrap();
        (kind.to_owned(), u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap())
    };
    lines.map(parse).collect()
}

/// The survey's name for a signature type of libblkid; empty for a protective MBR, which claims nothing by itself.
fn family(kind: &str) -> &str {
    match kind {
        "ext2" | "ext3" | "ext4" | "jbd" => "ext",
        "squashfs3" => "squashfs",
        "swsuspend" => "swap",
        "PMBR" => "",
        "dos" => "mbr",
        other => other,
    }
}

#[test]
fn stacked_signatures_are_explained_or_taken_whole() {
    if !have(stack::TOOLS) || !have(&["wipefs", "blkid", "e2fsck", "fsck.fat"]) {
        return;
    }
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse::<u64>().expect("a number"))
    };
    let (first, count) = (number("DISKCAST_SEED", 0), number("DISKCAST_SEEDS", 60));
    let mut with_free = 0;
    for seed in first..first + count {
        let bench = Bench::new();
        let Stacked { path, story } = stack(&bench, seed);
        let map = map_of(&path);
        let context = format!(
            "DISKCAST_SEED={seed} DISKCAST_SEEDS=1\n{}\n{}\n{:?}",
            story.join("\n"),
            map.warnings.join("\n"),
            map.partitions
        );
        let check = Check { bench: &bench, disk: &path, map: &map, context };
        check.run();
        if !map.allocated.contains(map.window) {
            with_free += 1;
            check.assert_restores();
        }
    }
    assert!(count < 50 || with_free > count / 10, "{with_free} of {count} disks have free space");
}
