//! Figures of BitTorrent: `fetch --torrent` beside multicast and beside aria2 with opentracker, and what crosses a slow
//! link between two switches. Targets are files in memory (tmpfs).

use std::path::Path;
use std::time::Duration;

use lab::{StarOptions, SwitchOptions};
use serde_json::{Value, json};

use crate::context::{Context, said};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::peer::{PEERS, Trial};
use crate::room::{Fetched, Room, collect, star};
use crate::transfer::{Load, library};
use crate::{Group, Result, load};

pub(crate) const GROUPS: &[&Group] = &[&COMPARED, &SWITCHES, &START];

const COMPARED: Group = Group {
    figures: &[
        ("torrent.one_host", "time of one host by BitTorrent over that by multicast; at most 1.10"),
        ("torrent.vs_aria2", "last of 16 hosts over the last with aria2 and opentracker; at most 1.0"),
        ("torrent.last_vs_mean", "last of these 16 hosts over their mean; at most 1.10"),
    ],
    measure: compared,
};

const SWITCHES: Group = Group {
    figures: &[(
        "torrent.two_switches",
        "images over the link between two switches, to 4 hosts at the server's and 8 at the other; at most 1.5",
    )],
    measure: two_switches,
};

const START: Group = Group {
    figures: &[(
        "torrent.start",
        "seconds until a server that has just started gives the torrent of a version that was hashed before; at \
         most 0.2",
    )],
    measure: start,
};

const RUNS: usize = 3;
const RATE: u64 = 200_000_000;
const HOSTS: u32 = 16;
const NEAR: u32 = 4;
const FAR: u32 = 8;
const MEBIBYTES: u64 = 128;
/// A run of another tool ends when it takes this many times as long as ours.
const PATIENCE: f64 = 4.0;
const SINK: &str = "files in tmpfs, read back";
/// How long hosts serve each other afterwards.
const SERVES: &str = "20s";
/// What server and hosts are told.
const OPTIONS: &str = "serve --torrent --no-multicast, fetch --torrent --serve-for 20s";

/// All hosts fetch at the same time.
fn fetch(
    context: &Context,
    repo: &Path,
    load: &Load,
    options: &StarOptions,
    serve: &[&str],
) -> Result<(Room, Vec<Fetched>)> {
    let room = open(context, repo, load, options, serve)?;
    let done = fetch_all(&room, load)?;
    Ok((room, done))
}

/// A room with a server that has the version hashed.
pub(crate) fn open(
    context: &Context,
    repo: &Path,
    load: &Load,
    options: &StarOptions,
    serve: &[&str],
) -> Result<Room> {
    let serve: Vec<&str> = ["--torrent", "--no-multicast"].into_iter().chain(serve.iter().copied()).collect();
    let room = Room::open_serving(context, &[repo], options, &serve)?;
    warm(&room, load)?;
    Ok(room)
}

/// All hosts of a room fetch at the same time, into memory.
pub(crate) fn fetch_all(room: &Room, load: &Load) -> Result<Vec<Fetched>> {
    let memory = tempfile::tempdir_in("/dev/shm")?;
    let mut crew = Crew::new();
    let mut members = vec![];
    for host in room.clients() {
        let target = memory.path().join(host.to_string());
        let mut command = room.fetch_with_peers(host, &load.name, &target.to_string_lossy());
        members.push(crew.start(command.args(["--torrent", "--serve-for", SERVES]))?);
    }
    let mut done = collect(&mut crew, &members)?;
    // Serving on is not part of it: the report has its own clock.
    for host in &mut done {
        host.ended = host.began + host.report["installed_seconds"].as_f64().ok_or("no installed_seconds")?;
        let unicast = host.unicast_bytes();
        if unicast > 0 {
            return Err(format!("{unicast} bytes came by unicast: {}", host.report["unicast_reason"]).into());
        }
    }
    Ok(done)
}

/// Has the version hashed, which the server does once.
fn warm(room: &Room, load: &Load) -> Result<f64> {
    let text = std::fs::read_to_string(room.token(0))?;
    let secret = text.trim().splitn(3, '.').nth(2).ok_or("a token has three parts")?;
    let url = format!("https://{}:7717/api/v1/torrents/{}", room.star.host(0).ipv4(), load.name);
    let mut curl = room.star.host(0).command("curl");
    curl.args([
        "-sSfk",
        "-o",
        "/dev/null",
        "-w",
        "%{time_total}",
        "-H",
        &format!("Authorization: Bearer {secret}"),
        &url,
    ]);
    Ok(said(&mut curl)?.trim().parse()?)
}

fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn compared(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let (mut one, mut multicast) = (vec![], vec![]);
    for _ in 0..RUNS {
        let (_, alone) = fetch(context, &repo, load, &star(1, RATE, 0), &[])?;
        let room = Room::open(context, &repo, 1, RATE)?;
        let memory = tempfile::tempdir_in("/dev/shm")?;
        let target = memory.path().join("disk").to_string_lossy().into_owned();
        let other = room.fetch(&load.name, |_| target.clone(), |_| Duration::ZERO)?;
        one.push((alone[0].ended - alone[0].began) / (other[0].ended - other[0].began));
        multicast.push(other[0].ended - other[0].began);
    }
    let (mut last, mut spread, mut rows): (Vec<f64>, Vec<f64>, Vec<Value>) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let (_, done) = fetch(context, &repo, load, &star(HOSTS, RATE, 0), &[])?;
        let ended: Vec<f64> = done.iter().map(|host| host.ended).collect();
        let (worst, mean) = (most(ended.iter().copied()), ended.iter().sum::<f64>() / f64::from(HOSTS));
        last.push(worst);
        spread.push(worst / mean);
        rows.push(json!({ "last s": worst, "mean s": mean, "hosts": ended }));
    }
    let bound = Duration::from_secs_f64(median(&last) * PATIENCE);
    let file = load::random_file(context, MEBIBYTES << 20)?;
    let aria2 = PEERS.iter().find(|peer| peer.name.contains("aria2")).ok_or("there is aria2")?;
    let mut theirs = vec![];
    for _ in 0..RUNS {
        let trial: Trial = aria2.run(context, &star(HOSTS, RATE, 0), &file, bound)?;
        theirs.push(trial.last(bound));
        rows.push(json!({ "aria2 last s": trial.last(bound), "hosts": trial.seconds }));
    }
    std::fs::remove_file(file)?;
    let aria2 = median(&theirs);
    let ratios: Vec<f64> = last.iter().map(|last| last / aria2).collect();
    let words = format!("{}, {HOSTS} hosts, 200 Mbit/s; {OPTIONS}", load.words);
    Ok(vec![
        Figure::new("torrent.one_host", &one, "ratio", Bar::AtMost(1.10))
            .peer("multicast", "diskcast fetch", median(&multicast), "s")
            .on(&format!("{}, one host, 200 Mbit/s; {OPTIONS}", load.words), SINK),
        Figure::new("torrent.vs_aria2", &ratios, "ratio", Bar::AtMost(1.0))
            .peer("aria2 + opentracker", "256 KiB pieces, all peers; to tmpfs", aria2, "s")
            .on(&words, SINK)
            .with(json!(rows)),
        Figure::new("torrent.last_vs_mean", &spread, "ratio", Bar::AtMost(1.10)).on(&words, SINK),
    ])
}

fn two_switches(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[32], false)?;
    let load = &loads[0];
    let far = SwitchOptions {
        hosts: (NEAR + 1..=NEAR + FAR).collect(),
        rate_bits_per_second: Some(RATE / 10),
        ..SwitchOptions::default()
    };
    let options = StarOptions { switches: vec![far], ..star(NEAR + FAR, RATE, 0) };
    let places = context.folder()?.join("places");
    let line = |host: u32, star: &lab::Star| {
        let place = if host <= NEAR { "near" } else { "far" };
        format!("{}/32 {place}\n", star.host(host).ipv4())
    };
    // Addresses are the same in each lab.
    let star = lab::Star::build(&options)?;
    std::fs::write(&places, (1..=NEAR + FAR).map(|host| line(host, &star)).collect::<String>())?;
    drop(star);
    let words = places.to_string_lossy();
    let (mut images, mut rows) = (vec![], vec![]);
    for _ in 0..RUNS {
        let (room, done) = fetch(context, &repo, load, &options, &["--places", &words])?;
        let crossed = room.star.uplink_traffic(1)?;
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let count = |bytes: u64| bytes as f64 / (32u64 << 20) as f64;
        images.push(count(crossed.down.bytes));
        rows.push(json!({
            "images over the link": count(crossed.down.bytes), "up the link": count(crossed.up.bytes),
            "last s": most(done.iter().map(|host| host.ended)),
        }));
    }
    let words = format!(
        "{}, 200 Mbit/s ports, 20 Mbit/s between the switches; {OPTIONS}, serve --places FILE",
        load.words
    );
    Ok(vec![
        Figure::new("torrent.two_switches", &images, "images", Bar::AtMost(1.5))
            .on(&words, SINK)
            .with(json!(rows)),
    ])
}

fn start(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[1024], false)?;
    let (mut seconds, mut first) = (vec![], 0.0);
    for round in 0..=RUNS {
        let room = Room::open_serving(context, &[&repo as &Path], &star(1, RATE, 0), &["--torrent"])?;
        let took = warm(&room, &loads[0])?;
        // The first one hashes.
        if round == 0 { first = took } else { seconds.push(took) }
    }
    Ok(vec![
        Figure::new("torrent.start", &seconds, "s", Bar::AtMost(0.2))
            .on(&loads[0].words, "the server started anew each time")
            .with(json!([{ "hashing s": first }])),
    ])
}
