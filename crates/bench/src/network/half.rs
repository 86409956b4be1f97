//! Figures of networks in which multicast half works: hosts that hear and can't be heard, a port that is narrower than
//! it says, a server whose own interface is wider than the rest, a switch that lets multicast pass to nobody.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, collect};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "network.half_reports",
            "slowest of 4 hosts whose reports are lost, over one by unicast; at most 1.5",
        ),
        ("network.half_reports_late", "the same, lost from the middle of the transfer on; at most 1.5"),
        ("network.half_mtu", "a host behind a port with an MTU of 1400, over one by unicast; at most 1.5"),
        ("network.half_jumbo", "slowest of 4 hosts, the server alone has an MTU of 9000; at most 1.5"),
        ("network.half_one_way", "slowest of 4 hosts that multicast does not reach; at most 1.5"),
        ("network.half_bytes", "images that the server sent for each host concerned, the most; at most 2"),
    ],
    measure,
};

const RATE: u64 = 100_000_000;
const MEBIBYTES: u64 = 64;
const RUNS: usize = 3;
const HOSTS: u32 = 4;
/// The host behind a narrow port.
const NARROW: u32 = 2;
const MIDDLE: Duration = Duration::from_millis(2500);

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Reports,
    ReportsLate,
    Mtu,
    Jumbo,
    OneWay,
}

impl Fault {
    /// The hosts that it concerns.
    fn concerns(self, host: u32) -> bool {
        self != Self::Mtu || host == NARROW
    }

    /// How many images the server sends to all hosts if nothing goes wrong beside it.
    fn images(self) -> f64 {
        // The others get theirs by one session.
        if self == Self::Mtu { 1.0 } else { 0.0 }
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let mut alone = Vec::new();
    for _ in 0..RUNS {
        alone.push(unicast(context, &repo, load)?);
    }
    let seconds = median(&alone.iter().map(|run| run.0).collect::<Vec<_>>());
    let bytes = median(&alone.iter().map(|run| run.1).collect::<Vec<_>>());
    let workload = format!("{}, {HOSTS} hosts, 100 Mbit/s; fetch", load.words);
    let (mut figures, mut most_images) = (Vec::new(), 0_f64);
    for (fault, name) in [
        (Fault::Reports, "network.half_reports"),
        (Fault::ReportsLate, "network.half_reports_late"),
        (Fault::Mtu, "network.half_mtu"),
        (Fault::Jumbo, "network.half_jumbo"),
        (Fault::OneWay, "network.half_one_way"),
    ] {
        let (mut ratios, mut rows) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let run = run(context, &repo, load, fault)?;
            let concerned = (1..=HOSTS).filter(|host| fault.concerns(*host)).count();
            #[expect(clippy::cast_precision_loss, reason = "there are four hosts")]
            let images = (run.sent_bytes / bytes - fault.images()) / concerned as f64;
            most_images = most_images.max(images);
            ratios.push(run.slowest / seconds);
            rows.push(json!({
                "seconds": run.seconds, "by unicast s": seconds, "images a host": images, "said": run.said,
            }));
        }
        figures.push(
            Figure::new(name, &ratios, "ratio", Bar::AtMost(1.5))
                .on(&workload, super::SINK)
                .with(json!(rows)),
        );
    }
    let most = Figure::new("network.half_bytes", &[most_images], "images", Bar::AtMost(2.0));
    figures.push(most.on(&workload, super::SINK));
    Ok(figures)
}

/// Seconds of a host that fetches alone by unicast, and the bytes that the server sent.
fn unicast(context: &Context, repo: &Path, load: &Load) -> Result<(f64, f64)> {
    let room = Room::open(context, repo, 1, RATE)?;
    let mut crew = Crew::new();
    let mut command = room.fetch_with_peers(1, &load.name, "null:");
    let member = crew.start(command.args(["--transport", "unicast"]))?;
    let fetched = collect(&mut crew, &[member])?;
    Ok((fetched[0].received, bytes(&room)?))
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn bytes(room: &Room) -> Result<f64> {
    Ok(room.star.sent_on_wire(0)? as f64)
}

struct Run {
    seconds: Vec<f64>,
    /// Of the hosts that are concerned.
    slowest: f64,
    sent_bytes: f64,
    said: Value,
}

fn run(context: &Context, repo: &Path, load: &Load, fault: Fault) -> Result<Run> {
    let room = Room::open(context, repo, HOSTS, RATE)?;
    match fault {
        Fault::Reports => room.star.refuse_reports()?,
        Fault::ReportsLate => {}
        Fault::Mtu => room.star.narrow(NARROW, 1400)?,
        Fault::Jumbo => room.star.widen_host(0, 9000)?,
        Fault::OneWay => (1..=HOSTS).try_for_each(|host| room.star.filter_groups(host))?,
    }
    let mut crew = Crew::new();
    let mut members = Vec::new();
    for host in 1..=HOSTS {
        members.push(crew.start(&mut room.fetch_with_peers(host, &load.name, "null:"))?);
    }
    if fault == Fault::ReportsLate {
        crew.wait_until(MIDDLE);
        room.star.refuse_reports()?;
    }
    let fetched = collect(&mut crew, &members)?;
    let seconds: Vec<f64> = fetched.iter().map(|host| host.received - host.began).collect();
    let concerned = (1..=HOSTS).zip(&seconds).filter(|(host, _)| fault.concerns(*host));
    let slowest = concerned.map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let said = fetched.iter().map(|host| host.report["unicast_reason"].clone()).collect();
    Ok(Run { seconds, slowest, sent_bytes: bytes(&room)?, said })
}
