//! Tests the real binary on networks in which multicast half works: each host gets its disk, says why it left the
//! session, and leaves the server's link to others.

use lab::Star;
use serde_json::Value;

use crate::common::running::Running;
use crate::common::{Bench, Served, assert_same, star_with_image};

const HOSTS: u32 = 3;

/// What each host reports, and the payload that the server sent by multicast. `fault` befalls the network before.
fn fetched(fault: impl FnOnce(&mut Star)) -> Option<(Vec<Value>, u64, u64)> {
    let (mut star, bench, disk) = star_with_image(HOSTS, 64)?;
    for host in 0..=HOSTS {
        star.shape_host(host, 40_000_000, 256 << 10).unwrap();
    }
    fault(&mut star);
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json");
    let server = Served::start(bench.command_in(star.host(0), &words));
    let mut all: Vec<Running> = (1..=HOSTS).map(|host| fetch(&star, &bench, &server, host)).collect();
    let reports: Vec<Value> = all.iter_mut().map(|fetch| fetch.kind("fetched")).collect();
    all.iter_mut().for_each(|fetch| assert_eq!(fetch.child.wait().unwrap().code(), Some(0)));
    (1..=HOSTS).for_each(|host| assert_same(&disk, &bench.path(&format!("disk-{host}.img"))));
    let (_, log) = server.stop();
    let sessions = log.iter().filter(|event| event["type"] == "session_ended");
    let sent = sessions.map(|event| number(&event["statistics"], "payload_bytes")).sum();
    let image = ["multicast_bytes", "peer_bytes", "unicast_bytes"];
    let image = image.iter().map(|way| number(&reports[0], way)).sum();
    Some((reports, sent, image))
}

fn fetch(star: &Star, bench: &Bench, server: &Served, host: u32) -> Running {
    fetch_from(star, bench, &server.url, host)
}

fn fetch_from(star: &Star, bench: &Bench, url: &str, host: u32) -> Running {
    fetch_with(star, bench, url, host, "")
}

fn fetch_with(star: &Star, bench: &Bench, url: &str, host: u32, options: &str) -> Running {
    let target = bench.host_target(host);
    let words = format!("fetch {url} web {target} --token-file join.token --json {options}");
    Running::start(bench.command_in(star.host(host), &words))
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap()
}

fn reason(report: &Value) -> &str {
    report["unicast_reason"].as_str().unwrap_or_default()
}

#[test]
fn hosts_whose_reports_are_lost_get_it_from_each_other() {
    let Some((reports, sent, image)) = fetched(|star| star.refuse_reports().unwrap()) else { return };
    assert!(
        reports.iter().all(|report| reason(report).contains("hears nothing at its UDP port")),
        "{reports:?}"
    );
    let unicast: u64 = reports.iter().map(|report| number(report, "unicast_bytes")).sum();
    assert!(sent < image / 2 && unicast < image * 3 / 2, "{sent} and {unicast} bytes of {image}");
}

/// It notices that when the others are done, and nobody reports any more; or, if they take long, when little of what
/// they get is of use to it.
#[test]
fn a_host_that_alone_is_not_heard_gets_what_it_lacks_in_other_ways() {
    let told = fetched(|star| {
        star.refuse_reports_of(2).unwrap();
        // What it loses it can't ask for.
        star.set_loss(2, 10_000).unwrap();
    });
    let Some((reports, ..)) = told else { return };
    let reasons = ["hears nothing at its UDP port", "another way brings more"];
    assert!(reasons.iter().any(|why| reason(&reports[1]).contains(why)), "{}", reports[1]);
    let others = [&reports[0], &reports[2]];
    assert!(others.iter().all(|report| !reason(report).contains("hears nothing")), "{reports:?}");
}

#[test]
fn a_host_behind_a_narrow_port_says_so_and_costs_one_image_at_most() {
    let Some((reports, sent, image)) = fetched(|star| star.narrow(2, 1400).unwrap()) else { return };
    assert!(reason(&reports[1]).contains("only short packets arrive"), "{}", reports[1]);
    assert_eq!(number(&reports[1], "multicast_bytes"), 0);
    assert!(sent < image * 3 / 2, "{sent} bytes of {image}");
}

/// Alone, so that the session follows what little it gets.
#[test]
fn a_host_that_multicast_brings_little_gets_it_in_other_ways() {
    let Some((star, bench, disk)) = star_with_image(1, 64) else { return };
    (0..=1).for_each(|host| star.shape_host(host, 40_000_000, 256 << 10).unwrap());
    star.lose_blocks(1, 950).unwrap();
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json");
    let server = Served::start(bench.command_in(star.host(0), &words));
    let mut fetch = fetch_with(&star, &bench, &server.url, 1, "--no-peers");
    let report = fetch.kind("fetched");
    assert_eq!(fetch.child.wait().unwrap().code(), Some(0));
    assert!(reason(&report).contains("another way brings more"), "{report}");
    assert_same(&disk, &bench.path("disk-1.img"));
}

#[test]
fn packets_fit_hosts_whose_links_are_narrower_than_the_servers() {
    let Some((reports, sent, image)) = fetched(|star| star.widen_host(0, 9000).unwrap()) else { return };
    assert!(reports.iter().all(|report| number(report, "multicast_bytes") > image / 2), "{reports:?}");
    assert!(sent < image * 3 / 2, "{sent} bytes of {image}");
}

#[test]
fn a_server_listens_for_both_families_without_being_told() {
    let Some((star, bench, disk)) = star_with_image(2, 16) else { return };
    let server = Served::start(bench.command_in(star.host(0), "serve --token-out join.token --json"));
    let (four, six) = (star.host(0).ipv4(), star.host(0).ipv6());
    let urls = [format!("https://{four}:7717"), format!("https://[{six}]:7717")];
    let mut all: Vec<Running> =
        (1..=2).zip(&urls).map(|(host, url)| fetch_from(&star, &bench, url, host)).collect();
    all.iter_mut().for_each(|fetch| drop(fetch.kind("fetched")));
    (1..=2).for_each(|host| assert_same(&disk, &bench.path(&format!("disk-{host}.img"))));
    drop(server);
}
