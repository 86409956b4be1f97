//! Figures of attached disks whose data is still at the server: the reads of a boot and a small job, replayed with an
//! empty cache over a link of 1 Gbit/s, with no added delay and with a round trip of 10 ms. They are compared with a
//! local file, full copies, and other programs that serve disks.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::{Location, Repository};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::load::touched;
use crate::machine::Machine;
use crate::nbd::stamp;
use crate::reader::{Nbd, of_file};
use crate::site::{DISK, Site, repository};
use crate::trace::Event;
use crate::way::{Place, Way};
use crate::{Group, Result};

pub(crate) const NEAR: Group = Group {
    figures: &[
        ("mirror.replay_cold", "reads of a boot and a job over 1 Gbit/s, nothing here; at most 0.70 s"),
        (
            "mirror.replay_profile",
            "reads of a boot, 1 Gbit/s, the order of an earlier boot known; at most 0.52 s",
        ),
        (
            "mirror.replay_attach",
            "reads of a boot by `diskcast attach`, 1 Gbit/s, the order at the server; at most 0.52 s",
        ),
        ("mirror.boot_bytes", "bytes over the link over the compressed chunks touched; at most 1.25"),
        (
            "mirror.boot_bytes_profile",
            "bytes over the link over the chunks touched, the order known; at most 1.05",
        ),
    ],
    measure: measure_near,
};

pub(crate) const FAR: Group = Group {
    figures: &[
        ("mirror.replay_wan", "reads of a boot and a job, 10 ms round trip, nothing here; at most 4 s"),
        (
            "mirror.replay_wan_profile",
            "reads of a boot, 10 ms, the order of an earlier boot known; at most 0.9 s",
        ),
        (
            "mirror.replay_wan_attach",
            "reads of a boot by `diskcast attach`, 10 ms, the order at the server; at most 0.9 s",
        ),
        ("mirror.boot_bytes_wan", "bytes over that link over the compressed chunks touched; at most 1.25"),
        (
            "mirror.boot_bytes_wan_profile",
            "bytes over that link over the chunks touched, 10 ms, the order known; at most 1.05",
        ),
    ],
    measure: measure_far,
};

/// The delay that is added in each direction for the far figures: half of the round trip.
const ONE_WAY: Duration = Duration::from_millis(5);
const ROUNDS: usize = 3;
/// The first cells of [`cells`], which are diskcast's.
const OURS: usize = 3;

/// The input of all replays.
pub(crate) struct Setting {
    pub machine: Arc<Machine>,
    /// The recorded reads of the boot and the job.
    pub reads: Vec<Event>,
    /// A repository with the machine's disk.
    pub repository: PathBuf,
    /// Indices of the chunks with content that the reads touch, in the order of first touch, with the bytes of their
    /// objects.
    pub touched: Vec<(u64, u32)>,
}

impl Setting {
    /// Prepares the machine and its trace, which are kept between runs, and a new repository with its disk.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let machine = Machine::new(context)?;
        let reads = machine.trace(context)?.reads();
        let repository = repository(context, &machine)?;
        let touched = touched(&repository, &reads)?;
        Ok(Self { machine: Arc::new(machine), reads, repository, touched })
    }

    fn touched_bytes(&self) -> u64 {
        self.touched.iter().map(|(_, bytes)| u64::from(*bytes)).sum()
    }

    fn words(&self) -> String {
        let mebibytes = self.reads.iter().map(|read| read.bytes).sum::<u64>() >> 20;
        format!("{} reads, {mebibytes} MiB, of a boot and a small job of Debian 12, 4 GiB", self.reads.len())
    }
}

/// The result of one replay.
struct Run {
    /// Seconds until the last answer, with the time of a full copy before it.
    seconds: f64,
    /// Latencies in ms: median, 99th percentile, longest.
    latency: [f64; 3],
    /// Bytes that the server sent.
    sent: u64,
    /// The chunks in the order of their first read, if the disk is attached in this process.
    order: Vec<u64>,
    counters: Value,
}

/// All replays of one way to use the disk.
struct Cell {
    name: String,
    flags: &'static str,
    runs: Vec<Run>,
}

