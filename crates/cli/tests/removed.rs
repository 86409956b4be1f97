//! Versions that are removed and pruned while machines fetch them.

use lab::Star;
use serde_json::Value;

use crate::common::running::Running;
use crate::common::{Bench, Served, assert_same};

/// Two hosts and more at 100 Mbit/s, the image `web` in a repository, and its server on host 0.
struct Room {
    star: Star,
    bench: Bench,
    server: Served,
}

impl Room {
    fn new() -> Option<Self> {
        if !lab::available_or_skip() {
            return None;
        }
        let options = lab::StarOptions {
            hosts: 3,
            rate_bits_per_second: Some(100_000_000),
            ..lab::StarOptions::default()
        };
        let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
        bench.disk("disk.img", 64, 1);
        bench.disk("next.img", 4, 2);
        assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
        assert!(bench.see("capture next.img web -q").ends_with("exit: 0\n"));
        let listen = format!("{}:7717", star.host(0).ipv4());
        let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json");
        let server = Served::start(bench.command_in(star.host(0), &words));
        Some(Self { star, bench, server })
    }

    fn fetch(&self, host: u32, more: &str) -> Running {
        let target = self.bench.host_target(host);
        let url = &self.server.url;
        let words = format!("fetch {url} web@1 {target} --token-file join.token --json {more}");
        let mut fetch = Running::start(self.bench.command_in(self.star.host(host), &words));
        fetch.wait_for_progress();
        fetch
    }

    /// Waits until the server has heard that `hosts` hosts fetch.
    fn wait_until_known(&self, hosts: usize) {
        let words = format!("status {} --token-file join.token --json", self.server.url);
        let known = || {
            let status = self.bench.command_in(self.star.host(1), &words).output().unwrap();
            String::from_utf8_lossy(&status.stdout).matches(r#""type":"host""#).count()
        };
        while known() < hosts {}
    }

    /// Removes the version while hosts fetch it `with` some options, and prunes.
    fn prune_under(self, with: &str) {
        let mut fetches = [self.fetch(1, with), self.fetch(2, with)];
        self.wait_until_known(2);
        assert!(self.bench.see("remove web@1 --yes").ends_with("exit: 0\n"));
        let pruned = self.bench.command("prune --json").output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&pruned.stdout), String::from_utf8_lossy(&pruned.stderr));
        assert_eq!(pruned.status.code(), Some(0), "{said}{told}");
        assert!(told.contains("waiting for machines that fetch web@1 through the server on "), "{told}");
        let freed: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert!(freed["freed_bytes"].as_u64() > Some(16 << 20), "{said}");
        for fetch in &mut fetches {
            fetch.kind("fetched");
        }
        (1..3).for_each(|host| {
            assert_same(&self.bench.path("disk.img"), &self.bench.path(&format!("disk-{host}.img")));
        });
        // Now it is gone, and what is not removed can still be had.
        let url = &self.server.url;
        let fetch = |version| {
            let target = self.bench.host_target(1);
            let words = format!("fetch {url} web@{version} {target} --token-file join.token --yes");
            self.bench.command_in(self.star.host(1), &words).output().unwrap().status.code()
        };
        assert_eq!((fetch(1), fetch(2)), (Some(10), Some(0)));
    }
}

#[test]
fn a_session_keeps_its_version_until_the_hosts_have_it() {
    let Some(room) = Room::new() else { return };
    room.prune_under("");
}

#[test]
fn hosts_without_multicast_keep_their_version_too() {
    let Some(room) = Room::new() else { return };
    room.prune_under("--transport unicast");
}

#[test]
fn a_prune_does_not_wait_for_a_fetch_of_what_stays() {
    let Some(room) = Room::new() else { return };
    let mut fetch = room.fetch(1, "");
    room.wait_until_known(1);
    assert!(room.bench.see("remove web@2 --yes").ends_with("exit: 0\n"));
    // The server goes on under another lease as soon as it sees that a prune has begun, while the host stands still.
    fetch.suspend();
    assert!(room.bench.see("prune").ends_with("exit: 0\n"));
    fetch.signal("CONT");
    fetch.kind("fetched");
    assert_same(&room.bench.path("disk.img"), &room.bench.path("disk-1.img"));
}
