//! OpenNebula's drivers, as oned's programs call them: lines of a transfer script, and orders in XML, on hosts of a
//! virtual network that have folders of their own.

use crate::common::assert_same;
use crate::common::running::suspend;
use crate::opennebula_common::{Cloud, Disk};

#[test]
fn machines_get_private_copies_and_the_second_costs_no_network() {
    let Some(cloud) = Cloud::new(2, 16) else { return };
    assert_eq!(cloud.store("stat", 0, "<PATH>diskcast:web</PATH>"), Ok("16".into()));
    let source = cloud.store("cp", 0, "<PATH>diskcast:web</PATH>").unwrap();
    assert_eq!(source.trim(), "main:web@1 qcow2");
    // Machine 1 has a larger disk.
    cloud.machine(1, 3, &[Disk { size_mb: 24, ..Disk::of("main:web@1") }]);
    cloud.machine(2, 3, &[Disk::of("main:web@1")]);
    let received = || cloud.star.traffic().unwrap()[1].received.bytes;
    let mut taken = Vec::new();
    for machine in [1, 2] {
        let before = received();
        let disk = cloud.place(1, machine, "disk.0");
        assert_eq!(
            cloud.transfer(machine, &format!("CLONE diskcast main:web@1 {disk} {machine} 101")),
            Ok(())
        );
        taken.push(received() - before);
    }
    assert!(taken[0] > 4 << 20 && taken[1] < 64 << 10, "bytes that the host received: {taken:?}");
    cloud.qemu(1, 2, "compare -f raw -F qcow2 FOLDER/disk.img disk.0");
    let about = cloud.qemu(1, 1, "info --output=json disk.0");
    let about: serde_json::Value = serde_json::from_str(&about).unwrap();
    assert_eq!(about["virtual-size"], 24 << 20);
    // What the system datastore's driver is called makes no difference.
    let disk = cloud.place(2, 2, "disk.0");
    assert_eq!(cloud.transfer(2, &format!("CLONE.ssh diskcast main:web@1 {disk} 2 101")), Ok(()));
    cloud.qemu(2, 2, "compare -f raw -F qcow2 FOLDER/disk.img disk.0");

    // How much each takes is told by the host.
    let store = cloud.folder.join("datastores/100");
    let told = cloud.at(1, "monitor_ds", "100");
    assert!(told.starts_with("VM = [ ID = 1, MONITOR = \""), "{told}");
    assert_eq!(cloud.read(1, "100/.monitor"), "diskcast\n");

    // Gone is gone, and may be said twice. What is no machine's stays.
    let gone = cloud.place(1, 1, "");
    assert_eq!(cloud.transfer(1, &format!("DELETE diskcast {gone} 1 100")), Ok(()));
    assert_eq!(cloud.transfer(1, &format!("DELETE diskcast {gone} 1 100")), Ok(()));
    assert!(!cloud.host_path(1, "100/1").exists());
    let wrong = format!("{}:{}", cloud.host(1), store.display());
    assert!(
        cloud
            .transfer(1, &format!("DELETE diskcast {wrong} 1 100"))
            .unwrap_err()
            .contains("not in a machine's")
    );
    cloud.qemu(1, 2, "compare -f raw -F qcow2 FOLDER/disk.img disk.0");
}

