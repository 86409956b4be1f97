//! Tests that an image is right wherever it is put: each kind of install on a target that is missing and on a disk that
//! was used; and that `verify --disk` tells what of a disk is not what its version says. Checkers of filesystems,
//! `cmp` and a comparison of our own are the judges.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use serde_json::{Value, json};

use crate::attach_common::{Attached, run};
use crate::common::targets::{BOTH, Before, DISK_MIB, PARTS, lab, partition, soil, soil_around};
use crate::common::{Bench, assert_same};

fn well(seen: &str) {
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
}

#[test]
fn an_install_of_each_kind_is_right_on_a_missing_and_on_a_used_target() {
    let bench = lab();
    for before in BOTH {
        for more in ["", "--free zero", "--free discard", "--resume", "--reuse always", "--size 64M"] {
            bench.target("out.img", 64, before);
            let what = format!("{before:?} {more}");
            well(&bench.see(&format!("install lab out.img -q --overwrite {more}")));
            bench.assert_lab("out.img", &what);
            assert_eq!(
                bench.command("verify --disk out.img lab -q").status().unwrap().code(),
                Some(0),
                "{what}"
            );
        }
        for name in ["one.img", "two.img"] {
            bench.target(name, 64, before);
        }
        well(&bench.see("install lab one.img --also two.img -q --overwrite"));
        for name in ["one.img", "two.img"] {
            bench.assert_lab(name, &format!("{before:?} --also"));
        }
        for (number, part) in [(1, "fat"), (2, "ext"), (3, "ntfs")] {
            bench.target("out.img", DISK_MIB, before);
            well(&bench.see(&format!("install lab out.img --partition {number} -q --overwrite")));
            bench.assert_part("out.img", part, &format!("{before:?} --partition {number}"));
        }
    }
}

/// Reads a disk in another form.
fn unpack(bench: &Bench, name: &str) {
    bench.tool(&format!("qemu-img convert -O raw {name} out.img"));
}

#[test]
fn a_disk_in_another_form_is_right_whatever_it_held_or_lies_over() {
    let bench = lab();
    soil(&bench.path("noise"), DISK_MIB << 20);
    bench.tool("qemu-img convert -O qcow2 noise noise.qcow2");
    for before in BOTH {
        for more in ["", "--compress", "--copy-of noise", "--copy-of noise.qcow2"] {
            let _ = fs::remove_file(bench.path("out.qcow2"));
            if before == Before::Used {
                bench.tool("cp noise.qcow2 out.qcow2");
            }
            let seen = bench.see(&format!("install lab out.qcow2 --as qcow2 -q --overwrite {more}"));
            well(&seen);
            unpack(&bench, "out.qcow2");
            bench.assert_lab("out.img", &format!("{before:?} QCOW2 {more}"));
            let code = bench.command("verify --disk out.qcow2 lab --backing -q").status().unwrap().code();
            assert_eq!(code, Some(0), "{before:?} {more}");
        }
    }
    let piped = bench.command("install lab -").output().unwrap();
    fs::write(bench.path("out.img"), piped.stdout).unwrap();
    bench.assert_lab("out.img", "standard output");
}

#[test]
fn what_a_server_gives_is_right_on_a_missing_and_on_a_used_target() {
    let bench = lab();
    let server = bench.serve("--interface lo --torrent");
    for before in BOTH {
        for more in ["", "--transport unicast", "--torrent", "--resume", "--also two.img"] {
            for name in ["out.img", "two.img"] {
                bench.target(name, DISK_MIB, before);
            }
            let words =
                format!("fetch {} lab out.img --overwrite --token-file join.token {more}", server.url);
            well(&bench.see(&words));
            bench.assert_lab("out.img", &format!("{before:?} fetch {more}"));
        }
        bench.assert_lab("two.img", &format!("{before:?} fetch --also"));
        bench.target("out.qcow2", DISK_MIB, before);
        let words = format!("fetch {} lab out.qcow2 --as qcow2 --token-file join.token", server.url);
        well(&bench.see(&format!("{words} --overwrite")));
        unpack(&bench, "out.qcow2");
        bench.assert_lab("out.img", &format!("{before:?} fetch --as qcow2"));
    }
    let equal =
        bench.see(&format!("verify --disk out.img lab --repo {} --token-file join.token", server.url));
    assert!(equal.contains("out: out.img holds lab@1: ") && equal.ends_with("exit: 0\n"), "{equal}");
    server.kill();
}

