//! Tests how `netboot` starts: what it says of its network, and that it gives no addresses beside another DHCP server.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use lab::bare::{BRIDGE, Neighbour, Room};

use crate::common::{Bench, Served, running};
use crate::netboot_common::{ALONE, Running, SERVER};

#[test]
fn no_addresses_are_given_beside_another_dhcp_server_unless_that_is_wanted() {
    if !lab::available_or_skip() || !lab::has_or_skip("dnsmasq", "dnsmasq-base") {
        return;
    }
    let (bench, room) = (Bench::new(), Room::build(0).unwrap());
    fs::create_dir(bench.path("boot")).unwrap();
    ["boot/vmlinuz", "boot/initrd.img"].iter().for_each(|file| fs::write(bench.path(file), "x").unwrap());
    let netboot = |more: &str| {
        let words =
            format!("netboot {BRIDGE} --listen {SERVER} --interface {BRIDGE} --boot-image boot {more}");
        room.inside(&bench.command(&words))
    };
    let started = |more: &str| Served::start(netboot(&format!("{more} --json")));
    // Nobody else is there.
    let served = started(ALONE);
    let expected = serde_json::json!({
        "interface": BRIDGE, "address": "10.9.0.1", "dhcp": "gives", "range": "10.9.0.100-10.9.0.120/24",
    });
    assert_eq!(served.said["netboot"], expected);
    let tell = |words: &str| {
        bench.show(
            &room.inside(&bench.command(&format!("{words} --server {SERVER} --wait 60s"))).output().unwrap(),
        )
    };
    // A fixed address lies in its network, and belongs to one machine.
    assert!(tell("hosts add 52:54:00:00:00:01 --name one --address 10.9.0.7").ends_with("exit: 0\n"));
    assert!(tell("hosts").contains("52:54:00:00:00:01 10.9.0.7"));
    let other = tell("hosts add 52:54:00:00:00:02 --address 10.9.0.7");
    assert!(other.contains("10.9.0.7 is the address of one, too") && other.ends_with("exit: 2\n"), "{other}");
    for wrong in ["10.8.0.7", "10.9.0.1", "10.9.0.255"] {
        let refused = tell(&format!("hosts add 52:54:00:00:00:02 --address {wrong}"));
        assert!(refused.contains("not an address for a machine in the network 10.9.0.1/24"), "{refused}");
        assert!(refused.ends_with("exit: 11\n"), "{refused}");
    }
    assert!(tell("hosts power status one").contains("start it with --power-program"));
    assert_eq!(served.stop().0, Some(0));

    let neighbour = Neighbour::join(&room, 2).unwrap();
    let mut dnsmasq = Command::new("dnsmasq");
    dnsmasq.args(["--keep-in-foreground", "--port=0", "--leasefile-ro", "--user=root", "--interface=eth0"]);
    dnsmasq.args(["--no-ping", "--conf-file=/dev/null", "--dhcp-range=10.9.0.50,10.9.0.90,1h"]);
    dnsmasq.arg("--log-facility=-");
    let mut other = Running(neighbour.inside(&dnsmasq).stderr(Stdio::piped()).spawn().unwrap());
    // It says so when it listens.
    let mut lines = BufReader::new(other.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("DHCP, IP range")).unwrap();
    let refused = bench.show(&netboot(ALONE).output().unwrap());
    assert!(refused.contains("another DHCP server, 10.9.0.2, gives addresses on `br0`"), "{refused}");
    assert!(refused.contains("--second-dhcp") && refused.ends_with("exit: 11\n"), "{refused}");
    for (more, mode) in [("", "beside"), ("--dhcp off", "off")] {
        let served = started(more);
        assert_eq!(served.said["netboot"]["dhcp"], mode);
        assert!(tell("hosts add 52:54:00:00:00:02 --address 10.9.0.8").contains("gives no addresses"));
        assert_eq!(served.stop().0, Some(0));
    }
    let mut served = running::Running::start(netboot(&format!("{ALONE} --second-dhcp --json")));
    assert_eq!(served.kind("other_dhcp")["address"], "10.9.0.2");
    assert_eq!(served.kind("serving")["netboot"]["dhcp"], "gives");
}
