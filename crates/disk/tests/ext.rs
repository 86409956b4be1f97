//! Tests ext2, ext3 and ext4 with a matrix of mke2fs features: a survey leaves out exactly the blocks that e2fsprogs
//! reports as free, and a disk restored from the other blocks alone is intact.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use base::{Extent, ExtentSet};

use crate::common::{self, Bench, have, map_of, output, paths, populate, run, show};

/// mke2fs options and the size of the filesystem in MiB.
const MATRIX: &[(&str, u64)] = &[
    ("-t ext4", 64),
    ("-t ext4 -b 4096", 140),
    ("-t ext4 -O ^64bit", 40),
    ("-t ext4 -O ^metadata_csum,uninit_bg", 40),
    ("-t ext4 -O ^metadata_csum,^uninit_bg", 40),
    ("-t ext4 -O ^metadata_csum,uninit_bg,^64bit -g 1024", 40),
    ("-t ext4 -O ^flex_bg -b 4096 -g 1024", 48),
    ("-t ext4 -O ^flex_bg,^resize_inode -b 1024", 40),
    ("-t ext4 -O meta_bg,^resize_inode -b 4096 -g 256", 160),
    ("-t ext4 -O meta_bg,^resize_inode -b 1024 -g 512", 64),
    ("-t ext4 -O meta_bg,^resize_inode,^64bit,^flex_bg -b 1024 -g 512", 64),
    ("-t ext4 -O ^sparse_super,^resize_inode -b 1024 -g 2048", 40),
    ("-t ext4 -O sparse_super2 -b 1024 -g 2048", 40),
    ("-t ext4 -O sparse_super2,^resize_inode -E num_backup_sb=1 -b 1024 -g 2048", 40),
    ("-t ext4 -O bigalloc -b 4096 -C 16384", 40),
    ("-t ext4 -O bigalloc,^metadata_csum,uninit_bg -b 4096 -C 65536 -g 8192", 100),
    ("-t ext4 -O bigalloc -b 1024 -C 8192", 100),
    ("-t ext4 -b 2048 -I 512", 40),
    ("-t ext4 -b 16384 -g 512", 48),
    ("-t ext4 -b 65536 -J size=4", 64),
    ("-t ext4 -G 4 -b 1024 -g 1024 -E lazy_itable_init=1", 64),
    ("-t ext4 -b 4096 -g 1024 -E lazy_itable_init=1,packed_meta_blocks=1", 64),
    ("-t ext4 -O mmp", 40),
    (
        "-t ext4 -O metadata_csum_seed,inline_data,project,quota,verity,casefold,encrypt,ea_inode,large_dir",
        40,
    ),
    ("-t ext4 -O orphan_file,fast_commit,stable_inodes", 40),
    ("-t ext4 -O ^has_journal", 40),
    ("-t ext3", 40),
    ("-t ext3 -b 1024 -I 128", 40),
    ("-t ext2", 40),
    ("-t ext2 -b 1024 -O ^sparse_super,^resize_inode,^dir_index,^ext_attr -g 1024", 40),
    ("-t ext2 -r 0 -b 1024", 40),
    ("-t ext2 -b 1024 -N 16 -m 0", 1),
];

/// Makes a filesystem over random bytes, fills it with files and deletes some of them.
fn make(bench: &Bench, options: &str, mib: u64) -> std::path::PathBuf {
    let tree = bench.tree("tree");
    if mib > 20 && !options.contains("-r 0") {
        populate(&tree, mib);
    } else {
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("small"), "small").unwrap();
    }
    let image = bench.random_file("image", mib << 20, 7);
    let line = format!("mke2fs -F -q -L label {options} -d {}", tree.display());
    run(&line, &[&image]);
    // Delete every third file, so that free and used blocks alternate.
    if mib > 20 && !options.contains("-r 0") {
        let mut script = String::new();
        for n in (0..300).step_by(3) {
            writeln!(script, "rm \"/many/a file with a rather long name {n}\"").unwrap();
        }
        writeln!(script, "rm /deep/file8").unwrap();
        debugfs(bench, &image, &script);
        // debugfs does not free the blocks of extended attributes, and quotas need a second run of e2fsck.
        output("e2fsck -fy", &[&image]);
        assert!(output("e2fsck -fy", &[&image]).status.code() <= Some(1), "mke2fs {options}");
    }
    image
}

