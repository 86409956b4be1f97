//! Tests unsuitable sources and targets: in use, changing, in another format, or the wrong ones.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::between::between;
use crate::common::{Bench, assert_same};

/// Runs a tool that must succeed, and returns what it prints.
fn run(line: &str, paths: &[&Path]) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(paths).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether the test may mount.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "CI runs these tests as root");
    root
}

/// A file with a filesystem on a loop device, mounted until this is dropped.
struct Machine {
    device: PathBuf,
    place: PathBuf,
    mounted: bool,
}

impl Machine {
    fn new(bench: &Bench, make: &str) -> Self {
        let (file, place) = (bench.path("machine.img"), bench.path("mounted"));
        File::create(&file).unwrap().set_len(320 << 20).unwrap();
        fs::create_dir(&place).unwrap();
        run(make, &[&file]);
        let device = PathBuf::from(run("losetup -f --show", &[&file]));
        let mut machine = Self { device, place, mounted: false };
        machine.mount("");
        machine
    }

    fn mount(&mut self, options: &str) {
        run(&format!("mount {options}"), &[&self.device, &self.place]);
        self.mounted = true;
    }

    fn umount(&mut self) {
        lab::unmount(&self.place).unwrap();
        self.mounted = false;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.mounted {
            let _ = lab::unmount(&self.place);
        }
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

fn write(path: &Path, bytes: &[u8], offset: u64) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_disk_that_is_mounted_for_writing_is_refused_frozen_or_marked() {
    if !is_root() {
        return;
    }
    for make in ["mke2fs -q -F -t ext4", "mkfs.xfs -q", "mkfs.btrfs -q"] {
        let bench = Bench::new();
        let mut machine = Machine::new(&bench, make);
        fs::write(machine.place.join("file"), "content").unwrap();
        let device = machine.device.display().to_string();
        for source in [device.as_str(), "machine.img"] {
            let refused = bench.see(&format!("capture {source} web"));
            assert!(refused.contains("is mounted at `DIR/mounted` for writing\n"), "{refused}");
            assert!(
                refused.contains("err: hint: unmount it, ") && refused.ends_with("exit: 11\n"),
                "{refused}"
            );
        }
        assert!(bench.see(&format!("capture {device} web -n")).ends_with("exit: 11\n"));
        assert!(!bench.path("repo").exists(), "{make}: nothing was kept");

        let frozen = bench.see(&format!("capture {device} web -q --freeze"));
        assert_eq!(frozen, "exit: 0\n", "{make}");
        fs::write(machine.place.join("later"), "it is thawed").unwrap();
        let taken = bench.see(&format!("capture {device} web --live"));
        assert!(
            taken.contains("for writing: the version is marked\n") && taken.ends_with("exit: 0\n"),
            "{taken}"
        );
        let log = bench.see("log web");
        let lines: Vec<_> = log.lines().collect();
        assert!(lines[1].ends_with("of a live disk") && !lines[2].contains("live"), "{log}");
        let seen = bench.see("inspect web");
        assert!(
            seen.contains("out: live        its disk is mounted at `DIR/mounted` for writing\n"),
            "{seen}"
        );
        let installed = bench.see("install web null:");
        assert!(
            installed.contains("err: warning: web@2 does not show its disk at one moment: it is mounted"),
            "{installed}"
        );
        assert!(bench.see("clone web lab -q").ends_with("exit: 0\n"));
        let live = &bench.json("log lab")[0]["live"][0];
        assert!(live.as_str().unwrap().ends_with("for writing"), "what is made of it is no better: {live}");
        let refused = bench.see(&format!("commit web {device}"));
        assert!(refused.contains("for writing\n") && refused.ends_with("exit: 11\n"), "{refused}");

        machine.umount();
        machine.mount("-o ro");
        let read = bench.see(&format!("capture {device} web -q"));
        assert_eq!(read, "exit: 0\n", "{make}: read-only");
        // The capture of the frozen disk equals that of the unmounted one.
        machine.umount();
        assert_eq!(bench.see("install web@1 copy.img -q"), "exit: 0\n");
        run("mount -o loop", &[&bench.path("copy.img"), &machine.place]);
        let found = fs::read_to_string(machine.place.join("file"));
        lab::unmount(&machine.place).unwrap();
        assert_eq!(found.unwrap(), "content", "{make}");
    }
}

#[test]
fn what_holds_the_repository_is_not_frozen_and_a_signal_thaws() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let machine = Machine::new(&bench, "mke2fs -q -F -t ext4");
    let device = machine.device.display().to_string();
    let inside = bench.see(&format!("capture {device} web --freeze --repo mounted/repo"));
    assert!(
        inside.contains("could not be written while it is frozen") && inside.ends_with("exit: 11\n"),
        "{inside}"
    );
    let server = bench.serve("--no-tls --no-multicast");
    for (file, words) in [("write.token", "token --write"), ("other.token", "token --write --image other")] {
        bench.keep_secret(file, bench.command(&format!("{words} --no-tls")).output().unwrap().stdout);
    }
    // The last answer before the disk is read does not come: the capture waits for it with the filesystem frozen.
    let url = between(&server.url, |request, _| {
        if request.starts_with("GET /api/v1/images/web ") {
            std::thread::park();
        }
    });
    let words = format!("capture {device} web --freeze -v --to {url} --token-file write.token");
    let mut child = bench.command(&words).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("froze the filesystem at ")));
    assert!(lines.any(|line| line.contains(" to capture")));
    run(&format!("kill -TERM {}", child.id()), &[]);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let is_frozen =
        || Command::new("fsfreeze").arg("--unfreeze").arg(&machine.place).status().unwrap().success();
    assert!(!is_frozen(), "it was thawed before");
    let failed = bench.see(&words.replace(&url, &server.url).replace("write.token", "other.token"));
    assert!(failed.contains("err: froze the filesystem") && failed.ends_with("exit: 13\n"), "{failed}");
    assert!(!is_frozen(), "thawed after an error");
}

