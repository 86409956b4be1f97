//! Tests NTFS as mkntfs makes it and ntfs-3g fills it: a disk restored from its allocated sectors alone is intact, and
//! its free clusters and what Windows throws away are left out.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test that fails says where")]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::Chance;
use common::{Bench, Mounted, have, is_root, map_of, paths, run};

const TOOLS: &[&str] = &["mkntfs", "ntfs-3g", "ntfsfix", "ntfsinfo", "umount", "blkid"];

/// mkntfs options, size in MiB, and cluster size in bytes.
const MATRIX: &[(&str, u64, u32)] = &[
    ("-c 512", 16, 512),
    ("-c 1024", 24, 1024),
    ("-c 4096", 48, 4096),
    ("-c 4096 -s 4096", 48, 4096),
    ("-c 65536", 64, 65_536),
    ("-c 131072", 64, 131_072),
];

fn fill(root: &Path, mib: u64) {
    for folder in ["folder/deeper", "many", "compressed"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let mut chance = Chance::from_seed(mib);
    let data = |chance: &mut Chance, most: u64| {
        let mut bytes = vec![0; chance.below(most) as usize];
        chance.fill(&mut bytes);
        bytes
    };
    for n in 0..60 {
        let folder = ["", "folder", "folder/deeper"][n % 3];
        let bytes = data(&mut chance, 20_000);
        fs::write(root.join(folder).join(format!("a long name \u{1F4BE} {n}.data")), bytes).unwrap();
    }
    for n in 0..400 {
        fs::write(root.join(format!("many/a file with a rather long name {n}")), data(&mut chance, 900))
            .unwrap();
    }
    (0..400).step_by(3).for_each(|n| {
        fs::remove_file(root.join(format!("many/a file with a rather long name {n}"))).unwrap();
    });
    fs::hard_link(root.join("folder/a long name \u{1F4BE} 1.data"), root.join("hard link")).unwrap();
    std::os::unix::fs::symlink("hard link", root.join("symbolic link")).unwrap();
    let hole = File::create(root.join("with a hole")).unwrap();
    hole.set_len(1 << 20).unwrap();
    hole.write_all_at(b"behind the hole", 900_000).unwrap();
    // Two files that grow in turn are in many pieces; their lists of pieces need records of their own.
    let mut files = ["one", "other"].map(|name| File::create(root.join(name)).unwrap());
    for _ in 0..200 {
        for file in &mut files {
            file.write_all(&data(&mut chance, 9000)).unwrap();
            file.sync_all().unwrap();
        }
    }
    files[0].set_len(300_000).unwrap();
}

fn make(bench: &Bench, options: &str, mib: u64) -> PathBuf {
    let image = bench.random_file("image", mib << 20, mib);
    run(&format!("mkntfs -Q -F -q -L LABEL {options}"), &[&image]);
    fill(&Mounted::by("ntfs-3g", &image, bench.tree("filled")).folder, mib);
    image
}

/// The checkers have nothing to say against a disk.
fn assert_sound(image: &Path) {
    run("ntfsfix -n", &[&image]);
    run("ntfsinfo -m", &[&image]);
}

fn assert_same(bench: &Bench, image: &Path, restored: &Path, without: &[&str], context: &str) {
    assert_sound(restored);
    let [there, here] = [(image, "there"), (restored, "here")]
        .map(|(image, name)| Mounted::by("ntfs-3g -o ro", image, bench.tree(name)));
    assert_eq!(paths(&there.folder), paths(&here.folder), "{context}");
    let names = paths(&there.folder);
    let names = names.iter().filter(|name| !without.iter().any(|without| name.ends_with(without)));
    for name in names.filter(|name| there.folder.join(name).is_file()) {
        assert!(
            fs::read(there.folder.join(name)).unwrap() == fs::read(here.folder.join(name)).unwrap(),
            "{name:?}"
        );
    }
}

/// A number that ntfsinfo prints.
fn number(info: &str, name: &str) -> u64 {
    let line = info.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.rsplit_once(": ").unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn restored_disks_are_whole_and_free_clusters_are_left_out() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    for &(options, mib, cluster_bytes) in MATRIX {
        let bench = Bench::new();
        let image = make(&bench, options, mib);
        let map = map_of(&image);
        assert_eq!(map.warnings, [""; 0], "mkntfs {options}");
        let filesystem = map.partitions[0].filesystem.as_ref().unwrap();
        assert!(filesystem.understood, "mkntfs {options}");
        let tag = |name: &str| run(&format!("blkid -p -o value -s {name}"), &[&image]).trim_end().to_owned();
        assert_eq!(
            (filesystem.uuid.clone(), filesystem.label.clone()),
            (Some(tag("UUID")), Some(tag("LABEL")))
        );
        assert_eq!(filesystem.block_bytes, cluster_bytes, "mkntfs {options}");

        let info = run("ntfsinfo -m", &[&image]);
        let free = number(&info, "Free Clusters") * u64::from(cluster_bytes) / 512;
        // A survey captures both ends, used or not.
        let taken_anyway: u64 = common::ends(map.window).iter().map(|end| end.count).sum();
        let left_out = map.allocated.gaps_within(map.window).sectors();
        let range = free.saturating_sub(taken_anyway)..=free;
        assert!(range.contains(&left_out), "{left_out} free sectors, not {range:?}, mkntfs {options}");

        let restored = bench.restore(&image, &map);
        assert_same(&bench, &image, &restored, &[], options);
    }
}

/// What Windows throws away when it starts is not captured, in the root folder and by any spelling; a sleeping Windows
/// is captured whole.
#[test]
fn swap_files_are_left_out_unless_a_system_sleeps() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-c 4096", 48);
    let before = map_of(&image).allocated.sectors();
    let swap = ["pagefile.sys", "HIBERFIL.SYS", "Swapfile.sys"];
    {
        let root = Mounted::by("ntfs-3g", &image, bench.tree("swapped"));
        for name in swap {
            fs::write(root.folder.join(name), vec![0x5A; 3 << 20]).unwrap();
        }
        fs::write(root.folder.join("folder/pagefile.sys"), vec![0x5A; 2 << 20]).unwrap();
    }
    let map = map_of(&image);
    assert_eq!(map.warnings, [""; 0]);
    let more = (map.allocated.sectors() - before) * 512;
    assert!((2 << 20..3 << 20).contains(&more), "{more} bytes more");
    let restored = bench.restore(&image, &map);
    let left_out = swap.map(|name| name.to_owned());
    assert_same(&bench, &image, &restored, &left_out.each_ref().map(String::as_str), "without swap files");

    {
        let root = Mounted::by("ntfs-3g", &image, bench.tree("asleep"));
        let file = File::options().write(true).open(root.folder.join("HIBERFIL.SYS")).unwrap();
        file.write_all_at(b"hibr", 0).unwrap();
    }
    let map = map_of(&image);
    assert!(map.allocated.contains(map.window));
    assert!(
        map.warnings.iter().any(|warning| warning.contains("Windows sleeps in it")),
        "{:?}",
        map.warnings
    );
}

