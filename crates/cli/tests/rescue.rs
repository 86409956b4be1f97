//! Tests the capture of disks with sectors that can't be read, on block devices of the kernel whose reads fail there.

#[path = "../../disk/tests/common/bad_disk.rs"]
mod bad_disk;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use base::{Chance, Extent, ExtentSet};

use crate::common::Bench;
use bad_disk::BadDisk;

/// Whether root runs this, with the tools that make such a disk.
fn is_here() -> bool {
    let has = |tool: &&str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|dir| Path::new(dir).join(tool).exists())
    };
    let all = rustix::process::geteuid().is_root() && bad_disk::TOOLS.iter().all(has);
    assert!(all || std::env::var_os("CI").is_none(), "CI runs these tests as root, with nbdkit and nbdfuse");
    all
}

/// A disk with an ext4 of 40 MiB as partition 2, over random bytes, with a file of which `content` is the place.
fn disk(bench: &Bench) -> Extent {
    let mut chance = Chance::from_seed(11);
    let mut bytes = vec![0; 64 << 20];
    chance.fill(&mut bytes);
    fs::write(bench.path("disk.img"), &bytes).unwrap();
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.arg("-q").arg(bench.path("disk.img")).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let mut sfdisk = sfdisk.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let table = "label: gpt\nstart=2048, size=40960, type=uefi\nstart=43008, size=81920, type=linux\n";
    std::io::Write::write_all(&mut sfdisk.stdin.take().unwrap(), table.as_bytes()).unwrap();
    assert!(sfdisk.wait().unwrap().success());
    fs::create_dir(bench.path("tree")).unwrap();
    chance.fill(&mut bytes[..3 << 20]);
    fs::write(bench.path("tree/file"), &bytes[..3 << 20]).unwrap();
    for (name, make, size, at) in [
        ("one", "mkfs.fat -F 16", 20 << 20, 1 << 20),
        ("two", "mke2fs -q -F -t ext4 -b 4096 -d tree", 40 << 20, 21 << 20),
    ] {
        File::create(bench.path(name)).unwrap().set_len(size).unwrap();
        bench.tool(&format!("{make} {name}"));
        let bytes = fs::read(bench.path(name)).unwrap();
        File::options().write(true).open(bench.path("disk.img")).unwrap().write_all_at(&bytes, at).unwrap();
    }
    // The file lies in one piece.
    let all = fs::read(bench.path("two")).unwrap();
    let place = all.windows(4096).step_by(4096).position(|block| *block == bytes[..4096]).unwrap();
    Extent::new((21 << 11) + place as u64 * 8, (3 << 20) / 512)
}

/// The disk's bytes, with zeros in `bad`.
fn with_zeros(bench: &Bench, name: &str, bad: &ExtentSet) {
    fs::copy(bench.path("disk.img"), bench.path(name)).unwrap();
    let file = File::options().write(true).open(bench.path(name)).unwrap();
    for run in bad.runs() {
        file.write_all_at(&vec![0; usize::try_from(run.len_bytes()).unwrap()], run.offset_bytes()).unwrap();
    }
}

/// What each command says of the version.
const LACKS: &str = "old@1 is not complete: 12.5 KiB of its disk could not be read and are zeros: \
                     12.5 KiB in partition 2 (ext4)";

#[test]
fn a_disk_that_fails_is_refused_or_rescued() {
    if !is_here() {
        return;
    }
    let bench = Bench::new();
    let content = disk(&bench);
    // In a file, in one and in several pages of the cache, and in free space of the same filesystem.
    let in_file = [Extent::new(content.start + 1003, 1), Extent::new(content.start + 2000, 24)];
    let bad: ExtentSet = in_file.into_iter().chain([Extent::new(122_000, 4)]).collect();
    let failing = BadDisk::of(&bench.path("disk.img"), &bad, &bench.path("bad"));
    let device = failing.device.display().to_string();

    let refused = bench.see(&format!("capture {device} old"));
    // Several threads read: the one that fails first is heard.
    let why = |run: &Extent| {
        let sector = run.start;
        format!(
            "sector {sector} of `{device}` can't be read: Input/output error (os error 5); it lies in partition 2\n"
        )
    };
    let is_named = in_file.iter().any(|run| refused.contains(&why(run)));
    assert!(is_named && refused.contains("hint: `diskcast capture --rescue` "), "{refused}");
    assert!(refused.ends_with("exit: 1\n") && !refused.contains("old@1"), "{refused}");

    let rescued = bench.see(&format!("capture {device} old --rescue --rescue-map old.map"));
    assert!(rescued.contains("out: captured old@1: "), "{rescued}");
    assert!(
        rescued.contains(&format!("err: error: {LACKS}\n")) && rescued.ends_with("exit: 3\n"),
        "{rescued}"
    );

    assert_marked(&bench, &in_file);

    // What was installed is what was there, with zeros in those sectors alone: as of a sound disk with zeros there.
    with_zeros(&bench, "zeros.img", &in_file.into_iter().collect());
    assert_eq!(bench.see("capture zeros.img sound -q"), "exit: 0\n");
    assert_eq!(bench.see("install sound sound.img -q"), "exit: 0\n");
    bench.tool("cmp sound.img out.img");
    let trees: Vec<_> = ["old", "sound"]
        .map(|name| bench.json(&format!("inspect {name}"))[0]["manifest"]["root"].clone())
        .into_iter()
        .collect();
    assert_eq!(trees[0], trees[1]);

    // What is made of it is no better, and a part that was read in full is complete.
    assert!(bench.see("clone old copy -q").ends_with("exit: 0\n"));
    assert_eq!(bench.json("log copy")[0]["unreadable_bytes"], 12_800);
    let part = bench.see("install old part.img --partition 1");
    assert!(part.ends_with("exit: 0\n"), "{part}");

    // The map says where, to a program that knows such maps: its reads of these sectors fail, and no others.
    check_map(&bench, &in_file.into_iter().collect());
    let again = bench.see(&format!("capture {device} old --rescue --rescue-map old.map"));
    assert!(
        again.contains("error: `old.map` is there already\n") && again.ends_with("exit: 11\n"),
        "{again}"
    );

    // A partition without bad sectors that are in use is captured as ever.
    let one = bench.see(&format!("capture {device} one --partition 1 --rescue"));
    assert!(one.ends_with("exit: 0\n") && bench.json("log one")[0]["unreadable_bytes"] == 0, "{one}");
}

