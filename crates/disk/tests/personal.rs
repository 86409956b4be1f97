//! Disks that become machines of their own: what changes, what stays, judged by sgdisk, e2fsck, mtools and ssh-keygen.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::ErrorKind;
use disk::personal::Personal;

use crate::common::*;

const ROOT_UUID: &str = "0F0F5A2F-1C11-4A52-9D3A-6B1D8F9C4B5E";

/// A GPT disk with an EFI system partition and a Linux root. The root names its partition in both cases of letters.
fn some_disk(bench: &Bench, mkfs: &str) -> PathBuf {
    let disk = bench.sparse_file("disk", 400 << 20);
    let table =
        format!("label: gpt\nstart=2048, size=102400, type=U\nstart=104448, type=L, uuid={ROOT_UUID}\n");
    run_with_input("sfdisk -q", &disk, &table);
    let map = map_of(&disk);
    let esp = bench.sparse_file("esp", map.partitions[0].extent.len_bytes());
    run("mkfs.fat -F 32", &[&esp]);
    run("mmd -i", &[&esp, &"::/EFI", &"::/EFI/debian", &"::/loader", &"::/loader/entries"]);
    for (name, text) in [("shimx64.efi", "shim"), ("grubx64.efi", "grub"), ("mmx64.efi", "manager")] {
        let file = bench.path(name);
        fs::write(&file, text).unwrap();
        run("mcopy -i", &[&esp, &file, &format!("::/EFI/debian/{name}")]);
    }
    let entry = bench.path("debian.conf");
    fs::write(&entry, format!("options root=PARTUUID={} rw\n", ROOT_UUID.to_lowercase())).unwrap();
    run("mcopy -i", &[&esp, &entry, &"::/loader/entries/debian.conf"]);

    let tree = bench.tree("root");
    for folder in ["etc/ssh", "boot/grub", "bin", "proc", "dev", "lib64", "var/lib/dbus", "var/lib/systemd"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    let put = |name: &str, text: &str| fs::write(tree.join(name), text).unwrap();
    put("etc/os-release", "ID=test\n");
    put("etc/fstab", &format!("PARTUUID={ROOT_UUID} / ext4 defaults 0 1\n"));
    put("boot/grub/grub.cfg", &format!("linux /vmlinuz root=PARTUUID={} ro\n", ROOT_UUID.to_lowercase()));
    put("etc/hostname", "golden\n");
    put("etc/hosts", "127.0.0.1\tlocalhost\n127.0.1.1\tgolden.example golden\n::1\tlocalhost\n");
    put("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    put("var/lib/dbus/machine-id", "0123456789abcdef0123456789abcdef\n");
    run("ssh-keygen -q -t ed25519 -N", &[&"", &"-f", &tree.join("etc/ssh/ssh_host_ed25519_key")]);
    put("etc/ssh/sshd_config", "Port 22\n");
    // A shell with what it needs.
    let shell = fs::canonicalize("/bin/sh").unwrap();
    fs::copy(&shell, tree.join("bin/sh")).unwrap();
    for word in run("ldd", &[&shell]).split_whitespace().filter(|word| word.starts_with('/')) {
        let to = tree.join(&word[1..]);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(word, to).unwrap();
    }
    let root = bench.sparse_file("rootfs", map.partitions[1].extent.len_bytes());
    run(mkfs, &[&root]);
    let mounted = Mounted::by("mount", &root, bench.tree("making"));
    run("cp -a -T", &[&tree, &mounted.folder]);
    drop(mounted);
    for (part, start) in [(esp, 2048), (root, 104_448)] {
        let to = [format!("if={}", part.display()), format!("of={}", disk.display())];
        run(
            &format!("dd bs=1M conv=notrunc,sparse oflag=seek_bytes status=none seek={}", start * 512),
            &[&to[0], &to[1]],
        );
    }
    disk
}

/// The root, mounted.
fn open_root(bench: &Bench, disk: &Path) -> (Loop, Mounted) {
    let extent = map_of(disk).partitions[1].extent;
    let device =
        Loop::over(disk, &format!("-o {} --sizelimit {}", extent.offset_bytes(), extent.len_bytes()));
    let mounted = Mounted::by("mount -o ro", &device.0, bench.tree("root after"));
    (device, mounted)
}

/// Checks the files of the root after it got `name`; returns the fingerprint of its key.
fn check_root(root: &Path, name: &str, root_id: &str) -> String {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    for path in ["etc/fstab", "boot/grub/grub.cfg"] {
        assert!(read(path).to_lowercase().contains(&format!("partuuid={root_id} ")), "{}", read(path));
    }
    assert_eq!(read("etc/hostname"), format!("{name}\n"));
    let hosts = read("etc/hosts");
    assert!(hosts.contains(&format!("127.0.1.1\t{name}")) && hosts.contains("::1\tlocalhost"), "{hosts}");
    assert!(hosts.contains(name.split('.').next().unwrap()) && !hosts.contains("golden"), "{hosts}");
    assert_eq!(read("etc/machine-id"), "");
    assert!(!root.join("var/lib/dbus/machine-id").exists());
    assert_eq!(read("etc/deep/folder/secret"), "secret");
    assert_eq!(read("etc/said"), format!("{name} speaks\n"));
    assert_eq!(read("etc/ssh/sshd_config"), "Port 22\n");
    assert!(read("var/lib/cloud/seed/nocloud/meta-data").contains(&format!("local-hostname: {name}")));
    let key = root.join("etc/ssh/ssh_host_ed25519_key");
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
    run("ssh-keygen -l -f", &[&key])
}

/// Checks the EFI system partition.
fn check_esp(esp: &Path, root_id: &str) {
    assert_eq!(run("mcopy -n -i", &[&esp, &"::/EFI/BOOT/BOOTX64.EFI", &"-"]), "shim");
    assert_eq!(run("mcopy -n -i", &[&esp, &"::/EFI/BOOT/grubx64.efi", &"-"]), "grub");
    let entry = run("mcopy -n -i", &[&esp, &"::/loader/entries/debian.conf", &"-"]);
    assert!(entry.contains(root_id), "{entry}");
    run("fsck.fat -n", &[&esp]);
}

#[test]
fn two_disks_of_one_image_become_two_machines() {
    let tools = [
        "sfdisk",
        "sgdisk",
        "mkfs.ext4",
        "mkfs.btrfs",
        "mkfs.xfs",
        "mkfs.fat",
        "mcopy",
        "ssh-keygen",
        "unshare",
    ];
    if !is_root() || !have(&tools) {
        return;
    }
    for (mkfs, check) in [
        ("mkfs.ext4 -q -F", "e2fsck -fn"),
        ("mkfs.xfs -q", "xfs_repair -n"),
        ("mkfs.btrfs -q", "btrfs check"),
    ] {
        let bench = Bench::new();
        let disk = some_disk(&bench, mkfs);
        let before = fs::read(&disk).unwrap();
        let (copied, script, seed) = (bench.path("copied"), bench.path("script"), bench.path("seed"));
        fs::write(&copied, "secret").unwrap();
        fs::write(&script, "read name </etc/hostname\necho \"$name speaks\" >/etc/said\necho x >/dev/null\n")
            .unwrap();
        fs::create_dir(&seed).unwrap();
        fs::write(seed.join("user-data"), "#cloud-config\n").unwrap();
        let mut seen = Vec::new();
        for name in ["lab-1", "lab-2.example.org"] {
            fs::write(&disk, &before).unwrap();
            let personal = Personal {
                new_identity: true,
                accepts_stale: false,
                host_name: Some(name.to_owned()),
                seed: Some(seed.clone()),
                copies: vec![(copied.clone(), "/etc/deep/folder/secret".into())],
                script: Some(script.clone()),
                uefi_fallback: true,
                boot_entry: false,
            };
            let done = personal.apply(&disk).unwrap();
            assert!(done.iter().any(|line| line == "3 references to them changed"), "{done:?}");
            assert!(run("sgdisk -v", &[&disk]).contains("No problems found"));
            let map = map_of(&disk);
            let (root_id, disk_id) = (map.partitions[1].uuid.clone().unwrap(), map.disk_id.clone().unwrap());
            assert!(!root_id.eq_ignore_ascii_case(ROOT_UUID));
            let [esp, part] = [("esp after", 0), ("check", 1)].map(|(name, index)| {
                let path = bench.path(name);
                fs::write(&path, read_at(&disk, map.partitions[index].extent)).unwrap();
                path
            });
            run(check, &[&part]);
            check_esp(&esp, &root_id);
            let (device, mounted) = open_root(&bench, &disk);
            let print = check_root(&mounted.folder, name, &root_id);
            drop((mounted, device));
            seen.push([root_id, disk_id, print]);
        }
        assert!(seen[0].iter().zip(&seen[1]).all(|(a, b)| a != b), "{seen:?}");
    }
}

#[test]
fn a_boot_record_gets_a_new_signature() {
    if !is_root() || !have(&["sfdisk", "mkfs.ext4", "ssh-keygen"]) {
        return;
    }
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", 64 << 20);
    run_with_input("sfdisk -q", &disk, "label: dos\nlabel-id: 0x1234abcd\nstart=2048, type=83\n");
    let tree = bench.tree("root");
    fs::create_dir_all(tree.join("etc")).unwrap();
    fs::write(tree.join("etc/os-release"), "ID=test\n").unwrap();
    fs::write(tree.join("etc/fstab"), "PARTUUID=1234ABCD-01 / ext4\n").unwrap();
    let part = bench.sparse_file("part", 63 << 20);
    run("mkfs.ext4 -q -F -d", &[&tree, &part]);
    write_at(&disk, 1 << 20, &fs::read(&part).unwrap());
    let personal = Personal { new_identity: true, ..Personal::default() };
    personal.apply(&disk).unwrap();
    let id = map_of(&disk).disk_id.unwrap();
    assert_ne!(id, "1234abcd");
    let device = Loop::over(&disk, "-o 1048576");
    let mounted = Mounted::by("mount -o ro", &device.0, bench.tree("after"));
    assert_eq!(
        fs::read_to_string(mounted.folder.join("etc/fstab")).unwrap(),
        format!("PARTUUID={id}-01 / ext4\n")
    );
}

/// Files of a root filesystem that name the partition `ROOT`, each as its program writes it.
const ON_ROOT: &[(&str, &str)] = &[
    ("etc/fstab", "PARTUUID=ROOT / ext4 defaults 0 1\n"),
    ("etc/fstab.bak", "PARTUUID=ROOT / ext4 defaults 0 1\n"),
    ("etc/kernel/cmdline", "root=PARTUUID=ROOT rw"),
    ("etc/initramfs-tools/conf.d/resume", "RESUME=PARTUUID=ROOT\n"),
    ("boot/grub/grub.cfg", "linux /vmlinuz root=PARTUUID=ROOT ro\n"),
    ("boot/grub/custom.cfg", "linux /vmlinuz root=PARTUUID=ROOT ro\n"),
    ("boot/syslinux/syslinux.cfg", "APPEND root=PARTUUID=ROOT ro\n"),
    ("boot/extlinux/extlinux.conf", "APPEND root=PARTUUID=ROOT ro\n"),
    ("boot/refind_linux.conf", "\"Boot\" \"root=PARTUUID=ROOT ro\"\n"),
    ("boot/loader/entries/x.conf", "options root=PARTUUID=ROOT\n"),
    ("boot/armbianEnv.txt", "rootdev=PARTUUID=ROOT\n"),
    ("boot/boot.cmd", "setenv bootargs root=PARTUUID=ROOT\n"),
];
/// The same on the FAT. The second one is longer than a cluster, and so is the way to what it names.
const ON_FAT: &[&str] =
    &["extlinux/extlinux.conf", "cmdline.txt", "EFI/fedora/grub.cfg", "loader/entries/a.conf"];
/// A machine-id as the kernel is told it.
const MACHINE: &str = "systemd.machine_id=0123456789abcdef0123456789abcdef";

/// The identifier of the second partition, in lower case.
fn root_id(disk: &Path) -> String {
    run("partx -g -o UUID -n 2", &[&disk]).trim().to_lowercase()
}

/// A disk of a small computer: a FAT with a command line, and a Linux root. Returns it and the identifier of the root.
fn small_computer(bench: &Bench, table: &str) -> (PathBuf, String) {
    let disk = bench.sparse_file("disk", 64 << 20);
    run_with_input("sfdisk -q", &disk, table);
    let old = root_id(&disk);
    let (fat, tree) = (bench.sparse_file("fat", 32 << 20), bench.tree("root"));
    run("mkfs.fat -F 16 -s 1", &[&fat]);
    run("mmd -i", &[&fat, &"::/extlinux", &"::/EFI", &"::/EFI/fedora", &"::/loader", &"::/loader/entries"]);
    let on_fat = |name: &str, text: &[u8]| {
        let file = bench.path("file");
        fs::write(&file, text).unwrap();
        run("mcopy -i", &[&fat, &file, &format!("::/{name}")]);
    };
    // The first of the files lies before and behind the wall.
    on_fat("hole", b"1");
    on_fat("wall", b"2");
    run("mdel -i", &[&fat, &"::/hole"]);
    for name in ON_FAT {
        // The identifier goes over the end of a cluster.
        on_fat(name, format!("{}root=PARTUUID={} rw\n", " ".repeat(490), old.to_uppercase()).as_bytes());
    }
    on_fat("EFI/unified.efi", format!("MZ\0root=PARTUUID={old}\0").as_bytes());
    let put = |name: &str, bytes: &[u8]| {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    put("etc/os-release", b"ID=test\n");
    put("etc/machine-id", b"0123456789abcdef0123456789abcdef\n");
    put("var/log/kern.log", format!("kernel: root=PARTUUID={old}").as_bytes());
    put("etc/rc.local", format!("mount PARTUUID={old} /mnt\n").as_bytes());
    put("boot/boot.scr", format!("\x27\x05\x19\x56\0root=PARTUUID={old}").as_bytes());
    put("boot/loader/entries/machine.conf", format!("options {MACHINE}\n").as_bytes());
    for (name, text) in ON_ROOT {
        put(name, text.replace("ROOT", &old).as_bytes());
    }
    let block = format!("# GRUB Environment Block\nkernelopts=root=PARTUUID={old} ro\n");
    put("boot/grub/grubenv", format!("{block:#<1024}").as_bytes());
    let part = bench.sparse_file("part", 30 << 20);
    run("mkfs.ext4 -q -F -d", &[&tree, &part]);
    write_at(&disk, 1 << 20, &fs::read(&fat).unwrap());
    write_at(&disk, 33 << 20, &fs::read(&part).unwrap());
    (disk, old)
}

#[test]
fn every_reference_to_an_old_identifier_follows_or_is_named() {
    if !is_root() || !have(&["sfdisk", "partx", "mkfs.ext4", "mkfs.fat", "fsck.fat", "mcopy", "ssh-keygen"]) {
        return;
    }
    for (label, kinds) in [("dos\nlabel-id: 0x1a2b3c4d", ["c", "83"]), ("gpt", ["U", "L"])] {
        let bench = Bench::new();
        let [first, second] = kinds;
        let table = format!(
            "label: {label}\nunit: sectors\nstart=2048, size=65536, type={first}\n\
             start=67584, size=61440, type={second}\n"
        );
        let (disk, old) = small_computer(&bench, &table);
        let fat = map_of(&disk).partitions[0].extent;
        let before = read_at(&disk, fat);
        let personal = Personal { new_identity: true, ..Personal::default() };
        let error = personal.apply(&disk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        let stale = "boot/boot.scr on partition 2, boot/loader/entries/machine.conf on partition 2, \
                     EFI/unified.efi on partition 1";
        let stale = format!("{}: etc/rc.local on partition 2, {stale}", disk::personal::STALE);
        assert_eq!(error.to_string(), stale);
        assert_eq!(root_id(&disk), old);
        assert!(before == read_at(&disk, fat), "nothing has changed");

        let done = Personal { accepts_stale: true, ..personal }.apply(&disk).unwrap();
        let count = ON_ROOT.len() + ON_FAT.len() + 1;
        assert!(
            done.contains(&format!("{count} references to them changed")) && done.contains(&stale),
            "{done:?}"
        );
        let new = root_id(&disk);
        assert_ne!(new, old);
        let follows = |name: &str, text: &str| {
            assert!(text.contains(&new) && !text.to_lowercase().contains(&old), "{name}: {text}");
        };
        let after = bench.path("after");
        fs::write(&after, read_at(&disk, fat)).unwrap();
        run("fsck.fat -n", &[&after]);
        for name in ON_FAT {
            follows(name, &run("mcopy -n -i", &[&after, &format!("::/{name}"), &"-"]));
        }
        let (device, mounted) = open_root(&bench, &disk);
        let read = |name: &str| fs::read_to_string(mounted.folder.join(name)).unwrap();
        for (name, _) in ON_ROOT {
            follows(name, &read(name));
        }
        follows("grubenv", &read("boot/grub/grubenv"));
        assert_eq!(read("boot/grub/grubenv").len(), 1024);
        assert!(read("var/log/kern.log").contains(&old), "it tells what was");
        drop((mounted, device));
    }
}

/// A root in a subvolume is also a folder of the filesystem, and there one that holds nobody's settings.
#[test]
fn a_root_in_a_subvolume_is_looked_at_once() {
    if !is_root() || !have(&["sfdisk", "partx", "mkfs.btrfs", "btrfs", "ssh-keygen"]) {
        return;
    }
    let bench = Bench::new();
    let disk = bench.sparse_file("disk", 160 << 20);
    run_with_input(
        "sfdisk -q",
        &disk,
        "label: gpt\nunit: sectors\nstart=2048, size=2048\nstart=4096, size=300000\n",
    );
    let (part, old) = (bench.sparse_file("part", 300_000 * 512), root_id(&disk));
    run("mkfs.btrfs -q", &[&part]);
    let mounted = Mounted::by("mount", &part, bench.tree("making"));
    run("btrfs -q subvolume create", &[&mounted.folder.join("root")]);
    fs::create_dir(mounted.folder.join("root/etc")).unwrap();
    fs::write(mounted.folder.join("root/etc/os-release"), "ID=test\n").unwrap();
    fs::write(mounted.folder.join("root/etc/fstab"), format!("PARTUUID={old} / btrfs subvol=root\n"))
        .unwrap();
    drop(mounted);
    write_at(&disk, 4096 * 512, &fs::read(&part).unwrap());
    let done = Personal { new_identity: true, ..Personal::default() }.apply(&disk).unwrap();
    assert!(done.contains(&"1 references to them changed".to_owned()), "{done:?}");
}

#[test]
fn a_script_that_fails_and_a_disk_without_a_root_are_errors() {
    if !is_root()
        || !have(&["mkfs.ext4", "sfdisk", "mkfs.xfs", "mkfs.btrfs", "mcopy", "ssh-keygen", "unshare"])
    {
        return;
    }
    let bench = Bench::new();
    let empty = bench.sparse_file("empty", 64 << 20);
    run("mkfs.ext4 -q -F", &[&empty]);
    let named = Personal { host_name: Some("a".to_owned()), ..Personal::default() };
    assert_eq!(named.apply(&empty).unwrap_err().kind(), ErrorKind::NotFound);
    run("e2fsck -fn", &[&empty]);
    let disk = some_disk(&bench, "mkfs.ext4 -q -F");
    let script = bench.path("script");
    fs::write(&script, "echo going >&2\nfalse\necho never >/etc/never\n").unwrap();
    let scripted = Personal { script: Some(script), ..Personal::default() };
    let error = scripted.apply(&disk).unwrap_err();
    assert!(error.to_string().contains("the script"), "{error}");
    let (device, mounted) = open_root(&bench, &disk);
    assert!(!mounted.folder.join("etc/never").exists());
    drop((mounted, device));
    // A link to this machine's own root is no root of the disk.
    let hostile = bench.sparse_file("hostile", 64 << 20);
    run("mkfs.ext4 -q -F", &[&hostile]);
    let mounted = Mounted::by("mount", &hostile, bench.tree("hostile"));
    for name in ["@", "@rootfs", "root"] {
        std::os::unix::fs::symlink("/", mounted.folder.join(name)).unwrap();
    }
    drop(mounted);
    assert_eq!(named.apply(&hostile).unwrap_err().kind(), ErrorKind::NotFound);
}