#[test]
fn what_was_committed_is_right_on_a_missing_and_on_a_used_target() {
    let bench = lab();
    bench.change_lab();
    let (at, bytes) = (PARTS[1].0 * 512, PARTS[1].1 * 512);
    for words in [format!("new --at {at}"), format!("new.img --range {at}+{bytes}")] {
        well(&bench.see(&format!("commit lab {words} -q")));
        bench.assert_changed_lab(&words);
    }
    // Zeros that are appended are in use, too.
    well(&bench.see("commit lab zeros --append -q"));
    for before in BOTH {
        bench.target("out.img", DISK_MIB + 2, before);
        well(&bench.see("install lab out.img -q --overwrite"));
        bench.assert_lab("out.img", "append");
        let end = usize::try_from(DISK_MIB << 20).unwrap();
        let behind = &fs::read(bench.path("out.img")).unwrap()[end..];
        assert!(behind.starts_with(&fs::read(bench.path("zeros")).unwrap()), "{before:?}");
    }
}

#[test]
fn a_whole_disk_that_was_committed_is_right_on_a_missing_and_on_a_used_target() {
    for name in ["new.img", "new.qcow2"] {
        let bench = lab();
        bench.change_lab();
        bench.tool("qemu-img convert -O qcow2 new.img new.qcow2");
        well(&bench.see(&format!("commit lab {name} -q")));
        bench.assert_changed_lab(&format!("commit of {name}"));
    }
}

#[test]
fn an_attached_disk_is_right_as_it_is_and_as_what_was_written_to_it() {
    let bench = lab();
    bench.change_lab();
    let attached = Attached::from_repository(&bench, "lab --name vm1");
    let copied = bench.path("copied.img");
    if !run("nbdcopy", &[&attached.uri, copied.to_str().unwrap()]) {
        return;
    }
    bench.assert_lab("copied.img", "attached");
    assert!(run("nbdcopy", &[bench.path("new.img").to_str().unwrap(), &attached.uri]));
    let done = bench.json("commit --disk vm1").remove(0);
    assert_eq!(done["number"], 2, "{done}");
    bench.assert_changed_lab("commit --disk");
}

#[test]
fn what_was_merged_is_right_on_a_missing_and_on_a_used_target() {
    let bench = lab();
    bench.change_lab();
    let attached = Attached::from_repository(&bench, "lab --name vm1");
    // Another writer publishes a version before this disk does.
    well(&bench.see("commit lab disk.img --range 0+512 -q"));
    let (at, bytes) = (PARTS[1].0 * 512, PARTS[1].1 * 512);
    let write = format!("write -s {} {at} {bytes}", bench.path("new").display());
    if !run("qemu-io", &["-f", "raw", &attached.uri, "-c", &write]) {
        return;
    }
    let done = bench.json("commit --disk vm1 --merge").remove(0);
    assert_eq!(done["number"], 3, "{done}");
    bench.assert_changed_lab("commit --merge");
}

/// Checks the last partition of a disk, whatever its size is: an ext4 that holds what [`linux`] made.
fn assert_root(bench: &Bench, name: &str) {
    let sectors = bench.tool(&format!("sfdisk -l -o Start,Sectors {name}"));
    let last = sectors.lines().last().unwrap().split_whitespace().map(|word| word.parse().unwrap());
    let [start, size]: [u64; 2] = last.collect::<Vec<_>>().try_into().unwrap();
    bench.tool(&format!("dd if={name} of=part bs=512 skip={start} count={size} status=none"));
    bench.tool("e2fsck -fn part");
    for file in ["one", "two"] {
        fs::write(bench.path("ask"), format!("dump srv/{file} got\n")).unwrap();
        bench.tool("debugfs -f ask part");
        assert_same(&bench.path(&format!("tree/srv/{file}")), &bench.path("got"));
    }
}

#[test]
fn a_shrunk_image_is_right_on_a_missing_and_on_a_used_target() {
    let Some(bench) = linux() else { return };
    with_tools(&bench, "shrink lab 30M small -q --yes");
    for before in BOTH {
        bench.target("out.img", 40, before);
        well(&bench.see("install small out.img -q --overwrite"));
        assert_root(&bench, "out.img");
    }
}

