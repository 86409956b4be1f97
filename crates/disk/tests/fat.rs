//! Tests FAT12, FAT16 and FAT32 as mkfs.fat makes them: a disk restored from its allocated sectors alone is intact.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::Chance;

use crate::common::{self, Bench, have, map_of, paths, run};

/// mkfs.fat options, size in MiB, and cluster size in bytes.
const MATRIX: &[(&str, u64, u32)] = &[
    ("-F 12 -s 1", 2, 512),
    ("-F 12 -s 8 -r 256", 15, 4096),
    ("-F 12 -s 4 -f 1", 7, 2048),
    ("-F 16 -s 1", 16, 512),
    ("-F 16 -s 4 -R 17", 33, 2048),
    ("-F 16 -S 1024 -s 4", 32, 4096),
    ("-F 32 -s 1", 40, 512),
    ("-F 32 -s 8", 300, 4096),
    ("-F 32 -S 4096 -s 1", 280, 4096),
    ("-F 32 -s 2 -R 64 -a", 80, 1024),
];

fn make(bench: &Bench, options: &str, mib: u64) -> PathBuf {
    let image = bench.random_file("image", mib << 20, mib);
    run(&format!("mkfs.fat -n LABEL -i 1234abcd {options}"), &[&image]);
    let tree = bench.tree("tree");
    fs::create_dir_all(tree.join("folder/deeper")).unwrap();
    let mut chance = Chance::from_seed(mib);
    for n in 0..60 {
        let mut bytes = vec![0; chance.below(20_000) as usize];
        chance.fill(&mut bytes);
        let folder = ["", "folder", "folder/deeper"][n % 3];
        fs::write(tree.join(folder).join(format!("a long name {n}.data")), bytes).unwrap();
    }
    for name in fs::read_dir(&tree).unwrap() {
        run("mcopy -s -i", &[&image, &name.unwrap().path(), &"::"]);
    }
    // Delete every fourth file, so that free and used clusters alternate.
    for n in (0..60).step_by(4) {
        let folder = ["", "folder", "folder/deeper"][n % 3];
        let name = format!("{folder}/a long name {n}.data");
        run("mdel -i", &[&image, &format!("::{name}")]);
        fs::remove_file(tree.join(name.trim_start_matches('/'))).unwrap();
    }
    image
}

fn assert_holds(bench: &Bench, image: &Path, options: &str) {
    run("fsck.fat -n", &[&image]);
    let (tree, out) = (bench.tree("tree"), bench.path("out"));
    fs::create_dir(&out).unwrap();
    run("mcopy -s -n -i", &[&image, &"::*", &out]);
    assert_eq!(paths(&tree), paths(&out), "mkfs.fat {options}");
    for name in paths(&tree).iter().filter(|name| tree.join(name).is_file()) {
        assert!(
            fs::read(tree.join(name)).unwrap() == fs::read(out.join(name)).unwrap(),
            "{name:?}, {options}"
        );
    }
}

#[test]
fn restored_disks_are_whole_and_free_clusters_are_left_out() {
    if !have(&["mkfs.fat", "fsck.fat", "mcopy", "mdel"]) {
        return;
    }
    for &(options, mib, cluster_bytes) in MATRIX {
        let bench = Bench::new();
        let image = make(&bench, options, mib);
        let map = map_of(&image);
        assert_eq!(map.warnings, [""; 0], "mkfs.fat {options}");
        let filesystem = map.partitions[0].filesystem.as_ref().unwrap();
        assert!(filesystem.understood, "mkfs.fat {options}");
        assert_eq!(filesystem.uuid.as_deref(), Some("1234-ABCD"));
        assert_eq!(filesystem.label.as_deref(), Some("LABEL"));
        assert_eq!(filesystem.block_bytes, cluster_bytes, "mkfs.fat {options}");

        // `image: 47 files, 1234/5678 clusters`
        let summary = run("fsck.fat -n", &[&image]);
        let clusters = summary.rsplit_once(" files, ").unwrap().1.split(' ').next().unwrap();
        let (used, all) = clusters.split_once('/').unwrap();
        let free =
            (all.parse::<u64>().unwrap() - used.parse::<u64>().unwrap()) * u64::from(cluster_bytes) / 512;
        // A survey captures both ends, used or not. fsck.fat does not tell how much of them is free, so allow a range.
        let taken_anyway: u64 = common::ends(map.window).iter().map(|end| end.count).sum();
        let left_out = map.allocated.gaps_within(map.window).sectors();
        let range = free.saturating_sub(taken_anyway)..=free;
        assert!(range.contains(&left_out), "{left_out} free sectors, not {range:?}, mkfs.fat {options}");

        let restored = bench.restore(&image, &map);
        assert_holds(&bench, &restored, options);
    }
}

