//! The figure that compares diskcast with other tools that send one file to many machines, in the same networks and in
//! the same run.
//!
//! The other tools send a file of incompressible bytes, as long as the encoded image. Time runs from the start of the
//! clients, or of the sender if clients must wait for it, until a host's program says that it is done. A run that takes
//! [`PATIENCE`] times as long as diskcast is stopped and counts as that long.
//!
//! Each number is the median of three runs. A tool runs only once if it takes longer than [`LONG`] seconds, or longer
//! than [`HOPELESS`] times diskcast's time. In the second case it cannot be the best tool; if that happens with
//! incompressible data, the tool is left out of the same network's Debian cell.

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

/// Hosts and bits per second of their links.
const NETWORKS: &[(u32, u64)] = &[(1, GIGABIT), (4, GIGABIT), (8, GIGABIT), (16, 100_000_000)];
/// Lost frames per million.
const LOSSES: &[u32] = &[0, 10_000];
/// A run is stopped when it takes this many times as long as diskcast.
const PATIENCE: f64 = 4.0;
/// A tool that takes more than this many times as long as diskcast is not the best, and runs once.
const HOPELESS: f64 = 1.5;
/// A tool that takes more than this many seconds runs once.
const LONG: f64 = 30.0;

/// The result of one tool in one cell: medians of its runs.
struct Entry {
    tool: String,
    flags: String,
    runs: usize,
    /// Seconds until the first host had the file; the mean of all hosts; the last host.
    first: f64,
    mean: f64,
    last: f64,
    /// Bytes that left the server, divided by the file's length.
    bytes: f64,
    state: String,
    /// Whether more than half of the runs succeeded.
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
            .on("1, 4 and 8 hosts at 1 Gbit/s, 16 at 100 Mbit/s, with no and with 1 % loss, incompressible data \
                and a Debian image", sink)
            .with(json!(rows)),
    ])
}

/// For tuning: measures and prints one cell of the table, without recording it. `hosts` hosts on links of `rate` that
/// lose `percent` of the frames get `mebibytes` MiB of incompressible data by diskcast and by each tool whose name
/// begins with `tool`.
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

/// The results of one cell: diskcast first, then the tools of `field` in their order.
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

/// diskcast's result, and the bytes of the encoded image.
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

/// The result of another tool. `ours` is diskcast's time in seconds, `bound` the time limit of a run.
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
        // One failure may be bad luck.
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

    /// Prints the result at once, since the whole table takes a quarter of an hour.
    fn tell(&self, cell: &Cell) {
        let Self { tool, last, bytes, state, .. } = self;
        let (network, load) = (&cell.words, &cell.load.words);
        eprintln!("{network}; {load}: {tool} {last:.2} s, {bytes:.2} files sent, {state}");
    }
}