/// Mounts the filesystem in the file `name` at the folder `at`, does `what` there, and unmounts it.
fn mounted(bench: &Bench, (name, at, options): (&str, &str, &str), what: impl FnOnce()) {
    bench.tool(&format!("mkdir -p {at}"));
    bench.tool(&format!("mount -o loop,{options} {name} {at}"));
    what();
    lab::unmount(&bench.path(at)).unwrap();
}

#[test]
fn large_filesystems_are_right_on_a_missing_and_on_a_used_target() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    bench.tool("mkdir -p tree/deep/er");
    soil(&bench.path("tree/file"), 5_000_000);
    fs::write(bench.path("tree/deep/zeros"), vec![0; 3_000_000]).unwrap();
    (0..300).for_each(|number| fs::write(bench.path(&format!("tree/deep/er/{number}")), [7; 100]).unwrap());
    for (kind, check) in
        [("ext4 -q", "e2fsck -fn"), ("xfs -q", "xfs_repair -n -f"), ("btrfs -q", "btrfs check --readonly")]
    {
        fs::remove_file(bench.path("disk.img")).ok();
        bench.tool("truncate -s 320M disk.img");
        bench.tool(&format!("mkfs.{kind} disk.img"));
        mounted(&bench, ("disk.img", "there", "rw"), || drop(bench.tool("cp -r tree there/")));
        well(&bench.see(&format!("capture disk.img {} -q", kind.split(' ').next().unwrap())));
        for before in BOTH {
            let target = bench.target("out.img", 0, Before::Missing);
            if before == Before::Used {
                soil_around(&bench.path("disk.img"), &target, 320 << 20);
            }
            well(&bench.see(&format!("install {} out.img -q --overwrite", kind.split(' ').next().unwrap())));
            bench.tool(&format!("{check} out.img"));
            mounted(&bench, ("out.img", "there", "ro"), || drop(bench.tool("diff -r tree there/tree")));
        }
    }
}

/// Runs `verify --disk DISK lab` with `--json`, and returns its exit code and what it says.
fn compared(bench: &Bench, words: &str) -> (Option<i32>, Vec<Value>) {
    let output = bench.command(&format!("verify --disk {words} --json")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn all<'a>(said: &'a [Value], kind: &str) -> Vec<&'a Value> {
    said.iter().filter(|record| record["type"] == kind).collect()
}

/// The sectors in the ranges that `said` names.
fn sectors(said: &[Value]) -> BTreeSet<u64> {
    let ranges = all(said, "range").into_iter();
    let bounds = ranges.map(|range| (range["offset"].as_u64().unwrap(), range["bytes"].as_u64().unwrap()));
    bounds.flat_map(|(offset, bytes)| offset / 512..(offset + bytes) / 512).collect()
}

/// The sectors in which two files differ, as cmp(1) tells. It prints a line for each byte: of a few only.
fn by_cmp(bench: &Bench, a: &str, b: &str) -> BTreeSet<u64> {
    let told = Command::new("cmp").args(["-l", a, b]).current_dir(bench.path("")).output().unwrap().stdout;
    let lines = String::from_utf8(told).unwrap();
    let offsets =
        lines.lines().map(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap() - 1);
    offsets.map(|offset| offset / 512).collect()
}

/// The sectors in which two files differ.
fn unlike(bench: &Bench, a: &str, b: &str) -> BTreeSet<u64> {
    let [a, b] = [a, b].map(|name| fs::read(bench.path(name)).unwrap());
    let pairs = (0..).zip(a.chunks(512).zip(b.chunks(512)));
    pairs.filter(|(_, (a, b))| a != b).map(|(sector, _)| sector).collect()
}

/// Changes the byte at `offset` of a file.
fn change(bench: &Bench, name: &str, offset: u64) {
    let file = File::options().read(true).write(true).open(bench.path(name)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x55], offset).unwrap();
}

/// The first sector of a file that begins with `needle`, in bytes.
fn find(bench: &Bench, name: &str, needle: &[u8]) -> u64 {
    let bytes = fs::read(bench.path(name)).unwrap();
    512 * bytes.chunks(512).position(|sector| sector.starts_with(needle)).unwrap() as u64
}

/// A byte that the image leaves free, by a comparison of two installs over other bytes.
fn a_free_byte(bench: &Bench) -> u64 {
    for (name, before) in ["a.img", "b.img"].into_iter().zip(BOTH) {
        bench.target(name, DISK_MIB, before);
        well(&bench.see(&format!("install lab {name} -q --overwrite")));
    }
    *unlike(bench, "a.img", "b.img").first().unwrap() * 512
}

