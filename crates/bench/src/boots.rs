//! Figures of many machines that start from one image at the same moment, over one slow link of their server.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use image::{Cipher, Manifest};
use mirror::machine::Counters;
use mirror::nbd::{Export, ExportTable, Server};
use mirror::{Mirror, MirrorOptions, MulticastOptions, Served, Source, Swarm};
use net::client::Client;
use net::clock::Stop;
use net::peer::{PeerOptions, SpoolLimits};
use serde_json::json;
use store::{Location, Repository, Stamp};

use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::reader::Nbd;
use crate::replay::Setting;
use crate::room::{Room, star};
use crate::site::DISK;
use crate::trace::Event;
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "mirror.sixteen_boots",
            "16 boots replayed over the server's 50 Mbit/s, last over one alone; at most 1.2",
        ),
        ("mirror.sixteen_boots_bytes", "what the server sent for 16, over that for one; at most 1.5"),
    ],
    measure,
};

pub(crate) const MACHINES: u32 = 16;
/// Rate of each machine's link.
const RATE: u64 = 1_000_000_000;
/// Rate of the server's link.
const SERVER_RATE: u64 = 50_000_000;
/// Buffer of the server's link: 42 ms.
const SERVER_BUFFER_BYTES: u64 = 256 << 10;
const ROUNDS: usize = 3;
const PORT: u16 = 7717;
const CLIENTS_MAX: usize = 4;

/// Where a machine's data comes from, beside the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    Nothing,
    Multicast,
    Peers,
}

/// What a machine needs to know to start.
pub(crate) struct Start {
    url: String,
    token: String,
    order: Vec<u64>,
    pub reads: Vec<Event>,
}

impl Start {
    /// A room of [`MACHINES`] machines whose server has a slow link, and what they need to know. The order in which the
    /// disk is read is known.
    pub(crate) fn new(context: &Context) -> Result<(Room, Arc<Self>)> {
        let setting = Setting::new(context)?;
        let order: Vec<u64> = setting.touched.iter().map(|(chunk, _)| *chunk).collect();
        let stamp = Stamp { created: "2026-11-22T00:00:00Z".to_owned(), creator: "bench".to_owned() };
        let repository = Repository::open(&Location::Folder(setting.repository.clone()))?;
        repository.add_profile(&DISK.parse()?, 1, &order, &stamp)?;
        let room = Room::open_with(context, &[&setting.repository], &star(MACHINES, RATE, 0))?;
        room.star.shape_host(0, SERVER_RATE, SERVER_BUFFER_BYTES)?;
        let url = format!("https://{}:{PORT}", room.star.host(0).ipv4());
        let token = std::fs::read_to_string(room.token(0))?.trim().to_owned();
        Ok((room, Arc::new(Self { url, token, order, reads: setting.reads })))
    }
}

/// The links of a room.
pub(crate) const LINKS: &str =
    "50 Mbit/s and 256 KiB of buffer at the server, 1 Gbit/s at each machine, the order known";

/// Machines that started together.
struct Started {
    /// Time until each had replayed its reads, ascending.
    seconds: Vec<f64>,
    /// Bytes that the server sent, with Ethernet headers.
    sent: u64,
    counters: Vec<Counters>,
}