#[test]
fn what_a_machine_keeps_is_the_next_version() {
    let Some(cloud) = Cloud::new(2, 16) else { return };
    let import = "<PATH>diskcast:web</PATH><PERSISTENT>1</PERSISTENT>";
    assert_eq!(cloud.store("cp", 7, import).unwrap().trim(), "main:one-7 qcow2");
    cloud.machine(1, 3, &[Disk::of("main:one-7")]);
    let disk = cloud.place(1, 1, "disk.0");
    // One version for ever can't be kept.
    let refused = cloud.transfer(1, &format!("LN diskcast main:web@1 {disk} 1 101")).unwrap_err();
    assert!(refused.contains("one version for ever"), "{refused}");
    assert_eq!(cloud.transfer(1, &format!("LN diskcast main:one-7 {disk} 1 101")), Ok(()));
    cloud.write(1, 1, "write -P 7 1M 64k");
    assert_eq!(cloud.transfer(1, &format!("MVDS diskcast {disk} main:one-7 1 101")), Ok(()));
    assert_eq!(cloud.transfer(1, &format!("DELETE diskcast {} 1 100", cloud.place(1, 1, ""))), Ok(()));
    // The next machine has it; the image that it began as is as it was.
    let disk = cloud.place(2, 1, "disk.0");
    assert_eq!(cloud.transfer(1, &format!("LN diskcast main:one-7 {disk} 1 101")), Ok(()));
    cloud.reads(2, 1, "read -P 7 1M 64k");
    assert_eq!(cloud.bench.json("images one-7").len(), 2);
    assert!(cloud.bench.see("install web@1 again.img --yes -q").ends_with("exit: 0\n"));
    assert_same(&cloud.bench.path("disk.img"), &cloud.bench.path("again.img"));
    // Removed with OpenNebula's image; `web` is not.
    assert_eq!(cloud.store("rm", 7, "<SOURCE>main:one-7</SOURCE>"), Ok(String::new()));
    assert_eq!(cloud.store("rm", 7, "<SOURCE>main:one-7</SOURCE>"), Ok(String::new()));
    assert_eq!(cloud.store("rm", 8, "<SOURCE>main:web@1</SOURCE>"), Ok(String::new()));
    let names: Vec<_> = cloud.bench.json("images").iter().map(|image| image["name"].clone()).collect();
    assert_eq!(names, ["web"]);
}

#[test]
fn a_disk_is_saved_while_its_machine_runs() {
    let Some(cloud) = Cloud::new(1, 8) else { return };
    cloud.machine(4, 26, &[Disk::of("main:web@1")]);
    let disk = cloud.place(1, 4, "disk.0");
    assert_eq!(cloud.transfer(4, &format!("CLONE diskcast main:web@1 {disk} 4 101")), Ok(()));
    cloud.write(1, 4, "write -P 9 2M 4k");
    let source = cloud.store("mkfs", 9, "<FORMAT>save_as</FORMAT><SIZE>8</SIZE>").unwrap();
    assert_eq!(source.trim(), "main:one-9");
    assert_eq!(cloud.transfer(4, &format!("CPDS diskcast {disk} main:one-9 -1 4 101")), Ok(()));
    // The machine stood still for the copy, and went on.
    assert_eq!(cloud.virsh(), ["suspend one-4", "resume one-4"]);
    cloud.machine(5, 3, &[Disk::of("main:one-9")]);
    let copy = cloud.place(1, 5, "disk.0");
    assert_eq!(cloud.transfer(5, &format!("CLONE diskcast main:one-9 {copy} 5 101")), Ok(()));
    cloud.reads(1, 5, "read -P 9 2M 4k");
    // It goes on, too, if the copy can't be made.
    std::fs::remove_file(cloud.host_path(1, "100/4/disk.0")).unwrap();
    let failed = cloud.transfer(4, &format!("CPDS diskcast {disk} main:one-10 -1 4 101")).unwrap_err();
    assert!(failed.contains("save"), "{failed}");
    assert_eq!(cloud.virsh(), ["suspend one-4", "resume one-4"]);
}

