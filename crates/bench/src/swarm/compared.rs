//! The default of `fetch` beside other tools, and beside multicast alone, in the same run.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{RUNS, SINK, fetch, most};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::load;
use crate::peer::{PEERS, Peer};
use crate::room::star;
use crate::transfer::{Load, library, transfer};
use crate::{Group, Result};

pub(super) const ONE_HOST: Group = Group {
    figures: &[(
        "peers.one_host",
        "time of a single host over that of curl from nginx, 1 Gbit/s; at most 1.02",
    )],
    measure: one_host,
};

pub(super) const VS_BEST: Group = Group {
    figures: &[
        (
            "peers.vs_best",
            "time of the last of 1, 2, 4, 8 and 16 hosts over that of the best of aria2, a chain of TCP copies and \
             multicast alone, the most; at most 1.05",
        ),
        (
            "peers.last_vs_mean",
            "time of the last host over the mean host's, in these cells, the most; at most 1.10",
        ),
    ],
    measure: vs_best,
};

const GIGABIT: u64 = 1_000_000_000;
/// A run of another tool is stopped when it takes this many times as long as diskcast.
const PATIENCE: f64 = 4.0;

/// The times of each host until its program ended, of all runs; and those until it had received everything.
fn ours(context: &Context, repo: &Path, load: &Load, hosts: u32, rate: u64) -> Result<[Vec<Vec<f64>>; 2]> {
    let (mut ended, mut received) = (vec![], vec![]);
    for _ in 0..RUNS {
        let done = fetch(context, repo, load, (hosts, rate), 0, |_| Duration::ZERO)?;
        ended.push(done.fetched.iter().map(|host| host.ended).collect());
        received.push(done.fetched.iter().map(|host| host.received).collect());
    }
    Ok([ended, received])
}

/// The median time of the last host with another tool, in seconds.
fn theirs(context: &Context, tool: &Peer, file: &Path, (hosts, rate): (u32, u64), ours: f64) -> Result<f64> {
    let bound = Duration::from_secs_f64((ours * PATIENCE).max(4.0));
    let mut times = vec![];
    for _ in 0..RUNS {
        times.push(tool.run(context, &star(hosts, rate, 0), file, bound)?.last(bound));
    }
    Ok(median(&times))
}

fn tool(name: &str) -> Result<&'static Peer> {
    PEERS.iter().find(|peer| peer.name.contains(name)).ok_or_else(|| format!("no tool {name}").into())
}

fn last(runs: &[Vec<f64>]) -> f64 {
    median(&runs.iter().map(|run| most(run)).collect::<Vec<_>>())
}

fn one_host(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[1024], false)?;
    let load = &loads[0];
    let [runs, _] = ours(context, &repo, load, 1, GIGABIT)?;
    let file = load::random_file(context, 1024 << 20)?;
    let curl = theirs(context, tool("curl")?, &file, (1, GIGABIT), last(&runs))?;
    std::fs::remove_file(file)?;
    let ratios: Vec<f64> = runs.iter().map(|run| most(run) / curl).collect();
    Ok(vec![
        Figure::new("peers.one_host", &ratios, "ratio", Bar::AtMost(1.02))
            .peer("nginx + curl", "sendfile, TCP cubic; to /dev/null", curl, "s")
            .on(&format!("{}, 1 Gbit/s", load.words), SINK),
    ])
}

fn vs_best(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[512, 128], false)?;
    let files = [load::random_file(context, 512 << 20)?, load::random_file(context, 128 << 20)?];
    let (mut rows, mut ratios, mut unequal): (Vec<Value>, Vec<f64>, Vec<f64>) = (vec![], vec![], vec![]);
    for (hosts, rate, size) in
        [(1, GIGABIT, 0), (2, GIGABIT, 0), (4, GIGABIT, 0), (8, GIGABIT, 0), (16, GIGABIT / 5, 1)]
    {
        let (load, file) = (&loads[size], &files[size]);
        let [runs, received] = ours(context, &repo, load, hosts, rate)?;
        let time = last(&runs);
        let aria2 = theirs(context, tool("aria2")?, file, (hosts, rate), time)?;
        let chain = theirs(context, tool("chain")?, file, (hosts, rate), time)?;
        let mut alone = vec![];
        for _ in 0..RUNS {
            let done = transfer(context, &repo, &load.name, &star(hosts, rate, 0))?;
            alone.push(most(&done.fetched.iter().map(|host| host.ended).collect::<Vec<_>>()));
        }
        let alone = median(&alone);
        let best = aria2.min(chain).min(alone);
        #[expect(clippy::cast_precision_loss, reason = "few hosts")]
        let spread = |run: &Vec<f64>| most(run) * run.len() as f64 / run.iter().sum::<f64>();
        let spread = median(&runs.iter().map(spread).collect::<Vec<_>>());
        ratios.push(time / best);
        unequal.push(spread);
        rows.push(json!({
            "hosts": hosts, "rate Mbit/s": rate / 1_000_000, "workload": load.words, "diskcast s": time,
            "multicast alone s": alone, "chain s": chain, "aria2 s": aria2, "over the best": time / best,
            "last over mean": spread, "diskcast received s": last(&received),
        }));
    }
    for file in files {
        std::fs::remove_file(file)?;
    }
    let words = "1 to 8 hosts, 512 MiB at 1 Gbit/s; 16 hosts, 128 MiB at 200 Mbit/s; incompressible";
    Ok(vec![
        Figure::new("peers.vs_best", &[most(&ratios)], "ratio", Bar::AtMost(1.05))
            .on(words, SINK)
            .with(json!(rows)),
        Figure::new("peers.last_vs_mean", &[most(&unequal)], "ratio", Bar::AtMost(1.10)).on(words, SINK),
    ])
}