/// Each case damages a sound filesystem, whose free space can then not be trusted.
#[test]
fn dirty_or_contradictory_is_taken_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-c 4096", 48);
    let sound = fs::read(&image).unwrap();
    let find = |from: usize, wanted: &[u8]| {
        from + sound[from..].windows(wanted.len()).position(|bytes| bytes == wanted).unwrap()
    };
    let field = u64::from_le_bytes(*sound[48..].first_chunk().unwrap()) as usize * 4096;
    let record = |number: usize| field + number * 1024;
    // The attribute of the volume's version and flags, and its value.
    let information = find(record(3), &[0x70, 0, 0, 0]);
    let flags = information + usize::from(sound[information + 20]) + 10;
    let log_at = find(record(2), &[0x80, 0, 0, 0]);
    let cases: [(usize, u8, &str); 5] = [
        (flags, 1, "marked for a check"),
        (flags - 2, 4, "unknown version"),
        (record(7) + 510, !sound[record(7) + 510], "file record 7 is damaged"),
        (record(8), b'B', "file record 8 is damaged"),
        (log_at + 64, 0x41, ""),
    ];
    for (offset, byte, why) in cases {
        let disk = File::options().write(true).open(&image).unwrap();
        disk.write_all_at(&[byte], offset as u64).unwrap();
        let map = map_of(&image);
        assert!(map.allocated.contains(map.window), "byte {byte:#x} at {offset}, {why}");
        assert!(map.warnings.iter().any(|warning| warning.contains(why)), "{why}: {:?}", map.warnings);
        disk.write_all_at(&sound[offset..=offset], offset as u64).unwrap();
    }
    assert_eq!(map_of(&image).warnings, [""; 0]);
}
