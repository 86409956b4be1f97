//! Tests installs on several targets in one pass, and targets that begin as copies of what the host holds. QEMU's
//! tools and XFS say whether they are right.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use crate::common::targets::soil;
use crate::common::{Bench, Xfs, assert_same};

/// Changes one byte of a file.
fn change(bench: &Bench, name: &str, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(bench.path(name)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x55], offset).unwrap();
}

/// A repository with `web@1`, the disk `one.img`, and `web@2`, `two.img`, where one byte differs.
fn two_versions() -> Bench {
    let bench = Bench::new();
    bench.disk("one.img", 16, 1);
    bench.tool("cp one.img two.img");
    change(&bench, "two.img", 4 << 20);
    for name in ["one.img", "two.img"] {
        assert!(bench.see(&format!("capture {name} web -q")).ends_with("exit: 0\n"));
    }
    bench
}

fn well(seen: &str) {
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
}

#[test]
fn one_pass_writes_several_targets() {
    let bench = two_versions();
    let one = bench.path("one.img");
    soil(&bench.path("b.img"), 20 << 20);
    let seen = bench.see("install web@1 a.img --also b.img --also c.img --size 20M --overwrite");
    assert!(seen.contains("out: installed web@1 on a.img, b.img and c.img: "), "{seen}");
    well(&seen);
    for name in ["a.img", "b.img", "c.img"] {
        assert_eq!(bench.path(name).metadata().unwrap().len(), 20 << 20);
        bench.tool(&format!("truncate -s 16M {name}"));
        assert_same(&one, &bench.path(name));
    }
    well(&bench.see("install web@2 a.qcow2 --also b.qcow2 --as qcow2 -q"));
    for name in ["a.qcow2", "b.qcow2"] {
        bench.tool(&format!("qemu-img compare -f raw -F qcow2 two.img {name}"));
    }
    // One that has most of it, and one that holds something else, from a server.
    soil(&bench.path("b.img"), 16 << 20);
    let server = bench.serve("--interface lo");
    let output = bench
        .command(&format!(
            "fetch {} web@2 a.img --also b.img --overwrite --token-file join.token --json",
            server.url
        ))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", bench.show(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(report["targets"], serde_json::json!(["a.img", "b.img"]));
    let number = |name: &str| report["report"][name].as_u64().unwrap();
    assert!(number("kept_bytes") > 3 << 20, "{report}");
    assert_eq!(number("verified_bytes") % 2, 0, "{report}");
    for name in ["a.img", "b.img"] {
        assert_same(&bench.path("two.img"), &bench.path(name));
    }
    server.kill();
}

#[test]
fn targets_that_cannot_be_are_refused_before_anything_is_written() {
    let bench = two_versions();
    bench.tool("ln -s a.img link.img");
    for (words, text) in [
        ("a.img --copy-of a.img", "No such file"),
        ("a.img --also ./a.img", "is named twice as a target"),
        ("a.img --also link.img", "is named twice as a target"),
        ("a.img --also null:", "is for one target alone"),
        ("- --also a.img", "is for one target alone"),
        ("/dev/mistyped-disk", "`/dev` is not a place for a file"),
        ("/dev/no-such-group/web --create-volume", "no-such-group"),
        ("one.img --copy-of one.img --overwrite", "is the target itself"),
        ("a.img --copy-of one.img --compress --as qcow2", "cannot be used with"),
        ("null: --copy-of one.img", "--copy-of: "),
        ("- --copy-of one.img", "--copy-of"),
    ] {
        let seen = bench.see(&format!("install web@1 {words}"));
        assert!(seen.contains(text) && !seen.ends_with("exit: 0\n"), "{words}: {seen}");
        // The name of a link that led nowhere exists now.
        let held = bench.path("a.img").metadata().map_or(0, |found| found.blocks());
        assert_eq!(held, 0, "{words}");
    }
    assert!(!std::path::Path::new("/dev/mistyped-disk").exists());
}

#[test]
fn an_overlay_holds_only_what_its_base_lacks() {
    let bench = two_versions();
    well(&bench.see("install web@1 base.qcow2 --as qcow2 -q"));
    for base in ["one.img", "base.qcow2"] {
        let before = fs::read(bench.path(base)).unwrap();
        let done = bench.json(&format!("install web@2 over.qcow2 --as qcow2 --copy-of {base} --overwrite"));
        let report = &done.last().unwrap()["report"];
        // One chunk differs.
        assert!(report["written_bytes"].as_u64().unwrap() <= 1 << 20, "{report}");
        let taken = bench.path("over.qcow2").metadata().unwrap().blocks() * 512;
        assert!(taken < 2 << 20, "{base}: {taken} bytes");
        bench.tool("qemu-img check -q over.qcow2");
        bench.tool("qemu-img compare -f raw -F qcow2 two.img over.qcow2");
        let info = bench.tool("qemu-img info --backing-chain over.qcow2");
        assert!(info.contains(&format!("backing file: {base}")), "{info}");
        assert!(fs::read(bench.path(base)).unwrap() == before, "{base} has changed");
        // Both can be moved together, and what was begun can be gone on with.
        bench.tool("mkdir -p elsewhere");
        bench.tool(&format!("cp over.qcow2 {base} elsewhere"));
        bench.tool("qemu-img compare -f raw -F qcow2 two.img elsewhere/over.qcow2");
        well(&bench.see(&format!("install web@1 over.qcow2 --as qcow2 --copy-of {base} --resume -q")));
        bench.tool("qemu-img compare -f raw -F qcow2 one.img over.qcow2");
        bench.tool("qemu-img check -q over.qcow2");
    }
    // A QCOW2 with a base of its own, and one that another program writes, are no bases.
    let seen = bench.see("install web@2 more.qcow2 --as qcow2 --copy-of over.qcow2");
    assert!(seen.contains("has a base of its own") && !bench.path("more.qcow2").exists(), "{seen}");
    let writer = fs::OpenOptions::new().append(true).open(bench.path("one.img")).unwrap();
    let seen = bench.see("install web@2 more.qcow2 --as qcow2 --copy-of one.img");
    assert!(seen.contains("an overlay needs its base as it is") && seen.ends_with("exit: 11\n"), "{seen}");
    drop(writer);
}