impl Cell {
    fn seconds(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.seconds).collect()
    }

    /// For each run, the bytes that the server sent divided by the bytes of the touched chunks' objects.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn bytes_over(&self, setting: &Setting) -> Vec<f64> {
        self.runs.iter().map(|run| run.sent as f64 / setting.touched_bytes() as f64).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn row(&self) -> Value {
        let of = |what: &dyn Fn(&Run) -> f64| median(&self.runs.iter().map(what).collect::<Vec<_>>());
        json!({
            "disk": self.name, "runs": self.runs.len(), "replay s": of(&|run| run.seconds),
            "p50 ms": of(&|run| run.latency[0]), "p99 ms": of(&|run| run.latency[1]),
            "longest ms": of(&|run| run.latency[2]), "MiB over the link": of(&|run| run.sent as f64 / 1048576.0),
            "counters": self.runs.last().map(|run| run.counters.clone()),
        })
    }
}

/// Replays the reads on a disk of one way, with nothing cached on the host. `profile` names chunks to prefetch, in this
/// order. With `check`, compares what is read with the machine's disk.
fn replay(
    context: &Context,
    setting: &Setting,
    site: &Site,
    way: Way,
    profile: Option<&[u64]>,
    check: bool,
) -> Result<Run> {
    // Flushes the writes of the run before, which would slow down this one.
    said(&mut Command::new("sync"))?;
    let before = site.sent()?;
    let had = site.have(context, way)?;
    let begin = Instant::now();
    let replayed = match &had.place {
        Place::File(path) => of_file(path, &setting.reads)?,
        Place::Socket(socket) => {
            let mut client = Nbd::connect(socket, DISK)?;
            if let (Some(profile), Some(mirror)) = (profile, &had.mirror) {
                mirror.expect_reads(profile);
            }
            let raw = File::open(&setting.machine.disk)?;
            client.replay(
                &setting.reads,
                |read, bytes| {
                    if check { compare(&raw, read, bytes) } else { Ok(()) }
                },
            )?
        }
    };
    let seconds = had.before + begin.elapsed().as_secs_f64();
    let sent = site.sent()? - before;
    let (order, counters) = match (&had.mirror, way) {
        (Some(mirror), _) => {
            let of = mirror.counters();
            let unused = of.prefetched_unused_bytes();
            let counted = [of.demanded_chunks, of.demanded_bytes, of.prefetched_bytes, unused, of.node_bytes];
            (mirror.order(), counters(counted.map(Value::from)))
        }
        (None, Way::Program) => {
            let said = had.ask(context, &["disks", DISK], "disk")?;
            had.detach(context)?;
            let fields = [
                "demanded_chunks",
                "demanded_bytes",
                "prefetched_bytes",
                "prefetched_unused_bytes",
                "node_bytes",
            ];
            (vec![], counters(fields.map(|field| said[field].clone())))
        }
        (None, _) => (vec![], Value::Null),
    };
    let latency = [50, 99, 100].map(|percent| replayed.percentile(percent));
    Ok(Run { seconds, latency, sent, order, counters })
}

/// The counters of an attached disk, under the names of the table.
fn counters([waited, demanded, prefetched, unused, nodes]: [Value; 5]) -> Value {
    json!({
        "waited": waited, "demanded": demanded, "prefetched": prefetched, "unused": unused, "nodes": nodes,
    })
}

fn compare(raw: &File, read: &Event, bytes: &[u8]) -> Result<()> {
    let mut right = vec![0; bytes.len()];
    raw.read_exact_at(&mut right, read.offset)?;
    if right == bytes {
        return Ok(());
    }
    Err(format!("{} bytes at {} differ from the machine's disk", read.bytes, read.offset).into())
}

/// Replays by all ways with one delay: diskcast without a profile, with a profile, as the program `diskcast attach`,
/// and the `others`.
fn cells(context: &Context, setting: &Setting, one_way: Duration, others: &[Way]) -> Result<Vec<Cell>> {
    let site = Site::open(context, &setting.machine, &setting.repository, one_way, !others.is_empty())?;
    // The first replay does not count: it checks the bytes, warms the server's page cache, and yields the order.
    let order = replay(context, setting, &site, Way::Attached, None, true)?.order;
    let repository = Repository::open(&Location::Folder(setting.repository.clone()))?;
    repository.add_profile(&DISK.parse()?, 1, &order, &stamp())?;
    let cell = |name: &str, way: Way| Cell { name: name.to_owned(), flags: way.flags(), runs: vec![] };
    let mut cells = vec![
        cell("diskcast", Way::Attached),
        cell("diskcast, order known", Way::Attached),
        cell(&Way::Program.name(), Way::Program),
    ];
    cells.extend(others.iter().map(|way| cell(&way.name(), *way)));
    for round in 0..ROUNDS {
        let ours = [(Way::Attached, None), (Way::Attached, Some(&order[..])), (Way::Program, None)];
        for (cell, (way, profile)) in cells.iter_mut().zip(ours) {
            cell.runs.push(replay(context, setting, &site, way, profile, false)?);
        }
        for (cell, way) in cells[OURS..].iter_mut().zip(others) {
            // A slow cell runs once: with more runs its time would hardly be more exact.
            let slow = cell.runs.last().is_some_and(|run| run.seconds > 2.0);
            if round == 0 || !slow {
                cell.runs.push(replay(context, setting, &site, *way, None, false)?);
            }
        }
    }
    Ok(cells)
}

