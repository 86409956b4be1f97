//! Figures of the object cluster: ten devices with 8 + 2, each a process of its own on this machine and its one disk,
//! so that client, devices and peers share the same cores and disk.

mod contiguity;
mod faults;
mod flat;
mod incast;
mod minio;
mod peer;
mod plots;
mod prefetch;
mod rack;
mod rebuild;
mod scaling;
mod sequence;
mod simulated;
mod sweep;
mod tcp;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use base::Chance;
use bytes::Bytes;
use cluster::client::{Cluster, ClusterAccess};
use futures::executor::block_on;
use lab::Engine;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _};
use serde_json::{Value, json};

use crate::context::{Context, json_line, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::threads::each;
use crate::{Group, Result, load};

use peer::Peer;
pub(crate) use plots::write as write_plot;

pub(crate) const GROUPS: &[&Group] = &[
    &GROUP,
    &scaling::GROUP,
    &incast::GROUP,
    &sweep::GROUP,
    &rebuild::GROUP,
    &contiguity::GROUP,
    &minio::GROUP,
    &prefetch::GROUP,
    &simulated::GROUP,
    &faults::GROUP,
];

/// Where the parts of a cluster in the lab are.
const LAB: &str = "processes on one machine, each in a network namespace of its own; data in the page cache";

const GROUP: Group = Group {
    figures: &[
        (
            "cluster.capture",
            "capture into 8+2 on ten devices over capture into a folder, bytes that reach the disk; at least 0.8",
        ),
        ("cluster.install", "install from there over install from the folder; at least 0.8"),
        ("cluster.space", "bytes on the disks over the bytes stored, after that capture; at most 1.30"),
        (
            "cluster.put",
            "durable puts of 16 MiB over object_store with fsync, bytes that reach the disk; at least 0.8",
        ),
        ("cluster.get", "cached gets of 16 MiB over versitygw, read by curl, both with TLS; at least 1.0"),
        ("cluster.degraded", "gets with two of ten devices killed over gets with all; at least 0.7"),
        ("cluster.tls_put", "puts with TLS over puts to a cluster with --no-tls; shown"),
        ("cluster.tls_get", "cached gets with TLS over gets from a cluster with --no-tls; shown"),
    ],
    measure,
};

const RUNS: usize = 3;
const OBJECT_BYTES: usize = 16 << 20;
/// Objects of one round, and how many of them are under way at the same time.
const OBJECTS: usize = 40;
const IN_FLIGHT: usize = 8;
/// What parity adds to each byte: 8 + 2.
const WRITTEN: f64 = 1.25;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let trial = Trial::start(context, 17400, &[])?;
    let mut figures = images(context, &trial)?;
    figures.extend(cost_of_tls(context, &trial)?);
    figures.extend(objects(context, &trial)?);
    Ok(figures)
}

/// A cluster that runs until this is dropped.
struct Trial {
    child: Child,
    folder: PathBuf,
    location: String,
    pids: Vec<u64>,
}