impl Started {
    fn last(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    fn words(&self) -> serde_json::Value {
        let sum = |of: fn(&Counters) -> u64| self.counters.iter().map(of).sum::<u64>();
        json!({
            "seconds": self.seconds, "sent": self.sent, "by multicast": sum(|of| of.arrived_bytes),
            "demanded": sum(|of| of.demanded_bytes), "prefetched": sum(|of| of.prefetched_bytes),
            "nodes": sum(|of| of.node_bytes), "waited": sum(|of| of.demanded_chunks),
        })
    }
}

/// A machine in the host of this thread: attaches the disk and replays its reads. The disk stays attached.
pub(crate) fn boot(start: &Start, with: With, folder: &Path) -> Result<Arc<Mirror>> {
    let words = |error: &dyn std::error::Error| base::chain(error);
    let options = Source::client_options(Cipher::None, Stop::new());
    let client = Client::connect(&start.url, &start.token.parse()?, options)?;
    let client = Arc::new(client);
    let manifest = client.manifest(DISK).map_err(|error| words(&error))?;
    let manifest = Manifest::decode(&manifest).map_err(|error| words(&error))?;
    let source = Source::server("server", Arc::clone(&client));
    let spool = SpoolLimits::of_attached_disk();
    let swarm = Swarm::of(&client, PeerOptions { spool, ..PeerOptions::of_this_machine() }, |_| {});
    let source = if with == With::Peers { source.with_peers(&swarm, None) } else { source };
    let mirror =
        Mirror::create(&folder.join("attached"), &manifest, vec![source], &MirrorOptions::default())?;
    let mirror = Arc::new(mirror);
    match with {
        With::Nothing => {}
        With::Multicast => mirror.join_multicast(MulticastOptions::of(&client, Some("eth0"), "machine")?)?,
        With::Peers => mirror.join_swarm(&swarm)?,
    }
    mirror.expect_reads(&start.order);
    let socket = folder.join("socket");
    let table = Arc::new(ExportTable::default());
    table.insert(DISK, Export { disk: mirror.clone(), description: String::new() })?;
    let server = Server::new(table, CLIENTS_MAX, Arc::new(|_| {}));
    server.listen_unix(UnixListener::bind(&socket)?)?;
    Nbd::connect(&socket, DISK)?.replay(&start.reads, |_, _| Ok(()))?;
    Ok(mirror)
}

/// Starts the first `machines` hosts at the same moment.
fn boot_at_once(context: &Context, room: &Room, start: &Arc<Start>, machines: u32) -> Result<Started> {
    let before = room.star.sent_on_wire(0)?;
    let ready = Arc::new(Barrier::new(machines as usize));
    let mut booting = Vec::new();
    for host in 1..=machines {
        let (start, ready, folder) = (Arc::clone(start), Arc::clone(&ready), context.folder()?);
        let run = move || -> std::result::Result<(f64, Counters), String> {
            ready.wait();
            let begin = Instant::now();
            let mirror = boot(&start, With::Multicast, &folder).map_err(|error| base::chain(&*error))?;
            let (seconds, counters) = (begin.elapsed().as_secs_f64(), mirror.counters());
            mirror.close().map_err(|error| base::chain(&error))?;
            Ok((seconds, counters))
        };
        booting.push(room.star.host(host).run(run)?);
    }
    let mut started = Started { seconds: Vec::new(), sent: 0, counters: Vec::new() };
    for machine in booting {
        let (seconds, counters) = machine.join().map_err(|_| "a machine panicked")??;
        started.seconds.push(seconds);
        started.counters.push(counters);
    }
    started.sent = room.star.sent_on_wire(0)? - before;
    started.seconds.sort_by(f64::total_cmp);
    Ok(started)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (room, start) = Start::new(context)?;
    let alone = boot_at_once(context, &room, &start, 1)?;
    let rounds = (0..ROUNDS).map(|_| boot_at_once(context, &room, &start, MACHINES));
    let together = rounds.collect::<Result<Vec<_>>>()?;
    let words =
        format!("{} reads of a boot and a small job of Debian 12, {MACHINES} at once", start.reads.len());
    let words_together: Vec<_> = together.iter().map(Started::words).collect();
    let details = json!({ "alone": alone.words(), "together": words_together });
    let times: Vec<f64> = together.iter().map(|round| round.last() / alone.last()).collect();
    let bytes: Vec<f64> = together.iter().map(|round| round.sent as f64 / alone.sent as f64).collect();
    Ok(vec![
        Figure::new("mirror.sixteen_boots", &times, "ratio", Bar::AtMost(1.2))
            .peer("one alone", "", alone.last(), "s")
            .on(&words, LINKS)
            .with(details),
        Figure::new("mirror.sixteen_boots_bytes", &bytes, "ratio", Bar::AtMost(1.5)).on(&words, LINKS),
    ])
}
