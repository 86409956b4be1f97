//! Tests installs of one partition into one that exists: filesystems of DOS and Windows know their new place, and
//! nothing else on the disk changes. mtools, ntfs-3g's and ext's checkers say whether they are right.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use crate::common::targets::{PARTS, lab, partition};
use crate::common::{Bench, assert_same};

/// A file of noise.
fn noise(bench: &Bench, name: &str, mib: usize, seed: u64) {
    let mut bytes = vec![0; mib << 20];
    base::Chance::from_seed(seed).fill(&mut bytes);
    fs::write(bench.path(name), bytes).unwrap();
}

/// Takes a partition out of `other.img`.
fn take(bench: &Bench, (start, size): (u64, u64), name: &str) {
    bench.tool(&format!("dd if=other.img of={name} bs=512 skip={start} count={size} status=none"));
}

fn hidden_sectors(bytes: &[u8], sector: usize) -> u32 {
    u32::from_le_bytes(bytes[sector * 512 + 0x1C..][..4].try_into().unwrap())
}

#[test]
fn one_partition_goes_into_another_and_knows_its_place() {
    let bench = lab();
    // In other places, larger, and on a disk of noise.
    let places = [(4096, 40_000), (45_056, 31_000), (76_800, 40_001)];
    noise(&bench, "other.img", 64, 8);
    let lines = places.map(|(start, size)| format!("start={start}, size={size}\n"));
    bench.tool("dd if=/dev/zero of=other.img bs=1M count=2 conv=notrunc status=none");
    partition(&bench, "other.img", &format!("label: dos\nunit: sectors\n{}", lines.concat()));
    for (from, into) in [(1, 1), (2, 3), (3, 2)] {
        let before = fs::read(bench.path("other.img")).unwrap();
        let seen = bench.see(&format!("install lab other.img --partition {from} --into {into} --yes"));
        assert!(seen.ends_with("exit: 0\n"), "{seen}");
        assert!(seen.contains(&format!("installed lab@1 on partition {into} of other.img: ")), "{seen}");
        let (start, size) = places[into - 1];
        assert_eq!(seen.contains(&format!("name its new place now: sector {start}")), from != 2, "{seen}");
        let after = fs::read(bench.path("other.img")).unwrap();
        let at = |sector: u64| usize::try_from(sector * 512).unwrap();
        assert_eq!(before.len(), after.len());
        assert!(before[..at(start)] == after[..at(start)], "what lies before has changed");
        assert!(before[at(start + size)..] == after[at(start + size)..], "what lies behind has changed");
        take(&bench, (start, PARTS[from - 1].1), "out");
        let out = fs::read(bench.path("out")).unwrap();
        match from {
            1 => {
                bench.tool("fsck.vfat -n out");
                bench.tool("mcopy -n -i out ::file copy");
                assert!(bench.tool("minfo -i out ::").contains(&format!("hidden sectors: {start}")));
            }
            2 => {
                bench.tool("e2fsck -fn out");
            }
            _ => {
                bench.tool("ntfsfix -n out");
                bench.tool("ntfsresize --info --force out");
                let copy = Command::new("ntfscat").arg(bench.path("out")).arg("file").output().unwrap();
                fs::write(bench.path("copy"), copy.stdout).unwrap();
                assert_eq!(u64::from(hidden_sectors(&out, 0)), start);
                assert_eq!(u64::from(hidden_sectors(&out, out.len() / 512 - 1)), start);
            }
        }
        if from != 2 {
            assert_same(&bench.path("file"), &bench.path("copy"));
        }
        fs::remove_file(bench.path("copy")).ok();
    }
    // A second time nothing is written but the place, which the image does not know.
    let again = bench.json("install lab other.img --partition 3 --into 2 --yes --resume");
    let report = &again.last().unwrap()["report"];
    assert!(report["written_bytes"].as_u64().unwrap() <= 3 << 18, "{report}");
    assert!(report["kept_bytes"].as_u64().unwrap() > 3 << 20, "{report}");
}

