//! What machines cost that fetch as users do: into files, with no option, so that each serves on in the background.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Done, RUNS, done, most};
use crate::context::{Context, said};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, collect, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

const RATE: u64 = 200_000_000;
const MEBIBYTES: u64 = 128;
/// A quarter of the image, which is random.
const SMALL_SPOOL: &str = "32M";

pub(super) const GROUP: Group = Group {
    figures: &[
        ("peers.default_skew_8", "images that the server sent, 8 starts over one transfer; at most 1.10"),
        ("peers.default_skew_16", "images that the server sent, 16 starts over one transfer; at most 1.10"),
        ("peers.default_half", "images that the server sent, a second host starts at half; at most 1.05"),
        ("peers.default_late", "images that the server sent, a second host starts at 90 %; at most 1.05"),
        ("peers.default_apart", "images that the server sent, 4 hosts three transfers apart; at most 1.10"),
        (
            "peers.default_small_spool",
            "images that the server sent, a second host starts at 90 %, the image four times as large as the \
             memory for it; at most 1.05",
        ),
        (
            "peers.default_own_time",
            "time of a host that serves a second one from half on, over its time alone; at most 1.03",
        ),
    ],
    measure,
};

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, mut loads) = library(context, &[MEBIBYTES], false)?;
    let load = loads.remove(0);
    let run = |hosts: u32, options: &[&str], gap: f64| -> Result<Done> {
        let room = Room::open_with(context, &[&repo], &star(hosts, RATE, 0))?;
        let fetched = fetch(&room, &load, options, gap)?;
        done(room, fetched)
    };
    let mut times = Vec::new();
    for _ in 0..RUNS {
        times.push(most(&whole(&run(1, &[], 0.0)?)));
    }
    let alone = median(&times);
    let all = |hosts: u32, options: &[&str], gap: f64| -> Result<Vec<Done>> {
        (0..RUNS).map(|_| run(hosts, options, alone * gap)).collect()
    };
    let figure = |name: &str, all: &[Done], bar: f64, options: &str| {
        let images: Vec<f64> = all.iter().map(Done::images).collect();
        let rows: Vec<_> = all.iter().map(|done| done.row(&load, alone)).collect();
        let workload = format!("200 Mbit/s, {}; fetch{options}", load.words);
        Figure::new(name, &images, "images", Bar::AtMost(bar))
            .on(&workload, "files in tmpfs, read back")
            .with(json!(rows))
    };
    let half = all(2, &[], 0.5)?;
    let own: Vec<f64> = half.iter().map(|done| whole(done)[0] / alone).collect();
    let small = format!(" --spool-memory {SMALL_SPOOL}");
    Ok(vec![
        figure("peers.default_skew_8", &all(8, &[], 1.0 / 8.0)?, 1.10, ""),
        figure("peers.default_skew_16", &all(16, &[], 1.0 / 16.0)?, 1.10, ""),
        figure("peers.default_half", &half, 1.05, ""),
        figure("peers.default_late", &all(2, &[], 0.9)?, 1.05, ""),
        figure("peers.default_apart", &all(4, &[], 3.0)?, 1.10, ""),
        figure("peers.default_small_spool", &all(2, &["--spool-memory", SMALL_SPOOL], 0.9)?, 1.05, &small),
        Figure::new("peers.default_own_time", &own, "ratio", Bar::AtMost(1.03))
            .on(&format!("200 Mbit/s, {}; fetch", load.words), "files in tmpfs, read back"),
    ])
}

/// From each host's start until its command had returned, in seconds.
fn whole(done: &Done) -> Vec<f64> {
    done.fetched.iter().map(|host| host.ended - host.began).collect()
}

/// All hosts of a room fetch an image into files, `gap` seconds after each other.
fn fetch(room: &Room, load: &Load, options: &[&str], gap: f64) -> Result<Vec<Fetched>> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let mut crew = Crew::new();
    let mut members = Vec::new();
    for (number, host) in room.clients().enumerate() {
        let target = folder.path().join(format!("disk-{host}.img"));
        crew.wait_until(Duration::from_secs_f64(gap).saturating_mul(u32::try_from(number)?));
        let mut command = room.fetch_with_peers(host, &load.name, &target.to_string_lossy());
        members.push(crew.start(command.args(options))?);
    }
    let fetched = collect(&mut crew, &members)?;
    for serving in fetched.iter().filter_map(Fetched::serves_on) {
        // It may have ended.
        let _ = said(Command::new("kill").args(["-KILL", &serving.to_string()]));
    }
    Ok(fetched)
}
