//! Every tool that brings one file to many machines, side by side, in the same networks, in the same run.
//!
//! Tools other than diskcast send a file of as many incompressible bytes as the image has encoded. Time runs from the
//! start of the clients (of the sender, where clients must wait for it) until a host's program says that it is done.
//! A run that takes four times as long as diskcast is ended and counts as that. Medians of three runs; one run where it
//! takes over 30 s, or half again as long as diskcast with incompressible data: such a tool is not the best, and is
//! left out of the same network's Debian cell.

use std::path::Path;
use std::time::Duration;

use base::units::parse_bits_per_second;
use lab::StarOptions;
use serde_json::{Value, json};

use super::{GIGABIT, RUNS, rate_words, star};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::load;
use crate::peer::{PEERS, Peer, State, Trial};
use crate::transfer::{Load, library, transfer};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "multicast.vs_best_peer",
        "last host's time over that of the best other tool, the most of all cells; at most 1.05",
    )],
    measure,
};

const NETWORKS: &[(u32, u64)] = &[(1, GIGABIT), (4, GIGABIT), (8, GIGABIT), (16, 100_000_000)];
const LOSSES: &[u32] = &[0, 10_000];
/// A run is ended when it takes this many times as long as diskcast.
const PATIENCE: f64 = 4.0;
/// Whoever takes this many times as long as diskcast is not the best, and runs once.
const HOPELESS: f64 = 1.5;
/// Seconds beyond which one run is enough.
const LONG: f64 = 30.0;

/// What one tool reached in one cell: medians.
struct Entry {
    tool: String,
    flags: String,
    runs: usize,
    first: f64,
    mean: f64,
    last: f64,
    /// Bytes out of the server over the file.
    bytes: f64,
    state: String,
    done: bool,
}

/// One network with one load.
struct Cell {
    options: StarOptions,
    words: String,
    load: Load,
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[256, 128], true)?;
    let (mut rows, mut worst) = (vec![], (f64::NEG_INFINITY, String::new(), f64::NAN));
    for &loss in LOSSES {
        for &(hosts, rate) in NETWORKS {
            let random = if rate == GIGABIT { &loads[0] } else { &loads[1] };
            let mut field: Vec<&Peer> = PEERS.iter().collect();
            for load in [random, &loads[2]] {
                let words = format!("{hosts} at {}, {} % loss", rate_words(rate), loss / 10_000);
                let cell = Cell { options: star(hosts, rate, loss), words, load: load.clone() };
                let entries = compare(context, &repo, &cell, &field)?;
                let ours = entries[0].last;
                let best =
                    entries[1..].iter().filter(|entry| entry.done).min_by(|a, b| a.last.total_cmp(&b.last));
                if let Some(best) = best.filter(|best| ours / best.last > worst.0) {
                    worst = (ours / best.last, format!("{} in {}", best.tool, cell.words), best.last);
                }
                rows.extend(entries.iter().map(|entry| entry.row(&cell, ours)));
                let hopeful = |peer: &&Peer| {
                    entries
                        .iter()
                        .any(|entry| entry.tool == peer.name && entry.done && entry.last <= HOPELESS * ours)
                };
                field.retain(hopeful);
            }
        }
    }
    let (value, best, seconds) = worst;
    let sink = "diskcast null, verifying; the others as the table says";
    Ok(vec![
        Figure::new("multicast.vs_best_peer", &[value], "ratio", Bar::AtMost(1.05))
            .peer(&best, "the cell where diskcast is least ahead", seconds, "s")
            .on(
                "1, 4 and 8 hosts at 1 Gbit/s, 16 at 100 Mbit/s, with no and with 1 % loss, \
                 incompressible data and a Debian image",
                sink,
            )
            .with(json!(rows)),
    ])
}

/// One cell of the table, said but not kept: `hosts` hosts on links of `rate`, losing `percent` of the frames, get
/// `mebibytes` of incompressible data by diskcast and by the tools whose names begin with `tool`.
pub(crate) fn explore(context: &Context, [hosts, rate, percent, mebibytes, tool]: [&str; 5]) -> Result<()> {
    let rate = parse_bits_per_second(rate).ok_or("expected a rate such as 200M")?;
    let loss: f64 = percent.parse()?;
    let loss_per_million = format!("{:.0}", loss * 10_000.0).parse()?;
    let (repo, loads) = library(context, &[mebibytes.parse()?], false)?;
    let options = star(hosts.parse()?, rate, loss_per_million);
    let words = format!("{hosts} at {}, {loss} % loss", rate_words(rate));
    let field: Vec<_> = PEERS.iter().filter(|peer| peer.name.starts_with(tool)).collect();
    compare(context, &repo, &Cell { options, words, load: loads[0].clone() }, &field).map(drop)
}

