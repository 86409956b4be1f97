//! Tests the lab on a real kernel: multicast, loss, rates, disconnected hosts and clean-up.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::{Star, StarOptions};

use crate::common::{GROUP, GROUP_V6, PATIENCE, joined, now, receive, sender, star, stream, to};

#[test]
fn multicast_reaches_those_who_joined_and_only_them() {
    let Some(star) = star(StarOptions { hosts: 9, ..StarOptions::default() }) else { return };
    let receivers: Vec<UdpSocket> = star.hosts()[1..8].iter().map(joined).collect();
    let server = sender(star.host(0));
    for group in [IpAddr::from(GROUP), IpAddr::from(GROUP_V6)] {
        server.send_to(group.to_string().as_bytes(), to(group)).unwrap();
        for receiver in &receivers {
            assert_eq!(receive(receiver), group.to_string().as_bytes());
        }
    }
    // The switch floods until the response interval of its first query has passed. So repeat until host 8, which never
    // joined, receives little.
    let started = now();
    loop {
        let before = star.traffic().unwrap();
        for _ in 0..50 {
            server.send_to(&[7; 1000], to(GROUP)).unwrap();
        }
        receivers.iter().for_each(|receiver| (0..50).for_each(|_| assert_eq!(receive(receiver), [7; 1000])));
        let after = star.traffic().unwrap();
        assert!(after[7].received.packets >= before[7].received.packets + 50);
        if after[8].received.packets < before[8].received.packets + 25 {
            return;
        }
        assert!(now() - started < PATIENCE, "the switch does not snoop: {after:?}");
    }
}

#[test]
fn loss_hits_single_frames_of_each_receiver() {
    const FRAMES: u64 = 20_000;
    let Some(mut star) = star(StarOptions { hosts: 4, loss_per_million: 10_000, ..StarOptions::default() })
    else {
        return;
    };
    let _members: Vec<UdpSocket> = star.hosts()[1..].iter().map(joined).collect();
    let server = sender(star.host(0));
    let lost_of = |star: &Star| {
        let before = star.traffic().unwrap();
        (0..FRAMES).for_each(|_| assert_eq!(server.send_to(&[1; 1000], to(GROUP)).unwrap(), 1000));
        let after = star.traffic().unwrap();
        let received = |index: usize| after[index].received.packets - before[index].received.packets;
        assert!(after[0].sent.packets >= before[0].sent.packets + FRAMES);
        [1, 2, 3].map(|index| FRAMES.saturating_sub(received(index)))
    };
    // Expected: 200 of 20,000. Seven standard deviations are 98, and the counters include a few control frames.
    let lost = lost_of(&star);
    assert!(lost.iter().all(|lost| (90..=300).contains(lost)), "{lost:?}");
    star.set_loss(2, 500_000).unwrap();
    star.set_loss(3, 0).unwrap();
    let [first, second, third] = lost_of(&star);
    assert!(
        (90..=300).contains(&first) && (9_400..=10_600).contains(&second) && third == 0,
        "{first} {second} {third}"
    );
}

#[test]
fn a_link_is_no_faster_than_its_rate() {
    const RATE: u64 = 40_000_000;
    const BYTES: usize = 3_000_000;
    let options = StarOptions { rate_bits_per_second: Some(RATE), ..StarOptions::default() };
    let Some(star) = star(options) else { return };
    let took = stream(star.host(0), star.host(1), BYTES);
    // Only a lower bound: a busy machine may be slower. Nothing may be faster than the time on the wire, except for the
    // bytes of the buckets.
    let least = Duration::from_secs_f64((BYTES as f64 - 2.0 * 131_072.0) * 8.0 / RATE as f64);
    assert!(took >= least, "{took:?} for {BYTES} bytes at {RATE} bit/s; at least {least:?}");
    assert!(star.traffic().unwrap()[1].received.bytes >= BYTES as u64);
}