fn resize(path: &Path, mib: u64) {
    File::options().write(true).open(path).unwrap().set_len(mib << 20).unwrap();
}

#[test]
fn a_disk_that_changes_while_it_is_read_makes_no_version() {
    let bench = Bench::new();
    assert!(bench.see("init -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-tls --no-multicast");
    bench.keep_secret("write.token", bench.command("token --write --no-tls").output().unwrap().stdout);
    // A capture surveys its source before it asks for the image, and reads it after the answer.
    let (gate, goes) = std::sync::mpsc::channel::<()>();
    let goes = std::sync::Mutex::new(goes);
    let url = between(&server.url, move |request, _| {
        if request.starts_with("GET /api/v1/images/web ") {
            goes.lock().unwrap().recv().unwrap();
        }
    });
    type Act = fn(&Path);
    let acts: [(&str, Act); 3] = [
        ("read 262144 bytes at offset ", |disk| resize(disk, 1)),
        ("grew from 16.0 MiB to 17.0 MiB", |disk| resize(disk, 17)),
        ("was written meanwhile", |disk| write(disk, b"another", 0)),
    ];
    let capture = |act: Act, more: &str| {
        let disk = bench.disk("disk.img", 16, 1);
        let words = format!("capture disk.img web --to {url} --token-file write.token {more}");
        let mut child = bench.command(&words).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(" to capture")));
        act(&disk);
        gate.send(()).unwrap();
        let said: Vec<_> = lines.collect();
        (child.wait().unwrap().code(), said.join("\n"))
    };
    for (words, act) in acts {
        let (code, said) = capture(act, "");
        assert!(code == Some(1) && said.contains(words), "{words}: {said}");
        assert!(bench.json("images").is_empty(), "{said}");
    }
    let (code, said) = capture(acts[2].1, "--live");
    assert!(code == Some(0) && said.contains("was written meanwhile: the version is marked"), "{said}");
    let record = &bench.json("inspect web")[0]["manifest"]["disk"]["live"];
    assert_eq!(record, &serde_json::json!(["was written meanwhile"]));
}

