//! Tests the real binary on the hosts of a virtual network: lossy links, a host that is disconnected and connected
//! again, a killed client.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};

use lab::{Host, Star, StarOptions};

use crate::common::running::Running;
use crate::common::{Bench, Served, assert_same, star_with_image};

/// A fetch that runs on a host, by multicast and unicast.
struct Fetching(Running);

impl Fetching {
    fn start(bench: &Bench, host: &Host, url: &str, more: &str) -> Self {
        let target = bench.host_target(host.index());
        let words = format!("fetch {url} web {target} --token-file join.token --json --no-peers {more}");
        Self(Running::start(bench.command_in(host, &words)))
    }

    /// Waits until something was written to the target.
    fn wait_for_progress(&mut self) {
        self.0.wait_for_progress();
    }

    /// Waits until it notices that nothing comes from the group any more.
    fn wait_for_silence(&mut self) -> bool {
        let mut lines = self.0.lines.by_ref().map_while(Result::ok);
        lines.any(|line| line.contains("fell silent"))
    }

    /// The same; returns how many bytes had been written by then.
    fn progress_until_silence(&mut self) -> u64 {
        let mut written = 0;
        for line in self.0.lines.by_ref().map_while(Result::ok) {
            if line.contains("fell silent") {
                return written;
            }
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["stage"] == "install" {
                written = line["bytes"].as_u64().unwrap_or(written);
            }
        }
        panic!("ended without a silence");
    }

    /// Waits for the end and returns the report.
    fn end(mut self) -> serde_json::Value {
        let last = self.0.lines.by_ref().map_while(Result::ok).last().unwrap_or_default();
        assert!(self.0.child.wait().unwrap().success(), "{last}");
        serde_json::from_str(&last).unwrap()
    }

    fn kill(mut self) {
        self.0.child.kill().unwrap();
        self.0.child.wait().unwrap();
    }
}

