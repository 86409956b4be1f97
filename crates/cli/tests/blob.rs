//! Tests versions, clones and commits with the binary: its output for people and for scripts.

use crate::common::{self, Bench};

#[test]
fn an_image_is_made_committed_to_cloned_and_compared() {
    let bench = Bench::new();
    bench.disk("disk.img", 8, 1);
    assert_eq!(bench.see("create web 8M"), "out: created web@1, 8.0 MiB, all of it free\nexit: 0\n");
    let committed = bench.json("commit web disk.img");
    let made = committed.last().unwrap();
    assert_eq!((made["type"].as_str(), made["number"].as_u64()), (Some("committed"), Some(2)));
    assert!(bench.see("commit web disk.img").starts_with("out: nothing differs from web@2\n"));
    assert_eq!(bench.see("install web out.img -q"), "exit: 0\n");
    common::assert_same(&bench.path("disk.img"), &bench.path("out.img"));

    assert_eq!(bench.see("clone web@2 lab"), "out: cloned web@2 as lab@1\nexit: 0\n");
    assert_eq!(bench.see("clone web lab"), "err: error: there is an image `lab` already\nexit: 11\n");
    std::fs::write(bench.path("piece"), b"another boot sector").unwrap();
    let at = bench.see("commit lab piece --at 512 --expect 1");
    assert!(at.starts_with("out: committed 19 B as lab@2, ") && at.ends_with("exit: 0\n"), "{at}");
    assert_eq!(
        bench.see("commit lab piece --at 512 --expect 1"),
        "err: error: `lab` is at version 2 by now, not at 1\nexit: 11\n"
    );
    assert_eq!(
        bench.see("diff web lab --exact"),
        "out:                  512              512  written\n\
         out: web@2 and lab@2: 1 ranges, 512 B written, 0 B allocated, 0 B freed\n\
         exit: 0\n"
    );
    let ranges = bench.json("diff web@1 web --exact");
    // Without a filesystem that says more, all of a disk is allocated, zeros too.
    assert_eq!(ranges.last().unwrap()["allocated_bytes"], 8 << 20);
    std::fs::write(bench.path("tail"), [7; 1024]).unwrap();
    assert!(bench.see("commit lab tail --append").starts_with("out: committed 1.0 KiB as lab@3, "));
    assert_eq!(
        bench.see("commit web tail --append --at 0").lines().last(),
        Some("exit: 2"),
        "one place or the other"
    );
    let range = bench.json("commit web out.img --range 1M+4096 --range 0+512");
    assert_eq!((range[0]["bytes"].as_u64(), range[0]["ranges"].as_u64()), (Some(4608), Some(2)));
    let log = bench.see("log lab");
    let lines: Vec<_> = log.lines().collect();
    assert!(
        lines[1].starts_with("out:       3  @2 ") && lines[3].starts_with("out:       1  web@2 "),
        "{log}"
    );
    assert_eq!(bench.json("log lab --limit 1").len(), 1);
    assert!(bench.see("commit web tail").contains("error: the disk has 1024 bytes, the image 8388608\n"));
}

/// What is appended may have any length: the rest of its last sector is zeros, as of a raw file that is captured.
#[test]
fn what_is_appended_may_have_any_length() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 3);
    bench.see("create log 1M -q");
    bench.see("commit log disk.img -q");
    let mut expected = std::fs::read(bench.path("disk.img")).unwrap();
    for (number, len) in (3..).zip([1, 511, 512, 1001, 262_144 + 17]) {
        let piece = vec![u8::try_from(number).unwrap(); len];
        std::fs::write(bench.path("piece"), &piece).unwrap();
        let done = bench.see("commit log piece --append");
        assert!(done.contains(&format!(" as log@{number}, ")) && done.ends_with("exit: 0\n"), "{done}");
        expected.extend(piece);
        expected.resize(expected.len().next_multiple_of(512), 0);
    }
    std::fs::write(bench.path("expected.img"), expected).unwrap();
    assert_eq!(bench.see("install log out.img -q"), "exit: 0\n");
    bench.tool("cmp expected.img out.img");

    std::fs::write(bench.path("piece"), b"").unwrap();
    let nothing = bench.see("commit log piece --append");
    assert!(
        nothing.starts_with("out: nothing differs from log@7\n") && nothing.ends_with("exit: 0\n"),
        "{nothing}"
    );
}