/// Waits until a client has connected to the server at `url`; the server process may be stopped.
fn until_connected(url: &str) {
    let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let local = format!("0100007F:{port:04X}");
    let is_connection = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(local.as_str()) && words.nth(1) == Some("01")
    };
    while !fs::read_to_string("/proc/net/tcp").unwrap().lines().any(is_connection) {
        std::thread::yield_now();
    }
}

#[test]
fn a_disk_that_changes_while_it_is_committed_makes_no_version() {
    let bench = Bench::new();
    assert!(bench.see("init -q").ends_with("exit: 0\n"));
    let created = bench.see("create web 16M -q");
    assert!(created.ends_with("exit: 0\n"), "{created}");
    let server = bench.serve("--no-multicast");
    bench.keep_secret("write.token", bench.command("token --write").output().unwrap().stdout);
    let disk = bench.disk("disk.img", 16, 1);
    server.suspend();
    let words = format!("commit web disk.img --to {} --token-file write.token --at 0", server.url);
    let child = bench.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The source was surveyed before that.
    until_connected(&server.url);
    write(&disk, b"another", 0);
    server.signal("CONT");
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.code() == Some(1) && said.contains("was written meanwhile while it was read"),
        "{said}"
    );
    assert_eq!(bench.json("log web").len(), 1);
}

#[test]
fn a_file_that_is_open_for_writing_is_no_quiet_source() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 2, 1);
    let writer = File::options().write(true).open(&disk).unwrap();
    let refused = bench.see("capture disk.img web -q");
    assert!(refused.contains("err: error: `disk.img` is open for writing by `cli-"), "{refused}");
    assert!(refused.ends_with("exit: 11\n"), "{refused}");
    assert!(bench.see("capture disk.img web -q --live").ends_with("exit: 0\n"));
    let live = bench.json("log web")[0]["live"].to_string();
    assert!(live.contains("is open for writing by"), "{live}");
    // A commit only fails if the file changes meanwhile. It counts the chunk that differs.
    writer.write_all_at(b"committed", 512).unwrap();
    assert!(bench.see("commit web disk.img").starts_with("out: committed 256 KiB as web@2, "));
}

#[test]
fn disks_of_virtual_machines_are_not_taken_for_raw_ones() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let mut bytes = vec![0; 2 << 20];
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    fs::write(bench.path("vm.qcow2"), bytes).unwrap();
    for words in
        ["capture vm.qcow2 vm", "capture vm.qcow2 vm --raw", "capture vm.qcow2 vm -n", "commit web vm.qcow2"]
    {
        let refused = bench.see(words);
        assert_eq!(
            refused,
            "err: error: `vm.qcow2` is a QCOW2 with clusters of 2^0 bytes\n\
             err: hint: no version was made; copy it again from where it came\n\
             exit: 12\n"
        );
    }
    assert_eq!(bench.json("images").len(), 1);
    assert_eq!(bench.see("commit web vm.qcow2 -q --format raw"), "exit: 0\n");
    assert_eq!(
        bench.see("commit web vm.qcow2 -q --append"),
        "exit: 0\n",
        "any file may be put behind another"
    );
    assert_eq!(bench.see("capture vm.qcow2 vm -q --format raw"), "exit: 0\n");
    assert_eq!(bench.see("install vm out.img -q"), "exit: 0\n");
    assert_same(&bench.path("vm.qcow2"), &bench.path("out.img"));
}

