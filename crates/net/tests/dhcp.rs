//! Tests the look for another DHCP server on a virtual network, where dnsmasq is the other one.

use std::process::{Child, Stdio};
use std::time::Duration;

use lab::{Host, Star, StarOptions};
use net::interface;
use net::netboot::other_dhcp;

/// What a network says on which nobody answers. The other one answers at once, unless its machine is busy.
const QUIET: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// A DHCP server of a host, until this is dropped.
struct Dnsmasq(Child);

impl Dnsmasq {
    fn start(host: &Host, words: &[&str]) -> Self {
        let mut command = host.command("dnsmasq");
        command.args(["--keep-in-foreground", "--port=0", "--leasefile-ro", "--user=root", "--no-ping"]);
        command.args(["--conf-file=/dev/null", "--interface=eth0", "--pid-file="]).args(words);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_dhcp_server_is_found_and_a_quiet_network_has_none() {
    if !lab::available_or_skip() || !lab::has_or_skip("dnsmasq", "dnsmasq-base") {
        return;
    }
    let star = Star::build(&StarOptions { hosts: 2, ..StarOptions::default() }).unwrap();
    let look = |time: Duration| {
        let work = move || other_dhcp(&interface::choose("eth0").unwrap(), time).unwrap();
        star.host(0).run(work).unwrap().join().unwrap()
    };
    assert_eq!(look(QUIET), None);
    // One that only names boot files gives no addresses.
    let proxy = Dnsmasq::start(star.host(1), &["--dhcp-range=10.77.0.0,proxy", "--dhcp-boot=loader"]);
    assert_eq!(look(QUIET), None);
    drop(proxy);
    let range = "--dhcp-range=10.77.100.1,10.77.100.90,255.255.0.0,1h";
    let other = Dnsmasq::start(star.host(1), &[range, "--dhcp-authoritative"]);
    assert_eq!(look(PATIENCE), Some(star.host(1).ipv4()));
    drop(other);
    // On this very machine, too.
    let _own = Dnsmasq::start(star.host(0), &[range]);
    assert_eq!(look(PATIENCE), Some(star.host(0).ipv4()));
}