#[test]
fn a_host_can_have_a_slower_link_and_a_meter_sees_it() {
    const SLOW: u64 = 16_000_000;
    let options = StarOptions { hosts: 3, rate_bits_per_second: Some(10 * SLOW), ..StarOptions::default() };
    let Some(star) = star(options) else { return };
    star.shape_host(2, SLOW, 32 << 10).unwrap();
    let _members: Vec<UdpSocket> = star.hosts()[1..].iter().map(joined).collect();
    let server = sender(star.host(0));
    let meter = star.meter(Duration::from_millis(50)).unwrap();
    while meter.elapsed() < Duration::from_millis(500) {
        server.send_to(&[3; 1400], to(GROUP)).unwrap();
    }
    let samples = meter.stop().unwrap();
    let (first, last) = (&samples[0], &samples[samples.len() - 1]);
    let seconds = (last.at - first.at).as_secs_f64();
    let rate = |index: usize| (last.received[index] - first.received[index]) as f64 * 8.0 / seconds;
    // Only upper bounds: a busy machine may be slower.
    assert!(rate(2) <= SLOW as f64 * 1.1, "{} bit/s over a link of {SLOW}", rate(2));
    assert!(rate(1) > rate(2) * 2.0, "{} bit/s beside {}", rate(1), rate(2));
    assert!(samples.len() >= 5 && last.sent[0] > first.sent[0]);
    assert!(star.sent_on_wire(0).unwrap() > star.sent_on_wire(1).unwrap());
    assert!(star.traffic().unwrap()[2].overflowed > 0, "a shallow buffer overflows");
}

#[test]
fn a_cut_host_hears_nothing_until_it_is_healed() {
    let Some(star) = star(StarOptions { hosts: 3, ..StarOptions::default() }) else { return };
    let (cut, other) = (joined(star.host(1)), joined(star.host(2)));
    let server = sender(star.host(0));
    star.cut(1).unwrap();
    server.send_to(b"one", to(GROUP)).unwrap();
    assert_eq!(receive(&other), b"one");
    star.heal(1).unwrap();
    // The switch must learn the membership again, so the first packets after `heal` may not reach the host.
    cut.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let started = now();
    let mut packet = [0; 16];
    while cut.recv(&mut packet).is_err() {
        assert!(now() - started < PATIENCE, "the healed host hears nothing");
        server.send_to(b"two", to(GROUP)).unwrap();
    }
    assert_eq!(&packet[..3], b"two", "what was sent while the cable was out is gone");
}

#[test]
fn commands_run_in_the_host_and_end_with_the_lab() {
    let (Some(one), Some(two)) = (star(StarOptions::default()), star(StarOptions::default())) else { return };
    assert_ne!(one.host(0).namespace(), two.host(0).namespace(), "labs stand side by side");
    let mut sleeper = one.host(1).command("sleep").arg("1000").spawn().unwrap();
    let namespace = one.host(1).namespace().to_owned();
    while pids_in(&namespace).is_empty() {
        std::thread::yield_now();
    }
    drop(one);
    assert!(!sleeper.wait().unwrap().success(), "killed with its lab");
    assert!(!std::path::Path::new("/run/netns").join(namespace).exists());
    let (server, client) = (sender(two.host(0)), joined(two.host(1)));
    for address in [IpAddr::from(two.host(1).ipv4()), two.host(1).ipv6().into()] {
        server.send_to(address.to_string().as_bytes(), to(address)).unwrap();
        assert_eq!(receive(&client), address.to_string().as_bytes(), "the other lab still stands");
    }
}

#[test]
fn a_lab_whose_owner_was_killed_is_swept() {
    if !lab::available_or_skip() {
        return;
    }
    let mut owner = Command::new(env!("CARGO_BIN_EXE_diskcast-lab"))
        .args([
            "run",
            "--hosts",
            "2",
            "--",
            "sh",
            "-c",
            "set -- $LAB_HOSTS; echo $1; ip netns exec $1 sleep 1000",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut namespace = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut namespace).unwrap();
    let namespace = namespace.trim();
    while pids_in(namespace).is_empty() {
        std::thread::yield_now();
    }
    lab::sweep().unwrap();
    assert!(!pids_in(namespace).is_empty(), "a lab whose owner lives is left alone");
    owner.kill().unwrap();
    owner.wait().unwrap();
    lab::sweep().unwrap();
    assert!(!std::path::Path::new("/run/netns").join(namespace).exists());
    assert!(pids_in(namespace).is_empty());
}

fn pids_in(namespace: &str) -> String {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