/// Each command that uses or lists the version says so. Leaves it installed in `out.img`.
fn assert_marked(bench: &Bench, unreadable: &[Extent]) {
    let listed: Vec<_> = unreadable.iter().map(|run| (run.start, run.count)).collect();
    let record = &bench.json("inspect old")[0]["manifest"]["disk"]["unreadable"];
    let ranges = record.as_array().unwrap().iter();
    let ranges: Vec<_> =
        ranges.map(|one| (one["start_sector"].as_u64().unwrap(), one["sectors"].as_u64().unwrap())).collect();
    assert_eq!(ranges, listed);
    let inspected = bench.see("inspect old");
    assert!(inspected.contains("unreadable  12.5 KiB of its disk could not be read"), "{inspected}");
    assert!(
        inspected.contains(&format!("512 bytes at offset {}\n", unreadable[0].start * 512)),
        "{inspected}"
    );
    assert!(bench.see("log old").lines().nth(1).unwrap().ends_with("could not be read in full"));
    let verified = bench.see("verify");
    assert!(
        verified.contains("out: not complete: old@1: 12.5 KiB of its disk could not be read"),
        "{verified}"
    );
    assert!(verified.ends_with("exit: 0\n"), "what is stored is intact: {verified}");
    let installed = bench.see("install old out.img");
    assert!(
        installed.contains(&format!("err: warning: {LACKS}\n")) && installed.ends_with("exit: 0\n"),
        "{installed}"
    );
    assert_eq!(bench.json("log old")[0]["unreadable_bytes"], 12_800);
}

/// The map covers the disk, and nbdkit, which knows such maps, serves what lies around the bad sectors, but not these.
fn check_map(bench: &Bench, bad: &ExtentSet) {
    let text = fs::read_to_string(bench.path("old.map")).unwrap();
    let mut at = 0;
    let mut found = ExtentSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap(), 16).unwrap();
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(number(words[0]), at, "no gaps: {line}");
        at += number(words[1]);
        assert!(["+", "-", "?"].contains(&words[2]), "{line}");
        if words[2] == "-" {
            found.insert(Extent::new(number(words[0]) / 512, number(words[1]) / 512));
        }
    }
    assert_eq!((at, &found), (64 << 20, bad));
    fs::create_dir(bench.path("mapped")).unwrap();
    let disk = BadDisk::by_map(&bench.path("disk.img"), &bench.path("old.map"), &bench.path("mapped"));
    let read = |sector: u64| {
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", disk.device.display())).arg(format!("skip={sector}"));
        dd.args(["of=/dev/null", "bs=512", "count=1", "iflag=direct", "status=none"]);
        dd.stderr(std::process::Stdio::null()).status().unwrap().success()
    };
    for run in bad.runs() {
        let around = [run.start - 1, run.start, run.end() - 1, run.end()].map(read);
        assert_eq!(around, [true, false, false, true], "{run:?}");
    }
}

/// A filesystem that can't be read is captured whole, with a warning; nothing of it is guessed.
#[test]
fn a_filesystem_that_cant_be_read_is_captured_whole() {
    if !is_here() {
        return;
    }
    let bench = Bench::new();
    disk(&bench);
    // Sector 2 of partition 2: its superblock.
    let bad = ExtentSet::of(Extent::new(43_010, 1));
    let failing = BadDisk::of(&bench.path("disk.img"), &bad, &bench.path("bad"));
    let device = failing.device.display().to_string();
    let refused = bench.see(&format!("capture {device} old"));
    assert!(
        refused.contains("sector 43010 of ") && refused.contains("; it lies in partition 2\n"),
        "{refused}"
    );

    let rescued = bench.see(&format!("capture {device} old --rescue"));
    let whole = "warning: partition 2 is captured whole: sector 43010, which describes it, can't be read\n";
    assert!(rescued.contains(whole) && rescued.ends_with("exit: 3\n"), "{rescued}");
    assert_eq!(bench.see("install old out.img -q").lines().last(), Some("exit: 0"));
    with_zeros(&bench, "zeros.img", &bad);
    // All of the partition, bit for bit.
    bench.tool("cmp --ignore-initial=22020096 --bytes=41943040 zeros.img out.img");
}
