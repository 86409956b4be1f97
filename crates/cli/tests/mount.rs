//! `diskcast mount` as people use it. Needs /dev/fuse and fusermount3.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::Bench;

/// A running `diskcast mount`.
struct Mount {
    child: Child,
    dir: PathBuf,
}

impl Mount {
    fn start(bench: &Bench, words: &str) -> Self {
        let dir = bench.path("dir");
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = bench.command(&format!("mount dir --folder kept --json {words}"));
        if words.contains("--from") {
            command.env_remove("DISKCAST_REPO");
        }
        let mut child = command
            .env("PATH", std::env::var_os("PATH").unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("it says that it is mounted").unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&first).unwrap()["type"], "mounted", "{first}");
        std::thread::spawn(move || lines.map_while(Result::ok).count());
        Self { child, dir }
    }

    /// Ends it by a signal, as systemd does.
    fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(&self.dir).unwrap().count(), 0, "nothing is left mounted");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // It fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("fusermount3").arg("-uzq").arg(&self.dir).status();
    }
}

#[test]
fn a_server_is_mounted_and_a_signal_ends_it() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    bench.see("capture disk.img lab");
    let served = bench.serve("");
    let mount = Mount::start(&bench, &format!("--from {} --token-file join.token", served.url));
    assert!(std::fs::read(mount.dir.join("lab/latest")).unwrap() == std::fs::read(disk).unwrap());
    let other = bench.see("mount dir --folder kept");
    assert!(other.contains("another mount has `DIR/kept`") && other.ends_with("exit: 11\n"), "{other}");
    mount.terminate();
}
