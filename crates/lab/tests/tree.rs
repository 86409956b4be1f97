//! Tests trees of switches on a real kernel: groups, uplinks and their counters, and faults of hosts on any switch.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use lab::{Star, StarOptions, SwitchOptions};

use crate::common::{GROUP, GROUP_V6, PATIENCE, joined, now, receive, sender, star, stream, to};

fn below(above: u32, hosts: &[u32]) -> SwitchOptions {
    SwitchOptions { above, hosts: hosts.to_vec(), ..SwitchOptions::default() }
}

/// Host 0 is on the root, 1 and 2 on switch 1, 3 and 4 on switch 2 below switch 1, 5 and 6 on switch 3, 7 on switch 4.
fn tree() -> Option<Star> {
    let switches = vec![below(0, &[1, 2]), below(1, &[3, 4]), below(0, &[5, 6]), below(0, &[7])];
    star(StarOptions { hosts: 8, switches, ..StarOptions::default() })
}

#[test]
fn groups_cross_switches_only_towards_members() {
    let Some(star) = tree() else { return };
    let members = [1, 3, 5];
    let receivers: Vec<UdpSocket> = members.iter().map(|member| joined(star.host(*member))).collect();
    // From the root, from the lowest switch, and from another branch.
    for from in [0, 4, 6] {
        let sender = sender(star.host(from));
        for group in [IpAddr::from(GROUP), IpAddr::from(GROUP_V6)] {
            let started = now();
            loop {
                let before = (star.traffic().unwrap(), star.uplink_traffic(4).unwrap());
                for _ in 0..50 {
                    sender.send_to(&[7; 1000], to(group)).unwrap();
                }
                receivers.iter().for_each(|all| (0..50).for_each(|_| assert_eq!(receive(all), [7; 1000])));
                let after = (star.traffic().unwrap(), star.uplink_traffic(4).unwrap());
                let packets = |host: usize| after.0[host].received.packets - before.0[host].received.packets;
                assert!(members.iter().all(|member| packets(*member as usize) >= 50));
                // A switch floods until it has heard a query and its response interval has passed.
                let others = [0, 2, 4, 6, 7].into_iter().filter(|host| *host != from as usize);
                let down = after.1.down.packets - before.1.down.packets;
                if others.clone().all(|other| packets(other) < 25) && down < 25 {
                    break;
                }
                assert!(
                    now() - started < PATIENCE,
                    "from {from} to {group}: {:?}",
                    others.map(packets).max()
                );
            }
        }
    }
}

#[test]
fn an_uplink_has_its_own_rate_and_counters() {
    const RATE: u64 = 40_000_000;
    const BYTES: usize = 3_000_000;
    let uplink = SwitchOptions { rate_bits_per_second: Some(RATE), ..below(0, &[1, 2]) };
    let Some(star) = star(StarOptions { hosts: 3, switches: vec![uplink], ..StarOptions::default() }) else {
        return;
    };
    let took = stream(star.host(0), star.host(1), BYTES);
    // As for a host's link: only a lower bound, less the bytes of the bucket.
    let least = Duration::from_secs_f64((BYTES as f64 - 131_072.0) * 8.0 / RATE as f64);
    assert!(took >= least, "{took:?} for {BYTES} bytes at {RATE} bit/s; at least {least:?}");
    let traffic = star.uplink_traffic(1).unwrap();
    assert!(traffic.down.bytes > BYTES as u64 && traffic.up.bytes < traffic.down.bytes / 2, "{traffic:?}");
    // An unshaped sender makes super-frames; on the uplink each frame of at most 1514 bytes counts.
    assert!(traffic.down.bytes / traffic.down.packets <= 1514, "{traffic:?}");
    stream(star.host(2), star.host(1), BYTES);
    let after = star.uplink_traffic(1).unwrap();
    assert!(after.up.bytes + after.down.bytes < traffic.up.bytes + traffic.down.bytes + BYTES as u64 / 2);
    star.shape_uplink(1, 2 * RATE, 1 << 20).unwrap();
    assert!(star.shape_uplink(1, 0, 1 << 20).is_err());
    let took = stream(star.host(1), star.host(0), BYTES);
    assert!(took >= least / 2, "{took:?} after the change of the rate");
    assert!(star.uplink_traffic(1).unwrap().up.bytes > after.up.bytes + BYTES as u64);
}

