//! Tests physical volumes that LVM2 itself made, without device-mapper: what lvs says no volume has is left out, and so
//! is what the filesystems inside say is free.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Extent, ExtentSet};

use crate::common::{
    Bench, Loop, Mounted, assert_noticed, assert_same_files, assert_whole, copy_sectors, ends, have, is_root,
    map_of, populate, read_at, run, write_at,
};

const TOOLS: &[&str] = &[
    "pvcreate",
    "lvcreate",
    "lvs",
    "vgcfgrestore",
    "mke2fs",
    "mkfs.xfs",
    "losetup",
    "mkswap",
    "mount",
    "umount",
];
/// As large as LVM makes it.
const EXTENT_SECTORS: u64 = 8192;
/// Where extents begin.
const START: u64 = 2048;

/// A program of LVM2 on the physical volume in `image`, which it sees as a device.
fn lvm(image: &Path, line: &str, on_device: bool) -> String {
    let device = Loop::over(image, "");
    let (program, rest) = line.split_once(' ').unwrap_or((line, ""));
    let name = device.0.display();
    let line =
        format!("env LVM_SUPPRESS_FD_WARNINGS=1 {program} -q --driverloaded n --devices {name} {rest}");
    if on_device { run(&line, &[&device.0]) } else { run(&line, &[]) }
}

fn create(image: &Path, options: &str) {
    lvm(image, &format!("lvcreate -an -Zn -Wn -y {options} vg"), false);
}

/// Where the sectors of a logical volume lie, as lvs tells: in turn from the runs of a segment.
fn places(image: &Path, volume: &str) -> Vec<Extent> {
    let fields = "lvs --noheadings --units s --nosuffix --segments -o seg_pe_ranges,stripe_size";
    let mut places = Vec::new();
    for line in lvm(image, &format!("{fields} vg/{volume}"), false).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (size, ranges) = words.split_last().unwrap();
        let ranges: Vec<Extent> = ranges
            .iter()
            .map(|range| {
                let (first, last) = range.rsplit_once(':').unwrap().1.split_once('-').unwrap();
                let [first, last] = [first, last].map(|text| text.parse::<u64>().unwrap());
                Extent::new(START + first * EXTENT_SECTORS, (last - first + 1) * EXTENT_SECTORS)
            })
            .collect();
        let each = match size.parse().unwrap() {
            0 => ranges[0].count,
            size => size,
        };
        for turn in 0..ranges[0].count / each {
            places.extend(ranges.iter().map(|range| Extent::new(range.start + turn * each, each)));
        }
    }
    places
}

/// Writes `content` into a logical volume.
fn fill(image: &Path, volume: &str, content: &Path) {
    let mut at = 0;
    for place in places(image, volume) {
        write_at(image, place.offset_bytes(), &read_at(content, Extent::new(at, place.count)));
        at += place.count;
    }
    assert_eq!(at * 512, fs::metadata(content).unwrap().len());
}

/// The contents of a logical volume.
fn extract(bench: &Bench, image: &Path, volume: &str) -> PathBuf {
    let path = bench.path(&format!("{volume} of {}", image.file_name().unwrap().display()));
    let file = File::create(&path).unwrap();
    let mut at = 0;
    for place in places(image, volume) {
        file.write_all_at(&read_at(image, place), at).unwrap();
        at += place.len_bytes();
    }
    path
}

/// The sectors of a logical volume, in the physical one.
fn placed(places: &[Extent], inner: &ExtentSet) -> ExtentSet {
    let (mut all, mut at) = (ExtentSet::new(), 0);
    for place in places {
        for run in inner.runs() {
            if let Some(part) = run.intersection(Extent::new(at, place.count)) {
                all.insert(Extent::new(place.start + part.start - at, part.count));
            }
        }
        at += place.count;
    }
    all
}

/// A group with a root filesystem in two pieces, a striped one, one for swapping, and one that holds something else.
fn make(bench: &Bench) -> PathBuf {
    let image = bench.random_file("image", 400 << 20, 5);
    write_at(&image, 0, &[0; 4096]);
    lvm(&image, "pvcreate", true);
    lvm(&image, "vgcreate vg", true);
    create(&image, "-l 10 -n root");
    create(&image, "-l 24 -i 2 -I 64k --alloc anywhere -n data");
    lvm(&image, "lvextend -l +5 vg/root", false);
    create(&image, "-l 2 -n swap");
    create(&image, "-l 3 -n other");
    let tree = bench.tree("tree");
    populate(&tree, 3);
    let sizes = [("root", 15), ("data", 24), ("swap", 2), ("other", 3)];
    for (name, extents) in sizes {
        let content = bench.random_file(name, extents * EXTENT_SECTORS * 512, extents);
        let make = match name {
            "root" => format!("mke2fs -q -F -t ext4 -d {}", tree.display()),
            "data" => "env TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1 mkfs.xfs -q -f".to_owned(),
            "swap" => "mkswap".to_owned(),
            _ => "true".to_owned(),
        };
        run(&make, &[&content]);
        fill(&image, name, &content);
    }
    image
}

