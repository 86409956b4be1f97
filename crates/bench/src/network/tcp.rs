//! The figures of a TCP flow on the same link as a session: into the port of one receiver, and from the server.

use std::path::Path;
use std::time::Duration;

use lab::Sample;
use serde_json::{Value, json};

use super::{GIGABIT, SINK};
use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure};
use crate::flow::{Delivered, Flow};
use crate::room::{Room, collect, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const PORT: Group = Group {
    figures: &[
        (
            "network.tcp_port",
            "least mean share of one receiver's port that TCP and the fetch get in windows of 2 s; at least 0.25",
        ),
        (
            "network.tcp_port_tenth",
            "tenth percentile of the shares that TCP and the fetch get of that port; at least 0.15",
        ),
        (
            "network.tcp_port_others",
            "last of two hosts beside one with a TCP flow into its port, over without the flow; at most 1.10",
        ),
    ],
    measure: port,
};

pub(super) const SERVER: Group = Group {
    figures: &[
        (
            "network.tcp_server",
            "least mean share of the server's link that TCP and the session get in windows of 2 s; at least 0.25",
        ),
        ("network.tcp_server_tenth", "tenth percentile of the shares of the server's link; at least 0.15"),
    ],
    measure: server,
};

/// Rates of the links, and mebibytes that keep a session running for about 14 seconds.
const LINKS: [(u64, u64); 2] = [(100_000_000, 160), (500_000_000, 800)];
const RUNS: usize = 3;
/// Receivers: hosts 1 to 3. The flow begins or ends at host 4, or at the server (host 0).
const RECEIVERS: u32 = 3;
const OTHER: u32 = RECEIVERS + 1;
/// How long the first of flow and session has run when the second begins.
const FIRST: Duration = Duration::from_millis(1500);
/// The shares count from this time after both run, in windows.
const SETTLED_SECONDS: f64 = 3.0;
const WINDOW_SECONDS: f64 = 2.0;
/// Time between two samples of the counters.
const INTERVAL: Duration = Duration::from_millis(100);
const BUFFER_BYTES: u64 = 1 << 20;

/// Where the flow runs.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// From a host that does not fetch into the port of a receiver, whose server has a faster link.
    Port,
    /// From the server to a host that does not fetch.
    Server,
}

/// The shares of both sides in windows, and when the receivers that share no port with the flow had everything.
struct Shares {
    tcp: Vec<f64>,
    session: Vec<f64>,
    others: f64,
}

fn port(context: &Context) -> Result<Vec<Figure>> {
    let mut all = measure(context, Place::Port)?;
    let (repo, loads) = library(context, &LINKS.map(|(_, mebibytes)| mebibytes), false)?;
    let mut worst: f64 = 0.0;
    for ((rate, _), load) in LINKS.into_iter().zip(&loads) {
        let without = undisturbed(context, &repo, load, rate)?;
        let with = all.rows.iter().filter(|row| row["Mbit/s"] == rate / 1_000_000);
        let slowest = with.filter_map(|row| row["others s"].as_f64()).fold(0.0, f64::max);
        worst = worst.max(slowest / without);
    }
    all.figures("network.tcp_port", "into the port of one of 3 receivers, server at 1 Gbit/s").map(
        |mut figures| {
            figures.push(
                Figure::new("network.tcp_port_others", &[worst], "ratio", Bar::AtMost(1.10))
                    .on("the worst of the same runs", SINK),
            );
            figures
        },
    )
}

fn server(context: &Context) -> Result<Vec<Figure>> {
    measure(context, Place::Server)?.figures("network.tcp_server", "from the server, 3 receivers")
}

/// The least shares of all runs.
struct Worst {
    mean: f64,
    tenth: f64,
    rows: Vec<Value>,
}

impl Worst {
    fn figures(&mut self, name: &str, place: &str) -> Result<Vec<Figure>> {
        let workload =
            format!("TCP (cubic) {place}; 100 and 500 Mbit/s, either begins first, worst of {RUNS} each");
        let rows = std::mem::take(&mut self.rows);
        Ok(vec![
            Figure::new(name, &[self.mean], "ratio", Bar::AtLeast(0.25))
                .on(&workload, SINK)
                .with(json!(rows)),
            Figure::new(&format!("{name}_tenth"), &[self.tenth], "ratio", Bar::AtLeast(0.15))
                .on(&workload, SINK),
        ])
    }
}