#[test]
fn snapshots_of_a_disk_come_back() {
    let Some(cloud) = Cloud::new(1, 8) else { return };
    for form in ["overlay", "full"] {
        let format = if form == "overlay" { "qcow2" } else { "raw" };
        let machine = if form == "overlay" { 1 } else { 2 };
        cloud.machine(machine, 0, &[Disk { format, copy: form, ..Disk::of("main:web@1") }]);
        let disk = cloud.place(1, machine, "disk.0");
        let act = |line: &str| {
            cloud.transfer(machine, &line.replace("DISK", &disk).replace("VM", &machine.to_string()))
        };
        assert_eq!(act("CLONE diskcast main:web@1 DISK VM 101"), Ok(()));
        cloud.io(format, 1, machine, "write -P 1 0 64k");
        assert_eq!(act("SNAP_CREATE diskcast DISK 0 VM 100"), Ok(()));
        // A script that was killed is repeated.
        assert_eq!(act("SNAP_CREATE diskcast DISK 0 VM 100"), Ok(()));
        cloud.io(format, 1, machine, "write -P 2 0 64k");
        assert_eq!(act("CPDS diskcast DISK main:one-2VM 0 VM 101"), Ok(()));
        assert_eq!(act("SNAP_REVERT diskcast DISK 0 VM 100"), Ok(()));
        cloud.io(format, 1, machine, "read -P 1 0 64k");
        assert_eq!(act("SNAP_DELETE diskcast DISK 0 VM 100"), Ok(()));
        assert!(act("SNAP_REVERT diskcast DISK 0 VM 100").is_err(), "it is gone");
        // While it runs; as above, twice.
        let end = cloud.qemu_runs(1, machine, format);
        cloud.qemu_writes("write -P 3 0 64k");
        cloud.virsh();
        assert_eq!(act("SNAP_CREATE_LIVE diskcast DISK 1 VM 100"), Ok(()));
        assert_eq!(act("SNAP_CREATE_LIVE diskcast DISK 1 VM 100"), Ok(()));
        let told = cloud.virsh();
        let last = if format == "qcow2" { "domfsthaw one-" } else { "resume one-" };
        assert!(told.iter().any(|line| line.starts_with(last)), "{told:?}");
        cloud.qemu_writes("write -P 4 0 64k");
        end();
        cloud.io(format, 1, machine, "read -P 4 0 64k");
        assert_eq!(act("SNAP_REVERT diskcast DISK 1 VM 100"), Ok(()));
        cloud.io(format, 1, machine, "read -P 3 0 64k");
        assert_eq!(act("SNAP_DELETE diskcast DISK 1 VM 100"), Ok(()));
        assert!(
            act("SNAP_CREATE_LIVE diskcast DISK 1 VM 100").is_err() || format == "raw",
            "QEMU does not run"
        );
        // Growing, and what can't be done.
        assert_eq!(act("RESIZE diskcast DISK 12 VM 100"), Ok(()));
        assert!(act("RESIZE diskcast DISK 4 VM 100").is_err(), "it would lose what is at its end");
        // The image of the snapshot.
        cloud.machine(3, 3, &[Disk::of(&format!("main:one-2{machine}"))]);
        let copy = cloud.place(1, 3, "disk.0");
        assert_eq!(cloud.transfer(3, &format!("CLONE diskcast main:one-2{machine} {copy} 3 101")), Ok(()));
        cloud.reads(1, 3, "read -P 1 0 64k");
    }
}

