//! Helpers for tests of attached disks: a running `diskcast attach`, and tools that use its disk.
#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serde_json::Value;

use crate::common::{Bench, Served};

/// A running `diskcast attach`.
pub(crate) struct Attached {
    pub child: Child,
    /// NBD URI of its Unix socket.
    pub uri: String,
    log: Arc<Mutex<Vec<String>>>,
    logs: Option<JoinHandle<()>>,
}

impl Attached {
    /// Starts `diskcast attach WORDS --json` and waits until it serves.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("attach says that it serves").unwrap();
        let record: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(record["type"], "attached", "{first}");
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines_so_far = Arc::clone(&log);
        let take = move || lines.map_while(Result::ok).for_each(|line| lines_so_far.lock().push(line));
        let logs = Some(std::thread::spawn(take));
        Self { child, uri: record["nbd"][0].as_str().unwrap().to_owned(), log, logs }
    }

    /// Starts a disk with the bench's repository as its source.
    pub(crate) fn from_repository(bench: &Bench, words: &str) -> Self {
        Self::start(bench.command(&format!("attach {words} --quiet")))
    }

    /// Starts a disk with a server as its only source.
    pub(crate) fn from_server(bench: &Bench, server: &Served, words: &str) -> Self {
        let mut command = bench.command(&format!("attach {words} --quiet --from {}", server.url));
        command.args(["--token-file", "join.token"]).env_remove("DISKCAST_REPO");
        Self::start(command)
    }

    /// Sends SIGTERM and returns the exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself, and returns the exit code.
    pub(crate) fn ends(mut self) -> Option<i32> {
        let code = self.child.wait().unwrap().code();
        self.logs.take().unwrap().join().unwrap();
        code
    }

    /// Sends SIGTERM and returns all logged events.
    pub(crate) fn events(mut self) -> Vec<Value> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        self.logs.take().unwrap().join().unwrap();
        self.so_far()
    }

    /// Waits for an event that satisfies `fits`, and returns all events logged until then.
    pub(crate) fn events_until(&self, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        loop {
            let events = self.so_far();
            if events.iter().any(&fits) {
                return events;
            }
            std::thread::yield_now();
        }
    }

    fn so_far(&self) -> Vec<Value> {
        self.log.lock().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a tool that must succeed. Returns false if it is not installed, which is a failure if `CI` is set.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
pub(crate) fn run(program: &str, arguments: &[&str]) -> bool {
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

/// Runs `qemu-io` on a disk, one command after the other.
pub(crate) fn qemu_io(uri: &str, commands: &[&str]) -> bool {
    let mut words = vec!["-f", "raw", uri];
    commands.iter().for_each(|command| words.extend(["-c", command]));
    run("qemu-io", &words)
}

/// A bench with the image `web` of a disk of 32 MiB.
pub(crate) fn bench() -> (Bench, PathBuf) {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 32, 7);
    assert!(bench.see("capture disk.img web --raw").ends_with("exit: 0\n"));
    (bench, disk)
}

pub(crate) fn status(bench: &Bench, name: &str) -> Value {
    bench.json(&format!("disks {name}")).remove(0)
}

pub(crate) fn write_at(path: &Path, offset: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset as u64).unwrap();
}
