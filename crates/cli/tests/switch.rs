//! Tests `diskcast switch` on the switches of a virtual network: real servers and fetches around it, and its death in
//! the middle of a transfer.

use lab::{Host, Star, StarOptions, SwitchOptions};
use serde_json::Value;

use crate::common::running::Running;
use crate::common::{Bench, Served, assert_same};

const RATE: u64 = 100_000_000;
const MEBIBYTES: usize = 64;

/// A network with a server on host 0, which serves one image by unicast.
struct Room {
    star: Star,
    bench: Bench,
    server: Served,
    disk: std::path::PathBuf,
}

impl Room {
    fn open(hosts: u32, switches: Vec<SwitchOptions>) -> Self {
        let options =
            StarOptions { hosts, switches, rate_bits_per_second: Some(RATE), ..StarOptions::default() };
        let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
        let disk = bench.disk("disk.img", MEBIBYTES, 1);
        assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
        let listen = format!("{}:7717", star.host(0).ipv4());
        let words = format!("serve --listen {listen} --no-multicast --token-out join.token --json");
        let server = Served::start(bench.command_in(star.host(0), &words));
        Self { star, bench, server, disk }
    }

    /// Starts the agent of a switch, and waits until it works.
    fn agent(&self, switch: u32) -> Running {
        self.agent_with(switch, None)
    }

    fn agent_with(&self, switch: u32, option: Option<&str>) -> Running {
        let server = format!("{}:7717", self.star.host(0).ipv4());
        let mut command = self.star.switch_command(switch, env!("CARGO_BIN_EXE_diskcast"));
        command
            .args(["switch", "--bridge", "br0", "--server", &server, "--json"])
            .env("DISKCAST_CONFIG", "/dev/null");
        command.args(option);
        command.arg("--metrics").arg(self.bench.path(&format!("switch-{switch}.prom")));
        let mut agent = Running::start(command);
        agent.kind("switching");
        agent
    }

    fn fetch(&self, host: &Host, more: &str) -> Running {
        let target = self.bench.host_target(host.index());
        let words = format!("fetch {} web {target} --token-file join.token --json {more}", self.server.url);
        Running::start(self.bench.command_in(host, &words))
    }

    /// Waits for the end of a fetch, and verifies its disk. Returns its report.
    fn fetched(&self, host: &Host, fetch: &mut Running) -> Value {
        let report = fetch.kind("fetched");
        assert_same(&self.disk, &self.bench.path(&format!("disk-{}.img", host.index())));
        report
    }

    /// Hosts that have the image and serve it.
    fn holders(&self, hosts: &[u32]) -> Vec<Running> {
        let fetch = |&host: &u32| {
            let host = self.star.host(host);
            let mut fetch = self.fetch(host, "--serve-for 1h");
            self.fetched(host, &mut fetch);
            fetch
        };
        hosts.iter().map(fetch).collect()
    }
}

fn number(record: &Value, name: &str) -> u64 {
    record[name].as_u64().unwrap_or_else(|| panic!("no {name} in {record}"))
}

/// Ends an agent; returns what it counted.
fn counted(mut agent: Running) -> Value {
    agent.signal("TERM");
    let counted = agent.kind("switch_ended");
    assert!(agent.child.wait().unwrap().success());
    assert_eq!(
        (number(&counted, "invalid"), number(&counted, "unsent"), number(&counted, "lost")),
        (0, 0, 0)
    );
    counted
}

#[test]
fn a_late_host_gets_the_image_from_those_that_the_switch_names() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::open(4, Vec::new());
    let agent = room.agent(0);
    let _holders = room.holders(&[1, 2]);
    let late = room.star.host(3);
    let report = room.fetched(late, &mut room.fetch(late, ""));
    let (peers, unicast) = (number(&report, "peer_bytes"), number(&report, "unicast_bytes"));
    assert!(peers > 20 * unicast, "{report}");
    let text = std::fs::read_to_string(room.bench.path("switch-0.prom")).unwrap();
    assert!(text.contains("\ndiskcast_switch_ports 4\n"), "{text}");
    let counted = counted(agent);
    assert!(number(&counted, "redirected") > 0 && number(&counted, "reports") > 0, "{counted}");
}

#[test]
fn a_transfer_goes_on_when_the_agent_dies_and_when_it_is_back() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::open(4, Vec::new());
    let mut agent = room.agent(0);
    let _holders = room.holders(&[1, 2]);
    let late = room.star.host(3);
    // Slow enough that the agent is back long before the end.
    room.star.shape_host(3, RATE / 5, 1 << 20).unwrap();
    let mut fetch = room.fetch(late, "");
    fetch.wait_for_progress();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    fetch.wait_for_progress();
    let agent = room.agent(0);
    let report = room.fetched(late, &mut fetch);
    assert!(number(&report, "peer_bytes") > 0, "{report}");
    assert!(number(&counted(agent), "reports") > 0);
}

#[test]
fn an_agent_that_hangs_holds_back_nothing_for_long() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::open(3, Vec::new());
    let agent = room.agent(0);
    let _holders = room.holders(&[1]);
    agent.suspend();
    let late = room.star.host(2);
    room.fetched(late, &mut room.fetch(late, ""));
    agent.signal("CONT");
    counted(agent);
}

#[test]
fn the_image_crosses_to_another_room_once_and_the_switches_do_the_rest() {
    if !lab::available_or_skip() {
        return;
    }
    let far = SwitchOptions { hosts: vec![1, 2, 3], ..SwitchOptions::default() };
    let room = Room::open(4, vec![far]);
    let (root, leaf) = (room.agent(0), room.agent(1));
    let _holders = room.holders(&[1]);
    let before = room.star.uplink_traffic(1).unwrap().down.bytes;
    for late in [2, 3].map(|host| room.star.host(host)) {
        room.fetched(late, &mut room.fetch(late, "--serve-for 1s"));
    }
    let crossed = room.star.uplink_traffic(1).unwrap().down.bytes - before;
    let leaf = counted(leaf);
    assert!(number(&leaf, "redirected") > 0, "{leaf}");
    assert!(crossed < (MEBIBYTES as u64) << 18, "{crossed} bytes crossed the uplink for two more hosts");
    counted(root);
}

#[cfg(feature = "ebpf")]
#[test]
fn the_kernel_sends_a_late_host_s_requests_to_those_that_have_the_image() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::open(4, Vec::new());
    let agent = room.agent_with(0, Some("--ebpf"));
    let _holders = room.holders(&[1, 2]);
    let late = room.star.host(3);
    let report = room.fetched(late, &mut room.fetch(late, ""));
    let (peers, unicast) = (number(&report, "peer_bytes"), number(&report, "unicast_bytes"));
    assert!(peers > 20 * unicast, "{report}");
    let counted = counted(agent);
    assert!(number(&counted, "redirected_in_kernel") > 0, "{counted}");
    assert_eq!(number(&counted, "requests"), 0, "none of them came to the agent");
}
