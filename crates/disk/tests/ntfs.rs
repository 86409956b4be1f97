//! Tests NTFS as mkntfs makes it and ntfs-3g fills it: a disk restored from its allocated sectors alone is intact, and
//! its free clusters and what Windows throws away are left out.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{
    self, Bench, Mounted, assert_left_out, assert_noticed, assert_same_files, assert_understood,
    assert_whole, have, is_root, map_of, number, run, scatter,
};

const TOOLS: &[&str] = &["mkntfs", "ntfs-3g", "ntfsfix", "ntfsinfo", "ntfscluster", "umount", "blkid"];

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
    scatter(root, mib, 400, 200);
    fs::hard_link(root.join("folder/a long name \u{1F4BE} 1.data"), root.join("hard link")).unwrap();
    std::os::unix::fs::symlink("hard link", root.join("symbolic link")).unwrap();
    let hole = File::create(root.join("with a hole")).unwrap();
    hole.set_len(1 << 20).unwrap();
    hole.write_all_at(b"behind the hole", 900_000).unwrap();
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
    assert_same_files(&there.folder, &here.folder, without, context);
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
        assert_eq!(filesystem.block_bytes, cluster_bytes, "mkntfs {options}");

        let info = run("ntfsinfo -m", &[&image]);
        let free = number(&info, "Free Clusters") * u64::from(cluster_bytes) / 512;
        assert_left_out(&map, free, options);

        let restored = bench.restore(&image, &map);
        assert_same(&bench, &image, &restored, &[], options);
    }
}

/// ntfsresize counts whole clusters, and leaves the copy of the boot sector in the last sector of the partition.
#[test]
fn what_ntfsresize_left_is_understood() {
    if !have(TOOLS) || !have(&["ntfsresize"]) || !is_root() {
        return;
    }
    for (mib, bytes) in [(64, 48 << 20), (64, (40 << 20) + 5 * 512)] {
        let bench = Bench::new();
        let image = bench.sparse_file("image", mib << 20);
        run("mkntfs -Q -F -q -L LABEL", &[&image]);
        fill(&Mounted::by("ntfs-3g", &image, bench.tree("filled")).folder, mib / 4);
        // Forced so much, it asks nothing.
        run(&format!("ntfsresize -f -f -P -s {bytes}"), &[&image]);
        File::options().write(true).open(&image).unwrap().set_len(bytes).unwrap();
        assert_whole(&map_of(&image), "it is marked for a check", "not checked");
        run("ntfsfix -d", &[&image]);
        let map = map_of(&image);
        assert_understood(&map, &image, "shrunk");
        let free = number(&run("ntfsinfo -m", &[&image]), "Free Clusters") * 4096 / 512;
        assert_left_out(&map, free, "shrunk");
        let restored = bench.restore(&image, &map);
        assert_same(&bench, &image, &restored, &[], "shrunk");
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
    assert_same(&bench, &image, &restored, &swap, "without swap files");

    {
        let root = Mounted::by("ntfs-3g", &image, bench.tree("asleep"));
        let file = File::options().write(true).open(root.folder.join("HIBERFIL.SYS")).unwrap();
        file.write_all_at(b"hibr", 0).unwrap();
    }
    let map = map_of(&image);
    assert_whole(&map, "Windows sleeps in it", "asleep");
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
    let runs_of_log = find(record(2), &[0x80, 0, 0, 0]) + 64;
    let torn = [!sound[record(7) + 510]];
    assert_noticed(
        &image,
        &[
            (flags, &[1], "marked for a check"),
            (flags - 2, &[4], "unknown version"),
            (record(7) + 510, &torn, "file record 7 is damaged"),
            (record(8), b"B", "file record 8 is damaged"),
            (runs_of_log, &[0x41], "a run of a file has no clusters"),
        ],
    );
}

/// The journal of a volume that is in use, or was not unmounted, has a client.
#[test]
fn a_journal_with_a_client_is_not_clean() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = make(&bench, "-c 4096", 48);
    let clusters = run("ntfscluster -f -I 2", &[&image]);
    let runs =
        clusters.lines().map(|line| line.split_whitespace().map(str::parse::<usize>).collect::<Vec<_>>());
    let mut start = runs.filter_map(|fields| match fields[..] {
        [Ok(_), Ok(first), Ok(_)] => Some(first),
        _ => None,
    });
    let journal = start.next_back().unwrap() * 4096;
    let page = |client: u16, flags: u16| {
        let mut page = vec![0; 4096];
        page[..4].copy_from_slice(b"RSTR");
        page[4..8].copy_from_slice(&[30, 0, 9, 0]);
        page[16..26].copy_from_slice(&[0, 16, 0, 0, 0, 16, 0, 0, 48, 0]);
        page[60..62].copy_from_slice(&client.to_le_bytes());
        page[62..64].copy_from_slice(&flags.to_le_bytes());
        page
    };
    assert_noticed(&image, &[(journal, &page(0, 0), "its journal is not empty")]);
    for clean in [page(0, 2), page(0xFFFF, 0)] {
        common::write_at(&image, journal as u64, &clean);
        assert_eq!(map_of(&image).warnings, [""; 0]);
    }
}