#[test]
fn usage_tells_own_from_shared_and_copies_heal() {
    let bench = Bench::new();
    bench.disk("disk.img", 8, 2);
    bench.see("capture disk.img web -q");
    bench.see("clone web lab");
    let usage = bench.json("usage");
    assert_eq!(usage.len(), 3);
    let bytes = |at: usize, field: &str| usage[at][field].as_u64().unwrap();
    assert_eq!(bytes(0, "shared_bytes"), bytes(1, "shared_bytes"));
    assert!(bytes(0, "own_bytes") < 4096 && bytes(0, "shared_bytes") > 1 << 20);
    assert_eq!(
        bytes(2, "stored_bytes"),
        bytes(0, "own_bytes") + bytes(1, "own_bytes") + bytes(2, "shared_bytes")
    );
    assert!(bench.see("usage").starts_with("out: IMAGE  VERSIONS"));

    let copied = bench.see("copy web other --as backup");
    assert!(
        copied.starts_with("out: copied web as backup@1, ") && copied.ends_with(" sent\nexit: 0\n"),
        "{copied}"
    );
    assert_eq!(
        bench.see("copy web other --as backup --all"),
        "out: web@1 is there already: backup@1\nexit: 0\n"
    );
    let chunks = bench.path("repo/chunks");
    let folder = std::fs::read_dir(chunks).unwrap().next().unwrap().unwrap().path();
    let chunk = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&chunk, bytes).unwrap();
    assert!(bench.see("verify").ends_with("exit: 12\n"));
    let healed = bench.see("verify --repair other");
    assert!(healed.contains("out: healed: ") && healed.ends_with("exit: 0\n"), "{healed}");
    assert!(bench.see("verify").ends_with("exit: 0\n"));
    assert!(bench.see("verify --repair nowhere").ends_with("exit: 10\n"));
}

#[test]
fn what_is_freed_is_neither_stored_nor_installed() {
    use std::os::unix::fs::FileExt as _;
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 3);
    assert!(bench.see("capture disk.img web -q --raw").ends_with("exit: 0\n"));
    let allocated = || bench.json("log web --limit 1")[0]["allocated_bytes"].as_u64().unwrap();
    assert_eq!(allocated(), 8 << 20);
    let freed = bench.see("commit web disk.img --free 0+1M --range 1M+4096 --free 1M+8192");
    assert!(freed.starts_with("out: committed 4.0 KiB and freed 1.0 MiB as web@2, "), "{freed}");
    assert_eq!(allocated(), (7 << 20) - 4096);
    let installed = std::fs::File::create(bench.path("out.img")).unwrap();
    installed.write_all_at(&[7; 8 << 20], 0).unwrap();
    assert!(bench.see("install web out.img -q --yes").ends_with("exit: 0\n"));
    let found = std::fs::read(bench.path("out.img")).unwrap();
    assert!(found[..1 << 20].iter().all(|byte| *byte == 7), "free space is not written");
    assert!(found[(1 << 20) + 8192..] == std::fs::read(&disk).unwrap()[(1 << 20) + 8192..]);

    // Half of the disk becomes a hole: without --free-holes, a commit stores it as zeros.
    let file = std::fs::File::options().write(true).open(&disk).unwrap();
    file.set_len(4 << 20).unwrap();
    file.set_len(8 << 20).unwrap();
    let plan = bench.json("commit web disk.img --dry-run");
    assert_eq!(plan[0]["freed_bytes"], 0);
    assert!(plan[0]["bytes"].as_u64().unwrap() > 1 << 20, "{plan:?}");
    let done = bench.json("commit web disk.img --free-holes");
    assert_eq!(done[0]["freed_bytes"], 4 << 20);
    // The sectors that were freed before are allocated again, zeros too: only the disk says what is free.
    assert_eq!(allocated(), 4 << 20);
    assert_eq!(bench.see("commit web disk.img --free-holes"), "out: nothing differs from web@3\nexit: 0\n");
    // Beside a part of the image nobody looks whether a hole lies in a filesystem.
    for part in ["--range 0+1M", "--at 0", "--free 0+1M"] {
        let both = bench.see(&format!("commit web disk.img --free-holes {part}"));
        assert!(both.contains("cannot be used with") && both.ends_with("exit: 2\n"), "{both}");
    }
}