/// The figure of the time of `cells[cell]`. Only the first cell's figure has the table, so that it appears once.
fn figure(name: &str, bar: f64, cells: &[Cell], cell: usize, setting: &Setting, link: &str) -> Figure {
    let rows: Vec<Value> = cells.iter().map(Cell::row).collect();
    let figure = Figure::new(name, &cells[cell].seconds(), "s", Bar::AtMost(bar));
    let figure = cells[OURS..]
        .iter()
        .fold(figure, |figure, other| figure.peer(&other.name, other.flags, median(&other.seconds()), "s"));
    figure.on(&setting.words(), link).with(if cell == 0 { json!(rows) } else { Value::Null })
}

/// The figure of the bytes over the link in `cell`.
fn bytes(name: &str, bar: f64, cell: &Cell, setting: &Setting) -> Figure {
    let (chunks, encoded_bytes) = (setting.touched.len(), setting.touched_bytes());
    Figure::new(name, &cell.bytes_over(setting), "ratio", Bar::AtMost(bar)).on(
        &format!("{chunks} chunks of 256 KiB are touched, {encoded_bytes} bytes compressed"),
        "all that the server sent, Ethernet headers once for each super-frame",
    )
}

fn measure_near(context: &Context) -> Result<Vec<Figure>> {
    let setting = Setting::new(context)?;
    let cells = cells(context, &setting, Duration::ZERO, &Way::OTHERS)?;
    let link = "1 Gbit/s, the server's page cache warm, nothing on the host";
    Ok(vec![
        figure("mirror.replay_cold", 0.70, &cells, 0, &setting, link),
        figure("mirror.replay_profile", 0.52, &cells, 1, &setting, link),
        figure("mirror.replay_attach", 0.52, &cells, 2, &setting, link),
        bytes("mirror.boot_bytes", 1.25, &cells[0], &setting),
        bytes("mirror.boot_bytes_profile", 1.05, &cells[1], &setting),
    ])
}

fn measure_far(context: &Context) -> Result<Vec<Figure>> {
    let setting = Setting::new(context)?;
    let others = [Way::Copied, Way::Qemu, Way::Nbdkit, Way::Curl(&["cow"])];
    let cells = cells(context, &setting, ONE_WAY, &others)?;
    let link = "1 Gbit/s, 10 ms round trip on the link, the server's page cache warm, nothing on the host";
    Ok(vec![
        figure("mirror.replay_wan", 4.0, &cells, 0, &setting, link),
        figure("mirror.replay_wan_profile", 0.9, &cells, 1, &setting, link),
        figure("mirror.replay_wan_attach", 0.9, &cells, 2, &setting, link),
        bytes("mirror.boot_bytes_wan", 1.25, &cells[0], &setting),
        bytes("mirror.boot_bytes_wan_profile", 1.05, &cells[1], &setting),
    ])
}

/// For tuning: replays with diskcast alone at a round trip of `round_trip_ms` milliseconds, and prints all counters.
#[expect(clippy::print_stdout, reason = "a developer's tool talks to its developer")]
pub(crate) fn explore(context: &Context, round_trip_ms: &str) -> Result<()> {
    let setting = Setting::new(context)?;
    println!("{}; {} chunks", setting.words(), setting.touched.len());
    // Half of the round trip in each direction, in microseconds.
    let one_way = Duration::from_micros(round_trip_ms.parse::<u64>()? * 500);
    for cell in cells(context, &setting, one_way, &[])? {
        println!("{} {:.3?} {:.3?}", cell.name, cell.seconds(), cell.bytes_over(&setting));
        println!("{}", cell.row());
    }
    Ok(())
}

/// Writes a file for simulations: the chunks that a boot and the job touch, in the order of first touch, one line each
/// with its index and the bytes of its object.
pub(crate) fn write_order(context: &Context, path: &str) -> Result<()> {
    let setting = Setting::new(context)?;
    let mut text =
        format!("# {}: chunks of 256 KiB by their first touch, bytes of their objects\n", setting.words());
    for (index, bytes) in &setting.touched {
        writeln!(text, "{index} {bytes}")?;
    }
    Ok(std::fs::write(path, text)?)
}