/// Each case makes a filesystem whose tables cannot be trusted.
#[test]
fn dirty_or_contradictory_is_taken_whole() {
    if !have(&["mkfs.fat"]) {
        return;
    }
    // mkfs.fat options, size in MiB, offset to damage, new byte, and a word of the warning.
    let cases: [(&str, u64, u64, u8, &str); 7] = [
        ("-F 16 -s 4 -R 4", 32, 0x25, 1, "unmounted"),
        ("-F 32 -s 1", 40, 0x41, 1, "unmounted"),
        ("-F 16 -s 4 -R 4", 32, 4 * 512 + 3, 0x7F, "differ"),
        ("-F 16 -s 4 -R 4 -f 1", 32, 4 * 512 + 3, 0x7F, "unmounted"),
        ("-F 16 -s 4 -R 4 -f 1", 32, 4 * 512, 0xF0, "media"),
        ("-F 16 -s 4 -R 4 -f 1", 32, 4 * 512 + 101, 0xFE, "points nowhere"),
        ("-F 32 -s 1", 40, 0x28, 0x80, "mirrored"),
    ];
    for (options, mib, offset, byte, why) in cases {
        let bench = Bench::new();
        let image = bench.sparse_file("image", mib << 20);
        run(&format!("mkfs.fat {options}"), &[&image]);
        fs::File::options().write(true).open(&image).unwrap().write_all_at(&[byte], offset).unwrap();
        let map = map_of(&image);
        assert!(map.allocated.contains(map.window), "mkfs.fat {options}, byte {byte:#x} at {offset}");
        assert!(map.warnings.iter().any(|warning| warning.contains(why)), "{options}: {:?}", map.warnings);
    }
}

#[test]
fn what_the_filesystem_lists_as_bad_is_not_read() {
    if !have(&["mkfs.fat", "fsck.fat"]) {
        return;
    }
    for (options, mib) in [("-F 12 -s 8", 15), ("-F 16 -s 4", 32), ("-F 32 -s 2", 80)] {
        let bench = Bench::new();
        let list = bench.path("bad");
        // Blocks of 1 KiB.
        fs::write(&list, (8000..8032).map(|block| format!("{block}\n")).collect::<String>()).unwrap();
        let used = |name: &str, more: &str| {
            let image = bench.random_file(name, mib << 20, mib);
            run(&format!("mkfs.fat {options} {more}"), &[&image]);
            // mkfs.fat counts bad clusters as free in FAT32; this puts it right, and says so by its status.
            let _ = std::process::Command::new("fsck.fat").arg("-a").arg(&image).output();
            let summary = run("fsck.fat -n", &[&image]);
            let map = map_of(&image);
            assert_eq!(map.warnings, [""; 0], "mkfs.fat {options} {more}");
            run("fsck.fat -n", &[&bench.restore(&image, &map)]);
            (map.allocated.sectors(), summary)
        };
        let (good, bad) = (used("good", ""), used("listed", &format!("-l {}", list.display())));
        assert_eq!(good.0, bad.0, "mkfs.fat {options}");
        assert!(bad.1.contains("clusters") && good.1 != bad.1, "it lists none: {}", bad.1);
    }
}