fn measure(context: &Context, place: Place) -> Result<Worst> {
    let (repo, loads) = library(context, &LINKS.map(|(_, mebibytes)| mebibytes), false)?;
    let mut worst = Worst { mean: 1.0, tenth: 1.0, rows: vec![] };
    for ((rate, _), load) in LINKS.into_iter().zip(&loads) {
        for tcp_first in [true, false] {
            for _ in 0..RUNS {
                let shares = run(context, (&repo, load), rate, place, tcp_first)?;
                let [tcp, session] =
                    [&shares.tcp, &shares.session].map(|windows| (mean(windows), tenth(windows)));
                worst.mean = worst.mean.min(tcp.0).min(session.0);
                worst.tenth = worst.tenth.min(tcp.1).min(session.1);
                worst.rows.push(json!({
                    "Mbit/s": rate / 1_000_000, "first": if tcp_first { "TCP" } else { "session" },
                    "TCP's mean": tcp.0, "TCP's tenth": tcp.1, "session's mean": session.0,
                    "session's tenth": session.1, "windows": shares.tcp.len(), "others s": shares.others,
                }));
            }
        }
    }
    Ok(worst)
}

fn room(context: &Context, repo: &Path, rate: u64, place: Place) -> Result<Room> {
    let room = Room::open_with(context, &[repo], &star(OTHER, rate, 0))?;
    if place == Place::Port {
        room.star.shape_host(0, GIGABIT, BUFFER_BYTES)?;
    }
    Ok(room)
}

/// Seconds until the last receiver has everything, without a flow.
fn undisturbed(context: &Context, repo: &Path, load: &Load, rate: u64) -> Result<f64> {
    let room = room(context, repo, rate, Place::Port)?;
    let mut crew = Crew::new();
    let members = (1..=RECEIVERS)
        .map(|host| crew.start(&mut room.fetch_command(host, 0, &load.name, "null:")))
        .collect::<Result<Vec<_>>>()?;
    Ok(crate::room::last(&collect(&mut crew, &members)?))
}

fn run(
    context: &Context,
    (repo, load): (&Path, &Load),
    rate: u64,
    place: Place,
    tcp_first: bool,
) -> Result<Shares> {
    let room = room(context, repo, rate, place)?;
    let (from, to) = if place == Place::Port { (OTHER, RECEIVERS) } else { (0, OTHER) };
    let meter = room.star.meter(INTERVAL)?;
    let mut crew = Crew::new();
    let offset = meter.elapsed().as_secs_f64();
    let mut flow = None;
    if tcp_first {
        flow = Some((Flow::start(&room.star, from, to)?, offset));
        crew.wait_until(FIRST);
    }
    let mut members = (1..=RECEIVERS)
        .map(|host| crew.start(&mut room.fetch_command(host, 0, &load.name, "null:")))
        .collect::<Result<Vec<_>>>()?;
    if flow.is_none() {
        crew.wait_until(FIRST);
        flow = Some((Flow::start(&room.star, from, to)?, offset + crew.seconds()));
    }
    let (flow, flow_from) = flow.ok_or("the flow was started")?;
    let both_from = offset + crew.seconds();
    // The receiver at the flow's port may take longer than the others.
    let shared = if place == Place::Port { members.pop() } else { None };
    let fetched = collect(&mut crew, &members)?;
    let until = offset + fetched.iter().map(|host| host.received).fold(f64::INFINITY, f64::min);
    let others = fetched.iter().map(|host| host.received - host.began).fold(0.0, f64::max);
    shared.into_iter().for_each(|member| crew.kill(member));
    let (samples, delivered) = (meter.stop()?, flow.stop()?);
    let mut shares = Shares { tcp: vec![], session: vec![], others };
    let mut from = both_from + SETTLED_SECONDS;
    while from + WINDOW_SECONDS <= until {
        let window = (from, from + WINDOW_SECONDS);
        shares.tcp.push(share_of_tcp(&delivered, flow_from, window, rate));
        shares.session.push(match place {
            Place::Port => {
                rate_of(&samples, window, |sample| sample.received[RECEIVERS as usize], rate)
                    - shares.tcp[shares.tcp.len() - 1]
            }
            Place::Server => rate_of(&samples, window, |sample| sample.received[1], rate),
        });
        from += WINDOW_SECONDS;
    }
    if shares.tcp.len() < 3 {
        return Err(format!("the hosts were done after {until:.1} s, too soon to measure shares").into());
    }
    Ok(shares)
}

/// TCP's share of the link in a window of the meter's clock; 0 if nothing of it arrived.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn share_of_tcp(delivered: &Delivered, began: f64, window: (f64, f64), rate: u64) -> f64 {
    delivered.rate((window.0 - began, window.1 - began)).unwrap_or(0.0) / rate as f64
}

/// Part of the link that `counter` grew by in a window.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn rate_of(samples: &[Sample], window: (f64, f64), counter: impl Fn(&Sample) -> u64, rate: u64) -> f64 {
    let inside: Vec<_> =
        samples.iter().filter(|sample| (window.0..=window.1).contains(&sample.at.as_secs_f64())).collect();
    let (Some(first), Some(last)) = (inside.first(), inside.last()) else { return 0.0 };
    let seconds = (last.at - first.at).as_secs_f64().max(1e-3);
    (counter(last) - counter(first)) as f64 * 8.0 / seconds / rate as f64
}

#[expect(clippy::cast_precision_loss, reason = "few values")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The tenth percentile; the least of fewer than ten values.
fn tenth(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 10]
}
