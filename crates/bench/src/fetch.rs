//! Figures of `diskcast fetch` in the lab: time of the last host over the time that the link needs, and what the server sent.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::context::{Context, timed};
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, Served};
use crate::{Group, Result, load};

pub const GROUP: Group = Group {
    figures: &[
        ("fetch.1_host", "last host has received all, over link time, 1 Gbit/s; at most 1.10"),
        ("fetch.4_hosts", "the same with 4 hosts; at most 1.15"),
        ("fetch.8_hosts", "the same with 8 hosts; at most 1.15"),
        ("fetch.server_bytes", "payload that the server sent over the image's encoded bytes; at most 1.02"),
    ],
    measure,
};

pub const INSTALLED: Group = Group {
    figures: &[(
        "fetch.installed_4_hosts",
        "seconds until 4 hosts have the image on disk, durable and read back; shown",
    )],
    measure: measure_installed,
};

const RUNS: usize = 3;
const RATE: u64 = 1_000_000_000;
/// Bytes that a block's packet has besides its payload: header and tag, UDP, IPv4, Ethernet without preamble (as the
/// lab's shaper counts).
const PACKET_OVERHEAD: u64 = 48 + 8 + 20 + 14;

/// One workload in a repository.
struct Load {
    name: &'static str,
    words: String,
}

fn prepare(context: &Context, repo: &Path) -> Result<Vec<Load>> {
    let random = load::random_disk(context, 512 << 20)?;
    let debian = load::debian_disk(context)?;
    timed(context.diskcast(repo).arg("capture").args(["--raw"]).arg(&random).arg("random"))?;
    timed(context.diskcast(repo).arg("capture").arg(&debian).arg("debian"))?;
    Ok(vec![
        Load { name: "random", words: "512 MiB of incompressible data".to_owned() },
        Load { name: "debian", words: "a Debian image".to_owned() },
    ])
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let repo = context.folder()?;
    let loads = prepare(context, &repo)?;
    let (mut figures, mut server, mut server_rows) = (vec![], vec![], vec![]);
    for (name, hosts, bar) in
        [("fetch.1_host", 1, 1.10), ("fetch.4_hosts", 4, 1.15), ("fetch.8_hosts", 8, 1.15)]
    {
        let (mut rows, mut worst) = (vec![], vec![]);
        for load in &loads {
            let (mut ratios, mut times) = (vec![], vec![]);
            for _ in 0..RUNS {
                let cell = cell(context, &repo, load.name, hosts)?;
                ratios.push(cell.received / cell.link_seconds);
                times.push(cell.received);
                server.push(cell.sent_ratio);
                server_rows.push(cell.row(load.name, hosts));
            }
            let link = times[0] / ratios[0];
            rows.push(json!({
                "workload": load.words, "link time s": link, "last host s": median(&times), "ratio": median(&ratios),
            }));
            worst.push(median(&ratios));
        }
        let value = worst.iter().copied().fold(0.0, f64::max);
        figures.push(
            Figure::new(name, &[value], "ratio", Bar::AtMost(bar))
                .on(
                    "the worse of 512 MiB of incompressible data and a Debian image, 1 Gbit/s links",
                    "null, verifying",
                )
                .with(json!(rows)),
        );
    }
    let most = server.iter().copied().fold(0.0, f64::max);
    figures.push(
        Figure::new("fetch.server_bytes", &[most], "ratio", Bar::AtMost(1.02))
            .on("the most of all cells of fetch.*_hosts", "null, verifying")
            .with(json!(server_rows)),
    );
    Ok(figures)
}

/// One transfer.
struct Cell {
    received: f64,
    link_seconds: f64,
    sent_ratio: f64,
    overflowed: u64,
    statistics: serde_json::Value,
}

impl Cell {
    fn row(&self, load: &str, hosts: u32) -> serde_json::Value {
        let of = |name: &str| self.statistics[name].clone();
        json!({
            "workload": load, "hosts": hosts, "payload over image": self.sent_ratio, "packet bytes": of("packet_bytes"),
            "control packets": of("control_packets"), "reports": of("reports"), "resent late": of("resent_late"),
            "resent buffer full": of("resent_buffer_full"), "resent lost": of("resent_lost"),
            "frames lost by links": self.overflowed,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn cell(context: &Context, repo: &Path, name: &str, hosts: u32) -> Result<Cell> {
    let room = Room::open(context, repo, hosts, RATE)?;
    let fetched = room.fetch(name, |_| "null:".to_owned(), |_| Duration::ZERO)?;
    all_by_multicast(&fetched)?;
    let Served { statistics, overflowed, .. } = room.close()?;
    let number = |name: &str| {
        statistics[name].as_u64().ok_or_else(|| format!("no {name} in the session's statistics"))
    };
    let (image, blocks) = (number("image_bytes")?, number("blocks_in_image")?);
    Ok(Cell {
        received: fetched.iter().map(|host| host.received).fold(0.0, f64::max),
        link_seconds: (image + blocks * PACKET_OVERHEAD) as f64 * 8.0 / RATE as f64,
        sent_ratio: number("payload_bytes")? as f64 / image as f64,
        overflowed,
        statistics,
    })
}

fn all_by_multicast(fetched: &[Fetched]) -> Result<()> {
    match fetched.iter().find(|host| host.report["transport"] != "multicast") {
        Some(host) => Err(format!("a host did not fetch by multicast: {}", host.report).into()),
        None => Ok(()),
    }
}

fn measure_installed(context: &Context) -> Result<Vec<Figure>> {
    let repo = context.folder()?;
    let debian = load::debian_disk(context)?;
    timed(context.diskcast(&repo).arg("capture").arg(&debian).arg("debian"))?;
    let (mut times, mut rows) = (vec![], vec![]);
    for _ in 0..RUNS {
        let targets = context.folder()?;
        let room = Room::open(context, &repo, 4, RATE)?;
        let target = |host: u32| targets.join(format!("disk-{host}.img")).to_string_lossy().into_owned();
        let fetched = room.fetch("debian", target, |_| Duration::ZERO)?;
        room.close()?;
        let last = |of: fn(&Fetched) -> f64| fetched.iter().map(of).fold(0.0, f64::max);
        rows.push(json!({ "last received s": last(|host| host.received), "last installed s": last(|host| host.ended) }));
        times.push(last(|host| host.ended));
    }
    let sink = "sparse files on one local disk, synced and read back";
    Ok(vec![
        Figure::new("fetch.installed_4_hosts", &times, "s", Bar::Shown)
            .on("a Debian image, 4 hosts, 1 Gbit/s links", sink)
            .with(json!(rows)),
    ])
}