#[test]
fn versions_that_may_lack_zeros_are_named_until_the_disk_is_committed_again() {
    use image::manifest::{Manifest, Parent};
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web --raw -q").ends_with("exit: 0\n"));
    bench.disk("disk.img", 4, 2);
    assert!(bench.see("capture disk.img web --raw -q").ends_with("exit: 0\n"));
    // A version as older programs made it: with a parent, and without a word about how it was made.
    let repository = store::Repository::open(&store::Location::Folder(bench.path("repo"))).unwrap();
    let (parent, _) = repository.signed_manifest(&"web@1".parse().unwrap()).unwrap();
    let second = repository.resolve(&"web@2".parse().unwrap()).unwrap();
    let parent = Parent { image: "web".to_owned(), number: 1, digest: parent.digest() };
    repository
        .publish(&"web".parse().unwrap(), Manifest { parent: Some(parent), made: None, ..second })
        .unwrap();

    std::fs::write(bench.path("piece"), b"piece").unwrap();
    for words in
        ["clone web@3 lab", "commit lab piece --at 512", "clone web@2 sound", "commit sound piece --at 0"]
    {
        assert!(bench.see(&format!("{words} -q")).ends_with("exit: 0\n"), "{words}");
    }
    let named = |words: &str| {
        let lines = bench.json(words).into_iter().filter(|line| line["type"] == "unproven_free");
        let mut names: Vec<_> = lines.map(|line| line["version"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(named("verify"), ["lab@1", "lab@2", "web@3"]);
    assert_eq!(named("verify lab"), ["lab@2"]);
    let seen = bench.see("verify");
    assert!(seen.contains("zeros may be missing") && seen.ends_with("exit: 0\n"), "{seen}");
    assert_eq!(bench.see("log lab").matches("zeros may be missing").count(), 2);
    assert!(bench.see("inspect web").contains("out: in doubt    zeros may be missing"));
    // Nobody knows how that disk was surveyed. Who says it ends the doubt, although no byte differs.
    let asked = bench.see("commit web disk.img -q");
    assert!(asked.contains("--whole") && asked.ends_with("exit: 11\n"), "{asked}");
    assert!(bench.see("commit web disk.img --raw -q").ends_with("exit: 0\n"));
    assert_eq!(named("verify web"), [""; 0]);
    assert!(bench.see("commit web disk.img").ends_with("out: nothing differs from web@4\nexit: 0\n"));
}

#[test]
fn a_partition_of_an_image_is_committed_from_the_disk_or_from_its_own_device() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 6, 1);
    bench.tool("truncate -s 6M disk.img");
    let table = "label: gpt\nstart=2048,size=2048\nstart=4096,size=4096\n";
    let mut sfdisk =
        std::process::Command::new("sfdisk").arg("-q").arg(&disk).stdin(std::process::Stdio::piped()).spawn();
    let child = sfdisk.as_mut().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), table.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let part = |name: &str| bench.tool(&format!("dd if=disk.img of={name} bs=1M skip=2 count=2 status=none"));
    assert!(bench.see("capture disk.img web --partition 2 -q").contains("exit: 0\n"));
    part("part.img");
    assert!(bench.see("commit web part.img").contains("nothing differs from web@1"));
    std::fs::write(bench.path("part.img"), vec![7; 2 << 20]).unwrap();
    assert!(bench.see("commit web part.img -q").contains("exit: 0\n"));
    let described = |name: &str| {
        let manifest = &bench.json(&format!("inspect {name}"))[0]["manifest"];
        (
            manifest["origin"].clone(),
            manifest["disk"]["table"].clone(),
            manifest["disk"]["partitions"].clone(),
        )
    };
    assert_eq!(described("web@2"), described("web@1"));
    assert!(bench.see("commit web disk.img -q").contains("exit: 0\n"), "from the whole disk again");
    assert_eq!(described("web@3"), described("web@1"));
    // Another disk that has the same size by chance.
    bench.tool("truncate -s 0 other.img");
    bench.tool("truncate -s 2M other.img");
    bench.tool("sgdisk --clear other.img");
    let refused = bench.see("commit web other.img");
    assert!(refused.contains("a disk with a partition table") && refused.contains("exit: 11\n"), "{refused}");
}

#[test]
fn a_commit_of_a_whole_disk_equals_a_capture_of_it() {
    if !lab::available_or_skip() {
        return;
    }
    let bench = Bench::new();
    let seeds = std::env::var("DISKCAST_SEEDS").map_or(20, |seeds| seeds.parse().unwrap());
    let first = std::env::var("DISKCAST_SEED").map_or(0, |seed| seed.parse().unwrap());
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_diskcast"));
    let seeds_of = lab::CommitSeeds { program, folder: &bench.path("") };
    let wrong: Vec<_> = (first..first + seeds).filter_map(|seed| seeds_of.run(seed).err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\nagain: DISKCAST_SEED=N DISKCAST_SEEDS=1");
}