#[test]
fn a_disk_is_compared_with_its_version_sector_by_sector() {
    let bench = lab();
    let free = a_free_byte(&bench);
    bench.tool("cp b.img good.img");
    assert_eq!(compared(&bench, "good.img lab").0, Some(0), "what an install leaves is no difference");
    let in_file = find(&bench, "good.img", &fs::read(bench.path("file")).unwrap()[4096..4200]);
    for (offsets, pieces) in [
        (vec![free], vec![]),
        (vec![in_file, in_file + 1000, in_file + 512], vec![json!(1)]),
        // The boot record, a partition's entry, the backup of the GPT.
        (vec![440, 1024 + 33, (DISK_MIB << 20) - 512 + 60], vec![Value::Null]),
        // Zeros that are in use, in the second half of the first FAT; and free space beside it.
        (vec![(PARTS[0].0 + 20) * 512, free], vec![json!(1)]),
    ] {
        bench.tool("cp good.img bad.img");
        offsets.iter().for_each(|offset| change(&bench, "bad.img", *offset));
        let (code, said) = compared(&bench, "bad.img lab");
        let mut expected = by_cmp(&bench, "good.img", "bad.img");
        expected.remove(&(free / 512));
        let found = sectors(&said);
        assert_eq!(found, expected, "{said:?}");
        assert_eq!(code, Some(if expected.is_empty() { 0 } else { 12 }), "{said:?}");
        let told = all(&said, "compared")[0];
        assert_eq!(told["differing_bytes"], 512 * expected.len(), "{told}");
        for piece in all(&said, "piece").into_iter().filter(|piece| piece["state"] == "differs") {
            assert!(pieces.contains(&piece["partition"]), "{piece}");
        }
    }
}

#[test]
fn a_disk_in_other_forms_and_of_other_sizes_is_compared_or_refused() {
    let bench = lab();
    // A larger disk: the backup of the GPT moves, and is no difference; one that was damaged there is.
    bench.target("large.img", 100, Before::Used);
    well(&bench.see("install lab large.img --size 100M -q --overwrite"));
    let (code, said) = compared(&bench, "large.img lab");
    assert_eq!((code, &all(&said, "compared")[0]["moved_gpt"]), (Some(0), &json!(true)), "{said:?}");
    change(&bench, "large.img", (100 << 20) - 512 + 16);
    let (code, said) = compared(&bench, "large.img lab");
    assert_eq!((code, sectors(&said)), (Some(12), [0, 1].into()), "{said:?}");

    for (form, name) in [("qcow2", "a.qcow2"), ("vmdk", "a.vmdk")] {
        bench.tool("cp disk.img bad.img");
        change(&bench, "bad.img", 1030);
        bench.tool(&format!("qemu-img convert -O {form} disk.img {name}"));
        bench.tool(&format!("qemu-img convert -O {form} bad.img bad-{name}"));
        assert_eq!(compared(&bench, &format!("{name} lab")).0, Some(0), "{form}");
        let (code, said) = compared(&bench, &format!("bad-{name} lab"));
        assert_eq!((code, sectors(&said)), (Some(12), [2].into()), "{form}");
    }
    for (number, part) in [(1, "fat"), (2, "ext"), (3, "ntfs")] {
        assert_eq!(compared(&bench, &format!("{part} lab --partition {number}")).0, Some(0), "{part}");
    }
    assert_eq!(compared(&bench, "fat lab --partition 3").0, Some(11), "it is too small");
    bench.tool("truncate -s 47M short.img");
    let refused = bench.see("verify --disk short.img lab");
    let text =
        "err: error: `short.img` has 49283072 bytes, and the image 50331648: it can't hold it\nexit: 11\n";
    assert_eq!(refused, text);
    assert!(bench.see("verify --disk disk.img").ends_with("exit: 2\n"), "of which version?");
    assert!(bench.see("verify --disk missing.img lab").ends_with("exit: 10\n"));
}

#[test]
fn what_differs_is_told_where_the_objects_are_lost() {
    let bench = lab();
    bench.tool("cp disk.img bad.img");
    change(&bench, "bad.img", 1030);
    let chunks = fs::read_dir(bench.path("repo/chunks")).unwrap();
    chunks.for_each(|folder| fs::remove_dir_all(folder.unwrap().path()).unwrap());
    // Plain digests are in the tree: a disk that is right needs no object.
    assert_eq!(compared(&bench, "disk.img lab").0, Some(0));
    let (code, said) = compared(&bench, "bad.img lab");
    assert_eq!(code, Some(12), "{said:?}");
    assert!(all(&said, "range").iter().all(|range| range["what"] == "differs somewhere"), "{said:?}");
    assert!(sectors(&said).contains(&2) && sectors(&said).iter().all(|sector| *sector < 512), "{said:?}");
}

