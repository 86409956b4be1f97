//! Tests exFAT as mkfs.exfat makes it and exfat-fuse fills it: a disk restored from its allocated sectors alone is
//! intact, and its free clusters are left out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{
    Bench, Mounted, assert_left_out, assert_noticed, assert_same_files, assert_understood, have, is_root,
    map_of, number, run, scatter,
};

const TOOLS: &[&str] = &["mkfs.exfat", "fsck.exfat", "dump.exfat", "mount.exfat-fuse", "umount"];
const TABLE_AT: u64 = 80;
const HEAP_AT: u64 = 88;

/// mkfs.exfat options, size in MiB, and cluster size in bytes.
const MATRIX: &[(&str, u64, u32)] = &[
    ("-c 512", 8, 512),
    ("-c 4K", 40, 4096),
    ("-c 4K --pack-bitmap", 40, 4096),
    ("-c 32K -b 4M", 120, 32_768),
    ("-c 128K", 120, 131_072),
    ("-c 512K -b 1M", 300, 512 << 10),
];

fn make(bench: &Bench, options: &str, mib: u64) -> PathBuf {
    let image = bench.random_file("image", mib << 20, mib);
    run(&format!("mkfs.exfat -L LABEL {options}"), &[&image]);
    scatter(&Mounted::by("mount.exfat-fuse", &image, bench.tree("filled")).folder, mib, 150, 20);
    image
}

fn assert_same(bench: &Bench, image: &Path, restored: &Path, options: &str) {
    run("fsck.exfat -n", &[&restored]);
    let [there, here] = [(image, "there"), (restored, "here")]
        .map(|(image, name)| Mounted::by("mount.exfat-fuse -o ro", image, bench.tree(name)));
    assert_same_files(&there.folder, &here.folder, &[], options);
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
        let filesystem = assert_understood(&map, &image, options);
        assert_eq!(filesystem.block_bytes, cluster_bytes, "mkfs.exfat {options}");

        let dump = run("dump.exfat", &[&image]);
        let free = number(&dump, "Free Clusters") * u64::from(cluster_bytes) / 512;
        assert_left_out(&map, free, options);

        let restored = bench.restore(&image, &map);
        assert_same(&bench, &image, &restored, options);
    }
}

/// Each case damages a sound filesystem, whose free space can then not be trusted.
#[test]
fn dirty_or_contradictory_is_taken_whole() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-c 4K", 40);
    let sound = fs::read(&image).unwrap();
    let sector = |at: u64| u64::from(u32::from_le_bytes(*sound[at as usize..].first_chunk().unwrap())) * 512;
    let (table, heap) = (sector(TABLE_AT), sector(HEAP_AT));
    // The bitmap is the first thing in the heap: mkfs.exfat puts it there.
    let root =
        sound.windows(4).enumerate().skip(heap as usize).find(|(at, bytes)| {
            at.is_multiple_of(32) && bytes[0] == 0x83 && bytes[1] == 5 && bytes[2] == b'L'
        });
    let root = root.unwrap().0 as u64;
    let file = (root..root + 4096).step_by(32).find(|&at| sound[at as usize] == 0x85).unwrap();
    let [boot_sum, file_sum] = [11 * 512, file as usize + 2].map(|at| [sound[at] ^ 1]);
    let at = |offset: u64| offset as usize;
    assert_noticed(
        &image,
        &[
            (106, &[2], "unmounted"),
            (106, &[1], "TexFAT"),
            (110, &[2], "checksum of its boot sectors"),
            (11 * 512, &boot_sum, "checksum of its boot sectors"),
            (at(heap), &[0xFE], "free by the bitmap"),
            (at(table) + 2 * 4, &[0], "is too long"),
            (at(file) + 2, &file_sum, "checksum of a file's entries"),
            (at(file), &[0x84], "unknown type"),
            (at(root) + 32, &[0x01], "no bitmap"),
        ],
    );
}

/// Clusters that no file has, that are marked, and of which the table says that they are bad. The entries of files
/// without gaps mean nothing, whatever is in them.
#[test]
fn what_the_filesystem_lists_as_bad_is_not_read() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-c 4K", 40);
    let good = map_of(&image);
    let sound = fs::read(&image).unwrap();
    let sector = |at: usize| u64::from(u32::from_le_bytes(*sound[at..].first_chunk().unwrap())) * 512;
    let (table, heap) = (sector(TABLE_AT as usize), sector(HEAP_AT as usize));
    let entry = |cluster: u64| (table + 4 * cluster) as usize;
    let mark = |disk: &mut [u8], cluster: u64| {
        disk[entry(cluster)..][..4].copy_from_slice(&[0xF7, 0xFF, 0xFF, 0xFF])
    };
    let mut disk = sound.clone();
    let clusters = u64::from(u32::from_le_bytes(*sound[92..].first_chunk().unwrap()));
    let bad = clusters - 200..clusters - 190;
    for cluster in bad.clone() {
        let bit = cluster - 2;
        let byte = &mut disk[(heap + bit / 8) as usize];
        assert_eq!(*byte >> (bit % 8) & 1, 0, "it is free so far");
        *byte |= 1 << (bit % 8);
        mark(&mut disk, cluster);
    }
    // In use, with an entry that nobody reads: that of a file whose clusters follow each other.
    let in_use = |cluster: &u64| sound[(heap + (cluster - 2) / 8) as usize] >> ((cluster - 2) % 8) & 1 == 1;
    let unread = |cluster: &u64| sound[entry(*cluster)..][..4] == [0; 4];
    let contiguous = (2..clusters).filter(in_use).filter(unread).collect::<Vec<_>>();
    assert!(!contiguous.is_empty());
    contiguous.iter().for_each(|&cluster| mark(&mut disk, cluster));
    fs::write(&image, disk).unwrap();

    let map = map_of(&image);
    assert_understood(&map, &image, "bad clusters");
    assert_eq!(map.allocated, good.allocated);
    // A healthy disk that gets it has the list as well, which is no error.
    let restored = bench.restore(&image, &map);
    assert_same(&bench, &image, &restored, "bad clusters");
}
