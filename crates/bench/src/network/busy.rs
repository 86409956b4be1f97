//! The figure of sessions on busy processors: several images at a time, beside programs that use all cores.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::SINK;
use crate::context::Context;
use crate::crew::{Crew, Ended};
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, star};
use crate::transfer::library;
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "network.busy",
            "last of 6 hosts with 2 images, or of 9 with 3, beside 8 busy processes, over by unicast; at most 1.5",
        ),
        ("network.busy_idle", "the same without busy processes; at most 1.5"),
    ],
    measure,
};

const RATE: u64 = 100_000_000;
/// Of each image. They differ in size, so that they differ at all.
const MEBIBYTES: &[u64] = &[63, 64, 65];
const RUNS: usize = 3;
/// Images, and hosts in all.
const ROOMS: &[(usize, u32)] = &[(2, 6), (3, 9)];
const BUSY: usize = 8;
/// What has not ended then took so long.
const PATIENCE: Duration = Duration::from_secs(150);

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, MEBIBYTES, false)?;
    let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
    let mut figures = Vec::new();
    for (name, busy) in [("network.busy", BUSY), ("network.busy_idle", 0)] {
        let (mut worst, mut rows) = (0_f64, Vec::new());
        for &(images, hosts) in ROOMS {
            let (mut ours, mut without) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                let names = &names[..images];
                ours.push(last(context, &repo, names, (hosts, busy, &[]))?);
                without.push(last(context, &repo, names, (hosts, busy, &["--no-multicast"]))?);
            }
            let ratio = median(&ours) / median(&without);
            worst = worst.max(ratio);
            rows.push(json!({
                "images": images, "hosts": hosts, "busy processes": busy, "ratio": ratio, "s": ours,
                "without multicast s": without,
            }));
        }
        let workload = "2 and 3 images of 63 to 65 MiB of incompressible data, 3 hosts each, 100 Mbit/s, the worse; \
                        fetch without options, beside serve --no-multicast";
        let figure = Figure::new(name, &[worst], "ratio", Bar::AtMost(1.5));
        figures.push(figure.on(workload, SINK).with(Value::from(rows)));
    }
    Ok(figures)
}

/// Seconds until the last host has its image.
fn last(
    context: &Context,
    repo: &Path,
    images: &[&str],
    (hosts, busy, serve): (u32, usize, &[&str]),
) -> Result<f64> {
    let room = Room::open_serving(context, &[repo], &star(hosts, RATE, 0), serve)?;
    let mut others = Crew::new();
    for _ in 0..busy {
        // In a session of its own: the kernel shares processors by sessions.
        others.start(Command::new("setsid").args(["sh", "-c", "while :; do :; done"]))?;
    }
    let mut crew = Crew::new();
    let mut members = Vec::new();
    for (host, name) in room.clients().zip(images.iter().cycle()) {
        members.push(crew.start(&mut room.fetch_with_peers(host, name, "null:"))?);
    }
    let ended = crew.wait(&members, PATIENCE)?;
    ended.iter().try_for_each(Ended::check)?;
    let all = ended.len() == members.len();
    Ok(if all { ended.iter().map(|one| one.ended).fold(0.0, f64::max) } else { PATIENCE.as_secs_f64() })
}