#[test]
fn a_machine_moves_with_what_it_wrote() {
    let Some(cloud) = Cloud::new(2, 16) else { return };
    cloud.machine(1, 3, &[Disk::of("main:web@1")]);
    let (disk, folder, there) = (cloud.place(1, 1, "disk.0"), cloud.place(1, 1, ""), cloud.place(2, 1, ""));
    assert_eq!(cloud.transfer(1, &format!("CLONE diskcast main:web@1 {disk} 1 101")), Ok(()));
    cloud.write(1, 1, "write -P 3 4M 64k");
    let before = cloud.star.traffic().unwrap()[1].sent.bytes;
    let lines = format!(
        "MV diskcast {disk} {} 1 100\nMV diskcast {folder} {there} 1 100",
        cloud.place(2, 1, "disk.0")
    );
    assert_eq!(cloud.transfer(1, &lines), Ok(()));
    // The other host has the image from the server, and by ssh only what the machine wrote.
    let sent = cloud.star.traffic().unwrap()[1].sent.bytes - before;
    assert!(sent < 2 << 20, "{sent} bytes");
    assert!(!cloud.host_path(1, "100/1").exists());
    cloud.reads(2, 1, "read -P 3 4M 64k");
    cloud.reads(2, 1, "read -P 0 3M 64k");
    assert_eq!(cloud.transfer(1, &lines), Ok(()), "said twice");
    // A machine without a first disk gets none by moving.
    cloud.machine(2, 3, &[Disk::of(""), Disk::of("main:web@1")]);
    let (second, here, other) = (cloud.place(1, 2, "disk.1"), cloud.place(1, 2, ""), cloud.place(2, 2, ""));
    assert_eq!(cloud.transfer(2, &format!("CLONE diskcast main:web@1 {second} 2 101")), Ok(()));
    assert_eq!(cloud.transfer(2, &format!("MV diskcast {here} {other} 2 100")), Ok(()));
    let names = std::fs::read_dir(cloud.host_path(2, "100/2")).unwrap();
    let mut names: Vec<_> = names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    assert!(names.len() == 2 && names[0].starts_with(".diskcast-") && names[1] == "disk.1", "{names:?}");
    // Back, by a host that can't ask the server: the image comes with the folder.
    std::fs::rename(cloud.bench.path("bin/diskcast"), cloud.bench.path("bin/away")).unwrap();
    let lines = format!("MV diskcast {there} {folder} 1 100");
    assert_eq!(cloud.transfer(1, &lines), Ok(()));
    cloud.reads(1, 1, "read -P 3 4M 64k");
    cloud.reads(1, 1, "read -P 20 512k 512");
}

#[test]
fn every_action_may_be_repeated_and_names_a_host_that_is_away() {
    let Some(cloud) = Cloud::new(2, 4) else { return };
    cloud.machine(1, 0, &[Disk::of("main:web@1"), Disk { size_mb: 8, ..Disk::of("") }]);
    assert_eq!(
        cloud.store("cp", 7, "<PATH>diskcast:web</PATH><PERSISTENT>1</PERSISTENT>").unwrap(),
        "main:one-7 qcow2"
    );
    let script = cloud.bench.path("context.sh");
    std::fs::write(&script, "SET_HOSTNAME=web\n").unwrap();
    let lines = [
        "CLONE diskcast main:web@1 FROM/disk.0 1 101",
        "LN diskcast main:one-7 FROM/disk.0 1 101",
        "MKIMAGE diskcast 8 qcow2 FROM/disk.1 1 100",
        "MKSWAP diskcast 8 FROM/disk.2 1 100",
        "CONTEXT diskcast SCRIPT FROM/disk.3 1 100",
        "SNAP_CREATE diskcast FROM/disk.0 0 1 100",
        "SNAP_REVERT diskcast FROM/disk.0 0 1 100",
        "SNAP_DELETE diskcast FROM/disk.0 0 1 100",
        "RESIZE diskcast FROM/disk.0 8 1 100",
        "CPDS diskcast FROM/disk.0 main:one-9 -1 1 101",
        "MVDS diskcast FROM/disk.0 main:one-7 1 101",
        "MV diskcast FROM TO 1 100",
        "DELETE diskcast TO 1 100",
    ];
    let there = |from: &str, line: &str| {
        let (to, script) = (cloud.place(2, 1, ""), script.display().to_string());
        line.replace("FROM", from).replace("TO", &to).replace("SCRIPT", &script)
    };
    let here = cloud.place(1, 1, "");
    let away = here.replace(&cloud.host(1), "192.0.2.1");
    for line in lines {
        let said = cloud.transfer(1, &there(&away.replace(&cloud.host(2), "192.0.2.1"), line));
        if !line.starts_with("DELETE") {
            assert!(said.as_ref().is_err_and(|why| why.contains("192.0.2.1")), "{line}: {said:?}");
        }
        assert_eq!(cloud.transfer(1, &there(&here, line)), Ok(()), "{line}");
        assert_eq!(cloud.transfer(1, &there(&here, line)), Ok(()), "{line}, once more");
    }
    // Each shutdown is a version, also one that was said twice.
    assert_eq!(cloud.bench.json("images one-7").len(), 3);
    for host in [1, 2] {
        assert!(!cloud.host_path(host, "100/1").exists());
    }
}

