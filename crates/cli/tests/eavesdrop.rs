//! What a machine on the network without a token reads of a multicast, by a raw socket behind a switch that floods.

use std::io::{ErrorKind, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Star, StarOptions};
use socket2::{Domain, Protocol, Socket, Type};

use crate::common::{Bench, Served, assert_same};

/// `ETH_P_ALL` in network byte order: frames of every kind.
const ALL_FRAMES: i32 = 0x0300;
/// Frames that are compared with the disk.
const SAMPLES: usize = 12;

/// How many of some frames that host 2 sees carry a piece of the disk while host 1 fetches it, and how many frames
/// were compared.
fn pieces_seen(init: &str, serve: &str) -> (usize, usize) {
    let options = StarOptions {
        hosts: 3,
        rate_bits_per_second: Some(100_000_000),
        snooping: false,
        ..StarOptions::default()
    };
    let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
    let disk = bench.disk("disk.img", 8, 1);
    assert!(bench.see("key new --encryption repo.key -q").ends_with("exit: 0\n"));
    assert!(bench.see(&format!("init -q {init}")).ends_with("exit: 0\n"));
    assert!(bench.see(&format!("capture disk.img web -q {init}")).ends_with("exit: 0\n"));
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words =
        format!("serve --listen {listen} --interface eth0 --token-out join.token --json {serve} {init}");
    let server = Served::start(bench.command_in(star.host(0), &words));

    let over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&over);
    let open = || Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL_FRAMES))).unwrap();
    let mut ear = star.host(2).run(open).unwrap().join().unwrap();
    ear.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let listener = std::thread::spawn(move || {
        let (mut frames, mut frame) = (Vec::new(), vec![0; 1 << 17]);
        while !until.load(Ordering::Acquire) {
            match ear.read(&mut frame) {
                // Ethernet addresses of IPv4 groups begin so. Reports and status packets are shorter.
                Ok(bytes) if bytes > 1000 && frame.starts_with(&[1, 0, 0x5e]) => {
                    frames.push(frame[..bytes].to_vec());
                }
                Ok(_) => (),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => (),
                Err(error) => panic!("{error}"),
            }
        }
        frames
    });
    let words = format!("fetch {} web got.img --token-file join.token --json --no-peers {init}", server.url);
    let fetched = bench.command_in(star.host(1), &words).output().unwrap();
    over.store(true, Ordering::Release);
    assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stdout));
    assert!(String::from_utf8_lossy(&fetched.stdout).contains(r#""transport":"multicast""#));
    assert_same(&disk, &bench.path("got.img"));
    let frames = listener.join().unwrap();
    let disk = std::fs::read(disk).unwrap();
    let samples: Vec<_> = frames.iter().step_by((frames.len() / SAMPLES).max(1)).collect();
    let known = samples.iter().filter(|frame| disk.windows(32).any(|part| part == &frame[600..632]));
    (known.count(), samples.len())
}

#[test]
fn who_has_no_token_reads_nothing_of_the_image_unless_it_was_meant_to_be_plain() {
    if !lab::available_or_skip() {
        return;
    }
    let (known, of) = pieces_seen("", "--plain-multicast");
    assert!(known * 2 > of && of >= SAMPLES, "the ear is good: {known} of {of}");
    let (known, of) = pieces_seen("", "");
    assert_eq!((known, of >= SAMPLES), (0, true), "encrypted on its way, {of} frames");
    let (known, of) = pieces_seen("--encryption-key repo.key", "");
    assert_eq!((known, of >= SAMPLES), (0, true), "encrypted in the repository, {of} frames");
}