#[test]
fn what_no_volume_and_no_filesystem_in_one_needs_is_left_out() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench);
    let map = map_of(&image);
    let other = "the disk: logical volume `other` is captured whole: it holds no filesystem that is known";
    assert_eq!(map.warnings, [other]);
    let found = map.partitions[0].filesystem.as_ref().unwrap();
    let uuid = run("blkid -p -o value -s UUID", &[&image]);
    assert!(found.understood && found.kind == "LVM2_member");
    assert_eq!(found.uuid.as_deref(), Some(uuid.trim()));

    let mut expected: ExtentSet = [Extent::new(0, START)].into_iter().collect();
    for name in ["root", "data", "swap", "other"] {
        let inner = bench.path(name);
        let inner = map_of(&inner).allocated;
        placed(&places(&image, name), &inner).runs().iter().for_each(|run| expected.insert(*run));
    }
    let free: u64 = lvm(&image, "vgs --noheadings -o vg_free_count", false).trim().parse().unwrap();
    let extents: u64 = lvm(&image, "vgs --noheadings -o vg_extent_count", false).trim().parse().unwrap();
    let end = START + extents * EXTENT_SECTORS;
    expected.insert(Extent::between(end, map.window.end()));
    ends(map.window).into_iter().for_each(|end| expected.insert(end));
    assert_eq!(map.allocated, expected);
    assert!(map.allocated.sectors() < map.window.count - free * EXTENT_SECTORS - 24 * EXTENT_SECTORS / 2);

    let restored = bench.random_file("restored", 400 << 20, 99);
    copy_sectors(&image, &restored, &map.allocated);
    run("e2fsck -f -n", &[&extract(&bench, &restored, "root")]);
    run("xfs_repair -n", &[&extract(&bench, &restored, "data")]);
    let [one, other] = [&image, &restored].map(|image| run("swaplabel", &[&extract(&bench, image, "swap")]));
    assert_eq!(one, other);
    let [one, other] = [&image, &restored].map(|image| fs::read(extract(&bench, image, "other")).unwrap());
    assert!(one == other, "what is not known is captured whole");
    let [there, here] = [(&image, "there"), (&restored, "here")].map(|(image, name)| {
        Mounted::by("mount -o ro,noload", &extract(&bench, image, "root"), bench.tree(name))
    });
    assert_same_files(&there.folder, &here.folder, &[], "root");
}

/// Each case damages a sound physical volume, or has what is not looked into.
#[test]
fn damaged_or_strange_is_taken_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench);
    let sound = fs::read(&image).unwrap();
    let area = 4096;
    let text = area + u32::from_le_bytes(*sound[area + 40..].first_chunk().unwrap()) as usize;
    // A letter of the group's random name.
    let other = [sound[text + 30] ^ 1];
    assert_noticed(
        &image,
        &[
            (512 + 40, b"damage", "its label is damaged"),
            (area + 20, &[9], "its metadata is damaged"),
            (text + 30, &other, "its metadata is damaged"),
        ],
    );

    // `data` becomes the store of a snapshot: what looks like a filesystem in it is none.
    let backup = bench.path("backup");
    lvm(&image, &format!("vgcfgbackup -f {} vg", backup.display()), false);
    let snapshot = "snapshot0 {\nid = \"aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa\"\n\
                    status = [\"READ\", \"WRITE\", \"VISIBLE\"]\nflags = []\nsegment_count = 1\n\
                    segment1 {\nstart_extent = 0\nextent_count = 15\ntype = \"snapshot\"\n\
                    chunk_size = 8\norigin = \"root\"\ncow_store = \"data\"\n}\n}\n";
    let changed = fs::read_to_string(&backup).unwrap().replacen(
        "logical_volumes {\n\n",
        &format!("logical_volumes {{\n\n{snapshot}\n"),
        1,
    );
    fs::write(&backup, changed).unwrap();
    lvm(&image, &format!("vgcfgrestore -f {} vg", backup.display()), false);
    assert!(lvm(&image, "lvs -a vg", false).contains("data"));
    let map = map_of(&image);
    let told = "logical volume `root` is captured whole: it is of a kind that is not looked into";
    assert!(map.warnings.iter().any(|warning| warning.contains(told)), "{:?}", map.warnings);
    for name in ["root", "data"] {
        assert!(places(&image, name).iter().all(|place| map.allocated.contains(*place)), "{name}");
    }
    assert!(!map.allocated.contains(map.window));
}