#[test]
fn disks_without_images_are_what_they_should_be() {
    let Some(cloud) = Cloud::new(1, 1) else { return };
    cloud.machine(
        1,
        3,
        &[Disk { format: "qcow2", filesystem: "ext4", size_mb: 64, ..Disk::of("") }, Disk::of("")],
    );
    let (first, second, third) =
        (cloud.place(1, 1, "disk.0"), cloud.place(1, 1, "disk.1"), cloud.place(1, 1, "disk.2"));
    let script = cloud.bench.path("context.sh");
    std::fs::write(&script, "SET_HOSTNAME=web\n").unwrap();
    let script = script.display();
    let lines = format!(
        "MKIMAGE diskcast 64 qcow2 {first} 1 100\nMKSWAP diskcast 16 {second} 1 100\n\
         CONTEXT diskcast {script} {script}:other.sh {third} 1 100"
    );
    assert_eq!(cloud.transfer(1, &lines), Ok(()));
    cloud.qemu(1, 1, "convert -O raw disk.0 FOLDER/flat");
    assert_eq!(cloud.kind("flat").as_deref(), Some("ext4"));
    let path = |name: &str| cloud.host_path(1, &format!("100/1/{name}")).display().to_string();
    assert_eq!(cloud.kind(&path("disk.1")).as_deref(), Some("swap"));
    let listed = cloud.bench.tool(&format!("isoinfo -J -f -i {}", path("disk.2")));
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["/context.sh", "/other.sh"]);
    let label = cloud.bench.tool(&format!("blkid -o value -s LABEL {}", path("disk.2")));
    assert_eq!(label.trim(), "CONTEXT");
}

