//! Figures of `diskcast fetch` in the lab: the time of the last host divided by the link time, and the bytes that the
//! server sent.

use std::time::Duration;

use serde_json::json;

use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, star};
use crate::transfer::{Transfer, library, transfer};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("fetch.1_host", "last host has received all, over link time, 1 Gbit/s; at most 1.10"),
        ("fetch.4_hosts", "last of 4 hosts has received all, over link time, 1 Gbit/s; at most 1.15"),
        ("fetch.8_hosts", "last of 8 hosts has received all, over link time, 1 Gbit/s; at most 1.15"),
        ("fetch.server_bytes", "payload that the server sent over the image's encoded bytes; at most 1.02"),
    ],
    measure,
};

pub(crate) const INSTALLED: Group = Group {
    figures: &[(
        "fetch.installed_4_hosts",
        "seconds until 4 hosts have the image on disk, durable and read back; shown",
    )],
    measure: measure_installed,
};

const RUNS: usize = 3;
const RATE: u64 = 1_000_000_000;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[512], true)?;
    let (mut figures, mut server, mut server_rows) = (vec![], vec![], vec![]);
    for (name, hosts, bar) in
        [("fetch.1_host", 1, 1.10), ("fetch.4_hosts", 4, 1.15), ("fetch.8_hosts", 8, 1.15)]
    {
        let (mut rows, mut worst) = (vec![], vec![]);
        for load in &loads {
            let (mut ratios, mut times, mut link) = (vec![], vec![], f64::NAN);
            for _ in 0..RUNS {
                let done = transfer(context, &repo, &load.name, &star(hosts, RATE, 0))?;
                by_multicast(&done)?;
                ratios.push(done.ratio());
                times.push(done.last());
                link = done.link_seconds;
                server.push(done.images_sent()?);
                server_rows.push(done.row(load)?);
            }
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

fn by_multicast(done: &Transfer) -> Result<()> {
    match done.fetched.iter().find(|host| host.report["transport"] == "unicast") {
        Some(host) => Err(format!("a host did not fetch by multicast: {}", host.report).into()),
        None => Ok(()),
    }
}

fn measure_installed(context: &Context) -> Result<Vec<Figure>> {
    let (repo, _) = library(context, &[], true)?;
    let (mut times, mut rows) = (vec![], vec![]);
    for _ in 0..RUNS {
        let targets = context.folder()?;
        let room = Room::open(context, &repo, 4, RATE)?;
        let target = |host: u32| targets.join(format!("disk-{host}.img")).to_string_lossy().into_owned();
        let fetched = room.fetch("debian", target, |_| Duration::ZERO)?;
        room.close()?;
        let last = |of: fn(&Fetched) -> f64| fetched.iter().map(of).fold(0.0, f64::max);
        rows.push(json!({ "last received s": last(|host| host.received), "last installed \
            s": last(|host| host.ended) }));
        times.push(last(|host| host.ended));
    }
    let sink = "sparse files on one local disk, synced and read back";
    Ok(vec![
        Figure::new("fetch.installed_4_hosts", &times, "s", Bar::Shown)
            .on("a Debian image, 4 hosts, 1 Gbit/s links", sink)
            .with(json!(rows)),
    ])
}
