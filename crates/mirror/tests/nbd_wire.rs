//! Tests the NBD front end with a client of its own: the order of replies, errors, hostile bytes, clients that die,
//! and the end of the server.

use std::io::Write as _;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::Chance;
use mirror::nbd::{Event, REQUESTS_MAX};

use crate::nbd_common::{Client, House, MIB, PATIENCE, Rigged, counted, option};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const FAST_ZERO: u16 = 16;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ESHUTDOWN: u32 = 108;

/// See [`crowd`].
const CROWD: usize = REQUESTS_MAX + 8;

fn house() -> (House, Arc<Rigged>) {
    House::of(|path| Rigged::new(path, 64 * MIB))
}

/// A client of a disk whose reads of the first sector wait until its gate is opened.
fn stuck() -> (House, Arc<Rigged>, Client) {
    let (house, disk) = house();
    disk.near.store(false, Ordering::SeqCst);
    let client = house.client("disk", true);
    disk.gate.set_closed(true);
    (house, disk, client)
}

/// Sends more reads than there are threads. All threads are busy when this returns.
fn crowd(disk: &Rigged, client: &mut Client) {
    // Sent at once, so that the server has received all of them.
    let requests: Vec<u8> = (0..CROWD).flat_map(|_| client.request(READ, 0, 0, 4096)).collect();
    client.stream.write_all(&requests).unwrap();
    while disk.reads.load(Ordering::SeqCst) < REQUESTS_MAX {
        std::thread::yield_now();
    }
}

#[test]
fn random_requests_do_what_a_plain_model_does() {
    for (seed, structured, near) in [(1, true, true), (2, true, false), (3, false, true), (4, false, false)] {
        let (house, disk) = house();
        disk.near.store(near, Ordering::SeqCst);
        let mut client = house.client("disk", structured);
        let mut chance = Chance::from_seed(seed);
        let mut model = vec![0u8; usize::try_from(64 * MIB).unwrap()];
        for round in 0..400 {
            let sectors = if chance.below(4) == 0 { 6000 } else { 40 };
            let bytes = 512 * (1 + chance.below(sectors));
            let offset = 512 * chance.below((64 * MIB - bytes) / 512);
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + bytes).unwrap();
            let length = u32::try_from(bytes).unwrap();
            let what = format!("seed {seed}, round {round}");
            match chance.below(6) {
                0 | 1 => {
                    let mut payload = vec![0; range.len()];
                    chance.fill(&mut payload);
                    let flags = if chance.below(8) == 0 { FUA } else { 0 };
                    assert_eq!(client.call(WRITE, flags, offset, length, &payload).error, 0, "{what}");
                    model[range].copy_from_slice(&payload);
                }
                2 => {
                    let flags = [0, NO_HOLE, FUA, FAST_ZERO][usize::try_from(chance.below(4)).unwrap()];
                    assert_eq!(client.call(WRITE_ZEROES, flags, offset, length, &[]).error, 0, "{what}");
                    model[range].fill(0);
                }
                3 => assert_eq!(client.call(CACHE, 0, offset, length, &[]).error, 0, "{what}"),
                _ => {
                    let reply = client.call(READ, 0, offset, length, &[]);
                    assert!(reply.error == 0 && reply.data == model[range], "{what}");
                }
            }
        }
    }
}

#[test]
fn answers_come_when_they_are_ready() {
    let (_house, disk, mut client) = stuck();
    let slow = client.ask(READ, 0, 0, 4096, &[]);
    for kind in [READ, FLUSH, BLOCK_STATUS] {
        let bytes = if kind == FLUSH { 0 } else { 4096 };
        assert_eq!(client.call(kind, 0, if kind == FLUSH { 0 } else { MIB }, bytes, &[]).error, 0);
    }
    disk.gate.set_closed(false);
    assert_eq!(client.reply().cookie, slow);
}

#[test]
fn more_requests_than_threads_wait_and_are_answered() {
    let (_house, disk, mut client) = stuck();
    let asked: Vec<_> = (0..200).map(|_| client.ask(READ, 0, 0, 4096, &[])).collect();
    disk.gate.set_closed(false);
    let mut answered: Vec<_> = asked.iter().map(|_| client.reply().cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, asked);
}