/// diskcast first, then the others in their order.
fn compare(context: &Context, repo: &Path, cell: &Cell, field: &[&Peer]) -> Result<Vec<Entry>> {
    let (ours, image_bytes) = diskcast(context, repo, cell)?;
    let file = load::random_file(context, image_bytes)?;
    let bound = Duration::from_secs_f64((ours.last * PATIENCE).max(4.0));
    ours.tell(cell);
    let mut entries = vec![ours];
    for peer in field {
        let entry = trials(context, cell, peer, &file, bound, entries[0].last)?;
        entry.tell(cell);
        entries.push(entry);
    }
    std::fs::remove_file(file)?;
    Ok(entries)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn diskcast(context: &Context, repo: &Path, cell: &Cell) -> Result<(Entry, u64)> {
    let (mut trials, mut image_bytes) = (vec![], 0);
    for _ in 0..RUNS {
        let done = transfer(context, repo, &cell.load.name, &cell.options)?;
        let mut seconds: Vec<f64> = done.fetched.iter().map(|host| host.ended).collect();
        seconds.sort_by(f64::total_cmp);
        image_bytes = done.image_bytes;
        trials.push(Trial { state: State::Done, seconds, server_bytes: done.wire_bytes });
    }
    let flags = "fetch to null:, verifying";
    Ok((Entry::of("diskcast", flags, &trials, Duration::MAX, image_bytes as f64), image_bytes))
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn trials(
    context: &Context,
    cell: &Cell,
    peer: &Peer,
    file: &Path,
    bound: Duration,
    ours: f64,
) -> Result<Entry> {
    let mut first = peer.run(context, &cell.options, file, bound)?;
    if matches!(first.state, State::Failed(_)) {
        // Once may be an accident.
        first = peer.run(context, &cell.options, file, bound)?;
    }
    let last = first.last(bound);
    let again = first.state == State::Done && last <= LONG && last <= HOPELESS * ours;
    let mut trials = vec![first];
    while again && trials.len() < RUNS {
        trials.push(peer.run(context, &cell.options, file, bound)?);
    }
    let bytes = file.metadata()?.len() as f64;
    Ok(Entry::of(peer.name, peer.flags, &trials, bound, bytes))
}

impl Entry {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn of(tool: &str, flags: &str, trials: &[Trial], bound: Duration, bytes: f64) -> Self {
        let middle = |of: &dyn Fn(&Trial) -> f64| median(&trials.iter().map(of).collect::<Vec<_>>());
        let unlucky = trials.iter().find(|trial| trial.state != State::Done);
        let state = match unlucky.map(|trial| &trial.state) {
            None | Some(State::Done) => "ok".to_owned(),
            Some(State::TimedOut(hosts)) => {
                format!("{hosts} hosts not done after {:.0} s", bound.as_secs_f64())
            }
            Some(State::Failed(words)) => format!("failed: {words}"),
        };
        Self {
            tool: tool.to_owned(),
            flags: flags.to_owned(),
            runs: trials.len(),
            first: middle(&|trial| trial.seconds.first().copied().unwrap_or(f64::NAN)),
            mean: middle(&|trial| trial.seconds.iter().sum::<f64>() / trial.seconds.len() as f64),
            last: middle(&|trial| trial.last(bound)),
            bytes: middle(&|trial| trial.server_bytes as f64 / bytes),
            state,
            done: trials.iter().filter(|trial| trial.state == State::Done).count() * 2 > trials.len(),
        }
    }

    fn row(&self, cell: &Cell, ours: f64) -> Value {
        json!({
            "network": cell.words, "workload": cell.load.words, "tool": self.tool, "flags": self.flags,
            "runs": self.runs,
            "first s": self.first, "mean s": self.mean, "last s": self.last, "over diskcast": self.last / ours,
            "server bytes / file": self.bytes, "state": self.state, "done": self.done,
        })
    }

    /// The table takes a quarter of an hour: its lines are said as they come.
    fn tell(&self, cell: &Cell) {
        let Self { tool, last, bytes, state, .. } = self;
        let (network, load) = (&cell.words, &cell.load.words);
        eprintln!("{network}; {load}: {tool} {last:.2} s, {bytes:.2} files sent, {state}");
    }
}
