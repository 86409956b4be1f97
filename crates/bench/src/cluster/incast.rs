//! Incast: many devices that answer one client at the same time overflow the buffer of its switch port. Figures 2 and 3
//! of seed 002, and the layout of two levels that avoids it.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use object_store::ObjectStoreExt as _;
use serde_json::{Value, json};

use super::flat::{self, Component, Fared};
use super::rack::{DEVICE_PORT, Rack, name};
use super::sequence::{Sent, watch};
use super::tcp::{Losses, Tcp, losses};
use crate::context::{Context, said};
use crate::figure::{Bar, Figure};
use crate::threads::each;
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "cluster.incast",
            "bandwidth of a client of 31 devices through a switch port with 64 KiB over that of a flat layout at its \
             best width, 2004's TCP and today's, 1 and 8 contents at a time, the worst; at least 0.9",
        ),
        (
            "cluster.incast_flat",
            "a flat layout over all 31 devices over the same at its best width, 2004's TCP; shown",
        ),
        (
            "cluster.incast_sequence",
            "30 devices and receive buffers of 256 KB over 10 and 64 KB, a flat layout, 2004's TCP (0.25 in the seed); \
             shown",
        ),
    ],
    measure,
};

pub(super) const DEVICES: u32 = 31;
const WIDTHS: [usize; 11] = [3, 5, 7, 9, 11, 13, 15, 19, 23, 27, 31];
/// The client's link.
const RATE: u64 = 400_000_000;
/// The buffer of the client's switch port.
const BUFFER_BYTES: u64 = 64 << 10;
/// What a device gives in the long run, as its disk would: seven of them fill the client's link, as in the seed.
const DISK_RATE: u64 = RATE / 7;
/// What it gives at once, as much as it has read ahead.
const AHEAD_BYTES: u64 = 1 << 20;
/// What a client asks for at once. The seed's had 8 MB on a link of 1 Gbit/s: it takes as long.
const BLOCK_BYTES: u64 = 3 << 20;
/// The receive buffer of a connection that the seed's clients had at first.
const RECEIVE_BYTES: u64 = 256 << 10;
/// The same later.
const SMALL_BYTES: u64 = 64 << 10;
/// How long each layout is read.
const TIME: Duration = Duration::from_secs(3);
const SESSIONS: u64 = 6;
pub(super) const CONTENTS: u64 = 9;
const CONTENT_BYTES: usize = 16 << 20;

/// A rack with one client, on whose devices as many sessions have put contents.
pub(super) fn filled(context: &Context, sessions: u64) -> Result<Rack> {
    context.calm()?;
    let rack = Rack::start(context, DEVICES, 1)?;
    for session in 0..sessions {
        rack.put(session * CONTENTS, CONTENTS, CONTENT_BYTES)?;
    }
    rack.until("all segments to be sealed", |status| status.segments_open == 0)?;
    Ok(rack)
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let rack = filled(context, SESSIONS)?;
    shape(&rack, BUFFER_BYTES)?;
    let mut all = vec![];
    for tcp in [Tcp::Then, Tcp::Now] {
        set(&rack, tcp, if tcp == Tcp::Then { RECEIVE_BYTES } else { Tcp::RECEIVE_BYTES })?;
        all.push(layouts(&rack, tcp)?);
    }
    let mut figures = figures(&all);
    figures.push(sequences(&rack)?);
    Ok(figures)
}

fn set(rack: &Rack, tcp: Tcp, receive_bytes: u64) -> Result<()> {
    let mut hosts = rack.device_hosts().chain([rack.client_host(0)]);
    hosts.try_for_each(|host| tcp.apply(rack.star.host(host), receive_bytes))
}

/// The client behind its port, the devices behind their disks. Senders send frame by frame, so that the buffer loses
/// frames.
pub(super) fn shape(rack: &Rack, buffer_bytes: u64) -> Result<()> {
    rack.star.shape_host(rack.client_host(0), RATE, buffer_bytes)?;
    for host in rack.device_hosts() {
        let host = rack.star.host(host);
        let (rate, ahead) = (DISK_RATE.to_string(), AHEAD_BYTES.to_string());
        let disk = ["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", &rate, "burst", &ahead];
        said(host.command("tc").args(disk).args(["limit", &(4 * AHEAD_BYTES).to_string()]))?;
        said(host.command("ethtool").args(["-K", "eth0", "tso", "off", "gso", "off"]))?;
    }
    Ok(())
}

/// What one layout brought.
pub(super) struct Brought {
    /// Its share of the client's link.
    pub(super) share: f64,
    pub(super) losses: Losses,
}

/// What all layouts brought with one TCP.
struct Layouts {
    tcp: Tcp,
    /// By [`WIDTHS`].
    flat: Vec<Brought>,
    /// The product, with one and with eight contents at a time.
    one: Brought,
    eight: Brought,
}

impl Layouts {
    fn best(&self) -> f64 {
        self.flat.iter().map(|flat| flat.share).fold(0.0, f64::max)
    }
}

fn layouts(rack: &Rack, tcp: Tcp) -> Result<Layouts> {
    let components = components(rack)?;
    let flat = WIDTHS.iter().map(|&width| brought(rack, || read_flat(rack, &components[..width])));
    let flat = flat.collect::<Result<_>>()?;
    let contents = SESSIONS * CONTENTS;
    let striped = |at_once| brought(rack, || striped(rack, contents, at_once));
    let (one, eight) = (striped(1)?, striped(8)?);
    Ok(Layouts { tcp, flat, one, eight })
}