#[test]
fn a_part_is_what_the_disk_has_there() {
    let bench = lab();
    for (number, name) in [(1, "fat"), (2, "ext"), (3, "ntfs")] {
        let seen = bench.see(&format!("install lab out.img --partition {number} --free zero --overwrite"));
        assert!(seen.ends_with("exit: 0\n"), "{seen}");
        assert_same(&bench.path(name), &bench.path("out.img"));
        let mut command = bench.command(&format!("install lab - --partition {number}"));
        fs::write(bench.path("piped.img"), command.output().unwrap().stdout).unwrap();
        assert_same(&bench.path(name), &bench.path("piped.img"));
    }
    // As an image that was captured as one partition: also through a server, and with --also.
    assert!(bench.see("capture disk.img one --partition 3 -q").ends_with("exit: 0\n"));
    let server = bench.serve("--interface lo");
    let at = format!("--repo {} --token-file join.token", server.url);
    let seen = bench.see(&format!("install lab a.img --also b.img --partition 3 --free zero {at}"));
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
    for name in ["a.img", "b.img"] {
        assert_same(&bench.path("ntfs"), &bench.path(name));
    }
    noise(&bench, "other.img", 40, 8);
    bench.tool("dd if=/dev/zero of=other.img bs=1M count=1 conv=notrunc status=none");
    partition(&bench, "other.img", "label: dos\nunit: sectors\nstart=4096, size=40000\n");
    let seen = bench
        .see(&format!("fetch {} one other.img --into 1 --overwrite --token-file join.token", server.url));
    assert!(seen.contains("to partition 1 of other.img: ") && seen.contains("now: sector 4096"), "{seen}");
    take(&bench, (4096, PARTS[2].1), "out");
    bench.tool("ntfsfix -n out");
    server.kill();
}

#[test]
fn what_could_hit_another_partition_is_refused() {
    let bench = lab();
    noise(&bench, "other.img", 64, 8);
    bench.tool("dd if=/dev/zero of=other.img bs=1M count=1 conv=notrunc status=none");
    let refused = |words: &str, text: &str| {
        let before = fs::read(bench.path("other.img")).unwrap();
        let seen = bench.see(words);
        assert!(seen.contains(text) && seen.ends_with("exit: 11\n"), "{words}: {seen}");
        assert!(before == fs::read(bench.path("other.img")).unwrap(), "{words}");
    };
    // A partition that was left out.
    assert!(bench.see("capture disk.img without --skip 3 -q").ends_with("exit: 0\n"));
    partition(
        &bench,
        "other.img",
        "label: gpt\nunit: sectors\nstart=4096, size=40000\nstart=45056, size=40000\n",
    );
    refused("install without other.img --partition 3 --into 2 --yes", "holds nothing of partition 3");
    refused("install without other.img --partition 3 --overwrite", "holds nothing of partition 3");
    refused("install without - --partition 3", "holds nothing of partition 3");
    // The disk that the image is from, but for --into.
    refused("install lab disk.img --partition 3 --overwrite", "was captured from");
    refused(
        "install lab disk.img --partition 3 --overwrite --onto-source",
        "--into NUMBER writes one partition",
    );
    assert_same(&bench.path("disk.img"), &{
        assert!(bench.see("install lab same.img --free zero -q").ends_with("exit: 0\n"));
        bench.path("same.img")
    });
    // A number of a volume where there is none, and of a partition in an image that is one.
    refused("install lab other.img --overwrite --grow=/root", "holds no logical volumes");
    refused("install lab other.img --overwrite --partition 3 --grow=3", "--grow without a number");
    let seen = bench.see("install lab other.img --partition 3 --into 2 -n");
    assert!(seen.contains("to partition 2 of other.img"), "{seen}");
    // Tables that contradict themselves.
    let table = "label: dos\nunit: sectors\nstart=4096, size=40000\nstart=45056, size=40000\n";
    bench.tool("dd if=/dev/zero of=other.img bs=1M count=1 conv=notrunc status=none");
    bench.tool("dd if=/dev/zero of=other.img bs=1M count=1 seek=63 conv=notrunc status=none");
    partition(&bench, "other.img", table);
    let file = fs::OpenOptions::new().write(true).open(bench.path("other.img")).unwrap();
    // The second one begins inside the first.
    file.write_all_at(&8192u32.to_le_bytes(), 446 + 16 + 8).unwrap();
    refused("install lab other.img --partition 3 --into 2 --yes", "");
    drop(file);
    // Sectors of another size.
    bench.tool("truncate -s 64M large.img");
    let device = bench
        .tool(&format!("losetup --find --show --sector-size 4096 {}", bench.path("large.img").display()));
    let made = Command::new("bash")
        .args([
            "-c",
            "printf 'label: gpt\\nsize=8M\\nsize=8M\\n' | sfdisk --quiet \"$1\"",
            "-",
            device.trim(),
        ])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .status();
    bench.tool(&format!("losetup --detach {}", device.trim()));
    assert!(made.unwrap().success());
    refused(
        "install lab large.img --partition 1 --into 2 --yes",
        "logical sectors of 4096 bytes, the image of 512",
    );
}