impl Trial {
    fn start(context: &Context, port: u16, more: &[&str]) -> Result<Self> {
        let folder = context.folder()?.join("try");
        let mut command = Command::new(&context.diskcast);
        command.args(["cluster", "try", "--json", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(more).arg(&folder);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let started: Value = serde_json::from_str(&line)?;
        let processes = started["processes"].as_array().ok_or("no processes")?;
        let devices = processes
            .iter()
            .filter(|part| part["name"].as_str().is_some_and(|name| name.starts_with("device")));
        Ok(Self {
            pids: devices.filter_map(|part| part["pid"].as_u64()).collect(),
            location: started["location"].as_str().ok_or("no location")?.to_owned(),
            child,
            folder,
        })
    }

    fn token(&self) -> PathBuf {
        self.folder.join("cluster.token")
    }

    fn client(&self) -> Result<Cluster> {
        let token = std::fs::read_to_string(self.token())?.parse()?;
        Ok(Cluster::open(&ClusterAccess::parse(&self.location, token)?)?)
    }

    /// Bytes of the devices' folders on the disk.
    fn on_disk(&self) -> Result<f64> {
        let mut total = 0.0;
        for device in 1..=self.pids.len() {
            let folder = self.folder.join(format!("device-{device:02}"));
            let said = said(Command::new("du").args(["--block-size=1", "--summarize"]).arg(folder))?;
            total += said.split_whitespace().next().ok_or("du said nothing")?.parse::<f64>()?;
        }
        Ok(total)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn images(context: &Context, trial: &Trial) -> Result<Vec<Figure>> {
    let disk = load::system_disk(context)?;
    let (mut captures, mut installs, mut rows) = (vec![], vec![], vec![]);
    let before = trial.on_disk()?;
    let mut space = f64::NAN;
    for run in 0..RUNS {
        let folder = context.folder()?;
        let name = format!("bench-{run}");
        let work = |command: &mut Command, words: &[&str]| {
            said(Command::new("sync").arg("-f").arg(&context.scratch))?;
            timed(command.env("DISKCAST_CACHE", "off").args(words))
        };
        let text = disk.to_string_lossy().into_owned();
        let near = work(&mut context.diskcast(&folder), &["capture", &text, &name])?;
        // The same content again would be found there: each run has a repository of its own.
        let group = format!("{}/{}", trial.location, run + 10);
        let far_command = || {
            let mut command = context.diskcast(Path::new(&group));
            command.env("DISKCAST_CLUSTER_TOKEN", trial.token());
            command
        };
        let far = work(&mut far_command(), &["capture", &text, &name])?;
        captures.push(WRITTEN * near.seconds / far.seconds);
        if run == 0 {
            let captured = json_line(&far.output, "captured")?;
            let stored = captured["encoded_bytes"].as_u64();
            let stored = stored.ok_or_else(|| format!("no size in {captured}"))? as f64;
            space = (settled(trial)? - before) / stored;
        }
        let target = context.folder()?;
        let out = |place: &str| target.join(place).to_string_lossy().into_owned();
        let from_folder = work(&mut context.diskcast(&folder), &["install", &name, &out("near.img")])?;
        let from_cluster = work(&mut far_command(), &["install", &name, &out("far.img")])?;
        installs.push(from_folder.seconds / from_cluster.seconds);
        rows.push(json!({
            "capture into a folder s": near.seconds, "into the cluster s": far.seconds,
            "install from the folder s": from_folder.seconds, "from the cluster s": from_cluster.seconds,
        }));
        std::fs::remove_dir_all(&target)?;
        std::fs::remove_dir_all(&folder)?;
    }
    let workload = "ext4 disk of system files, page cache";
    let sink = "ten device processes and a folder on one disk, durable";
    Ok(vec![
        Figure::new("cluster.capture", &captures, "ratio", Bar::AtLeast(0.8))
            .on(workload, sink)
            .with(json!(rows)),
        Figure::new("cluster.install", &installs, "ratio", Bar::AtLeast(0.8)).on(workload, sink),
        Figure::new("cluster.space", &[space], "ratio", Bar::AtMost(1.3)).on(workload, sink),
    ])
}

/// Bytes on the disks when all segments are sealed: what was laid out for more is given back.
fn settled(trial: &Trial) -> Result<f64> {
    for _ in 0..100 {
        let token = std::fs::read_to_string(trial.token())?.parse()?;
        let status = Cluster::status(&ClusterAccess::parse(&trial.location, token)?)?;
        if status.segments_open == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    said(&mut Command::new("sync"))?;
    trial.on_disk()
}

fn objects(context: &Context, trial: &Trial) -> Result<Vec<Figure>> {
    let contents: Vec<Bytes> = (0..OBJECTS as u64).map(random).collect();
    let client = trial.client()?;
    let gateway = Peer::start(context, Engine::VersityGw)?;
    let (mut puts, mut gets, mut rates) = (vec![], vec![], Rates::default());
    for run in 0..RUNS {
        said(&mut Command::new("sync"))?;
        let folder = context.folder()?;
        let plain = LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true);
        let theirs = put(&plain, run, &contents)?;
        said(&mut Command::new("sync"))?;
        let ours = put(&client, run, &contents)?;
        std::fs::remove_dir_all(&folder)?;
        puts.push(WRITTEN * ours / theirs);
        rates.put.push(ours);
        rates.folder_put.push(theirs);
    }
    gateway.put(&contents[0], OBJECTS)?;
    for run in 0..RUNS {
        let theirs = megabytes(OBJECTS) / gateway.get(OBJECTS, IN_FLIGHT)?;
        let ours = get(&client, run, &contents)?;
        gets.push(ours / theirs);
        rates.get.push(ours);
        rates.curl_get.push(theirs);
    }
    // Two devices die; a client that knows nothing of it reads.
    for pid in &trial.pids[2..4] {
        said(Command::new("kill").args(["-KILL", &pid.to_string()]))?;
    }
    let survivor = trial.client()?;
    let mut degraded = Vec::new();
    for run in 0..RUNS {
        let rate = get(&survivor, run, &contents)?;
        rates.degraded.push(rate);
        degraded.push(rate / median(&rates.get));
    }
    let workload = "40 random objects of 16 MiB, 8 at a time";
    let sink = "ten device processes on one disk, TLS on loopback, also of versitygw";
    Ok(vec![
        Figure::new("cluster.put", &puts, "ratio", Bar::AtLeast(0.8))
            .peer("object_store", "LocalFileSystem with fsync", median(&rates.folder_put), "MB/s")
            .peer("diskcast", "of content, 1.25 times as much on the disk", median(&rates.put), "MB/s")
            .on(workload, sink),
        Figure::new("cluster.get", &gets, "ratio", Bar::AtLeast(1.0))
            .peer("versitygw", "read by 8 processes of curl", median(&rates.curl_get), "MB/s")
            .peer("diskcast", "verified", median(&rates.get), "MB/s")
            .on(workload, sink),
        Figure::new("cluster.degraded", &degraded, "ratio", Bar::AtLeast(0.7))
            .peer("diskcast", "all ten devices", median(&rates.get), "MB/s")
            .peer("diskcast", "two killed", median(&rates.degraded), "MB/s")
            .on(workload, sink),
    ])
}

#[derive(Default)]
struct Rates {
    put: Vec<f64>,
    folder_put: Vec<f64>,
    get: Vec<f64>,
    curl_get: Vec<f64>,
    degraded: Vec<f64>,
}

fn random(seed: u64) -> Bytes {
    let mut content = vec![0; OBJECT_BYTES];
    Chance::from_seed(seed).fill(&mut content);
    Bytes::from(content)
}

fn name(run: usize, number: usize) -> ObjectPath {
    ObjectPath::from(format!("put/{run}/{number}"))
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn megabytes(objects: usize) -> f64 {
    (objects * OBJECT_BYTES) as f64 / 1e6
}

/// MB/s of durable puts.
fn put(store: &impl ObjectStore, run: usize, contents: &[Bytes]) -> Result<f64> {
    let items: Vec<(usize, &Bytes)> = contents.iter().enumerate().collect();
    let start = Instant::now();
    each(&items, IN_FLIGHT, |(number, content)| {
        let name = name(run, *number);
        block_on(store.put(&name, (*content).clone().into())).map(drop).map_err(|error| error.to_string())
    })?;
    Ok(megabytes(contents.len()) / start.elapsed().as_secs_f64())
}

/// MB/s of gets, compared with what was put after the clock has stopped.
fn get(store: &Cluster, run: usize, contents: &[Bytes]) -> Result<f64> {
    let items: Vec<(usize, &Bytes)> = contents.iter().enumerate().collect();
    let start = Instant::now();
    each(&items, IN_FLIGHT, |(number, content)| {
        let read = block_on(async { store.get(&name(run, *number)).await?.bytes().await });
        let read = read.map_err(|error| error.to_string())?;
        if read.len() == content.len() { Ok(()) } else { Err(format!("{number} came back short")) }
    })?;
    Ok(megabytes(contents.len()) / start.elapsed().as_secs_f64())
}

/// What TLS costs: the same objects to and from a cluster with it and one without.
fn cost_of_tls(context: &Context, secure: &Trial) -> Result<Vec<Figure>> {
    let contents: Vec<Bytes> = (0..OBJECTS as u64).map(random).collect();
    let plain = Trial::start(context, 17500, &["--no-tls"])?;
    let sides = [secure.client()?, plain.client()?];
    let (mut puts, mut gets) = ([vec![], vec![]], [vec![], vec![]]);
    for run in RUNS..2 * RUNS {
        for (side, client) in sides.iter().enumerate() {
            said(&mut Command::new("sync"))?;
            puts[side].push(put(client, run, &contents)?);
            gets[side].push(get(client, run, &contents)?);
        }
    }
    let figure = |name, [with, without]: [Vec<f64>; 2]| {
        let ratios: Vec<_> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
        Figure::new(name, &ratios, "ratio", Bar::Shown)
            .peer("diskcast", "plain HTTP", median(&without), "MB/s")
            .peer("diskcast", "TLS", median(&with), "MB/s")
            .on(
                "40 random objects of 16 MiB, 8 at a time",
                "two clusters of ten device processes on one disk",
            )
    };
    Ok(vec![figure("cluster.tls_put", puts), figure("cluster.tls_get", gets)])
}