/// A component of each device.
pub(super) fn components(rack: &Rack) -> Result<Vec<Component>> {
    let (metadata, token) = rack.metadata_access()?;
    let find = move || flat::components(metadata, &token);
    let client = rack.star.host(rack.client_host(0));
    Ok(client.run(find)?.join().map_err(|_| "asking the devices panicked")??)
}

/// The share of the link that a reader got, and what the devices' senders went through meanwhile.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) fn brought(rack: &Rack, read: impl FnOnce() -> Result<Fared>) -> Result<Brought> {
    let before = losses(&rack.star, rack.device_hosts())?;
    let Fared { bytes, seconds } = read()?;
    let share = bytes as f64 * 8.0 / seconds / RATE as f64;
    Ok(Brought { share, losses: losses(&rack.star, rack.device_hosts())? - before })
}

pub(super) fn read_flat(rack: &Rack, components: &[Component]) -> Result<Fared> {
    let chosen = components.to_vec();
    let read = move || flat::read(&chosen, BLOCK_BYTES, TIME);
    Ok(rack.star.host(rack.client_host(0)).run(read)?.join().map_err(|_| "reading panicked")??)
}

/// The product reads whole contents, so many at a time.
pub(super) fn striped(rack: &Rack, contents: u64, at_once: usize) -> Result<Fared> {
    let read = move |client: cluster::client::Cluster| {
        let began = Instant::now();
        let numbers: Vec<u64> = (0..contents).collect();
        let bytes = std::sync::atomic::AtomicU64::new(0);
        each(&numbers, at_once, |&number| {
            if began.elapsed() >= TIME {
                return Ok(());
            }
            let read = block_on(async { client.get(&name(number)).await?.bytes().await });
            let read = read.map_err(|error| error.to_string())?;
            bytes.fetch_add(read.len() as u64, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, String>(())
        })?;
        Ok(Fared { bytes: bytes.into_inner(), seconds: began.elapsed().as_secs_f64() })
    };
    rack.with_client(rack.client_host(0), read)?.end()
}

fn figures(all: &[Layouts]) -> Vec<Figure> {
    let workload = "blocks of 3 MiB, or whole contents of 16 MiB; 400 Mbit/s, each device a seventh of that";
    let product = all.iter().flat_map(|tcp| [&tcp.one, &tcp.eight].map(|brought| brought.share / tcp.best()));
    let worst = product.fold(f64::INFINITY, f64::min);
    let mut figure = Figure::new("cluster.incast", &[worst], "ratio", Bar::AtLeast(0.9));
    for tcp in all {
        for (what, brought) in [("1 at a time", &tcp.one), ("8 at a time", &tcp.eight)] {
            figure = figure.peer(
                "diskcast",
                &format!("{what}, {}", tcp.tcp.words()),
                brought.share,
                "of the link",
            );
        }
        figure = figure.peer("flat, best width", tcp.tcp.words(), tcp.best(), "of the link");
    }
    let rows: Vec<Value> = (0..WIDTHS.len()).map(|at| row(all, at)).collect();
    let last = all[0].flat.last().map_or(f64::NAN, |flat| flat.share) / all[0].best();
    vec![
        figure.on(workload, super::LAB).with(json!(rows)),
        Figure::new("cluster.incast_flat", &[last], "ratio", Bar::Shown).on(workload, super::LAB),
    ]
}

fn row(all: &[Layouts], at: usize) -> Value {
    let mut row = json!({ "width": WIDTHS[at] });
    for tcp in all {
        let Brought { share, losses } = &tcp.flat[at];
        row[format!("{}: share of the link", tcp.tcp.words())] = (*share).into();
        row[format!("{}: timeouts", tcp.tcp.words())] = losses.timeouts.into();
        row[format!("{}: segments sent again", tcp.tcp.words())] = losses.resent.into();
    }
    row
}

/// What one device sends: with many devices and large receive buffers, and with few and small ones.
fn sequences(rack: &Rack) -> Result<Figure> {
    let (mut shares, mut rows) = (vec![], vec![]);
    for (devices, receive_bytes) in [(30, RECEIVE_BYTES), (10, SMALL_BYTES)] {
        set(rack, Tcp::Then, receive_bytes)?;
        let components = components(rack)?;
        let device = rack.star.host(*rack.device_hosts().start());
        let mut sent = vec![];
        let brought = brought(rack, || {
            let (fared, seen) = watch(device, DEVICE_PORT, || read_flat(rack, &components[..devices]))?;
            sent = seen;
            Ok(fared)
        })?;
        shares.push(brought.share);
        rows.push(sequence_row(devices, receive_bytes, &brought, &sent));
    }
    let figure = Figure::new("cluster.incast_sequence", &[shares[0] / shares[1]], "ratio", Bar::Shown);
    Ok(figure.on("blocks of 3 MiB, 400 Mbit/s", super::LAB).with(json!(rows)))
}

#[expect(clippy::cast_precision_loss, reason = "points of a plot")]
fn sequence_row(devices: usize, receive_bytes: u64, brought: &Brought, sent: &[Sent]) -> Value {
    let round = |number: f64, digits: f64| (number * digits).round() / digits;
    let point = |sent: &Sent| json!([round(sent.at, 1e3), round(sent.byte as f64 / 1e6, 1e3)]);
    // One point for each 8 segments is enough for a line, but none that was sent again is left out.
    let fresh: Vec<Value> = sent.iter().filter(|sent| !sent.again).step_by(8).map(point).collect();
    let again: Vec<Value> = sent.iter().filter(|sent| sent.again).map(point).collect();
    json!({
        "devices": devices, "receive buffer KB": receive_bytes >> 10,
        "MB/s": brought.share * RATE as f64 / 8e6, "timeouts": brought.losses.timeouts,
        "segments sent again": brought.losses.resent, "sent": [fresh], "again": [again],
    })
}