#[test]
fn a_volume_that_the_image_does_not_have_is_refused_before_the_first_write() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    bench.tool("truncate -s 64M disk.img");
    partition(&bench, "disk.img", "label: gpt\nunit: sectors\nstart=2048, size=120000\n");
    let path = bench.path("disk.img").display().to_string();
    let device = bench.tool(&format!("losetup --find --show --offset 1048576 --sizelimit 61440000 {path}"));
    let device = device.trim();
    for words in ["pvcreate DEVICE", "vgcreate vg DEVICE", "lvcreate -an -Zn -Wn -y -L 20M -n root vg"] {
        let (tool, rest) = words.split_once(' ').unwrap();
        let rest = rest.replace("DEVICE", device);
        bench.tool(&format!("{tool} -q --driverloaded n --devices {device} {rest}"));
    }
    bench.tool(&format!("losetup --detach {device}"));
    assert!(bench.see("capture disk.img lvm -q").ends_with("exit: 0\n"));
    noise(&bench, "other.img", 80, 8);
    let before = fs::read(bench.path("other.img")).unwrap();
    let server = bench.serve("");
    let fetch = format!("fetch {} lvm other.img --token-file join.token", server.url);
    for command in ["install lvm other.img", &fetch] {
        for more in ["", " -n"] {
            let seen = bench.see(&format!("{command} --overwrite --grow=1/none{more}"));
            let text = "there is no logical volume `none`; there are: root";
            assert!(seen.contains(text) && seen.ends_with("exit: 11\n"), "{command}{more}: {seen}");
        }
    }
    assert!(before == fs::read(bench.path("other.img")).unwrap());
    server.kill();
}

#[test]
fn an_encrypted_part_is_right_too() {
    let bench = lab();
    fs::remove_dir_all(bench.path("repo")).unwrap();
    assert!(bench.see("key new --encryption repo.key -q").ends_with("exit: 0\n"));
    let made = bench.see("init --encryption-key repo.key");
    assert!(made.ends_with("exit: 0\n"), "{made}");
    assert!(bench.see("capture disk.img lab -q --encryption-key repo.key").ends_with("exit: 0\n"));
    let seen = bench.see("install lab out.img --partition 2 --free zero --encryption-key repo.key");
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
    assert_same(&bench.path("ext"), &bench.path("out.img"));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let bench = lab();
    noise(&bench, "other.img", 40, 8);
    bench.tool("dd if=/dev/zero of=other.img bs=1M count=1 conv=notrunc status=none");
    partition(
        &bench,
        "other.img",
        "label: dos\nunit: sectors\nstart=4096, size=30006\nstart=36864, size=40000\n",
    );
    let before = fs::read(bench.path("other.img")).unwrap();
    for (words, text) in [
        ("other.img --partition 3 --into 1 --yes", "partition 1 of other.img is too small"),
        ("other.img --partition 3 --into 4 --yes", "has no partition 4; it has 1, 2"),
        ("other.img --partition 4 --into 2 --yes", "no partition 4; it has 1 (vfat), 2 (ext4), 3 (ntfs)"),
        ("other.img --into 2 --yes", "--partition takes one out of it"),
        ("other.img --partition 3 --into 2", "say --yes if you are sure"),
        ("other.img --partition 3 --into 2 --grow", "cannot be used with"),
        ("other.img --partition 3 --into 2 --new-identity", "takes the disk"),
        ("missing.img --partition 3 --into 2 --yes", "No such file"),
        ("null: --partition 3 --into 2", "--into is for disks and raw files"),
        ("disk.img --partition 3 --into 3 --yes", "is what lab@1 was captured from"),
    ] {
        let seen = bench.see(&format!("install lab {words}"));
        assert!(seen.contains(text) && !seen.ends_with("exit: 0\n"), "{words}: {seen}");
    }
    assert!(before == fs::read(bench.path("other.img")).unwrap());
    assert!(!bench.path("missing.img").exists());
    // A dry run writes nothing, either.
    let seen = bench.see("install lab other.img --partition 3 --into 2 -n");
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
    assert!(before == fs::read(bench.path("other.img")).unwrap());
}