#[test]
fn what_cannot_be_done_is_said_and_the_client_stays() {
    let (house, _) = house();
    for structured in [true, false] {
        let mut client = house.client("disk", structured);
        let end = 64 * MIB;
        assert_eq!(client.call(READ, 0, end, 512, &[]).error, EINVAL);
        assert_eq!(client.call(READ, 0, 1, 512, &[]).error, EINVAL);
        assert_eq!(client.call(WRITE, 0, end, 4096, &[1; 4096]).error, ENOSPC);
        assert_eq!(client.call(WRITE, 0, 100, 5, &[1; 5]).error, EINVAL);
        assert_eq!(client.call(WRITE_ZEROES, 0, end - 512, 1024, &[]).error, ENOSPC);
        // QEMU stops a machine whose disk is full, so commands that write nothing must not report that.
        for kind in [TRIM, CACHE] {
            assert_eq!(client.call(kind, 0, end - 512, 1024, &[]).error, EINVAL);
            assert_eq!(client.call(kind, 0, end, 512, &[]).error, EINVAL);
        }
        let large = vec![7; (33 << 20) + 512];
        assert_eq!(client.call(WRITE, 0, 0, (33 << 20) + 512, &large).error, EINVAL);
        // The command to resize, and an unknown one.
        assert_eq!(client.call(8, 0, 128 * MIB, 0, &[]).error, EINVAL);
        assert_eq!(client.call(77, 0, 0, 0, &[]).error, EINVAL);
        let one_chunk = if structured { EOVERFLOW } else { EINVAL };
        assert_eq!(client.call(READ, DF, 0, 2 << 20, &[]).error, one_chunk);
        assert_eq!(client.call(READ, 0, 0, 512, &[]).data, [0; 512]);
    }
}

#[test]
fn a_disk_that_fails_is_told_of() {
    let (house, _) = House::of(|path| Rigged { broken_from: 2 * MIB, ..Rigged::new(path, 64 * MIB) });
    let mut client = house.client("disk", true);
    let reply = client.call(READ, 0, 4 * MIB, 4096, &[]);
    assert_eq!((reply.error, reply.words.as_str()), (EIO, "chunk 7 is nowhere to be had"));
    house.event(|event| matches!(event, Event::Failed { error, .. } if error.contains("chunk 7")));
    // The read fails after its first pieces were sent.
    client.call(WRITE, 0, 0, 4 << 20, &vec![9; 4 << 20]);
    assert_eq!(client.call(READ, 0, 0, 4 << 20, &[]).error, EIO);
    assert_eq!(client.call(READ, 0, 0, 1 << 20, &[]).data, vec![9; 1 << 20]);
    // A simple reply that has begun cannot report an error: the connection must end.
    let mut simple = house.client("disk", false);
    assert_eq!(simple.call(READ, 0, 4 * MIB, 4096, &[]).error, EIO);
    simple.ask(READ, 0, 0, 4 << 20, &[]);
    let mut got = 0;
    let ended = loop {
        match std::io::Read::read(&mut simple.stream, &mut vec![0; 1 << 20]) {
            Ok(0) | Err(_) => break true,
            Ok(count) => got += count,
        }
        if got >= 4 << 20 {
            break false;
        }
    };
    assert!(ended, "a reply came whole although its disk failed");
}

#[test]
fn a_read_only_disk_stays_as_it_is() {
    let (house, _) = House::of(|path| Rigged { read_only: true, ..Rigged::new(path, MIB) });
    let mut client = house.client("disk", true);
    assert_eq!(client.call(WRITE, 0, 0, 4096, &[1; 4096]).error, EPERM);
    assert_eq!(client.call(TRIM, 0, 0, 4096, &[]).error, EPERM);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, 4096, &[]).error, EPERM);
    assert_eq!(client.call(READ, 0, 0, 4096, &[]).data, [0; 4096]);
    assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
}