#[test]
fn a_file_that_holds_something_is_not_overwritten_without_a_word() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 2, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let fetch = format!("fetch {} web out.img --token-file join.token", server.url);
    for words in ["install web out.img", fetch.as_str()] {
        fs::write(bench.path("out.img"), "my thesis").unwrap();
        let planned = bench.see(&format!("{words} -n"));
        assert!(planned.contains(" to out.img, over the 9 B that it holds\n"), "{planned}");
        assert_eq!(
            bench.see(words),
            "err: error: out.img holds 9 B already, which will be overwritten by web@1: nobody is there to confirm it\n\
             err: hint: say --overwrite if you are sure, or --resume to go on with an install\n\
             exit: 11\n"
        );
        assert_eq!(fs::read(bench.path("out.img")).unwrap(), b"my thesis");
        for sure in ["--overwrite", "--yes", "--resume"] {
            assert_eq!(bench.see(&format!("{words} -q {sure}")), "exit: 0\n");
            assert_same(&disk, &bench.path("out.img"));
            fs::write(bench.path("out.img"), "my thesis").unwrap();
        }
        // A hole has no data to lose.
        for bytes in [0, 4 << 20] {
            File::create(bench.path("out.img")).unwrap().set_len(bytes).unwrap();
            assert_eq!(bench.see(&format!("{words} -q")), "exit: 0\n");
        }
    }
}

#[test]
fn an_image_does_not_go_back_to_its_source_unless_that_is_said() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 2, 1);
    fs::copy(&disk, bench.path("twin.img")).unwrap();
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(bench.see("clone web lab -q").ends_with("exit: 0\n"));
    fs::rename(&disk, bench.path("renamed.img")).unwrap();
    for name in ["web", "lab"] {
        for more in ["--yes", "--overwrite", "--resume", "-n"] {
            assert_eq!(
                bench.see(&format!("install {name} renamed.img {more}")),
                format!(
                    "err: error: `renamed.img` is what {name}@1 was captured from\n\
                     err: hint: --onto-source puts it back there; nothing was written\n\
                     exit: 11\n"
                )
            );
        }
    }
    assert_eq!(bench.see("install web twin.img -q --yes"), "exit: 0\n", "a copy is not the source");
    assert_eq!(bench.see("install web renamed.img -q --yes --onto-source"), "exit: 0\n");
    if is_root() {
        let device = run("losetup -f --show", &[&bench.path("renamed.img")]);
        let through = bench.see(&format!("install web {device} --yes"));
        run(&format!("losetup -d {device}"), &[]);
        assert!(
            through.contains("is what web@1 was captured from") && through.ends_with("exit: 11\n"),
            "{through}"
        );
    }
    let manifest = bench.json("inspect web")[0]["manifest"]["disk"]["source"].to_string();
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    assert!(machine.trim().is_empty() || !manifest.contains(machine.trim()), "{manifest}");
}

#[test]
fn a_capture_reuses_the_chunks_of_the_base_that_is_named() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q --disk-rate 1G").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", token.stdout);
    let there = format!("--to {} --token-file write.token", server.url);
    for (words, ends) in [
        ("capture disk.img other -q --base web@1".to_owned(), "exit: 0\n"),
        (format!("capture disk.img third -q --base web {there}"), "exit: 0\n"),
        (format!("capture disk.img third -q {there}"), "exit: 0\n"),
        ("capture disk.img other -q --base none".to_owned(), "exit: 10\n"),
        (format!("capture disk.img third -q --base none {there}"), "exit: 10\n"),
        ("capture disk.img other -q --disk-rate 100".to_owned(), "exit: 2\n"),
    ] {
        let shown = bench.see(&words);
        assert!(shown.ends_with(ends), "{words}: {shown}");
    }
    for name in ["other", "third@2"] {
        assert_eq!(bench.see(&format!("install {name} out.img -q --overwrite --disk-rate 1G")), "exit: 0\n");
        assert_same(&disk, &bench.path("out.img"));
    }
}