#[test]
fn what_fails_says_why_and_can_be_repeated() {
    // Host 2 has little room.
    let small = |host: &lab::Host| match host.index() {
        2 => "mount -t tmpfs -o size=8m tmpfs DATASTORES".to_owned(),
        _ => "true".to_owned(),
    };
    let Some(cloud) = Cloud::with(2, 16, small) else { return };
    cloud.machine(1, 3, &[Disk::of("main:web@1")]);
    let disk = cloud.place(1, 1, "disk.0");
    let clone = format!("CLONE diskcast main:web@1 {disk} 1 101");
    // Killed while the host waits for the server: nothing is there, and nothing goes on there.
    let (gate, started) = (cloud.bench.path("gate"), cloud.bench.path("started"));
    std::fs::write(&gate, "").unwrap();
    let mut killed = cloud.script("tm", "clone", &format!("main:web@1 {disk} 1 101")).spawn().unwrap();
    until(|| std::fs::read_to_string(&started).is_ok_and(|pid| pid.ends_with('\n')));
    suspend(&cloud.server.child);
    std::fs::remove_file(&gate).unwrap();
    let pid = std::fs::read_to_string(&started).unwrap();
    until(|| has_children(pid.trim()));
    killed.kill().unwrap();
    killed.wait().unwrap();
    until(|| !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
    cloud.server.signal("CONT");
    assert!(!cloud.host_path(1, "100/1/disk.0").exists());
    assert_eq!(cloud.transfer(1, &clone), Ok(()));
    assert_eq!(cloud.transfer(1, &clone), Ok(()), "repeated");
    cloud.qemu(1, 1, "compare -f raw -F qcow2 FOLDER/disk.img disk.0");

    for (line, why) in [
        (format!("CLONE diskcast main:nothing@1 {disk} 1 101"), "nothing"),
        (format!("CLONE diskcast other:web@1 {disk} 1 101"), "no repository `other`"),
        (format!("CLONE diskcast /var/lib/one/x {disk} 1 101"), "names no image"),
        ("CLONE diskcast main:web@1 192.0.2.1:/ds/100/1/disk.0 1 101".to_owned(), "192.0.2.1"),
        (format!("CLONE diskcast main:web@1 {disk} 99 101"), "onevm"),
        (format!("FLY diskcast {disk}"), "no script"),
    ] {
        let said = cloud.transfer(1, &line).unwrap_err();
        assert!(said.contains(why), "{line}: {said}");
    }
    cloud.machine(2, 3, &[Disk { format: "raw", copy: "full", ..Disk::of("main:web@1") }]);
    let full = cloud.place(2, 2, "disk.0");
    let said = cloud.transfer(2, &format!("CLONE diskcast main:web@1 {full} 2 101")).unwrap_err();
    assert!(said.contains("has room for") && said.contains("are missing"), "{said}");

    // What finds no room at another host stays where it is, and what sends it does not wait for ever.
    std::fs::write(cloud.host_path(1, "100/1/disk.1"), vec![7; 32 << 20]).unwrap();
    let (from, to) = (cloud.place(1, 1, ""), cloud.place(2, 1, ""));
    let said = cloud.transfer(1, &format!("MV diskcast {from} {to} 1 100")).unwrap_err();
    assert!(said.contains("No space left") && said.contains("still where it was"), "{said}");
    cloud.qemu(1, 1, "compare -f raw -F qcow2 FOLDER/disk.img disk.0");
}

#[test]
fn a_datastore_imports_clones_makes_and_removes() {
    let Some(cloud) = Cloud::new(1, 4) else { return };
    let disk = cloud.bench.path("disk.img").display().to_string();
    let path = format!("<PATH>{disk}</PATH>");
    assert_eq!(cloud.store("stat", 0, &path), Ok("4".into()));
    // A file of the front-end's own is nobody's to import.
    let restricted = cloud.store_of("cp", 3, &path, "<RESTRICTED_DIRS>/</RESTRICTED_DIRS>").unwrap_err();
    assert!(restricted.contains("restricted"), "{restricted}");
    let wrong = format!("{path}<TEMPLATE><MD5>{}</MD5></TEMPLATE>", "0".repeat(32));
    assert!(cloud.store("cp", 3, &wrong).unwrap_err().contains("damaged"));
    let safe = "<RESTRICTED_DIRS>/</RESTRICTED_DIRS><SAFE_DIRS>/tmp</SAFE_DIRS>";
    assert_eq!(cloud.store_of("cp", 3, &path, safe).unwrap().trim(), "main:one-3 qcow2");
    assert!(cloud.bench.see("install one-3 again.img --yes -q").ends_with("exit: 0\n"));
    assert_same(&cloud.bench.path("disk.img"), &cloud.bench.path("again.img"));
    let clone = "<PATH>main:one-3</PATH>";
    assert_eq!(cloud.store("clone", 4, clone).unwrap().trim(), "main:one-4 qcow2");
    assert_eq!(cloud.store("clone", 4, clone).unwrap().trim(), "main:one-4 qcow2", "repeated");
    assert_eq!(cloud.store("mkfs", 5, "<SIZE>64</SIZE><FS>ext4</FS>").unwrap().trim(), "main:one-5");
    assert!(cloud.bench.see("install one-5 made.img --yes -q").ends_with("exit: 0\n"));
    assert_eq!(cloud.kind("made.img").as_deref(), Some("ext4"));
    let space = cloud.store("monitor", 1, "").unwrap();
    assert!(space.contains("USED_MB=") && space.contains("TOTAL_MB="), "{space}");
    let export = cloud.store("export", 3, "<SOURCE>main:one-3</SOURCE>").unwrap();
    assert!(export.contains("diskcast:one-3@1") && export.contains("<SIZE>4</SIZE>"), "{export}");
    // What another image of OpenNebula has is cloned, since that one may go.
    cloud.image(3, "main:one-3");
    assert_eq!(cloud.store("cp", 6, "<PATH>diskcast:one-3@1</PATH>").unwrap().trim(), "main:one-6 qcow2");
    assert!(cloud.store("snap_revert", 3, "<SOURCE>main:one-3</SOURCE>").unwrap_err().contains("versions"));

    // What the command line makes of `--path diskcast:web`.
    let named = cloud.store("stat", 0, "<PATH>/var/lib/one/diskcast:web</PATH>").unwrap_err();
    assert!(named.contains("PATH=\"diskcast:web\""), "{named}");
    // Disks of an image or of a datastore may begin in another way.
    let copy = "<DISKCAST_COPY>full</DISKCAST_COPY>";
    let image = format!("{path}<TEMPLATE>{copy}</TEMPLATE>");
    assert_eq!(cloud.store_of("cp", 8, &image, "").unwrap().trim(), "main:one-8 raw");
    assert_eq!(cloud.store_of("cp", 8, &path, copy).unwrap().trim(), "main:one-8 raw");
}

#[test]
fn a_backup_is_versions_and_comes_back() {
    let Some(cloud) = Cloud::new(1, 8) else { return };
    let vm = cloud.machine(4, 3, &[Disk::of("main:web@1")]);
    let (disk, folder) = (cloud.place(1, 4, "disk.0"), cloud.place(1, 4, ""));
    assert_eq!(cloud.transfer(4, &format!("CLONE diskcast main:web@1 {disk} 4 101")), Ok(()));
    cloud.write(1, 4, "write -P 5 1M 4k");
    let around =
        |action: &str| cloud.run(cloud.script("tm", action, &format!("{folder} 0 one-4 - 4 100")), &vm);
    assert_eq!(around("prebackup_live"), Ok(String::new()));
    assert_eq!(cloud.virsh(), ["suspend one-4", "resume one-4"]);
    cloud.write(1, 4, "write -P 6 1M 4k");
    let order = format!("{folder} 0 uuid - 4 102");
    let saved = cloud.run(cloud.script("datastore", "backup", &order), &cloud.order("", "")).unwrap();
    let words: Vec<_> = saved.split_whitespace().collect();
    assert_eq!(words[0], "main:one-vm-4-disk-0@1");
    // A second one is called off.
    let gate = cloud.bench.path("gate");
    std::fs::write(&gate, "").unwrap();
    let process = cloud.host_path(1, "100/4/backup/process");
    std::fs::remove_file(&process).unwrap();
    let second = cloud.script("datastore", "backup", &order);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| cloud.run(second, &cloud.order("", "")));
        until(|| process.exists());
        let cancel = cloud.script("datastore", "backup_cancel", &order);
        // OpenNebula says what the machine is, and nothing of the datastore.
        assert_eq!(cloud.run(cancel, &vm), Ok(String::new()));
        std::fs::remove_file(&gate).unwrap();
        assert!(second.join().unwrap().is_err());
    });
    let versions = cloud.bench.json("images one-vm-4-disk-0");
    assert_eq!(versions.len(), 1, "{versions:?}");
    assert_eq!(around("postbackup_live"), Ok(String::new()));
    assert!(!cloud.host_path(1, "100/4/backup").exists());
    cloud.image(11, words[0]);
    let restore = cloud.script("tm", "restore", &format!("{folder} 4 11 0 -1"));
    assert_eq!(cloud.run(restore, ""), Ok(String::new()));
    cloud.reads(1, 4, "read -P 5 1M 4k");
    assert_eq!(cloud.store("rm", 11, &format!("<SOURCE>{}</SOURCE>", words[0])), Ok(String::new()));
    assert!(cloud.bench.json("images").iter().all(|image| image["name"] == "web"));
}