/// A filesystem in memory, unmounted when this is dropped.
struct Memory(std::path::PathBuf);

impl Memory {
    fn of(bench: &Bench, name: &str, mib: u32) -> Self {
        fs::create_dir(bench.path(name)).unwrap();
        bench.tool(&format!("mount -t tmpfs -o size={mib}M none {name}"));
        Self(bench.path(name))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let done = lab::unmount(&self.0);
        assert!(std::thread::panicking() || done.is_ok(), "{done:?}");
    }
}

#[test]
fn a_target_without_room_is_refused_before_the_first_write() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    // Half of it is content: 4 MiB.
    bench.disk("disk.img", 8, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("");
    let fetch = format!("fetch {} web", server.url);
    let (_small, _middle) = (Memory::of(&bench, "small", 3), Memory::of(&bench, "middle", 6));
    for words in [
        "small/out.img",
        "small/out.img --as qcow2",
        "out.img --also small/out.img",
        "middle/out.img --also middle/two.img",
        "middle/out.img --also middle/two.img --as qcow2",
    ] {
        for command in ["install web", &fetch] {
            let token = if command == "install web" { "" } else { "--token-file join.token" };
            let seen = bench.see(&format!("{command} {words} {token}"));
            assert!(seen.contains("has room for") && seen.contains("hint: nothing was written"), "{seen}");
            assert!(seen.ends_with("exit: 11\n"), "{words}: {seen}");
            assert!(
                ["small/out.img", "middle/out.img", "out.img"].iter().all(|name| !bench.path(name).exists())
            );
        }
    }
    // What the target holds makes room.
    assert!(bench.see("install web middle/out.img -q").ends_with("exit: 0\n"));
    assert!(bench.see("install web middle/out.img --overwrite -q").ends_with("exit: 0\n"));
    assert_same(&bench.path("disk.img"), &bench.path("middle/out.img"));
    server.kill();
}

#[test]
fn a_part_that_begins_inside_a_chunk_goes_to_standard_output() {
    let bench = Bench::new();
    bench.tool("truncate -s 16M disk.img");
    partition(&bench, "disk.img", "label: dos\nunit: sectors\nstart=63, size=20001\n");
    bench.tool("truncate -s 10240512 fat");
    bench.tool("mkfs.vfat -F 16 -h 63 fat");
    bench.tool("dd if=fat of=disk.img bs=512 seek=63 conv=notrunc status=none");
    assert!(bench.see("capture disk.img lab -q").ends_with("exit: 0\n"));
    let seen = bench.see("install lab out.img --partition 1");
    assert!(seen.contains("inside a chunk") && seen.ends_with("exit: 11\n"), "{seen}");
    assert!(!bench.path("out.img").exists());
    let output = bench.command("install lab - --partition 1").output().unwrap();
    fs::write(bench.path("out.img"), output.stdout).unwrap();
    assert_same(&bench.path("fat"), &bench.path("out.img"));
}
