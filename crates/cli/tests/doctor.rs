//! `diskcast doctor` and `diskcast fetch` on networks with the faults that users meet: each is named, and the image
//! arrives all the same.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lab::{Host, Star, StarOptions};
use serde_json::Value;

use crate::common::{Bench, Served, assert_same};

struct Room {
    star: Star,
    bench: Bench,
    server: Served,
    disk: std::path::PathBuf,
}

impl Room {
    /// A server on host 0, and a machine on host 1.
    fn new(snooping: bool) -> Self {
        Self::with(&StarOptions { snooping, ..StarOptions::default() }, 4)
    }

    /// The same on a network of `options`, with a disk of `mebibytes`.
    fn with(options: &StarOptions, mebibytes: usize) -> Self {
        Self::at(|server| server.ipv4().into(), options, mebibytes)
    }

    /// The same with the server at an address of its host.
    fn at(address: impl Fn(&Host) -> IpAddr, options: &StarOptions, mebibytes: usize) -> Self {
        let (star, bench) = (Star::build(options).unwrap(), Bench::new());
        let disk = bench.disk("disk.img", mebibytes, 1);
        assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
        let listen = SocketAddr::new(address(star.host(0)), 7717);
        let words = format!("serve --listen {listen} --token-out join.token --json");
        let server = Served::start(bench.command_in(star.host(0), &words));
        Self { star, bench, server, disk }
    }

    /// What the doctor says on `host`.
    fn ask(&self, host: &Host, time: &str) -> Value {
        let words = format!("doctor {} --token-file join.token --for {time} --json -q", self.server.url);
        let output = self.bench.command_in(host, &words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let said = said.into_iter().find(|line| line["type"] == "doctor");
        let said = said.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(said["works"] == true, output.status.success(), "{said}");
        said
    }

    /// The doctor names `fault`, and a fetch on `host` gets the image by `transport`.
    fn shows(&self, host: &Host, time: &str, fault: &str, transport: &str) {
        let said = self.ask(host, time);
        assert_eq!(said["findings"][0]["fault"], fault, "{said}");
        self.fetches(host, transport);
    }

    fn fetches(&self, host: &Host, transport: &str) {
        let words =
            format!("fetch {} web got.img --token-file join.token --json --yes --no-peers", self.server.url);
        let output = self.bench.command_in(host, &words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!(r#""transport":"{transport}""#)), "{said}");
        assert_same(&self.disk, &self.bench.path("got.img"));
    }
}

#[test]
fn a_healthy_network_has_no_findings_and_its_querier_is_found() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(true);
    let said = room.ask(room.star.host(1), "3s");
    assert_eq!(said["findings"], Value::Array(Vec::new()), "{said}");
    assert!(said["rounds_heard"].as_u64() > Some(8), "{said}");
    room.fetches(room.star.host(1), "multicast");
    // On the server itself nothing can be said of the network.
    assert_eq!(room.ask(room.star.host(0), "1s")["findings"][0]["fault"], "loopback");
}

#[test]
fn a_network_without_ipv4_is_healthy_too_and_its_faults_are_named() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::at(|server| server.ipv6().into(), &StarOptions::default(), 4);
    let (server, host) = (room.star.host(0), room.star.host(1));
    for host in [server, host] {
        let words = ["-4", "addr", "flush", "dev", "eth0"];
        assert!(host.command("ip").args(words).status().unwrap().success());
    }
    let said = room.ask(host, "3s");
    assert_eq!(said["findings"], Value::Array(Vec::new()), "{said}");
    room.fetches(host, "multicast");
    room.star.deafen(1).unwrap();
    room.shows(host, "2s", "local-firewall", "unicast");
}

#[test]
fn the_firewall_rules_in_the_readme_let_multicast_through() {
    if !lab::available_or_skip() {
        return;
    }
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let rules: Vec<_> = readme.lines().filter(|line| line.starts_with("nft add rule")).collect();
    assert!(rules.len() > 4, "{rules:?}");
    let dropping = "nft add table inet filter; \
                    nft add chain inet filter input '{ type filter hook input priority 0; policy drop; }'; \
                    nft add rule inet filter input ct state established,related accept";
    for of_ipv6 in [false, true] {
        let address = |server: &Host| if of_ipv6 { server.ipv6().into() } else { server.ipv4().into() };
        let room = Room::at(address, &StarOptions { snooping: true, ..StarOptions::default() }, 4);
        for index in 0..2 {
            let run = |line: &str| {
                let status = room.star.host(index).command("sh").args(["-ec", line]).status();
                assert!(status.unwrap().success(), "{line}");
            };
            run(dropping);
            if of_ipv6 {
                run("ip -4 addr flush dev eth0");
            }
            rules.iter().for_each(|rule| run(rule));
        }
        let said = room.ask(room.star.host(1), "3s");
        assert_eq!(said["findings"], Value::Array(Vec::new()), "{said}");
        room.fetches(room.star.host(1), "multicast");
    }
}

#[test]
fn what_stops_multicast_is_told_apart() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(true);
    room.star.filter_groups(1).unwrap();
    room.shows(room.star.host(1), "2s", "no-multicast", "unicast");

