//! Tests the real binary on hosts of a virtual network that serve each other: one after the other, one that joins late,
//! and a server that is killed meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

use common::{Bench, Served, assert_same};
use lab::{Host, Star, StarOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A fetch that runs on a host, and goes on serving others.
struct Fetching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Fetching {
    fn start(bench: &Bench, host: &Host, url: &str, more: &str) -> Self {
        let target = format!("disk-{}.img", host.index());
        let words = format!("fetch {url} web {target} --token-file join.token --json {more}");
        let mut child = bench.command_in(host, &words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for a line for which `is` holds.
    fn until(&mut self, is: impl Fn(&Value) -> bool) -> Value {
        let lines = self.lines.by_ref().map_while(Result::ok);
        let mut values = lines.filter_map(|line| serde_json::from_str(&line).ok());
        values.find(|value| is(value)).expect("it ended before")
    }

    fn fetched(&mut self) -> Value {
        self.until(|line| line["type"] == "fetched")
    }

    fn wait_for_progress(&mut self) {
        self.until(|line| line["stage"] == "install" && line["bytes"].as_u64() > Some(0));
    }

    /// Ends it by Ctrl-C, and returns how many bytes it sent to others.
    fn served(mut self) -> u64 {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        let served = self.until(|line| line["type"] == "served");
        self.child.wait().unwrap();
        served["served_bytes"].as_u64().unwrap()
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network of `hosts` hosts at 100 Mbit/s, a repository with one image, its server on host 0, and the image's disk.
fn room(hosts: u32, mib: usize) -> (Star, Bench, Served, PathBuf) {
    let options = StarOptions { hosts, rate_bits_per_second: Some(100_000_000), ..StarOptions::default() };
    let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
    let disk = bench.disk("disk.img", mib, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = serve(&star, &bench);
    (star, bench, server, disk)
}

fn serve(star: &Star, bench: &Bench) -> Served {
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json");
    Served::start(bench.command_in(star.host(0), &words))
}

fn bytes(report: &Value, way: &str) -> u64 {
    report[way].as_u64().unwrap()
}

#[test]
fn a_host_that_comes_later_gets_the_image_from_one_that_has_it() {
    if !lab::available_or_skip() {
        return;
    }
    let (star, bench, server, disk) = room(3, 16);
    let start = |index, more| Fetching::start(&bench, star.host(index), &server.url, more);
    let mut first = start(1, "--serve-for 10m");
    let report = first.fetched();
    assert_eq!(
        (report["transport"].as_str(), bytes(&report, "peer_bytes")),
        (Some("unicast"), 0),
        "{report}"
    );

    let words = format!("status {} --token-file join.token --json", server.url);
    let status = bench.command_in(star.host(1), &words).output().unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains(r#""type":"swarm""#) && status.contains(r#""members":1"#), "{status}");

    let report = start(2, "").fetched();
    assert_eq!(
        (report["transport"].as_str(), bytes(&report, "unicast_bytes")),
        (Some("peers"), 0),
        "{report}"
    );
    // Nodes of the tree come from the other host, too, and are no part of an install's bytes.
    assert!(first.served() >= bytes(&report, "peer_bytes"));
    assert_same(&disk, &bench.path("disk-2.img"));
    let (_, log) = server.stop();
    let sessions = log.iter().filter(|event| event["type"] == "session_ended");
    let sent: u64 = sessions.map(|event| bytes(&event["statistics"], "payload_bytes")).sum();
    assert!(sent < bytes(&report, "peer_bytes") / 10, "{sent} bytes by multicast, which nobody needed");
}

#[test]
fn a_host_that_joins_late_costs_the_server_no_second_copy() {
    if !lab::available_or_skip() {
        return;
    }
    let (star, bench, server, disk) = room(3, 128);
    let start = |index| Fetching::start(&bench, star.host(index), &server.url, "--serve-for 10m");
    let mut early = start(1);
    early.wait_for_progress();
    let mut late = start(2);
    let reports = [early.fetched(), late.fetched()];
    assert!(bytes(&reports[1], "peer_bytes") > 0, "{}", reports[1]);
    drop((early, late));
    (1..3).for_each(|host| assert_same(&disk, &bench.path(&format!("disk-{host}.img"))));
    let (_, log) = server.stop();
    let sessions = log.iter().filter(|event| event["type"] == "session_ended");
    let multicast: u64 = sessions.map(|event| bytes(&event["statistics"], "payload_bytes")).sum();
    let sent = multicast + reports.iter().map(|report| bytes(report, "unicast_bytes")).sum::<u64>();
    let ways = ["multicast_bytes", "peer_bytes", "unicast_bytes"];
    let image = ways.iter().map(|way| bytes(&reports[1], way)).sum::<u64>();
    assert!(sent < image * 3 / 2, "{sent} bytes for two hosts of {image}");
}

#[test]
fn hosts_go_on_by_themselves_while_their_server_is_restarted() {
    if !lab::available_or_skip() {
        return;
    }
    let (star, bench, server, disk) = room(4, 64);
    let url = server.url.clone();
    let mut first = Fetching::start(&bench, star.host(1), &url, "--serve-for 10m");
    first.fetched();
    let mut others = [2, 3].map(|index| Fetching::start(&bench, star.host(index), &url, "--serve-for 10m"));
    others.iter_mut().for_each(Fetching::wait_for_progress);
    server.kill();
    let server = serve(&star, &bench);
    let reports = others.each_mut().map(Fetching::fetched);
    assert!(reports.iter().all(|report| bytes(report, "peer_bytes") > 0), "{reports:?}");
    (2..4).for_each(|host| assert_same(&disk, &bench.path(&format!("disk-{host}.img"))));
    drop(server);
}
