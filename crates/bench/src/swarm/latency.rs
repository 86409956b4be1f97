//! How long hosts wait for the answers to their requests while 30 of them start together.
//!
//! The hosts are members inside the benchmark, with the seeker, the sockets and the threads of `fetch`, since no
//! program prints each answer's time. They share the machine's cores with the server, so the times are upper bounds.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use bytes::Bytes;
use image::ObjectRef;
use lab::StarOptions;
use net::client::Client;
use net::clock::Stop;
use net::peer::{Node, Pulled, Taker, Want};
use serde_json::{Value, json};

use super::agents::Agents;
use super::member::Version;
use super::{RUNS, SINK};
use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::room::{Room, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "peers.p99_latency",
            "time from a request to its answer, with the server as the redirector, 99 of 100 are shorter; 30 hosts \
             start together",
        ),
        ("switch.p99_latency", "the same with an agent on the switch as the redirector"),
    ],
    measure,
};

const HOSTS: u32 = 30;
const RATE: u64 = 100_000_000;
const MEBIBYTES: u64 = 18;
/// Buffers of the links, and runs with each: 84 ms and 10 ms at this rate. Requests and answers wait there behind
/// objects; the second tells that wait from what the redirector takes.
const BUFFERS: [(u64, usize); 2] = [(1 << 20, RUNS), (1 << 17, 1)];
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps what is right for others.
struct Keeper {
    version: Arc<Version>,
    node: Arc<Node>,
}

impl Taker for Keeper {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        self.version.object(id)
    }

    fn take(&self, id: u64, bytes: Bytes) -> base::Result<bool> {
        let right = self.object(id).is_some_and(|object| object.verify(&bytes).is_ok());
        if right {
            self.node.spool().put(id, &bytes);
        }
        Ok(right)
    }
}

/// One host gets everything.
fn pull(version: Arc<Version>, (client, node): (Client, Node)) -> base::Result<Pulled> {
    let (node, objects) = (Arc::new(node), version.catalogue.objects().len() as u64);
    let taker = Keeper { version, node: Arc::clone(&node) };
    node.pull(&Want {
        objects: std::iter::once(0..objects).collect(),
        taker: &taker,
        server: &client,
        at_once: 4,
        object_bytes: 256 << 10,
        stop: &Stop::new(),
        alone: false,
        limit: Some(PATIENCE),
        demands: None,
        arrived: &|_| {},
    })
}

fn milliseconds(sorted: &[f64], part: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "some thousand answers")]
    let place = (sorted.len() as f64 * part).ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
    sorted.get((place as usize).saturating_sub(1)).map_or(f64::NAN, |seconds| seconds * 1e3)
}

/// The 99th percentile of all answers' times in milliseconds, and a row.
fn run(
    context: &Context,
    repo: &Path,
    load: &Load,
    (by_switch, buffer_bytes): (bool, u64),
) -> Result<(f64, Value)> {
    let options = StarOptions { buffer_bytes, ..star(HOSTS, RATE, 0) };
    let room = Room::open_serving(context, &[repo], &options, &["--no-multicast"])?;
    let agents = by_switch.then(|| Agents::start(&room, 1)).transpose()?;
    let (version, together) =
        (Arc::new(Version::newest(repo, &load.name)?), Arc::new(Barrier::new(HOSTS as usize)));
    let mut pulls = vec![];
    for host in 1..=HOSTS {
        let (joined, version) = (version.join(&room, host, true)?, Arc::clone(&version));
        let together = Arc::clone(&together);
        pulls.push(room.star.host(host).run(move || {
            together.wait();
            pull(version, joined)
        })?);
    }
    let (mut times, mut requests, mut waits) = (vec![], 0, 0);
    for pull in pulls {
        let pulled = pull.join().map_err(|_| "a thread panicked")??;
        if pulled.missing > 0 {
            return Err(format!("a host lacks {} objects", pulled.missing).into());
        }
        times.extend(pulled.answer_times.iter().map(base::Duration::as_secs_f64));
        requests += pulled.counters.requests;
        waits += pulled.counters.waits;
    }
    times.sort_by(f64::total_cmp);
    let agents = agents.map(Agents::end).transpose()?;
    let row = json!({
        "buffers KiB": buffer_bytes >> 10, "requests": requests, "waits": waits, "median ms": milliseconds(&times, 0.5),
        "90 % ms": milliseconds(&times, 0.9), "99 % ms": milliseconds(&times, 0.99),
        "most ms": milliseconds(&times, 1.0),
        "redirected by the agent": agents.map(|agents| agents[0]["redirected"].clone()),
    });
    Ok((milliseconds(&times, 0.99), row))
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let mut figures = vec![];
    for (name, by_switch) in [("peers.p99_latency", false), ("switch.p99_latency", true)] {
        let (mut values, mut rows) = (vec![], vec![]);
        for (buffer_bytes, runs) in BUFFERS {
            for _ in 0..runs {
                let (value, row) = run(context, &repo, &loads[0], (by_switch, buffer_bytes))?;
                rows.push(row);
                if buffer_bytes == BUFFERS[0].0 {
                    values.push(value);
                }
            }
        }
        let workload = format!("{}, {HOSTS} hosts, 100 Mbit/s, no multicast", loads[0].words);
        figures.push(Figure::new(name, &values, "ms", Bar::Shown).on(&workload, SINK).with(json!(rows)));
    }
    Ok(figures)
}
