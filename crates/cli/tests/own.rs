//! Tests that a real Debian, put on two larger disks, boots from each as a machine of its own, with its root grown.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod common;

use common::{boot, with_debian};

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
    for name in ["lab-1", "lab-2"] {
        let words = format!(
            "install golden {name}.img --size 5G --grow --new-identity --hostname {name} --run no-swap.sh"
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
