//! Attached disks through the real binary: under QEMU's and libnbd's tools, killed and attached again, committed while they
//! run.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap, too")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use common::{Bench, Served, assert_same};
use serde_json::Value;

/// A running `diskcast attach`.
struct Attached {
    child: Child,
    uri: String,
    log: Option<JoinHandle<Vec<String>>>,
}

impl Attached {
    /// Starts `diskcast attach WORDS --json` and waits until it serves.
    fn start(mut command: Command) -> Self {
        let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("attach says that it serves").unwrap();
        let record: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(record["type"], "attached", "{first}");
        let log = std::thread::spawn(move || lines.map_while(Result::ok).collect());
        Self { child, uri: record["nbd"][0].as_str().unwrap().to_owned(), log: Some(log) }
    }

    /// With the repository of the bench as its source.
    fn from_repository(bench: &Bench, words: &str) -> Self {
        Self::start(bench.command(&format!("attach {words} --quiet")))
    }

    /// With a server alone as its source.
    fn from_server(bench: &Bench, server: &Served, words: &str) -> Self {
        let mut command = bench.command(&format!("attach {words} --quiet --from {}", server.url));
        command.args(["--token-file", "join.token"]).env_remove("DISKCAST_REPO");
        Self::start(command)
    }

    /// Sends SIGTERM and returns the exit code.
    fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Sends SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself, and returns the exit code.
    fn ends(mut self) -> Option<i32> {
        let code = self.child.wait().unwrap().code();
        self.log.take().unwrap().join().unwrap();
        code
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a tool that has to succeed; false if it is not installed, which is a failure where `CI` is set.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn run(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {said}{errors}");
            true
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{program}: {error}");
            eprintln!("left out, since there is no {program}");
            false
        }
    }
}

/// `qemu-io` on a disk, one command after the other.
fn qemu_io(uri: &str, commands: &[&str]) -> bool {
    let mut words = vec!["-f", "raw", uri];
    commands.iter().for_each(|command| words.extend(["-c", command]));
    run("qemu-io", &words)
}

/// A bench with the image `web` of a disk of 32 MiB.
fn bench() -> (Bench, PathBuf) {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 32, 7);
    assert!(bench.see("capture disk.img web --raw").ends_with("exit: 0\n"));
    (bench, disk)
}

fn status(bench: &Bench, name: &str) -> Value {
    bench.json(&format!("disks {name}")).remove(0)
}

fn write_at(path: &Path, offset: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset as u64).unwrap();
}

#[test]
fn a_disk_is_read_written_left_and_found_again() {
    let (bench, disk) = bench();
    let attached = Attached::from_repository(&bench, "web --name vm1");
    let copy = bench.path("copy.img");
    if !run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]) {
        return;
    }
    assert_same(&disk, &copy);
    let now = status(&bench, "vm1");
    assert_eq!((&now["state"], &now["image"], &now["number"]), (&"running".into(), &"web".into(), &1.into()));
    assert_eq!((&now["dirty_bytes"], &now["local_bytes"]), (&0.into(), &now["size_bytes"]));

    assert!(qemu_io(&attached.uri, &["write -P 7 65024 1024", "flush"]));
    write_at(&disk, 65_024, &[7; 1024]);
    assert_eq!(status(&bench, "vm1")["dirty_bytes"], 1024);
    assert_eq!(attached.stop(), Some(0));
    assert_eq!(status(&bench, "vm1")["state"], "stopped");

    // Its name is enough, and the image is needed no longer.
    std::fs::rename(bench.path("repo"), bench.path("gone")).unwrap();
    std::fs::create_dir(bench.path("repo")).unwrap();
    assert!(bench.see("attach vm1").ends_with("exit: 10\n"), "its repository is gone");
    std::fs::remove_dir(bench.path("repo")).unwrap();
    std::fs::rename(bench.path("gone"), bench.path("repo")).unwrap();
    let attached = Attached::from_repository(&bench, "vm1");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    assert_eq!(status(&bench, "vm1")["demanded_bytes"], 0, "all of it was here");

    let refused = bench.see("detach vm1 --discard");
    assert!(refused.contains("1024 bytes were written") && refused.ends_with("exit: 11\n"), "{refused}");
    assert_eq!(
        bench.see("detach vm1"),
        "out: detached vm1; `diskcast attach vm1` goes on with it\nexit: 0\n"
    );
    assert_eq!(attached.ends(), Some(0));
    let refused = bench.see("detach vm1 --discard");
    assert!(refused.contains("1024 bytes were written") && refused.ends_with("exit: 11\n"), "{refused}");
    assert_eq!(bench.see("detach vm1 --discard --force"), "out: detached and deleted vm1\nexit: 0\n");
    assert!(!bench.path("disks/vm1").exists());
    assert!(bench.see("detach vm1").ends_with("exit: 10\n"));
}

#[test]
fn a_disk_comes_from_a_server_that_may_go_and_come_back() {
    let (bench, disk) = bench();
    let server = bench.serve("--no-multicast");
    let attached = Attached::from_server(&bench, &server, "web@1 --name vm1");
    if !qemu_io(&attached.uri, &["read 0 64k"]) {
        return;
    }
    let listen = server.url.trim_start_matches("https://").to_owned();
    server.kill();
    // A guest that reads meanwhile waits.
    let (uri, copy) = (attached.uri.clone(), bench.path("copy.img"));
    let reader = {
        let copy = copy.clone();
        std::thread::spawn(move || run("nbdcopy", &[&uri, copy.to_str().unwrap()]))
    };
    while status(&bench, "vm1")["retries"] == 0 {
        std::thread::yield_now();
    }
    let _server = bench.serve_at("--no-multicast", &listen);
    assert!(reader.join().unwrap());
    assert_same(&disk, &copy);
    assert_eq!(attached.stop(), Some(0));
}

#[test]
fn what_was_written_survives_kills_of_the_process() {
    let (bench, disk) = bench();
    for round in 0..4_u8 {
        let attached = Attached::from_repository(&bench, "web --name vm1");
        let (pattern, offset) = (round + 1, 300_000 / 512 * 512 + 700 * 512 * usize::from(round));
        if !qemu_io(&attached.uri, &[&format!("write -P {pattern} {offset} 90112")]) {
            return;
        }
        write_at(&disk, offset, &[pattern; 90_112]);
        attached.kill();
        assert!(bench.path("disks/vm1/nbd.sock").exists(), "a dead process leaves its sockets");
    }
    let attached = Attached::from_repository(&bench, "vm1");
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);

    let second = bench.see("attach vm1");
    assert!(second.contains("another process has the disk") && second.ends_with("exit: 11\n"), "{second}");
    let other = bench.see("attach web@1 --name vm1");
    assert!(other.contains("is there already") && other.ends_with("exit: 11\n"), "{other}");
    assert!(qemu_io(&attached.uri, &["read 0 512"]), "the first goes on");
}
