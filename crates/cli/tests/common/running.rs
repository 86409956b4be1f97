//! A `diskcast` that runs and prints lines of JSON.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Such a program; it is killed when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line for which `is_it`.
    pub(crate) fn wait_for(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let lines = self.lines.by_ref().map_while(Result::ok);
        let mut records = lines.map(|line| serde_json::from_str(&line).unwrap());
        records.find(is_it).expect("it says so before it ends")
    }

    /// The next line of a type.
    pub(crate) fn kind(&mut self, kind: &str) -> Value {
        self.wait_for(|record| record["type"] == kind)
    }

    /// Waits until something was written to the target, once more.
    pub(crate) fn wait_for_progress(&mut self) {
        self.wait_for(|record| record["stage"] == "install" && record["bytes"].as_u64() > Some(0));
    }

    /// Stops it until it gets `CONT`.
    pub(crate) fn suspend(&self) {
        suspend(&self.child);
    }

    /// Sends a signal: `TERM`, `INT` or `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }
}

/// Stops a program, and waits until all its threads stand: until then it may still answer.
pub(crate) fn suspend(program: &Child) {
    let pid = program.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let stands = |task: &Path| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        // A thread that ended meanwhile stands, too. Its name is in brackets, and may hold anything.
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| stands(&task.unwrap().path())) {
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
