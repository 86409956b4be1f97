//! Tests of probes over loopback.

use std::thread;
use std::time::Duration;

use super::*;
use crate::api::ProbeGrant;
use crate::clock::Stop;
use crate::interface;
use crate::udp::SendOptions;

#[test]
fn sizes_ascend_and_end_with_the_mtu() {
    assert_eq!(sizes(1500), [100, 576, 1280, 1400, 1420, 1450, 1472, 1492, 1500]);
    assert_eq!(sizes(1400), [100, 576, 1280, 1400]);
    assert_eq!(sizes(100), [100, 576]);
    assert!(sizes(65536).is_sorted());
}

#[test]
fn packets_open_for_the_other_side_only() {
    use packet::{From, Packet};
    let (key, other) = (proto::multicast::Key([1; 16]), proto::multicast::Key([2; 16]));
    let packet = Packet { probe: 7, round: 3, ip_bytes: 576, reports: 9 };
    let bytes = packet.encode(From::Server, &key, 548);
    assert_eq!(bytes.len(), 548);
    assert_eq!(Packet::open(From::Server, &key, 7, &bytes), Some(packet));
    assert_eq!(Packet::open(From::Machine, &key, 7, &bytes), None);
    assert_eq!(Packet::open(From::MachineSized, &key, 7, &bytes), None);
    assert_eq!(Packet::open(From::Server, &other, 7, &bytes), None);
    assert_eq!(Packet::open(From::Server, &key, 8, &bytes), None);
    for len in 0..60 {
        assert_eq!(Packet::open(From::Server, &key, 7, &bytes[..len]), None);
    }
}

#[test]
fn a_probe_over_loopback_arrives_whole_in_both_directions_and_ends_when_forgotten() {
    let patience = Duration::from_millis(2500);
    let (id, key) = draw().unwrap();
    let lo = interface::choose("lo").unwrap();
    let group = "239.255.79.1:47901".parse().unwrap();
    let config =
        ProbeConfig { id, key, group, send: SendOptions::on(lo.clone()), sizes: sizes(1500), patience };
    let server = ProbeServer::start(config).unwrap();
    let local = server.local();
    let grant = ProbeGrant {
        probe: id,
        group,
        source: local.ip(),
        report: local,
        key,
        sizes: sizes(1500),
        ttl: 1,
        peer: local.ip(),
    };
    let options = ListenOptions { interface: lo, time: Duration::from_secs(3), stop: Stop::new() };
    let view = || Ok(server.view());
    let mut told = 0;
    let heard = listen(&grant, &options, &view, &mut |_| told += 1).unwrap();
    assert!(told >= 2 && heard.rounds >= 10, "{heard:?}");
    assert!(heard.sizes.values().all(|&count| count >= 10), "{heard:?}");
    assert!(heard.reports_arrived >= 10 && heard.reports_arrived <= heard.reports_sent, "{heard:?}");
    assert_eq!(heard.sizes_at_server.keys().copied().collect::<Vec<_>>(), sizes(1500));
    assert!(heard.sizes_at_server.values().all(|&count| count >= 10), "{heard:?}");
    assert!(heard.loss().unwrap() < 0.01 && heard.stopped_after.is_none(), "{heard:?}");
    assert!(!server.is_over());
    while !server.is_over() {
        thread::yield_now();
    }
}