#[test]
fn strangers_are_sent_away_and_harm_nobody() {
    let (house, disk) = house();
    let mut friend = house.client("disk", true);
    let go = option(7, &[counted("disk"), vec![0, 0]].concat());
    let long_option = [&b"IHAVEOPT"[..], &7u32.to_be_bytes(), &u32::MAX.to_be_bytes(), &[0; 100]].concat();
    let garbage = vec![0xA5; 4096];
    let then_garbage = [&go[..], &garbage].concat();
    let half = go[..10].to_vec();
    for bytes in [&garbage, &then_garbage, &half, &long_option, &Vec::new()] {
        let mut stranger = Client::greet(&house.socket());
        // The server may have closed the connection already.
        let _ = stranger.stream.write_all(bytes);
        let _ = stranger.stream.shutdown(Shutdown::Write);
        while !stranger.is_closed() {}
        assert_eq!(friend.call(READ, 0, MIB, 4096, &[]).data, [0; 4096]);
    }
    let mut chance = Chance::from_seed(5);
    for _ in 0..200 {
        let mut stranger = house.client("disk", chance.below(2) == 0);
        let mut bytes = vec![0; 28 + usize::try_from(chance.below(200)).unwrap()];
        chance.fill(&mut bytes);
        if chance.below(2) == 0 {
            bytes[..8].copy_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 9]);
        }
        let _ = stranger.stream.write_all(&bytes);
    }
    assert_eq!(friend.call(READ, 0, 0, 4096, &[]).data, [0; 4096]);
    assert_eq!(disk.writes.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_that_dies_in_the_middle_harms_nobody() {
    let (house, disk) = house();
    disk.near.store(false, Ordering::SeqCst);
    let mut friend = house.client("disk", true);
    // A client dies in the middle of a write.
    let mut dying = house.client("disk", true);
    dying.ask(WRITE, 0, MIB, 2 << 20, &[3; 100_000]);
    drop(dying);
    house.event(|event| matches!(event, Event::Disconnected { .. }));
    assert_eq!(disk.writes.load(Ordering::SeqCst), 0);
    // A client dies with reads in flight.
    let mut dying = house.client("disk", true);
    disk.gate.set_closed(true);
    for _ in 0..10 {
        dying.ask(READ, 0, 0, 32 << 20, &[]);
    }
    drop(dying);
    disk.gate.set_closed(false);
    house.event(|event| matches!(event, Event::Disconnected { .. }));
    assert_eq!(friend.call(WRITE, FUA, 0, 4096, &[1; 4096]).error, 0);
    assert_eq!(friend.call(READ, 0, 0, 4096, &[]).data, [1; 4096]);
}

#[test]
fn who_leaves_politely_gets_its_answers_first() {
    let (house, disk, mut client) = stuck();
    let asked = client.ask(READ, 0, 0, 4096, &[]);
    client.call(WRITE, 0, MIB, 512, &[1; 512]);
    client.ask(DISC, 0, 0, 0, &[]);
    disk.gate.set_closed(false);
    assert_eq!(client.reply().cookie, asked);
    assert!(client.is_closed());
    house.event(|event| matches!(event, Event::Disconnected { .. }));
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1, "what a client wrote is durable when it has left");
}

#[test]
fn stopping_lets_requests_in_flight_finish() {
    let (house, disk, mut client) = stuck();
    let asked = client.ask(READ, 0, 0, 4096, &[]);
    // The second reply shows that the first request is in flight.
    assert_eq!(client.call(READ, 0, MIB, 4096, &[]).error, 0);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| house.server.stop(PATIENCE));
        while std::os::unix::net::UnixStream::connect(house.socket()).is_ok() {}
        disk.gate.set_closed(false);
        assert_eq!(client.reply().cookie, asked);
        assert!(client.is_closed());
        assert_eq!(stop.join().unwrap(), 0);
    });
}

#[test]
fn requests_that_come_too_late_are_told_so() {
    let (house, disk, mut client) = stuck();
    crowd(&disk, &mut client);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| house.server.stop(PATIENCE));
        while std::os::unix::net::UnixStream::connect(house.socket()).is_ok() {}
        disk.gate.set_closed(false);
        let replies: Vec<_> = (0..CROWD).map(|_| client.reply()).collect();
        let late: Vec<_> = replies.iter().filter(|reply| reply.error != 0).collect();
        assert!(
            late.len() == CROWD - REQUESTS_MAX && late.iter().all(|reply| reply.error == ESHUTDOWN),
            "{late:?}"
        );
        assert!(client.is_closed());
        assert_eq!(stop.join().unwrap(), 0);
    });
}

