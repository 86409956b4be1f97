//! Figures of a simulated cloud in virtual time: the boots, checkpoints, suspended machines and future work of the
//! system called seed 003, on its network, with the mirror's own core in each machine (`crates/sim/src/cloud` lists
//! the assumptions).

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::context::{Context, timed};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "mirror.sim_commit_150",
            "s until 150 simulated machines have committed 9 MiB each at once, on seed 003's network; at most 4",
        ),
        ("mirror.sim_boot_150", "s until 150 simulated machines have booted, with profile; shown"),
        ("mirror.sim_boot_speedup", "times as fast as a tree of full copies, 150 machines; shown"),
        (
            "mirror.sim_monte_carlo",
            "s of a job of 5 min on 100 machines, suspended and resumed elsewhere; shown",
        ),
        ("mirror.sim_sweep", "s to boot 50 machines in the best size of chunks at 10 ms; shown"),
        (
            "mirror.sim_seeds",
            "of 1000 seeds with kills, power cuts, commits and merges, those that fail; none",
        ),
    ],
    measure,
};

/// Bytes of data of the image that the boot was recorded from, and its encoded bytes.
const DATA_BYTES: f64 = 834.0 * 1_048_576.0;
const ENCODED_BYTES: f64 = 295.0 * 1_048_576.0;
/// Children of a node in a tree of copies: as TakTuk chooses for equal links.
const TREE_ARITY: u64 = 2;
/// Bytes that a node forwards at a time.
const PIECE_BYTES: f64 = 1_048_576.0;
/// Multicast payload as a multiple of the image, including the start (`multicast.16_hosts`).
const CAST_SHARE: f64 = 1.05;
/// Length of the Monte-Carlo job, and of its suspension.
const JOB_SECONDS: f64 = 300.0;
const PAUSE_SECONDS: f64 = 300.0;
/// Seeds of `mirror.sim_seeds`.
const SEEDS: u64 = 1000;
const SINK: &str = "virtual time; 1 Gbit/s ports, 0.2 ms, 50 storage nodes";

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let program = context.diskcast.with_file_name("diskcast-sim");
    let (boots, speedup) = boots(&program)?;
    Ok(vec![seeds(&program)?, commits(&program)?, boots, speedup, monte_carlo(&program)?, sweep(&program)?])
}

/// The result of a cloud. Times are in seconds.
struct Outcome {
    mean: f64,
    booted: f64,
    bytes: f64,
    committed: f64,
    commit_bytes: f64,
    frozen: f64,
}

/// Runs a cloud of `machines` that boot in this `way`, with additional options.
fn cloud(program: &Path, machines: u64, way: &str, words: &[(&str, u64)]) -> Result<Outcome> {
    let mut command = Command::new(program);
    command.args(["--cloud", &machines.to_string(), way]);
    for (word, number) in words {
        command.args([*word, &number.to_string()]);
    }
    let said: Value = serde_json::from_str(&timed(&mut command)?.output)?;
    let number = |key: &str| said[key].as_f64().ok_or_else(|| format!("a cloud did not say {key}: {said}"));
    Ok(Outcome {
        mean: number("mean_boot")?,
        booted: number("all_booted")?,
        bytes: number("boot_bytes")?,
        committed: number("all_committed")?,
        commit_bytes: number("commit_bytes")?,
        frozen: number("frozen")?,
    })
}

/// Time of bytes on a link of 1 Gbit/s, with the headers of TCP over IPv4.
pub(crate) fn link_seconds(bytes: f64) -> f64 {
    bytes * 1538.0 / 1448.0 * 8.0 / 1e9
}

fn mib(bytes: f64) -> f64 {
    (bytes / f64::from(1 << 20) * 10.0).round() / 10.0
}