/// Whether the test may mount.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    assert!(is_root || std::env::var_os("CI").is_none(), "CI runs these tests as root");
    is_root
}

/// A disk with one ext4, which holds what looks like the root of a Linux system, captured as `lab`.
fn linux() -> Option<Bench> {
    let bench = is_root().then(Bench::new)?;
    bench.tool("truncate -s 40M disk.img");
    partition(
        &bench,
        "disk.img",
        "label: gpt\nunit: sectors\nstart=2048, size=8192\nstart=10240, size=65536\n",
    );
    bench.tool("mkdir -p tree/etc tree/srv tree/bin");
    fs::write(bench.path("tree/etc/os-release"), "ID=test\n").unwrap();
    fs::write(bench.path("tree/etc/fstab"), "").unwrap();
    fs::write(bench.path("tree/etc/hostname"), "golden\n").unwrap();
    for name in ["one", "two"] {
        soil(&bench.path(&format!("tree/srv/{name}")), 3 << 20);
    }
    fs::write(bench.path("tree/srv/two"), vec![b'2'; 2 << 20]).unwrap();
    bench.tool("truncate -s 32M ext");
    bench.tool("mke2fs -q -t ext4 -d tree ext");
    bench.tool("dd if=ext of=disk.img bs=1M seek=5 conv=notrunc status=none");
    well(&bench.see("capture disk.img lab -q"));
    Some(bench)
}

/// `diskcast WORDS`, with the tools that change filesystems.
fn with_tools(bench: &Bench, words: &str) {
    let mut command = bench.command(words);
    well(&bench.show(&command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap()));
}

#[test]
fn files_that_differ_are_named_and_nothing_is_written() {
    let Some(bench) = linux() else { return };
    let at = find(&bench, "disk.img", &[b'2'; 512]);
    for offset in [at + 10_000, at + 20_000, 1030] {
        change(&bench, "disk.img", offset);
    }
    let before = fs::read(bench.path("disk.img")).unwrap();
    let mut command = bench.command("verify --disk disk.img lab --json");
    let output = command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let files = all(&said, "file");
    assert_eq!(files.len(), 1, "{said:?}");
    assert_eq!(
        (&files[0]["path"], &files[0]["bytes"], &files[0]["partition"]),
        (&json!("/srv/two"), &json!(1024), &json!(2))
    );
    assert!(fs::read(bench.path("disk.img")).unwrap() == before, "the disk was written");
    let left = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!left.contains(&bench.path("").display().to_string()), "{left}");
}

#[test]
fn of_grown_and_personalized_disks_it_is_told_what_is_equal_and_why_the_rest_is_not() {
    let Some(bench) = linux() else { return };
    bench.target("grown.img", 80, Before::Used);
    with_tools(&bench, "install lab grown.img --size 80M --grow -q --overwrite");
    assert_root(&bench, "grown.img");
    let (code, said) = compared(&bench, "grown.img lab");
    let pieces = all(&said, "piece");
    let words =
        |piece: &Value| piece["changes"].as_array().unwrap().iter().map(Value::to_string).collect::<String>();
    assert_eq!(
        (code, &pieces[0]["state"], &pieces[1]["state"]),
        (Some(12), &json!("equal"), &json!("differs"))
    );
    assert!(words(pieces[1]).contains("it was grown: it has ") && words(pieces[0]).is_empty(), "{said:?}");

    bench.target("own.img", 40, Before::Used);
    with_tools(&bench, "install lab own.img --new-identity --hostname lab-7 -q --overwrite");
    let (code, said) = compared(&bench, "own.img lab");
    let pieces = all(&said, "piece");
    assert_eq!((code, &pieces[0]["state"]), (Some(12), &json!("equal")), "{said:?}");
    assert!(words(pieces[0]).contains("its PARTUUID is ") && words(pieces[1]).contains("its PARTUUID is "));
    assert!(words(pieces[2]).contains("the disk's identifier is "), "{said:?}");
    assert!(sectors(&said).is_subset(&unlike(&bench, "disk.img", "own.img")), "{said:?}");
}
