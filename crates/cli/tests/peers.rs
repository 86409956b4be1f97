//! Tests the real binary on hosts of a virtual network that serve each other: one after the other, one that joins late,
//! and a server that is killed meanwhile; and attached disks that do.

use std::path::PathBuf;

use lab::{Host, Star, StarOptions};
use serde_json::Value;

use crate::attach_common::{Attached, run, status};
use crate::common::running::Running;
use crate::common::{Bench, Served, assert_same};

/// Starts a fetch on a host.
fn fetch(bench: &Bench, host: &Host, url: &str, more: &str) -> Running {
    let target = bench.host_target(host.index());
    let words = format!("fetch {url} web {target} --token-file join.token --json {more}");
    Running::start(bench.command_in(host, &words))
}

fn fetched(fetch: &mut Running) -> Value {
    fetch.kind("fetched")
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
    let start = |index, more| fetch(&bench, star.host(index), &server.url, more);
    let mut first = start(1, "--serve-for 10m");
    let report = fetched(&mut first);
    assert_eq!(
        (report["transport"].as_str(), bytes(&report, "peer_bytes")),
        (Some("unicast"), 0),
        "{report}"
    );

    // The last report of what it holds may be under way.
    let words = format!("status {} --token-file join.token --json", server.url);
    let is_known = || {
        let status = bench.command_in(star.host(1), &words).output().unwrap();
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(status.contains(r#""type":"swarm""#) && status.contains(r#""members":1"#), "{status}");
        status.contains(r#""whole":1"#)
    };
    while !is_known() {}

    let report = fetched(&mut start(2, ""));
    assert_eq!(
        (report["transport"].as_str(), bytes(&report, "unicast_bytes")),
        (Some("peers"), 0),
        "{report}"
    );
    // Ctrl-C ends the serving, which is a success.
    first.signal("INT");
    assert!(bytes(&first.kind("served"), "served_bytes") >= bytes(&report, "peer_bytes"));
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
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
    let start = |index| fetch(&bench, star.host(index), &server.url, "--serve-for 10m");
    let mut early = start(1);
    early.wait_for_progress();
    let mut late = start(2);
    let reports = [fetched(&mut early), fetched(&mut late)];
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
    let mut first = fetch(&bench, star.host(1), &url, "--serve-for 10m");
    fetched(&mut first);
    let mut others = [2, 3].map(|index| fetch(&bench, star.host(index), &url, "--serve-for 10m"));
    others.iter_mut().for_each(Running::wait_for_progress);
    server.kill();
    let server = serve(&star, &bench);
    let reports = others.each_mut().map(fetched);
    assert!(reports.iter().all(|report| bytes(report, "peer_bytes") > 0), "{reports:?}");
    (2..4).for_each(|host| assert_same(&disk, &bench.path(&format!("disk-{host}.img"))));
    drop(server);
}

/// Attaches a disk on a host, without multicast.
fn attach(bench: &Bench, host: &Host, url: &str, more: &str) -> Attached {
    let name = format!("vm{}", host.index());
    let words = format!(
        "attach web --name {name} --quiet --no-multicast --token-file join.token --from {url} {more}"
    );
    let mut command = bench.command_in(host, &words);
    command.env_remove("DISKCAST_REPO");
    Attached::start(command)
}

#[test]
fn what_an_attached_disk_read_others_get_from_it() {
    if !lab::available_or_skip() {
        return;
    }
    let (star, bench, server, disk) = room(4, 16);
    let start = |index, more| attach(&bench, star.host(index), &server.url, more);
    let copy = |attached: &Attached, name: &str| {
        let copy = bench.path(name);
        let copied = run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]);
        if copied {
            assert_same(&disk, &copy);
        }
        copied
    };
    let first = start(1, "");
    if !copy(&first, "copy-1.img") {
        return;
    }
    let words = format!("status {} --token-file join.token --json", server.url);
    let is_known = || {
        let status = bench.command_in(star.host(1), &words).output().unwrap();
        String::from_utf8_lossy(&status.stdout).contains(r#""whole":1"#)
    };
    while !is_known() {}
    let before = star.sent_on_wire(0).unwrap();
    let second = start(2, "");
    copy(&second, "copy-2.img");
    let sent = star.sent_on_wire(0).unwrap() - before;
    let [gave, got] = ["vm1", "vm2"].map(|name| status(&bench, name));
    let all = bytes(&got, "demanded_bytes") + bytes(&got, "prefetched_bytes") + bytes(&got, "node_bytes");
    assert_eq!((bytes(&got, "peer_bytes"), bytes(&gave, "served_bytes")), (all, all), "{got}");
    assert!(sent < all / 10, "the server sent {sent} bytes beside {all}");
    assert_eq!(bytes(&gave, "peer_bytes"), 0, "{gave}");

    let third = start(3, "--no-peers");
    copy(&third, "copy-3.img");
    assert_eq!(bytes(&status(&bench, "vm3"), "peer_bytes"), 0);
    for attached in [first, second, third] {
        assert_eq!(attached.stop(), Some(0));
    }
}