    let room = Room::new(true);
    room.star.deafen(1).unwrap();
    room.shows(room.star.host(1), "2s", "local-firewall", "unicast");

    let room = Room::new(true);
    room.star.refuse_udp(0).unwrap();
    room.shows(room.star.host(1), "4s", "reports", "unicast");
}

#[test]
fn a_link_that_carries_less_than_the_interface_says_is_named_with_the_size_that_helps() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(true);
    room.star.narrow(1, 1400).unwrap();
    let said = room.ask(room.star.host(1), "3s");
    assert_eq!(said["findings"][0]["fault"], "mtu", "{said}");
    room.fetches(room.star.host(1), "multicast and unicast");
    let advice = said["findings"][0]["try"][0].as_str().unwrap().to_owned();
    let command = advice.split_once("ip ").unwrap().1.replace("INTERFACE", "eth0");
    let mut words = command.split_whitespace();
    assert_eq!(command, "link set eth0 mtu 1400");
    let done = room.star.host(0).command("ip").args(words.by_ref()).status().unwrap();
    assert!(done.success());
    room.fetches(room.star.host(1), "multicast");
}

#[test]
fn a_link_that_carries_less_towards_the_server_is_named_and_uploads_end_right() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(true);
    let host = room.star.host(1);
    room.star.narrow_towards(0, 1400).unwrap();
    let said = room.ask(host, "4s");
    assert_eq!(said["findings"][0]["fault"], "mtu-to-server", "{said}");
    assert_eq!(said["findings"][0]["try"][0], "on this machine: ip link set eth0 mtu 1400", "{said}");
    room.bench.keep_secret("write.token", room.bench.command("token --write").output().unwrap().stdout);
    room.bench.disk("other.img", 4, 2);
    let words = format!("capture other.img other --to {} --token-file write.token", room.server.url);
    let output = room.bench.command_in(host, &words).output().unwrap();
    assert!(output.status.success(), "{}", room.bench.show(&output));
    assert!(room.bench.see("verify other").ends_with("exit: 0\n"));
    room.fetches(host, "multicast");
}

#[test]
fn routers_between_are_noticed_with_and_without_translation_of_addresses() {
    if !lab::available_or_skip() {
        return;
    }
    for (nat, fault) in [(true, "nat"), (false, "router")] {
        let mut room = Room::new(true);
        let host = room.star.behind(1, nat).unwrap();
        room.shows(&host, "2s", fault, "unicast");
    }
}

#[test]
fn a_switch_that_forgets_is_noticed_with_and_without_a_querier() {
    if !lab::available_or_skip() {
        return;
    }
    for (queries, fault) in [(None, "no-querier"), (Some(Duration::from_secs(7)), "membership")] {
        let room = Room::new(false);
        room.star.forget_groups(Duration::from_secs(3), queries).unwrap();
        room.shows(room.star.host(1), "12s", fault, "multicast");
    }
}

#[test]
fn a_fetch_that_takes_longer_than_the_switch_remembers_ends_right() {
    if !lab::available_or_skip() {
        return;
    }
    let options =
        StarOptions { snooping: false, rate_bits_per_second: Some(20_000_000), ..StarOptions::default() };
    let room = Room::with(&options, 96);
    room.star.forget_groups(Duration::from_secs(2), None).unwrap();
    room.fetches(room.star.host(1), "multicast");
}