/// A star network, a repository with one image, its server on host 0, and the disk of the image.
fn room(options: &StarOptions, mib: usize, serve: &str) -> (Star, Bench, Served, std::path::PathBuf) {
    let (star, bench) = (Star::build(options).unwrap(), Bench::new());
    let disk = bench.disk("disk.img", mib, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json {serve}");
    let server = Served::start(bench.command_in(star.host(0), &words));
    (star, bench, server, disk)
}

/// Stops the server and returns the statistics of its only session.
fn session(server: Served) -> serde_json::Value {
    let (_, log) = server.stop();
    let ended = log.iter().find(|event| event["type"] == "session_ended");
    ended.expect("the session is logged at its end")["statistics"].clone()
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
    let (star, bench, server, disk) = room(&options, 96, "");
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

#[test]
fn hosts_that_hear_no_multicast_or_whose_server_was_cut_off_get_the_image_and_hold_nobody() {
    if !lab::available_or_skip() {
        return;
    }
    let options = StarOptions { hosts: 4, rate_bits_per_second: Some(100_000_000), ..StarOptions::default() };
    let (star, bench, server, disk) = room(&options, 64, "");
    star.deafen(3).unwrap();
    let start = |index| Fetching::start(&bench, star.host(index), &server.url, "");
    let (deaf, mut others) = (start(3), [start(1), start(2)]);
    others[0].wait_for_progress();
    star.cut(0).unwrap();
    // Long enough for the receivers to notice that the server is silent.
    let fell_silent = others.each_mut().map(Fetching::wait_for_silence);
    assert_eq!(fell_silent, [true, true]);
    star.heal(0).unwrap();
    for fetching in others {
        let report = fetching.end();
        assert_eq!((&report["transport"], &report["sessions"]), (&"multicast".into(), &1.into()), "{report}");
    }
    let report = deaf.end();
    assert_eq!(
        (&report["transport"], &report["multicast_bytes"]),
        (&"unicast".into(), &0.into()),
        "{report}"
    );
    for index in 1..4 {
        assert_same(&disk, &bench.path(&format!("disk-{index}.img")));
    }
}

#[test]
fn a_host_whose_cable_was_out_comes_back_to_the_session_that_it_was_in() {
    if !lab::available_or_skip() {
        return;
    }
    // So slow that the session outlasts the time after which a silence is noticed.
    let options = StarOptions { hosts: 3, rate_bits_per_second: Some(25_000_000), ..StarOptions::default() };
    let (star, bench, server, disk) = room(&options, 128, "");
    let start = |index| Fetching::start(&bench, star.host(index), &server.url, "");
    let (steady, mut cut) = (start(1), start(2));
    cut.wait_for_progress();
    star.cut(2).unwrap();
    // More than half of the image is missing, so it comes by what follows.
    let before = cut.progress_until_silence();
    assert!(before * 2 < 128 << 20, "{before} bytes had arrived");
    star.heal(2).unwrap();
    let report = cut.end();
    let bytes = |name: &str| report[name].as_u64().unwrap();
    assert!(bytes("multicast_bytes") > 9 * bytes("unicast_bytes"), "{report}");
    steady.end();
    for index in 1..3 {
        assert_same(&disk, &bench.path(&format!("disk-{index}.img")));
    }
    let (_, log) = server.stop();
    let sessions = log.iter().filter(|event| event["type"] == "session_ended").count();
    assert_eq!(sessions, 1, "it came back to the one that ran");
}

#[test]
fn a_host_that_joins_after_another_was_killed_has_the_session_for_itself() {
    if !lab::available_or_skip() {
        return;
    }
    let options = StarOptions { hosts: 3, rate_bits_per_second: Some(100_000_000), ..StarOptions::default() };
    let (star, bench, server, disk) = room(&options, 64, "");
    let start = |index| Fetching::start(&bench, star.host(index), &server.url, "");
    let mut killed = start(2);
    killed.wait_for_progress();
    killed.kill();
    let report = start(1).end();
    assert_eq!((&report["transport"], &report["sessions"]), (&"multicast".into(), &1.into()), "{report}");
    assert_same(&disk, &bench.path("disk-1.img"));
    let statistics = session(server);
    let number = |name: &str| statistics[name].as_u64().unwrap();
    // The rate did not fall for the one that is silent, nor was anything sent to it for long.
    assert!(number("rate_bits_per_second") > 20_000_000, "{statistics}");
    assert!(number("blocks_sent") < 2 * number("blocks_in_image"), "{statistics}");
}

#[test]
fn heavy_loss_is_healed_by_symbols() {
    if !lab::available_or_skip() {
        return;
    }
    let options = StarOptions {
        hosts: 5,
        rate_bits_per_second: Some(100_000_000),
        loss_per_million: 100_000,
        ..StarOptions::default()
    };
    let (star, bench, server, disk) = room(&options, 64, "");
    let fetching: Vec<_> =
        (1..5).map(|index| Fetching::start(&bench, star.host(index), &server.url, "")).collect();
    for fetching in fetching {
        let report = fetching.end();
        assert_eq!(report["transport"], "multicast", "{report}");
    }
    for index in 1..5 {
        assert_same(&disk, &bench.path(&format!("disk-{index}.img")));
    }
    let statistics = session(server);
    let number = |name: &str| statistics[name].as_u64().unwrap();
    assert!(number("symbols_sent") > 0, "{statistics}");
    // If lost blocks were resent for each receiver separately, four receivers would cost 44 % more. A host whose
    // first TCP packets are lost joins a second later.
    let for_all = number("blocks_sent") - number("resent_late");
    assert!(for_all < number("blocks_in_image") * 14 / 10, "{statistics}");
}

#[test]
fn a_host_on_a_slow_port_holds_nobody() {
    if !lab::available_or_skip() {
        return;
    }
    let options = StarOptions { hosts: 5, rate_bits_per_second: Some(100_000_000), ..StarOptions::default() };
    let (star, bench, server, disk) = room(&options, 96, "");
    star.shape_host(4, 10_000_000, 1 << 20).unwrap();
    let start = |index| Fetching::start(&bench, star.host(index), &server.url, "");
    let (slow, others) = (start(4), [start(1), start(2), start(3)]);
    for fetching in others {
        let report = fetching.end();
        assert_eq!(report["transport"], "multicast", "{report}");
    }
    let report = slow.end();
    assert_eq!(report["transport"], "multicast and unicast", "{report}");
    assert!(report["unicast_reason"].as_str().unwrap().contains("carries less"), "{report}");
    for index in 1..5 {
        assert_same(&disk, &bench.path(&format!("disk-{index}.img")));
    }
    assert!(session(server)["unicast_bytes"].as_u64() > Some(0), "what it takes by unicast is counted");
}

/// Three hosts fetch while a fourth sends to the last of them as fast as TCP can. Returns what that one reported.
fn beside_tcp(snooping: bool, mib: usize) -> Option<serde_json::Value> {
    if !lab::available_or_skip() {
        return None;
    }
    let options =
        StarOptions { hosts: 5, rate_bits_per_second: Some(50_000_000), snooping, ..StarOptions::default() };
    let (star, bench, server, disk) = room(&options, mib, "");
    star.shape_host(0, 200_000_000, 1 << 20).unwrap();
    let address = (star.host(3).ipv4(), 5201);
    let listener = star.host(3).run(move || TcpListener::bind(address)).unwrap().join().unwrap().unwrap();
    let connect = move || TcpStream::connect(address);
    let mut sender = star.host(4).run(connect).unwrap().join().unwrap().unwrap();
    let (mut arriving, _) = listener.accept().unwrap();
    let closing = sender.try_clone().unwrap();
    let writer = std::thread::spawn(move || while sender.write_all(&[7; 1 << 16]).is_ok() {});
    let reader = std::thread::spawn(move || std::io::copy(&mut arriving, &mut std::io::sink()).unwrap_or(0));

    let start = |index| Fetching::start(&bench, star.host(index), &server.url, "");
    let (shared, others) = (start(3), [start(1), start(2)]);
    for fetching in others {
        fetching.end();
    }
    let shared = shared.end();
    closing.shutdown(Shutdown::Both).unwrap();
    writer.join().unwrap();
    assert!(reader.join().unwrap() > 1 << 20, "TCP delivered something");
    for index in 1..4 {
        assert_same(&disk, &bench.path(&format!("disk-{index}.img")));
    }
    assert!(shared["unicast_reason"].as_str().unwrap().contains("carries less"), "{shared}");
    Some(shared)
}

#[test]
fn a_host_whose_port_carries_other_traffic_leaves_it_to_that_and_gets_the_image() {
    let Some(shared) = beside_tcp(true, 128) else { return };
    // Much later it tries again in any case.
    let is_late = shared["installed_seconds"].as_f64().unwrap() > 20.0;
    assert!(is_late || shared["sessions"] == 1, "it did not come back: {shared}");
}

#[test]
fn on_a_switch_that_floods_such_a_host_comes_back_since_leaving_does_not_help() {
    let Some(shared) = beside_tcp(false, 256) else { return };
    assert_eq!(shared["sessions"], 2, "{shared}");
}

#[test]
fn a_server_on_ipv6_multicasts_to_hosts_of_ipv4_too() {
    let Some((star, bench, disk)) = star_with_image(2, 8) else { return };
    let words = "serve --listen [::]:7717 --interface eth0 --token-out join.token --json";
    let _server = Served::start(bench.command_in(star.host(0), words));
    let server = star.host(0);
    let urls =
        [(1, format!("https://{}:7717", server.ipv4())), (2, format!("https://[{}]:7717", server.ipv6()))];
    for (host, url) in urls {
        let report = Fetching::start(&bench, star.host(host), &url, "--transport multicast").end();
        assert_eq!(
            (&report["transport"], &report["unicast_bytes"]),
            (&"multicast".into(), &0.into()),
            "{report}"
        );
        assert_same(&disk, &bench.path(&format!("disk-{host}.img")));
    }
}
