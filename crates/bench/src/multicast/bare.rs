//! A bare multicast sender and its receivers: the upper limit for any program of this kind on this machine.
//!
//! The sender builds and tags all packets beforehand and sends them at an even rate, many per call by segmentation
//! offload. The receivers check tags, copy payloads into object buffers and compute the BLAKE3 digest of each object.
//! There is no scheduling, no report and no repair.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use base::Chance;
use lab::{Host, Star, StarOptions};
use net::udp::{Arrivals, GroupReceiver, GroupSender, SendOptions, Sent, wait};
use proto::multicast::{BlockHeader, Downstream, Key, Shape, block_bytes_for, open_train, tag};
use serde_json::{Value, json};

use super::most;
use crate::Result;
use crate::crew::{Crew, Member};

/// Bytes of an object: as many as a chunk of incompressible data has.
const OBJECT_BYTES: u32 = 256 << 10;
/// Number of objects, which are sent again and again. Their 64 MiB are more than a processor caches.
const OBJECTS: u64 = 256;
/// Most objects of a receiver that wait for their digest.
const BUFFERS: usize = 64;
const GROUP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(239, 77, 0, 42)), 7742);
/// How long a run sends.
const SECONDS: f64 = 1.5;
/// Share of the packets that the worst host may lose in a run that counts.
const LOSS_MAX: f64 = 0.001;
/// Steps of the binary search for the fastest rate.
const STEPS: u32 = 6;
/// A receiver that gets no packet for this long gives up.
const SILENCE: Duration = Duration::from_secs(10);

/// The result of a run of a bare sender.
pub(super) struct Reached {
    /// Payload bytes per second that the slowest host received.
    pub rate: f64,
    /// Share of the packets that the worst host lost.
    pub loss: f64,
}

/// The fastest rate at which `hosts` hosts of an unshaped lab lose at most [`LOSS_MAX`] of the packets: the better of
/// receivers with one thread and with two.
pub(super) fn fastest(hosts: u32) -> Result<Reached> {
    let star = Star::build(&StarOptions { hosts: hosts + 1, ..StarOptions::default() })?;
    let (one, two) = (search(&star, 1), search(&star, 2));
    match (one, two) {
        (Ok(one), Ok(two)) => Ok(if two.rate > one.rate { two } else { one }),
        (one, two) => one.or(two),
    }
}

/// Searches the fastest rate for receivers with `threads` threads.
fn search(star: &Star, threads: u32) -> Result<Reached> {
    let run = |rate: f64| run(star, rate, threads);
    let flood = run(f64::INFINITY)?;
    if flood.loss <= LOSS_MAX {
        return Ok(flood);
    }
    // Half as much again, since the flood overloads the receivers: they may receive more at a lower rate.
    let (mut slow, mut fast) = (0.0, flood.rate * 1.5);
    let mut best: Option<Reached> = None;
    for _ in 0..STEPS {
        let rate = f64::midpoint(slow, fast);
        let reached = run(rate)?;
        if reached.loss > LOSS_MAX {
            fast = rate;
            continue;
        }
        slow = rate;
        if best.as_ref().is_none_or(|best| reached.rate > best.rate) {
            best = Some(reached);
        }
    }
    best.ok_or_else(|| "a bare sender finds no rate without loss".into())
}

/// One run at `rate` payload bytes per second. The sender and the receivers are further processes of this program.
fn run(star: &Star, rate: f64, threads: u32) -> Result<Reached> {
    let program = std::env::current_exe()?;
    let mut crew = Crew::new();
    let start = |crew: &mut Crew, host: &Host, arguments: &[String]| -> Result<Member> {
        crew.start(host.command(&program.to_string_lossy()).args(arguments))
    };
    let mut receivers = vec![];
    for host in &star.hosts()[1..] {
        receivers.push(start(&mut crew, host, &["--bare-receive".to_owned(), threads.to_string()])?);
    }
    crew.wait_until(Duration::from_millis(500));
    let sender = start(&mut crew, star.host(0), &["--bare-send".to_owned(), rate.to_string()])?;
    let until = Duration::from_secs(30);
    let mut told = crew.wait(&[&[sender], &receivers[..]].concat(), until)?;
    // The sender first, then the receivers in any order.
    told.sort_by_key(|end| end.member != sender);
    let lines: Vec<Value> = told
        .iter()
        .map(|end| {
            end.check()?;
            Ok(serde_json::from_str(end.output.trim())?)
        })
        .collect::<Result<_>>()?;
    if lines.len() != receivers.len() + 1 {
        return Err("a bare sender or receiver did not end in time".into());
    }
    let number = |line: &Value, name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    let sent = number(&lines[0], "packets");
    let losses: Vec<f64> = lines[1..].iter().map(|line| 1.0 - number(line, "packets") / sent).collect();
    let rates = lines[1..].iter().map(|line| number(line, "payload_bytes") / number(line, "seconds"));
    Ok(Reached { rate: rates.fold(f64::INFINITY, f64::min), loss: most(&losses) })
}