#[test]
fn an_overlay_is_right_whatever_its_base_holds() {
    let bench = two_versions();
    // Shorter than the image, longer, of noise, and empty.
    bench.disk("short.img", 5, 1);
    bench.disk("noise.img", 16, 9);
    bench.tool("cp one.img long.img");
    let mut long = fs::OpenOptions::new().write(true).open(bench.path("long.img")).unwrap();
    long.seek(SeekFrom::Start(20 << 20)).unwrap();
    long.write_all(&[0xAA; 4096]).unwrap();
    drop(long);
    bench.tool("truncate -s 512 empty.img");
    for base in ["short.img", "noise.img", "long.img", "empty.img"] {
        well(&bench.see(&format!("install web@2 {base}.qcow2 --as qcow2 --copy-of {base} -q")));
        bench.tool(&format!("qemu-img check -q {base}.qcow2"));
        bench.tool(&format!("qemu-img compare -f raw -F qcow2 two.img {base}.qcow2"));
    }
}

#[test]
fn a_file_shares_blocks_where_the_filesystem_can() {
    assert!(rustix::process::geteuid().is_root(), "mounts take root");
    let bench = two_versions();
    let _xfs = Xfs::mount(&bench);
    bench.tool("cp --sparse=never one.img xfs/vm1.img");
    bench.tool("sync xfs/vm1.img");
    let free = || {
        let shown = bench.tool("stat --file-system --format %a xfs");
        shown.trim().parse::<u64>().unwrap() * 4096
    };
    let before = free();
    well(&bench.see("install web@2 xfs/vm2.img --copy-of xfs/vm1.img -q"));
    assert_same(&bench.path("two.img"), &bench.path("xfs/vm2.img"));
    assert_same(&bench.path("one.img"), &bench.path("xfs/vm1.img"));
    bench.tool("sync xfs/vm2.img");
    assert!(before - free() < 3 << 20, "{} bytes were taken", before - free());
    // From another filesystem, and where blocks are not shared.
    let seen = bench.see("install web@2 xfs/vm3.img --copy-of one.img");
    assert!(seen.contains("can't share blocks with") && seen.ends_with("exit: 11\n"), "{seen}");
    assert!(!bench.path("xfs/vm3.img").exists());
}

/// Runs one command of qemu-io on a QCOW2.
fn qemu_io(bench: &Bench, name: &str, command: &str) {
    let mut tool = std::process::Command::new("qemu-io");
    let done = tool.args(["-f", "qcow2", "-c", command]).arg(bench.path(name)).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn what_a_machine_changed_in_its_overlay_becomes_a_version() {
    let bench = two_versions();
    well(&bench.see("install web@2 over.qcow2 --as qcow2 --copy-of one.img -q"));
    let seen = bench.see("commit web over.qcow2");
    assert!(seen.contains("needs another file") && seen.contains("--backing"), "{seen}");
    let seen = bench.see("commit web over.qcow2 --backing");
    assert!(seen.contains("nothing differs from web@2"), "{seen}");
    qemu_io(&bench, "over.qcow2", "write -P 0x5a 5M 64k");
    qemu_io(&bench, "over.qcow2", "write -z -u 8M 128k");
    let seen = bench.see("commit web over.qcow2 --backing");
    assert!(seen.contains("as web@3") && seen.ends_with("exit: 0\n"), "{seen}");
    bench.tool("qemu-img convert -O raw over.qcow2 flat.img");
    well(&bench.see("install web@3 out.img --free zero -q"));
    assert_same(&bench.path("flat.img"), &bench.path("out.img"));
    // Alone, compressed, and with what it discarded freed.
    bench.tool("qemu-img convert -c -O qcow2 over.qcow2 alone.qcow2");
    bench.tool("gzip -k alone.qcow2");
    for name in ["alone.qcow2", "alone.qcow2.gz"] {
        let seen = bench.see(&format!("commit web {name}"));
        assert!(seen.contains("nothing differs from web@3"), "{name}: {seen}");
    }
    let before = bench.json("inspect web@3")[0]["manifest"]["statistics"]["allocated_bytes"].as_u64();
    well(&bench.see("commit web alone.qcow2 --free-holes"));
    let after = bench.json("inspect web")[0]["manifest"]["statistics"]["allocated_bytes"].as_u64();
    assert!(after < before, "{after:?} of {before:?}");
    well(&bench.see("install web freed.img --free zero -q"));
    assert_same(&bench.path("flat.img"), &bench.path("freed.img"));
}