fn milli(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// Runs the simulator's seeds of kills, power cuts, commits and merges.
fn seeds(program: &Path) -> Result<Figure> {
    let count = SEEDS.to_string();
    let output = Command::new(program).args(["--mirror", "--seed", "100000", "--count", &count]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let last =
        text.lines().last().and_then(|line| line.split(' ').next()).ok_or("the simulator said nothing")?;
    let sum = |words: &str| -> u64 {
        let numbers =
            text.lines().filter_map(|line| line.split(words).next()?.rsplit(' ').next()?.parse::<u64>().ok());
        numbers.sum()
    };
    let workload = format!(
        "{SEEDS} seeds with {} ends of process or power, {} versions, {} of them merged",
        sum(" crashes,"),
        sum(" versions,"),
        sum(" of them merged")
    );
    Ok(Figure::new("mirror.sim_seeds", &[last.parse()?], "failed", Bar::AtMost(0.0))
        .on(&workload, "virtual time"))
}

/// All machines commit at once what they have written since they booted.
fn commits(program: &Path) -> Result<Figure> {
    let mut rows = Vec::new();
    let mut bar = None;
    for (machines, storage, copies) in
        [(1, 50, 1), (16, 50, 1), (100, 50, 1), (150, 50, 1), (150, 50, 3), (16, 1, 1), (150, 1, 1)]
    {
        // The boot is not measured.
        let words = [("--storage", storage), ("--copies", copies), ("--computes-ms", 0)];
        let outcome = cloud(program, machines, "here", &words)?;
        if (machines, storage, copies) == (150, 50, 1) {
            bar = Some(outcome.committed);
        }
        rows.push(json!({
            "machines": machines, "storage nodes": storage, "copies": copies, "last s": milli(outcome.committed),
            "MiB": mib(outcome.commit_bytes), "write pause ms": outcome.frozen * 1000.0,
        }));
    }
    let took = bar.ok_or("the bar's row was not run")?;
    let workload = "each 32 chunks written in part and 1 MiB of random bytes, all frozen at the same moment";
    Ok(Figure::new("mirror.sim_commit_150", &[took], "s", Bar::AtMost(4.0))
        .peer("seed 003", "its instances' changes, as it concludes", 4.0, "s")
        .on(workload, SINK)
        .with(rows.into()))
}

/// Time of a full copy by a tree whose nodes forward each piece to each child.
#[expect(clippy::cast_precision_loss, reason = "few machines")]
pub(crate) fn tree_of_copies(machines: u64) -> f64 {
    let depth = (machines + 1).next_power_of_two().trailing_zeros();
    let children = TREE_ARITY.min(machines) as f64;
    children * (link_seconds(DATA_BYTES) + link_seconds(PIECE_BYTES) * f64::from(depth))
}

/// A boot from a full copy that took `first` seconds and `bytes` bytes.
fn copied(machines: u64, name: &str, first: f64, bytes: f64, local: &Outcome) -> Value {
    json!({
        "machines": machines, "storage nodes": 1, "way": name,
        "mean s": milli(first + local.mean), "all s": milli(first + local.booted), "MiB": mib(bytes),
    })
}

#[expect(clippy::cast_precision_loss, reason = "few machines")]
fn boots(program: &Path) -> Result<(Figure, Figure)> {
    let mut rows = Vec::new();
    let mut bar = None;
    for machines in [1, 10, 50, 100, 150, 1000] {
        let local = cloud(program, machines, "here", &[])?;
        for storage in [50, 1] {
            for (way, name) in
                [("demand", "on demand"), ("profile", "profile"), ("multicast", "profile by multicast")]
            {
                let outcome = cloud(program, machines, way, &[("--storage", storage)])?;
                if (machines, storage, way) == (150, 50, "profile") {
                    bar = Some((outcome.booted, local.booted));
                }
                rows.push(json!({
                    "machines": machines, "storage nodes": storage, "way": name,
                    "mean s": milli(outcome.mean), "all s": milli(outcome.booted), "MiB": mib(outcome.bytes),
                }));
            }
        }
        let (tree, multicast) = (tree_of_copies(machines), ENCODED_BYTES * CAST_SHARE);
        rows.push(copied(machines, "full copy by a tree", tree, DATA_BYTES * machines as f64, &local));
        rows.push(copied(machines, "full copy by multicast", link_seconds(multicast), multicast, &local));
    }
    let (ours, local) = bar.ok_or("the bar's row was not run")?;
    let tree = tree_of_copies(150);
    let workload = "a recorded boot of Debian 12 that computes for 10 s; machines start within 0.1 s";
    let shown = Figure::new("mirror.sim_boot_150", &[ours], "s", Bar::Shown)
        .peer("full copy first, by a tree", "834 MiB of data, 2 children each", tree + local, "s")
        .on(workload, SINK)
        .with(rows.into());
    let speedup = Figure::new("mirror.sim_boot_speedup", &[(tree + local) / ours], "ratio", Bar::Shown)
        .peer("seed 003", "at most, its image copied raw", 30.0, "ratio")
        .on("until all of 150 machines have booted, a tree of full copies over ours with profile", SINK);
    Ok((shown, speedup))
}

/// 100 machines compute for five minutes: uninterrupted; suspended in the middle, and resumed on other nodes after
/// five minutes more; and after a full copy.
fn monte_carlo(program: &Path) -> Result<Figure> {
    let first = cloud(program, 100, "profile", &[])?;
    // A node without data of the machine fetches everything that the boot reads, including the machine's own changes.
    let resumed = cloud(program, 100, "profile", &[("--seed", 2)])?;
    let local = cloud(program, 100, "here", &[])?;
    let uninterrupted = first.booted + JOB_SECONDS;
    let suspended = uninterrupted + first.committed + PAUSE_SECONDS + resumed.booted;
    let copied = tree_of_copies(100) + local.booted + JOB_SECONDS;
    let rows = json!([
        {"run": "uninterrupted, on demand with profile", "s": milli(uninterrupted)},
        {"run": "suspended, 300 s later resumed on other nodes", "s": milli(suspended)},
        {"run": "of which commit and second boot", "s": milli(first.committed + resumed.booted)},
        {"run": "uninterrupted, after a full copy by a tree", "s": milli(copied)},
    ]);
    Ok(Figure::new("mirror.sim_monte_carlo", &[suspended], "s", Bar::Shown)
        .peer("uninterrupted", "the same", uninterrupted, "s")
        .peer("full copy first, by a tree", "uninterrupted", copied, "s")
        .on("100 machines, a job of 300 s, suspended for 300 s in the middle", SINK)
        .with(rows))
}

/// The future work of seed 003: size of chunks, size of the image, distance, copies.
fn sweep(program: &Path) -> Result<Figure> {
    const MACHINES: u64 = 50;
    let cells = [64, 128, 256, 512, 1024, 4096]
        .into_iter()
        .flat_map(|chunk| [(chunk, 1, 200, 1), (chunk, 1, 10_000, 1)]);
    let others =
        [(256, 16, 200, 1), (256, 256, 200, 1), (256, 1, 100_000, 1), (256, 1, 200, 2), (256, 1, 200, 3)];
    let (mut rows, mut best) = (Vec::new(), f64::INFINITY);
    for (chunk, spread, round_trip, copies) in cells.chain(others) {
        let words =
            [("--chunk", chunk), ("--spread", spread), ("--round-trip-us", round_trip), ("--copies", copies)];
        let (demand, profile) =
            (cloud(program, MACHINES, "demand", &words)?, cloud(program, MACHINES, "profile", &words)?);
        if round_trip == 10_000 {
            best = best.min(demand.booted);
        }
        rows.push(json!({
            "chunk KiB": chunk, "image GiB": 4 * spread, "round trip us": round_trip, "copies": copies,
            "on demand s": milli(demand.booted), "profile s": milli(profile.booted),
            "MiB of all": mib(demand.bytes), "commit s": milli(demand.committed),
            "commit MiB of all": mib(demand.commit_bytes),
        }));
    }
    Ok(Figure::new("mirror.sim_sweep", &[best], "s", Bar::Shown)
        .on("50 machines, the recorded boot in chunks of other sizes, images, distances, copies", SINK)
        .with(rows.into()))
}