#[test]
fn stopping_does_not_wait_longer_than_its_grace() {
    let (house, disk, mut client) = stuck();
    client.ask(READ, 0, 0, 4096, &[]);
    assert_eq!(client.call(READ, 0, MIB, 4096, &[]).error, 0);
    assert_eq!(house.server.stop(Duration::from_millis(10)), 1);
    assert!(client.is_closed());
    disk.gate.set_closed(false);
}

#[test]
fn who_leaves_answers_nothing_of_what_is_in_flight_or_comes_too_late() {
    let (house, disk, mut client) = stuck();
    crowd(&disk, &mut client);
    house.server.leave();
    disk.gate.set_closed(false);
    assert!(
        client.is_closed(),
        "a client that comes again asks again, and must not have been told of an error"
    );
    assert!(std::os::unix::net::UnixStream::connect(house.socket()).is_err());
}

#[test]
fn a_closed_disk_says_that_it_ends() {
    let (house, disk) = house();
    let mut client = house.client("disk", true);
    mirror::Served::close(&*disk).unwrap();
    assert_eq!(client.call(READ, 0, 0, 4096, &[]).error, ESHUTDOWN);
    assert_eq!(client.call(WRITE, 0, 0, 512, &[0; 512]).error, ESHUTDOWN);
}

#[test]
fn clients_beyond_the_bound_are_told_so_and_a_place_that_is_free_is_given_again() {
    let house = House::new(2);
    let disk = Arc::new(Rigged::new(&house.path("disk.raw"), MIB));
    house.offer("disk", &disk);
    let first = house.client("disk", true);
    let _second = house.client("disk", true);
    let mut third = Client::greet(&house.socket());
    third.stream.write_all(&option(7, &[counted("disk"), vec![0, 0]].concat())).unwrap();
    let (kind, words) = third.answer();
    let words = String::from_utf8(words).unwrap();
    assert!(kind == 0x8000_0002 && words.contains("2 clients"), "{kind:#x} {words}");
    house.event(|event| matches!(event, Event::Dropped { error, .. } if error.contains("2 clients")));
    // Only a few of the clients without a place get an answer; the others are disconnected at once.
    let strangers: Vec<_> =
        (0..100).map(|_| std::os::unix::net::UnixStream::connect(house.socket()).unwrap()).collect();
    let hung_up = |stranger: &std::os::unix::net::UnixStream| {
        let (mut stranger, mut greeting) = (stranger, [0; 18]);
        !matches!(std::io::Read::read(&mut stranger, &mut greeting), Ok(18))
    };
    assert!(strangers.iter().filter(|stranger| hung_up(stranger)).count() >= 80);
    drop(strangers);
    drop(first);
    house.event(|event| matches!(event, Event::Disconnected { .. }));
    // The place becomes free a moment after that event.
    let mut later = loop {
        let mut client = Client::greet(&house.socket());
        client.stream.write_all(&option(7, &[counted("disk"), vec![0, 0]].concat())).unwrap();
        if client.answer().0 == 3 {
            break client;
        }
    };
    while later.answer().0 != 1 {}
    assert_eq!(later.call(READ, 0, 0, 512, &[]).data, [0; 512]);
}

#[test]
fn the_default_disk_is_the_only_one() {
    let (house, disk) = house();
    let mut client = house.client("", true);
    assert_eq!(client.call(READ, 0, 0, 512, &[]).data, [0; 512]);
    house.offer("other", &disk);
    let mut late = Client::greet(&house.socket());
    late.stream.write_all(&option(7, &[counted(""), vec![0, 0]].concat())).unwrap();
    assert_eq!(late.answer().0, 0x8000_0006);
    assert!(house.table.remove("other").is_some() && house.table.remove("other").is_none());
}
