//! The real binary on the hosts of a lab: lossy links, a host cut off and plugged in again, a client killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use common::{Bench, Served, assert_same};
use lab::{Host, Star, StarOptions};

/// A fetch that runs on a host.
struct Fetching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Fetching {
    fn start(bench: &Bench, host: &Host, url: &str, more: &str) -> Self {
        let target = format!("disk-{}.img", host.index());
        let words = format!("fetch {url} web {target} --token-file join.token --json {more}");
        let mut command = bench.command_in(host, &words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns once something is on the target.
    fn wait_for_progress(&mut self) {
        let written =
            |line: serde_json::Value| line["stage"] == "install" && line["bytes"].as_u64() > Some(0);
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        assert!(lines.any(|line| written(serde_json::from_str(&line).unwrap())), "ended without progress");
    }

    /// Waits for the end and returns the report.
    fn end(mut self) -> serde_json::Value {
        let last = self.lines.by_ref().map_while(Result::ok).last().unwrap_or_default();
        assert!(self.child.wait().unwrap().success(), "{last}");
        serde_json::from_str(&last).unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn hosts_with_loss_cuts_and_crashes_all_end_with_the_image() {
    if !lab::available_or_skip() {
        return;
    }
    let options = StarOptions {
        hosts: 4,
        rate_bits_per_second: Some(100_000_000),
        loss_per_million: 10_000,
        ..StarOptions::default()
    };
    let star = Star::build(&options).unwrap();
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 96, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json --rate 90M");
    let server = Served::start(bench.command_in(star.host(0), &words));
    let start = |index: u32, more: &str| Fetching::start(&bench, star.host(index), &server.url, more);

    let (steady, mut cut, mut killed) = (start(1, ""), start(2, ""), start(3, ""));
    cut.wait_for_progress();
    star.cut(2).unwrap();
    killed.wait_for_progress();
    killed.kill();
    let report = steady.end();
    assert_eq!(report["transport"], "multicast", "{report}");
    star.heal(2).unwrap();
    let resumed = start(3, "--resume").end();
    assert!(
        resumed["report"]["kept_bytes"].as_u64() > Some(0),
        "what was right was fetched again: {resumed}"
    );
    cut.end();
    for index in 1..4 {
        assert_same(&disk, &bench.path(&format!("disk-{index}.img")));
    }
}