/// Key and shape of the session: constants, so that sender and receivers need no handshake.
fn session() -> (Key, Shape) {
    let block_bytes = block_bytes_for(1500, false).expect("an MTU of 1500 takes a block");
    (Key([7; 16]), Shape { session: 42, epoch: 1, objects: OBJECTS + 1, heads: 0, block_bytes })
}

/// `--bare-send RATE`: sends for [`SECONDS`] at `RATE` payload bytes per second, or as fast as possible if it is `inf`.
/// Prints the packets sent and the seconds as a JSON line.
pub(crate) fn send(rate: &str) -> Result<()> {
    let rate: f64 = rate.parse()?;
    let socket = GroupSender::open(GROUP, &SendOptions::on(net::interface::choose("eth0")?))?;
    let (packets, runs) = prepared(&socket);
    let start = Instant::now();
    let (mut sent, mut payload) = (0_u64, 0.0);
    for run in runs.iter().cycle() {
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed > SECONDS {
            break;
        }
        // Timers are late by about 50 µs. The next runs make up for a late wake-up: they are due at once.
        let ahead = payload / rate - elapsed;
        if ahead > 50e-6 {
            wait(&[], None, Duration::from_secs_f64(ahead))?;
        }
        send_all(&socket, &packets[run.bytes.clone()], run.packet_bytes)?;
        sent += run.packets;
        payload += run.payload_bytes;
    }
    let seconds = start.elapsed().as_secs_f64();
    // Sends the end packet five times, since it can be lost, each after a pause in which receivers empty their sockets.
    for _ in 0..5 {
        wait(&[], None, Duration::from_millis(100))?;
        send_all(&socket, &sealed(OBJECTS, 0, &[]), usize::MAX)?;
    }
    say(&json!({ "packets": sent, "seconds": seconds }));
    Ok(())
}

/// Packets that one call sends: a range of the prepared bytes.
struct Run {
    bytes: Range<usize>,
    packet_bytes: usize,
    packets: u64,
    payload_bytes: f64,
}

/// The packets of all objects one after the other, and the runs in which they are sent. All packets of a run have the
/// same length, except an object's last.
fn prepared(socket: &GroupSender) -> (Vec<u8>, Vec<Run>) {
    let (_, shape) = session();
    let (mut packets, mut runs) = (vec![], vec![]);
    let mut object = vec![0; OBJECT_BYTES as usize];
    for number in 0..OBJECTS {
        Chance::from_seed(number).fill(&mut object);
        let blocks: Vec<u16> = (0..u16::try_from(shape.blocks(OBJECT_BYTES)).expect("few")).collect();
        let packet_bytes = sealed(number, 0, &object[..usize::from(shape.block_bytes)]).len();
        for blocks in blocks.chunks(socket.run_max(packet_bytes)) {
            let (begin, mut payload_bytes) = (packets.len(), 0.0);
            for &block in blocks {
                let (offset, len) = shape.place(OBJECT_BYTES, block);
                let payload = &object[offset as usize..][..usize::from(len)];
                packets.extend_from_slice(&sealed(number, block, payload));
                payload_bytes += f64::from(len);
            }
            let packets_in_run = blocks.len() as u64;
            runs.push(Run {
                bytes: begin..packets.len(),
                packet_bytes,
                packets: packets_in_run,
                payload_bytes,
            });
        }
    }
    (packets, runs)
}

/// A packet with its tag. A packet of object [`OBJECTS`], which has no bytes, is the end packet.
fn sealed(object: u64, block: u16, payload: &[u8]) -> Vec<u8> {
    let (key, shape) = session();
    let object_bytes = if object < OBJECTS { OBJECT_BYTES } else { 0 };
    let sequence = (object + 1) * u64::from(u16::MAX);
    let header =
        BlockHeader { sequence, timestamp_us: 0, object, block, object_bytes, repair: false, coming: 0 };
    let mut packet = header.encode(&shape).to_vec();
    packet.extend_from_slice(payload);
    packet.extend_from_slice(&tag(&key, &packet));
    packet
}