/// What the extents of a disk are for, by the names of volumes, as pvs tells.
fn segments(options: &str, device: &Loop) -> Vec<(String, Extent)> {
    let fields = "--noheadings --segments -o pvseg_start,pvseg_size,lv_name";
    let lines = run(&format!("pvs {options} {fields}"), &[&device.0]);
    let segment = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().unwrap() * EXTENT_SECTORS;
        let name = words.get(2).copied().unwrap_or_default();
        (name.to_owned(), Extent::new(START + number(words[0]), number(words[1])))
    };
    lines.lines().map(segment).collect()
}

/// Of a group on two disks each is captured by itself: what pvs says no volume has there is left out, and a volume is
/// looked into if all of it is there.
#[test]
fn a_group_on_two_disks() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let pair = ["one", "two"].map(|name| bench.random_file(name, 64 << 20, 3));
    let devices = pair.each_ref().map(|image| {
        write_at(image, 0, &[0; 4096]);
        Loop::over(image, "")
    });
    let [one, two] = devices.each_ref().map(|device| device.0.display());
    let both = format!("-q --driverloaded n --devices {one},{two}");
    for device in &devices {
        run(&format!("pvcreate {both}"), &[&device.0]);
    }
    pair.iter().for_each(|image| assert_whole(&map_of(image), "belongs to no volume group", ""));
    run(&format!("vgcreate {both} pair"), &[&devices[0].0, &devices[1].0]);
    for options in [
        format!("-l 4 -n home pair {one}"),
        "-l 6 -i 2 -n wide pair".to_owned(),
        format!("-l 2 -n there pair {two}"),
    ] {
        run(&format!("lvcreate {both} -an -Zn -Wn -y {options}"), &[]);
    }
    let place = |on: usize, wanted: &str| {
        segments(&both, &devices[on]).into_iter().find(|(name, _)| name == wanted).map(|(_, place)| place)
    };
    for (on, name) in [(0, "home"), (1, "there")] {
        let place = place(on, name).unwrap();
        let content = bench.random_file(name, place.len_bytes(), 7);
        run("mke2fs -q -F -t ext4 -O ^has_journal", &[&content]);
        write_at(&pair[on], place.offset_bytes(), &read_at(&content, Extent::new(0, place.count)));
    }
    assert!(place(0, "there").is_none() && place(1, "home").is_none());
    for (on, name) in [(0, "home"), (1, "there")] {
        let map = map_of(&pair[on]);
        assert_eq!(
            map.warnings,
            ["the disk: logical volume `wide` is captured whole: some of it is on another disk"]
        );
        let inner = map_of(&bench.path(name)).allocated;
        let mut expected: ExtentSet =
            [Extent::new(0, START), place(on, "wide").unwrap()].into_iter().collect();
        placed(&[place(on, name).unwrap()], &inner).runs().iter().for_each(|run| expected.insert(*run));
        let end = segments(&both, &devices[on]).iter().map(|(_, place)| place.end()).max().unwrap();
        expected.insert(Extent::between(end, map.window.end()));
        ends(map.window).into_iter().for_each(|end| expected.insert(end));
        assert_eq!(map.allocated, expected, "{name}");
    }

    // LVM takes up both disks again after they were restored onto others.
    for image in &pair {
        let copy = bench.random_file("copy", 64 << 20, 9);
        copy_sectors(image, &copy, &map_of(image).allocated);
        fs::rename(copy, image).unwrap();
    }
    drop(devices);
    let devices = pair.each_ref().map(|image| Loop::over(image, ""));
    let both = format!("-q --driverloaded n --devices {},{}", devices[0].0.display(), devices[1].0.display());
    run(&format!("vgck {both} pair"), &[]);
    run(&format!("pvck {both}"), &[&devices[0].0, &devices[1].0]);
    let names = run(&format!("lvs {both} --noheadings -o lv_name pair"), &[]);
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["home", "there", "wide"]);
}