#[test]
fn a_machine_that_moves_while_it_runs_leaves_nothing() {
    let Some(cloud) = Cloud::new(2, 4) else { return };
    let vm = cloud.machine(1, 3, &[Disk { driver: "other", ..Disk::of("main:web@1") }]);
    let disk = cloud.place(1, 1, "disk.0");
    assert_eq!(cloud.transfer(1, &format!("CLONE diskcast main:web@1 {disk} 1 101")), Ok(()));
    // Another driver, which has a disk of the machine.
    let other = cloud.bench.path("remotes/tm/other");
    std::fs::create_dir(&other).unwrap();
    let text = format!("#!/bin/sh\necho \"$@\" >{}/called\n", other.display());
    std::fs::write(other.join("postmigrate"), text).unwrap();
    cloud.bench.tool("chmod +x remotes/tm/other/postmigrate");
    let folder = cloud.folder.join("datastores/100/1").display().to_string();
    let words = format!("{} {} {folder} 1 100", cloud.host(1), cloud.host(2));
    std::fs::create_dir_all(cloud.host_path(2, "100/1/old")).unwrap();
    let migrate = |action: &str, words: &str| cloud.run(cloud.script("tm", action, words), &vm);
    assert_eq!(migrate("premigrate", &words), Ok(String::new()));
    assert!(!cloud.host_path(2, "100/1").exists() && cloud.host_path(1, "100/1/disk.0").exists());
    let same = words.replace(&cloud.host(2), &cloud.host(1));
    assert_eq!(migrate("postmigrate", &same), Ok(String::new()));
    assert!(cloud.host_path(1, "100/1/disk.0").exists(), "it stayed where it was");
    assert_eq!(migrate("postmigrate", &words), Ok(String::new()));
    assert!(!cloud.host_path(1, "100/1").exists());
    let called = std::fs::read_to_string(other.join("called")).unwrap();
    assert_eq!(called.trim(), format!("{words} diskcast"));
}