/// Sends `packets`, each of `packet_bytes` except the last, and waits while the socket's buffer is full.
fn send_all(socket: &GroupSender, packets: &[u8], packet_bytes: usize) -> Result<()> {
    let mut sent = 0;
    while sent < packets.len() {
        match socket.send(&packets[sent..], packet_bytes.min(packets.len()))? {
            Sent::Bytes(bytes) => sent += bytes,
            Sent::Blocked | Sent::Dropped => {
                wait(&[], Some(socket), Duration::from_millis(10))?;
            }
        }
    }
    Ok(())
}

/// `--bare-receive THREADS`: receives packets until the end packet, and prints their number, their payload bytes and
/// the seconds from the first to the last as a JSON line. With two threads, the second computes the digests.
pub(crate) fn receive(threads: &str) -> Result<()> {
    let socket = GroupReceiver::join(GROUP, &net::interface::choose("eth0")?, None)?;
    if threads != "2" {
        let mut digests = 0_u8;
        return take_in(&socket, |buffer| {
            digests ^= blake3::hash(&buffer).as_bytes()[0];
            buffer
        });
    }
    let (whole, objects) = sync_channel::<Vec<u8>>(BUFFERS);
    let (used, again) = sync_channel(BUFFERS);
    let digester = std::thread::spawn(move || {
        let mut digests = 0_u8;
        for buffer in objects {
            digests ^= blake3::hash(&buffer).as_bytes()[0];
            let _ = used.try_send(buffer);
        }
        digests
    });
    take_in(&socket, |buffer| {
        whole.send(buffer).expect("the digester listens");
        again.try_recv().unwrap_or_else(|_| vec![0; OBJECT_BYTES as usize])
    })?;
    drop(whole);
    digester.join().map_err(|_| "the digester failed")?;
    Ok(())
}

/// Receives packets until the end packet. Passes each object's buffer to `digest`, which returns a buffer for the next
/// object.
fn take_in(socket: &GroupReceiver, mut digest: impl FnMut(Vec<u8>) -> Vec<u8>) -> Result<()> {
    let (key, shape) = session();
    let mut arrivals = Arrivals::default();
    let mut buffer = vec![0; OBJECT_BYTES as usize];
    let last_block = u16::try_from(shape.blocks(OBJECT_BYTES) - 1)?;
    let (mut packets, mut payload_bytes) = (0_u64, 0_u64);
    let mut span: Option<(Instant, Instant)> = None;
    loop {
        if !socket.receive(&mut arrivals)? {
            if !wait(&[socket], None, SILENCE)? {
                return Err("no packet arrived in time".into());
            }
            continue;
        }
        let trains = arrivals.trains();
        for packet in trains.flat_map(|train| open_train(&key, &shape, train.bytes, train.packet_bytes)) {
            let Ok(Downstream::Block(header, payload)) = packet else {
                return Err("a packet arrived that the bare sender did not send".into());
            };
            if header.object == OBJECTS {
                let (first, last) = span.ok_or("no packet arrived but the end packet")?;
                let seconds = (last - first).as_secs_f64();
                say(&json!({ "packets": packets, "payload_bytes": payload_bytes, "seconds": seconds }));
                return Ok(());
            }
            let (offset, _) = shape.place(OBJECT_BYTES, header.block);
            buffer[offset as usize..][..payload.len()].copy_from_slice(payload);
            (packets, payload_bytes) = (packets + 1, payload_bytes + payload.len() as u64);
            // Without its last block, an object gets no digest. In runs that count, this affects few objects.
            if header.block == last_block {
                buffer = digest(buffer);
            }
        }
        let now = Instant::now();
        span = Some((span.map_or(now, |(first, _)| first), now));
    }
}

fn say(line: &Value) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use proto::multicast::open_downstream;

    use super::*;

    #[test]
    fn packets_are_as_receivers_take_them() {
        let (key, shape) = session();
        let payload = vec![5; usize::from(shape.block_bytes)];
        let packet = sealed(3, 2, &payload);
        let opened = open_downstream(&key, &shape, &packet).unwrap();
        assert!(matches!(opened, Downstream::Block(header, found) if header.block == 2 && found == payload));
        assert!(open_downstream(&key, &shape, &sealed(OBJECTS, 0, &[])).is_ok());
    }
}