/// The blocks that dumpe2fs reports as free, in sectors.
fn free_by_e2fsprogs(image: &Path) -> ExtentSet {
    let text = run("dumpe2fs", &[&image]);
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let sectors = field("Block size:") / 512;
    let cluster_sectors = if text.contains("Cluster size:") { field("Cluster size:") / 512 } else { sectors };
    let end = field("Block count:") * sectors;
    let free = text.lines().filter_map(|line| line.strip_prefix("  Free blocks: "));
    free.flat_map(|list| list.split(", "))
        .filter(|range| !range.is_empty())
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u64>().unwrap(), last.parse::<u64>().unwrap());
            // With bigalloc the range ends with the first block of its last cluster.
            let behind = if cluster_sectors > sectors {
                last * sectors + cluster_sectors
            } else {
                (last + 1) * sectors
            };
            Extent::between(first * sectors, behind.min(end))
        })
        .collect()
}

/// Checks that all files have the same content in both images, and the same attributes according to debugfs.
fn assert_same_files(bench: &Bench, image: &Path, restored: &Path, options: &str) {
    let [before, after] = [(image, "before"), (restored, "after")].map(|(image, name)| {
        let out = bench.path(name);
        fs::create_dir(&out).unwrap();
        debugfs(bench, image, &format!("rdump / {}\n", out.display()));
        out
    });
    let names = paths(&before);
    assert_eq!(names, paths(&after), "mke2fs {options}");
    for name in &names {
        let (one, other) = (before.join(name), after.join(name));
        if one.is_symlink() {
            assert_eq!(
                fs::read_link(one).unwrap(),
                fs::read_link(other).unwrap(),
                "{name:?}, mke2fs {options}"
            );
        } else if one.is_file() {
            assert!(
                fs::read(one).unwrap() == fs::read(other).unwrap(),
                "content of {name:?}, mke2fs {options}"
            );
        }
    }
    // Compare inode, owner, mode, times, link count, blocks and extended attributes.
    let mut script = String::new();
    for name in &names {
        writeln!(script, "stat \"/{0}\"\nea_list \"/{0}\"", name.display()).unwrap();
    }
    let [before, after] = [image, restored].map(|image| debugfs(bench, image, &script));
    assert!(before == after, "attributes differ, mke2fs {options}\n{before}\n{after}");
    let has_attributes = names.len() > 100 && !options.contains("^ext_attr");
    assert!(
        before.contains("Inode: ") && before.contains("user.diskcast") == has_attributes,
        "mke2fs {options}"
    );
}

/// Runs debugfs commands on an image; returns what it printed.
fn debugfs(bench: &Bench, image: &Path, script: &str) -> String {
    let path = bench.path("script");
    fs::write(&path, script).unwrap();
    let flags = if script.starts_with("rm") { "-w" } else { "" };
    run(&format!("debugfs {flags} -f {}", path.display()), &[&image])
}