#[test]
fn a_cut_switch_is_an_island_until_it_is_healed() {
    let Some(star) = tree() else { return };
    let (neighbour, below, beside) = (joined(star.host(1)), joined(star.host(3)), joined(star.host(5)));
    star.cut_uplink(1).unwrap();
    sender(star.host(0)).send_to(b"outside", to(GROUP)).unwrap();
    assert_eq!(receive(&beside), b"outside");
    sender(star.host(2)).send_to(b"inside", to(GROUP)).unwrap();
    assert_eq!(receive(&neighbour), b"inside");
    assert_eq!(receive(&below), b"inside");
    star.heal_uplink(1).unwrap();
    // The root must learn the membership again, so the first packets may not come through.
    below.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (server, started, mut packet) = (sender(star.host(0)), now(), [0; 16]);
    while below.recv(&mut packet).is_err() {
        assert!(now() - started < PATIENCE, "the healed switch hears nothing");
        server.send_to(b"healed", to(GROUP)).unwrap();
    }
    assert_eq!(&packet[..6], b"healed");
}

#[test]
fn faults_hit_hosts_on_any_switch() {
    let Some(mut star) = tree() else { return };
    let (server, receivers) = (sender(star.host(0)), [2, 3, 4].map(|host| joined(star.host(host))));
    star.shape_host(4, 100_000_000, 1 << 20).unwrap();
    let meter = star.meter(Duration::from_secs(1)).unwrap();
    star.set_loss(3, 1_000_000).unwrap();
    star.cut(2).unwrap();
    let before = star.traffic().unwrap();
    for _ in 0..50 {
        server.send_to(&[9; 1000], to(GROUP)).unwrap();
        assert_eq!(receive(&receivers[2]), [9; 1000]);
    }
    let (after, samples) = (star.traffic().unwrap(), meter.stop().unwrap());
    let received = |host: usize| after[host].received.packets - before[host].received.packets;
    // The switch itself may send a query.
    assert!(received(2) < 25 && received(3) < 25, "{} {}", received(2), received(3));
    assert!(received(4) >= 50 && samples[samples.len() - 1].received[4] >= samples[0].received[4] + 50_000);
    sender(star.host(4)).send_to(&[9; 1000], to(star.host(1).ipv4())).unwrap();
    assert!(star.sent_on_wire(4).unwrap() >= 1000);
    star.heal(2).unwrap();
    star.set_loss(3, 0).unwrap();
    star.filter_groups(4).unwrap();
    for host in [2, 3] {
        let receiver = &receivers[host - 2];
        receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (started, mut packet) = (now(), [0; 16]);
        while receiver.recv(&mut packet).is_err() {
            assert!(now() - started < PATIENCE, "host {host} hears nothing");
            server.send_to(b"again", to(GROUP)).unwrap();
        }
    }
    star.deafen(2).unwrap();
    // What is filtered would have come before what is not.
    server.send_to(b"filtered", to(GROUP)).unwrap();
    for (receiver, host) in [(&receivers[2], 4), (&receivers[0], 2)] {
        server.send_to(b"last", to(star.host(host).ipv4())).unwrap();
        let mut packet = [0; 1000];
        while receiver.recv(&mut packet).is_ok_and(|_| !packet.starts_with(b"last")) {
            assert!(!packet.starts_with(b"filtered"), "host {host} hears groups");
        }
        assert!(packet.starts_with(b"last"));
    }
}