#[test]
fn scripts_with_the_same_image_wait_for_each_other_but_not_for_those_that_are_killed() {
    // No other test has this image, so none meets them.
    let Some(cloud) = Cloud::new(3, 13) else { return };
    let settings = cloud.bench.path("one.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("window_seconds = 3600\n{text}")).unwrap();
    let key =
        cloud.bench.json("inspect web")[0]["manifest"]["root"]["digest"].as_str().unwrap()[..32].to_owned();
    let on_the_way = || {
        let entries = std::fs::read_dir("/run/diskcast/meetings");
        let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(&key)).count()
    };
    let gate = |host| cloud.bench.path(&format!("gate-{}", cloud.host(host)));
    let start = |machine: u32| {
        cloud.machine(machine, 3, &[Disk::of("main:web@1")]);
        let disk = cloud.place(machine, machine, "disk.0");
        cloud.script("tm", "clone", &format!("main:web@1 {disk} {machine} 101")).spawn().unwrap()
    };
    let gates = [gate(2), gate(3)];
    gates.iter().for_each(|gate| std::fs::write(gate, "").unwrap());
    let (second, mut killed) = (start(2), start(3));
    until(|| on_the_way() == 2);
    let first = start(1);
    // It holds the place of the image, and is not on the way any more.
    until(|| cloud.host_path(1, &format!(".diskcast/images/{key}")).exists() && on_the_way() == 2);
    std::fs::write(cloud.bench.path("begin"), "").unwrap();
    let begin = std::fs::metadata(cloud.bench.path("begin")).unwrap().modified().unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    std::fs::remove_file(&gates[0]).unwrap();
    for (host, script) in [(1, first), (2, second)] {
        let output = script.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        cloud.qemu(host, host, "compare -f raw -F qcow2 FOLDER/disk.img disk.0");
        let image = std::fs::metadata(cloud.host_path(host, &format!(".diskcast/images/{key}/disk.raw")));
        assert!(image.unwrap().created().unwrap() >= begin, "host {host} did not wait");
    }
    assert_eq!(on_the_way(), 0, "what was left behind is removed");
    std::fs::remove_file(&gates[1]).unwrap();
}

/// Waits for something that another program does.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
}

/// Whether a program has started others.
fn has_children(pid: &str) -> bool {
    let children = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(children).is_ok_and(|children| !children.trim().is_empty())
}