#[test]
fn free_space_is_what_e2fsprogs_says_and_restored_disks_are_whole() {
    if !have(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    for &(options, mib) in MATRIX {
        let bench = Bench::new();
        let image = make(&bench, options, mib);
        let map = map_of(&image);
        assert_eq!(map.warnings, [""; 0], "mke2fs {options}");
        let [partition] = &map.partitions[..] else { panic!("mke2fs {options}: {:?}", map.partitions) };
        let filesystem = partition.filesystem.as_ref().unwrap();
        assert!(filesystem.understood, "mke2fs {options}");
        assert_eq!(filesystem.label.as_deref(), Some("label"), "mke2fs {options}");

        let free = map.allocated.gaps_within(map.window);
        // A survey captures both ends of every filesystem, used or not.
        let mut expected = free_by_e2fsprogs(&image);
        common::ends(map.window).into_iter().for_each(|end| expected.remove(end));
        assert_eq!(show(&free), show(&expected), "free sectors after mke2fs {options}");

        let restored = bench.restore(&image, &map);
        run("e2fsck -fn", &[&restored]);
        assert_same_files(&bench, &image, &restored, options);
    }
}

/// The blocks that dumpe2fs lists as bad.
fn bad_by_e2fsprogs(image: &Path) -> Vec<u64> {
    run("dumpe2fs -b", &[&image]).lines().map(|line| line.trim().parse().unwrap()).collect()
}

#[test]
fn what_the_filesystem_lists_as_bad_is_not_read() {
    if !have(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    // Some fit in the inode; others need blocks of numbers, at two depths with blocks of 1 KiB.
    for (options, bytes, bad) in [
        ("-t ext4 -b 4096", 4096, vec![5000, 5001, 7000]),
        ("-t ext4 -b 4096 -O ^metadata_csum,uninit_bg", 4096, (5000..5100).collect()),
        ("-t ext4 -b 1024 -I 128", 1024, (20_000..20_700).step_by(2).collect()),
        ("-t ext3 -b 2048", 2048, (9000..9020).collect()),
        ("-t ext2 -b 1024 -r 0", 1024, (12_000..12_280).collect::<Vec<u64>>()),
    ] {
        let bench = Bench::new();
        let list = bench.path("bad");
        fs::write(&list, bad.iter().map(|block| format!("{block}\n")).collect::<String>()).unwrap();
        let image = make(&bench, &format!("{options} -l {}", list.display()), 64);
        assert_eq!(bad_by_e2fsprogs(&image), bad, "mke2fs {options}");
        let map = map_of(&image);
        assert_eq!(map.warnings, [""; 0], "mke2fs {options}");
        let free = map.allocated.gaps_within(map.window);
        let sectors = bytes / 512;
        let mut expected = free_by_e2fsprogs(&image);
        bad.iter().for_each(|block| expected.insert(Extent::new(block * sectors, sectors)));
        common::ends(map.window).into_iter().for_each(|end| expected.remove(end));
        assert_eq!(show(&free), show(&expected), "mke2fs {options}");

        // A healthy disk that gets it has the list as well, which is no error.
        let restored = bench.restore(&image, &map);
        run("e2fsck -fn", &[&restored]);
        assert_eq!(bad_by_e2fsprogs(&restored), bad, "mke2fs {options}");
        assert_same_files(&bench, &image, &restored, options);
        // What docs/capture.md says of it.
        assert!(output("e2fsck -fy -L /dev/null", &[&restored]).status.code() <= Some(1), "mke2fs {options}");
        assert_eq!(bad_by_e2fsprogs(&restored), [0; 0], "mke2fs {options}");
        run("e2fsck -fn", &[&restored]);
    }
}

/// Where a block of the filesystem's own is listed as bad, it is read all the same; a list that is damaged is not
/// followed.
#[test]
fn a_list_of_bad_blocks_frees_nothing_that_is_needed() {
    if !have(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let bench = Bench::new();
    let list = bench.path("bad");
    // The second group's copy of the superblock begins with block 8193.
    fs::write(&list, "8193\n8194\n20000\n").unwrap();
    let image = make(&bench, &format!("-t ext4 -b 1024 -O ^flex_bg -l {}", list.display()), 64);
    let map = map_of(&image);
    assert_eq!(map.warnings, [""; 0]);
    assert!(bad_by_e2fsprogs(&image).contains(&20_000));
    assert!(map.allocated.contains(Extent::new(2 * 8193, 4)));
    assert!(
        map.allocated.gaps_within(Extent::new(2 * 20_000, 2)) == ExtentSet::of(Extent::new(2 * 20_000, 2))
    );

    // The first number of inode 1. Its checksum tells that another one was written there.
    let text = run("dumpe2fs", &[&image]);
    let table = text.lines().find_map(|line| line.trim().strip_prefix("Inode table at ")).unwrap();
    let table: u64 = table.split('-').next().unwrap().parse().unwrap();
    common::write_at(&image, table * 1024 + 0x28, &30_000_u32.to_le_bytes());
    common::assert_whole(&map_of(&image), "its list of bad blocks is damaged", "another number");
}
