//! A neighbour without a token floods the group of a session.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::Star;
use serde_json::json;

use super::{HOSTS, NEIGHBOUR, RATE, SINK};
use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, collect, last, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "hostile.flood_full",
            "last of 2 hosts while a neighbour sends full packets to the group at half the link's rate, over without; \
             at most 2.2",
        ),
        (
            "hostile.flood_small",
            "last of 2 hosts while a neighbour sends packets of 64 bytes at half the rate, over without; at most 2.2",
        ),
    ],
    measure,
};

const MEBIBYTES: u64 = 64;
const RUNS: usize = 3;
/// Bytes of a frame besides its UDP payload: Ethernet as the lab's shaper counts it, IPv4, UDP.
const HEADERS: u64 = 14 + 20 + 8;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let workload = format!("{}, 100 Mbit/s links, median of {RUNS}", load.words);
    let mut without = vec![];
    for _ in 0..RUNS {
        without.push(run(context, &repo, load, None)?);
    }
    let without = median(&without);
    let mut figures = vec![];
    for (name, payload) in [("hostile.flood_full", 1472), ("hostile.flood_small", 22)] {
        let mut times = vec![];
        for _ in 0..RUNS {
            times.push(run(context, &repo, load, Some(payload))?);
        }
        let rows = json!([{
            "without s": without, "with s": median(&times), "runs s": times, "payload bytes": payload,
        }]);
        figures.push(
            Figure::new(name, &[median(&times) / without], "ratio", Bar::AtMost(2.2))
                .on(&workload, SINK)
                .with(rows),
        );
    }
    Ok(figures)
}

/// Seconds until the last host has everything, while packets with `flood` bytes of payload go to the session's group.
fn run(context: &Context, repo: &Path, load: &Load, flood: Option<usize>) -> Result<f64> {
    let mut room = Room::open_with(context, &[repo], &star(NEIGHBOUR, RATE, 0))?;
    let mut crew = Crew::new();
    let members = (1..=HOSTS)
        .map(|host| crew.start(&mut room.fetch_command(host, 0, &load.name, "null:")))
        .collect::<Result<Vec<_>>>()?;
    let group = room.group_of_session()?;
    let flood = flood.map(|payload| Flood::start(&room.star, group, payload)).transpose()?;
    let fetched = collect(&mut crew, &members)?;
    if let Some(flood) = flood {
        let bytes = flood.stop()?;
        // A flood that was not one would prove nothing.
        let rate = 8.0 * bytes / last(&fetched);
        let wanted = f64::from(u32::try_from(RATE / 2)?);
        if rate < 0.8 * wanted {
            return Err(format!("the neighbour sent {rate:.0} instead of {wanted:.0} bits per second").into());
        }
    }
    Ok(last(&fetched))
}

/// A neighbour that sends to a group at half the rate of its link.
struct Flood {
    over: Arc<AtomicBool>,
    sender: JoinHandle<std::io::Result<f64>>,
}

impl Flood {
    fn start(star: &Star, group: SocketAddr, payload: usize) -> Result<Self> {
        let address = (star.host(NEIGHBOUR).ipv4(), 0);
        // A socket stays in the network namespace in which it was opened.
        let socket = star.host(NEIGHBOUR).run(move || UdpSocket::bind(address))?.join().expect("binds")?;
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let sender = std::thread::spawn(move || send(&socket, group, payload, &until));
        Ok(Self { over, sender })
    }

    /// Ends it; returns the bytes that it has sent, with all headers.
    fn stop(self) -> Result<f64> {
        self.over.store(true, Ordering::Release);
        Ok(self.sender.join().map_err(|_| "the flood failed")??)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn send(socket: &UdpSocket, group: SocketAddr, payload: usize, over: &AtomicBool) -> std::io::Result<f64> {
    let (packet, frame) = (vec![0xa5; payload], payload as u64 + HEADERS);
    let (start, mut sent) = (Instant::now(), 0_u64);
    while !over.load(Ordering::Acquire) {
        let due = start.elapsed().as_secs_f64() * (RATE / 2) as f64 / 8.0;
        while ((sent * frame) as f64) < due {
            socket.send_to(&packet, group)?;
            sent += 1;
        }
        std::thread::park_timeout(Duration::from_micros(500));
    }
    Ok((sent * frame) as f64)
}
