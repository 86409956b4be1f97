//! Tests links with delay on a real kernel: every kind of packet arrives, whole and later.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use lab::{Host, Star, StarOptions, SwitchOptions};

use crate::common::{GROUP, GROUP_V6, PATIENCE, PORT, joined, now, receive, sender, star, stream, to};

const FAR: Duration = Duration::from_millis(30);
const NEAR: Duration = Duration::from_millis(5);

/// Host 0 on the root; host 1 on switch 1, far away; host 2 on the root, by a link with a small delay.
fn far(rate: Option<u64>) -> Option<Star> {
    let room =
        SwitchOptions { hosts: vec![1], delay: FAR, rate_bits_per_second: rate, ..SwitchOptions::default() };
    star(StarOptions {
        hosts: 3,
        switches: vec![room],
        host_delays: vec![(2, NEAR)],
        rate_bits_per_second: rate,
        ..StarOptions::default()
    })
}

/// The shortest of a few round trips of one UDP packet, after the addresses are known.
fn round_trip(from: &Host, to_host: &Host, address: impl Into<IpAddr>) -> Duration {
    let echo = joined(to_host);
    let answer = move || {
        let mut packet = [0; 16];
        loop {
            let (count, from) = match echo.recv_from(&mut packet) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received.unwrap(),
            };
            echo.send_to(&packet[..count], from).unwrap();
            if packet.starts_with(b"last") {
                return;
            }
        }
    };
    let echoing = to_host.run(answer).unwrap();
    let (client, address) = (sender(from), to(address));
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let trip = |what: &[u8]| {
        let begin = now();
        client.send_to(what, address).unwrap();
        assert_eq!(receive(&client), what);
        now() - begin
    };
    let shortest = (0..5).map(|_| trip(b"one")).min().unwrap();
    trip(b"last");
    echoing.join().unwrap();
    shortest
}

#[test]
fn packets_take_at_least_the_delay_of_every_link() {
    let Some(star) = far(None) else { return };
    for (from, host, one_way) in [(0, 1, FAR), (2, 0, NEAR), (1, 2, FAR + NEAR)] {
        let (from, host) = (star.host(from), star.host(host));
        for address in [IpAddr::from(host.ipv4()), host.ipv6().into()] {
            let took = round_trip(from, host, address);
            assert!(took >= one_way * 2, "{took:?} to {address}; at least {:?}", one_way * 2);
        }
    }
    let address = (star.host(1).ipv4(), PORT);
    let _listener = star.host(1).run(move || TcpListener::bind(address).unwrap()).unwrap().join().unwrap();
    let connect = move || {
        let begin = now();
        TcpStream::connect(address).unwrap();
        now() - begin
    };
    let took = star.host(0).run(connect).unwrap().join().unwrap();
    assert!(took >= FAR * 2, "{took:?} for a connection");
}

#[test]
fn groups_come_later_too() {
    let Some(star) = far(None) else { return };
    let members = [(2, NEAR), (1, FAR)].map(|(member, delay)| (joined(star.host(member)), delay));
    let server = sender(star.host(0));
    for group in [IpAddr::from(GROUP), IpAddr::from(GROUP_V6)] {
        let begin = now();
        server.send_to(group.to_string().as_bytes(), to(group)).unwrap();
        for (member, delay) in &members {
            assert_eq!(receive(member), group.to_string().as_bytes());
            let took = now() - begin;
            assert!(took >= *delay, "{took:?} to {group}; at least {delay:?}");
        }
    }
}

#[test]
fn streams_pass_whole_with_a_rate_or_without() {
    for rate in [None, Some(100_000_000)] {
        let Some(star) = far(rate) else { return };
        for (from, host) in [(0, 1), (1, 2)] {
            stream(star.host(from), star.host(host), 5_000_000);
        }
        let uplink = star.uplink_traffic(1).unwrap();
        assert!(uplink.down.bytes > 5_000_000 && uplink.up.bytes > 5_000_000, "{uplink:?}");
    }
}

#[test]
fn a_far_host_can_lose_frames_and_be_cut() {
    let Some(mut star) = far(None) else { return };
    let (server, member) = (sender(star.host(0)), joined(star.host(2)));
    let address = to(star.host(2).ipv4());
    let send = |what: &[u8]| assert_eq!(server.send_to(what, address).unwrap(), what.len());
    send(b"before");
    assert_eq!(receive(&member), b"before");
    star.set_loss(2, 1_000_000).unwrap();
    send(b"lost");
    star.set_loss(2, 0).unwrap();
    star.cut(2).unwrap();
    send(b"cut");
    star.heal(2).unwrap();
    // The port may take a moment to forward again.
    member.set_read_timeout(Some(FAR)).unwrap();
    let (started, mut packet) = (now(), [0; 16]);
    while member.recv(&mut packet).is_err() {
        assert!(now() - started < PATIENCE, "the healed host hears nothing");
        send(b"after");
    }
    assert!(packet.starts_with(b"after"), "{packet:?}");
    stream(star.host(0), star.host(2), 1_000_000);
}
