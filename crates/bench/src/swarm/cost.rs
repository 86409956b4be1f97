//! What serving others costs a host's own fetch.
//!
//! Host 1 begins; three others begin when it has a quarter, and get from it what it has. The server's link is four
//! times as fast, so what the others get from the server does not take from what host 1 gets: its link is full in both
//! directions, and its processor has more to do. Its time is compared with its time when it is alone.

use std::path::Path;
use std::time::Duration;

use lab::StarOptions;
use serde_json::json;

use super::{RUNS, SINK, fetch_in};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "peers.upload_cost",
        "time of a host whose chunks three others get meanwhile over its time alone; at most 1.03",
    )],
    measure,
};

const HOSTS: u32 = 4;
const RATE: u64 = 100_000_000;
const MEBIBYTES: u64 = 128;
/// Buffers of the links: 84 ms and 10 ms at this rate. What waits in a long one delays what a host asks for and
/// confirms, so the short one tells that part from the rest.
const BUFFERS: [u64; 2] = [1 << 20, 1 << 17];

struct Run {
    seconds: f64,
    /// Bytes that host 1 sent, over those of the image.
    sent: f64,
}

/// Host 1 fetches, with others from `after` on if that is given.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn run(
    context: &Context,
    repo: &Path,
    load: &Load,
    (buffer_bytes, after): (u64, Option<f64>),
) -> Result<Run> {
    let options = StarOptions { buffer_bytes, ..star(HOSTS, RATE, 0) };
    let room = Room::open_serving(context, &[repo], &options, &["--no-multicast"])?;
    room.star.shape_host(0, RATE * u64::from(HOSTS), buffer_bytes)?;
    let hosts = 1..=if after.is_some() { HOSTS } else { 1 };
    let begin = |host| Duration::from_secs_f64(if host == 1 { 0.0 } else { after.unwrap_or(0.0) });
    let fetched = fetch_in(&room, load, hosts, &[], begin)?;
    let report = &fetched[0].report;
    let sent = report["served_bytes"].as_u64().unwrap_or(0) as f64 / (MEBIBYTES << 20) as f64;
    Ok(Run { seconds: fetched[0].received, sent })
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let (mut ratios, mut rows) = (vec![], vec![]);
    for (buffer_bytes, runs) in BUFFERS.into_iter().zip([RUNS, 1]) {
        let run = |after| run(context, &repo, load, (buffer_bytes, after));
        let alone = (0..runs).map(|_| Ok(run(None)?.seconds)).collect::<Result<Vec<_>>>()?;
        let alone = median(&alone);
        for _ in 0..runs {
            let run = run(Some(alone / 4.0))?;
            if buffer_bytes == BUFFERS[0] {
                ratios.push(run.seconds / alone);
            }
            rows.push(json!({
                "buffers KiB": buffer_bytes >> 10, "alone s": alone, "serving s": run.seconds,
                "over alone": run.seconds / alone, "images that it sent": run.sent,
            }));
        }
    }
    let workload = format!("{}, 100 Mbit/s, the server's link 400 Mbit/s, no multicast", load.words);
    let figure = Figure::new("peers.upload_cost", &ratios, "ratio", Bar::AtMost(1.03));
    Ok(vec![figure.on(&workload, SINK).with(json!(rows))])
}