/// Lists clusters of a new volume as bad, as Windows does: no tool of Linux can. `places` are the bytes of the table of
/// files and of the bitmap.
fn list_as_bad(image: &Path, (table, bitmap): (usize, usize), first: u16, count: u16) {
    let mut disk = fs::read(image).unwrap();
    let number = |disk: &[u8], at: usize| u32::from_le_bytes(*disk[at..].first_chunk().unwrap()) as usize;
    let record = table + 8 * 1024;
    let mut at = record + (number(&disk, record + 20) & 0xFFFF);
    // The stream in clusters is the last attribute.
    while disk[at + 8] == 0 {
        at += number(&disk, at + 4);
    }
    let (len, runs) = (number(&disk, at + 4), at + (number(&disk, at + 32) & 0xFFFF));
    assert_eq!((number(&disk, at), number(&disk, at + len)), (0x80, u32::MAX as usize));
    let clusters = u16::try_from(number(&disk, at + 24)).unwrap() + 1;
    let mut list = Vec::new();
    let mut run = |head: u8, numbers: &[u16]| {
        list.push(head);
        numbers.iter().for_each(|number| list.extend(number.to_le_bytes()));
    };
    run(2, &[first]);
    run(0x22, &[count, first]);
    run(2, &[clusters - first - count]);
    list.resize(16, 0);
    disk[runs..runs + 16].copy_from_slice(&list);
    let new = runs + 16 - at;
    disk[at + 4] = u8::try_from(new).unwrap();
    disk[at + new..at + new + 8].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
    let used = u32::try_from(at + new + 8 - record).unwrap();
    assert!(used < 510, "no fixup is concerned");
    disk[record + 24..record + 28].copy_from_slice(&used.to_le_bytes());
    (first..first + count).for_each(|cluster| disk[bitmap + usize::from(cluster / 8)] |= 1 << (cluster % 8));
    fs::write(image, disk).unwrap();
}

/// The runs of a file, as ntfscluster prints them: its cluster, that of the volume, and how many.
fn clusters_of(image: &Path, number: u64) -> Vec<[i64; 3]> {
    let text = run(&format!("ntfscluster -f -I {number}"), &[&image]);
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<_>>>();
    text.lines().filter_map(|line| numbers(line)?.try_into().ok()).collect()
}

#[test]
fn what_the_filesystem_lists_as_bad_is_not_read() {
    if !have(TOOLS) || !have(&["ntfsresize"]) || !is_root() {
        return;
    }
    let bench = Bench::new();
    let image = bench.random_file("image", 48 << 20, 48);
    run("mkntfs -Q -F -q -L LABEL -c 4096", &[&image]);
    let field = fs::read(&image).unwrap();
    let table = u64::from_le_bytes(*field[48..].first_chunk().unwrap()) as usize * 4096;
    let bitmap = clusters_of(&image, 6)[0][1] as usize * 4096;
    list_as_bad(&image, (table, bitmap), 5000, 10);
    let list = [[0, -1, 5000], [5000, 5000, 10], [5010, -1, 7277]];
    assert_eq!(clusters_of(&image, 8), list);
    fill(&Mounted::by("ntfs-3g", &image, bench.tree("filled")).folder, 48);

    let map = map_of(&image);
    assert_understood(&map, &image, "bad clusters");
    let free = number(&run("ntfsinfo -m", &[&image]), "Free Clusters") * 8;
    assert_left_out(&map, free + 10 * 8, "bad clusters");
    let bad = base::Extent::new(5000 * 8, 10 * 8);
    assert!(map.allocated.within(bad).next().is_none());

    // A healthy disk that gets it has the list as well, which is no error.
    let restored = bench.restore(&image, &map);
    assert_same(&bench, &image, &restored, &[], "bad clusters");
    run("ntfsresize --info --bad-sectors", &[&restored]);
    assert_eq!(clusters_of(&restored, 8), list);

    // What docs/capture.md says of it.
    run("ntfsfix --clear-bad-sectors --clear-dirty", &[&restored]);
    assert_eq!(clusters_of(&restored, 8), [[0, -1, 12_287]]);
    assert_sound(&restored);

    // A file that has a cluster from the list contradicts that.
    let taken = u16::try_from(clusters_of(&image, 68)[0][1]).unwrap();
    let mut disk = fs::read(&image).unwrap();
    let record = table + 8 * 1024;
    let run = disk[record..].windows(5).position(|bytes| bytes == [0x22, 10, 0, 0x88, 0x13]).unwrap();
    let [low, high] = taken.to_le_bytes();
    // That cluster alone, and a hole that is as much longer: 7286 clusters.
    disk[record + run..][..8].copy_from_slice(&[0x22, 1, 0, low, high, 2, 0x76, 0x1C]);
    fs::write(&image, disk).unwrap();
    assert_whole(&map_of(&image), "of file 68 is free by the bitmap", "listed, and in use");
}
