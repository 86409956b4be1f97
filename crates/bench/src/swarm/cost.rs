//! What serving others costs a host's own fetch.
//!
//! Host 1 fetches, and three leeches get from it what it holds, as fast as its link allows. Nobody else holds anything,
//! so it gets all from the server, and its time tells what serving costs. The server's link is four times as fast.
//!
//! For comparison the three are hosts that fetch, too, from when host 1 has a quarter. Then it is also sent to them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lab::StarOptions;
use net::clock::Stop;
use serde_json::json;

use super::leech::leech;
use super::member::Version;
use super::{RUNS, SINK, fetch_in};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "peers.upload_cost",
        "time of a host that sends to three others what it holds meanwhile over its time alone; at most 1.03",
    )],
    measure,
};

const HOSTS: u32 = 4;
const RATE: u64 = 100_000_000;
const MEBIBYTES: u64 = 128;
/// Buffers of the links: 84 ms and 10 ms at this rate. What waits in a long one delays what a host asks for and
/// confirms, so the short one tells that part from the rest.
const BUFFERS: [u64; 2] = [1 << 20, 1 << 17];

/// What the other three do.
#[derive(Debug, Clone, Copy)]
enum Others {
    /// Nothing: host 1 is alone.
    Nothing,
    /// They get what host 1 holds.
    Leech,
    /// They fetch, from so many seconds on.
    Fetch(f64),
}

struct Run {
    seconds: f64,
    /// Bytes that host 1 sent, over those of the image.
    sent: f64,
}

/// Host 1 fetches beside others.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn run(context: &Context, repo: &Path, load: &Load, (buffer_bytes, others): (u64, Others)) -> Result<Run> {
    let options = StarOptions { buffer_bytes, ..star(HOSTS, RATE, 0) };
    let room = Room::open_serving(context, &[repo], &options, &["--no-multicast"])?;
    room.star.shape_host(0, RATE * u64::from(HOSTS), buffer_bytes)?;
    let (over, mut leeches) = (Stop::new(), vec![]);
    if matches!(others, Others::Leech) {
        let version = Arc::new(Version::newest(repo, &load.name)?);
        let third = version.catalogue.objects().len() as u64 / 3;
        for (number, host) in (0..).zip(2..=HOSTS) {
            let joined = version.join(&room, host, false)?;
            let (version, over) = (Arc::clone(&version), over.clone());
            leeches.push(room.star.host(host).run(move || leech(version, joined, number * third, &over))?);
        }
    }
    let (hosts, after) = match others {
        Others::Fetch(after) => (HOSTS, after),
        Others::Nothing | Others::Leech => (1, 0.0),
    };
    let begin = |host| Duration::from_secs_f64(if host == 1 { 0.0 } else { after });
    let fetched = fetch_in(&room, load, 1..=hosts, &[], begin);
    over.stop();
    for leech in leeches {
        leech.join().map_err(|_| "a thread panicked")??;
    }
    let fetched = fetched?;
    let report = &fetched[0].report;
    let sent = report["served_bytes"].as_u64().unwrap_or(0) as f64 / (MEBIBYTES << 20) as f64;
    Ok(Run { seconds: fetched[0].received, sent })
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let (mut ratios, mut rows) = (vec![], vec![]);
    for (buffer_bytes, runs) in BUFFERS.into_iter().zip([RUNS, 1]) {
        let run = |others| run(context, &repo, load, (buffer_bytes, others));
        let alone = (0..runs).map(|_| Ok(run(Others::Nothing)?.seconds)).collect::<Result<Vec<_>>>()?;
        let alone = median(&alone);
        let leeches = (0..runs).map(|_| Others::Leech);
        for others in leeches.chain([Others::Fetch(alone / 4.0)]) {
            let run = run(others)?;
            if buffer_bytes == BUFFERS[0] && matches!(others, Others::Leech) {
                ratios.push(run.seconds / alone);
            }
            rows.push(json!({
                "buffers KiB": buffer_bytes >> 10, "three others": format!("{others:?}"), "alone s": alone,
                "serving s": run.seconds, "over alone": run.seconds / alone, "images that it sent": run.sent,
            }));
        }
    }
    let workload = format!("{}, 100 Mbit/s, the server's link 400 Mbit/s, no multicast", load.words);
    let figure = Figure::new("peers.upload_cost", &ratios, "ratio", Bar::AtMost(1.03));
    Ok(vec![figure.on(&workload, SINK).with(json!(rows))])
}
