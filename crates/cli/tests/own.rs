//! Tests that a real Debian, put on two larger disks, boots from each as a machine of its own, with its root grown, and
//! that a disk whose files name old identifiers is no machine of its own.

use std::fs;

use crate::common::targets::soil_around;
use crate::common::{Bench, boot, with_debian};

#[test]
fn two_installs_on_larger_disks_boot_as_two_machines() {
    let Some(bench) = with_debian("golden.img") else { return };
    // Its root is the last partition, and named by an identifier that a new identity changes.
    bench.tool("sfdisk --quiet --delete golden.img 3");
    let old = bench.tool("sfdisk --part-uuid golden.img 2").trim().to_lowercase();
    bench.tool("mcopy -n -i golden.img@@1M ::/loader/entries/debian.conf entry");
    let entry = std::fs::read_to_string(bench.path("entry")).unwrap();
    let root = entry.split_whitespace().find(|word| word.starts_with("root=")).unwrap().to_owned();
    std::fs::write(bench.path("entry"), entry.replace(&root, &format!("root=PARTUUID={old}"))).unwrap();
    bench.tool("mcopy -o -i golden.img@@1M entry ::/loader/entries/debian.conf");
    assert!(bench.see("capture golden.img golden -q").ends_with("exit: 0\n"));

    std::fs::write(bench.path("no-swap.sh"), "sed -i /swap/d /etc/fstab\n").unwrap();
    let mut seen = Vec::new();
    soil_around(&bench.path("golden.img"), &bench.path("lab-2.img"), 5 << 30);
    for name in ["lab-1", "lab-2"] {
        let words = format!(
            "install golden {name}.img --overwrite --size 5G --grow --new-identity --hostname {name} \
             --run no-swap.sh"
        );
        let mut command = bench.command(&words);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        let shown = bench.show(&command.output().unwrap());
        assert!(shown.contains(&format!("out: grew partition 2 (ext4) of {name}.img from ")), "{shown}");
        assert!(shown.contains("1 references to them changed, machine-id reset"), "{shown}");
        assert!(shown.ends_with("exit: 0\n"), "{shown}");
        let id = bench.tool(&format!("sfdisk --part-uuid {name}.img 2"));
        assert!(!id.trim().eq_ignore_ascii_case(&old) && !seen.contains(&id));
        seen.push(id);
        let told = bench.tool(&format!("sgdisk -v {name}.img"));
        assert!(told.contains("No problems found"), "{told}");
        boot(&bench, name);
    }
}

#[test]
fn a_disk_whose_files_name_old_identifiers_is_not_a_machine_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree/etc")).unwrap();
    bench.tool("truncate -s 32M disk.img");
    bench.tool("sgdisk -o -n 1:2048:63487 disk.img");
    let id = |name: &str| bench.tool(&format!("partx -g -o UUID -n 1 {name}")).trim().to_owned();
    let old = id("disk.img");
    for (name, text) in [
        ("os-release", "ID=test\n".to_owned()),
        ("fstab", format!("PARTUUID={old} / ext4 defaults 0 1\n")),
        ("rc.local", format!("mount PARTUUID={old} /mnt\n")),
    ] {
        fs::write(bench.path("tree/etc").join(name), text).unwrap();
    }
    bench.tool("truncate -s 30M part");
    bench.tool("mke2fs -q -t ext4 -d tree part");
    bench.tool("dd if=part of=disk.img bs=1M seek=1 conv=notrunc status=none");
    assert!(bench.see("capture disk.img lab -q").ends_with("exit: 0\n"));
    let see = |words: &str| {
        let mut command = bench.command(words);
        bench.show(&command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap())
    };
    let stale = "files that can't be changed name old identifiers: etc/rc.local on partition 1";
    let seen = see("install lab out.img --new-identity");
    assert!(seen.contains(&format!("not a machine of its own: {stale}")), "{seen}");
    assert!(seen.contains("--accept-stale-ids") && seen.ends_with("exit: 1\n"), "{seen}");
    assert_eq!(id("out.img"), old);
    let seen = see("personalize out.img --new-identity");
    assert!(seen.contains(stale) && seen.ends_with("exit: 11\n"), "{seen}");
    let seen = see("personalize out.img --new-identity --accept-stale-ids");
    assert!(
        seen.contains("1 references to them changed, files that") && seen.ends_with("exit: 0\n"),
        "{seen}"
    );
    assert_ne!(id("out.img"), old);
}
