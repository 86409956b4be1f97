//! Experiments with more machines than a lab holds, in virtual time: figure 5 of seed 002, and the boots of seed 003.
//! `crates/sim/src/striped` lists what is real there and what is assumed.

use std::process::Command;

use serde_json::{Value, json};

use crate::cloud::{link_seconds, tree_of_copies};
use crate::context::{Context, timed};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "cluster.figure5_read",
            "MB/s that 60 simulated clients of 100 devices read, 3,100 in seed 002; shown",
        ),
        ("cluster.figure5_write", "MB/s that they store durably, 2,700 in seed 002; shown"),
        ("cluster.figure5_large", "MB/s that 150 clients of 300 devices read, 10,000 in seed 002; shown"),
        ("cluster.boots_150", "s until 150 simulated machines have read a boot from 50 devices; shown"),
    ],
    measure,
};

const COUNTS: [u64; 6] = [10, 20, 30, 40, 50, 60];
const DEVICES: u64 = 100;
const MACHINES: [u64; 6] = [1, 10, 25, 50, 100, 150];
const STORAGE: u64 = 50;
/// What the disk of a device gives: ten devices give 400 MB/s in the seed (section 2).
const DISK: f64 = 40e6;
/// Components of segments of 64 MiB: the recorded image has five of them, and one of 1 GiB.
const SHORT_COMPONENT: u64 = 8 << 20;
/// What it would give by the seed's example: 333 KB in 10 ms (section 4).
const SLOW_DISK: u64 = 33_300_000;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let sim = Sim { program: context.diskcast.with_file_name("diskcast-sim") };
    let mut figures = figure_5(&sim)?;
    figures.push(boots(&sim)?);
    Ok(figures)
}

struct Sim {
    program: std::path::PathBuf,
}

/// What a run told.
struct Outcome {
    seconds: f64,
    content_bytes: f64,
    sent_bytes: f64,
    most_sent_bytes: f64,
}

impl Sim {
    fn run(&self, work: &str, clients: u64, devices: u64, words: &[(&str, u64)]) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command.args(["--striped", work, &clients.to_string(), &devices.to_string()]);
        for (word, number) in words {
            command.args([*word, &number.to_string()]);
        }
        let said: Value = serde_json::from_str(&timed(&mut command)?.output)?;
        let number = |key: &str| said[key].as_f64().ok_or_else(|| format!("no {key} in {said}"));
        Ok(Outcome {
            seconds: number("seconds")?,
            content_bytes: number("content_bytes")?,
            sent_bytes: number("sent_bytes")?,
            most_sent_bytes: number("most_sent_bytes")?,
        })
    }

    /// MB/s of contents until the last client has all.
    fn rate(&self, work: &str, clients: u64, devices: u64, words: &[(&str, u64)]) -> Result<f64> {
        let outcome = self.run(work, clients, devices, words)?;
        Ok(outcome.content_bytes / outcome.seconds / 1e6)
    }
}

/// MB/s that links and disks allow; `content` is the share of contents in what is written.
#[expect(clippy::cast_precision_loss, reason = "few machines")]
fn limit(clients: u64, devices: u64, content: f64) -> f64 {
    let link = 1e6 / link_seconds(1e6);
    // Ten devices share four links.
    let trunks = devices as f64 * 0.4 * link;
    content * (clients as f64 * link).min(devices as f64 * DISK).min(trunks) / 1e6
}

fn figure_5(sim: &Sim) -> Result<Vec<Figure>> {
    let (mut rows, mut last) = (vec![], (f64::NAN, f64::NAN));
    for (clients, devices) in COUNTS.map(|count| (count, DEVICES)).into_iter().chain([(150, 300)]) {
        let rate = |work: &str, words: &[(&str, u64)]| sim.rate(work, clients, devices, words);
        let (read, write) = (rate("read", &[])?, rate("write", &[])?);
        if (clients, devices) == (60, DEVICES) {
            last = (read, write);
        }
        rows.push(json!({
            "clients": clients, "devices": devices, "read MB/s": read, "write MB/s": write,
            "read limit MB/s": limit(clients, devices, 1.0), "write limit MB/s": limit(clients, devices, 0.8),
            "read MB/s, one content at a time": rate("read", &[("--at-once", 1)])?,
            "write MB/s at 8 + 1": rate("write", &[("--parity", 1)])?,
            "read MB/s, disks of 33.3": rate("read", &[("--disk", SLOW_DISK)])?,
        }));
    }
    let large = rows.last().and_then(|row| row["read MB/s"].as_f64()).unwrap_or(f64::NAN);
    let workload =
        "32 contents of 16 MiB of its own for each client, 8 at a time, 8 + 2; until the last has all";
    let sink = "virtual time; links of 1 Gbit/s, ten devices share four, disks of 40 MB/s";
    let figure = |name: &str, value: f64, seed: f64, limit: f64| {
        let figure = Figure::new(name, &[value], "MB/s", Bar::Shown).peer("seed 002", "text", seed, "MB/s");
        figure.peer("limit", "clients' links, trunks, disks", limit, "MB/s").on(workload, sink)
    };
    Ok(vec![
        figure("cluster.figure5_read", last.0, 3100.0, limit(60, DEVICES, 1.0)).with(json!(rows)),
        figure("cluster.figure5_write", last.1, 2700.0, limit(60, DEVICES, 0.8)).with(json!(rows)),
        figure("cluster.figure5_large", large, 10_000.0, limit(150, 300, 1.0)),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "few machines")]
fn boots(sim: &Sim) -> Result<Figure> {
    let (mut rows, mut outcomes) = (vec![], vec![]);
    for machines in MACHINES {
        let outcome = sim.run("boot", machines, STORAGE, &[])?;
        let needed = outcome.content_bytes;
        let spread = sim.run("boot", machines, STORAGE, &[("--component", SHORT_COMPONENT)])?;
        let own = link_seconds(needed / machines as f64);
        rows.push(json!({
            "machines": machines, "last s": outcome.seconds, "last s, segments of 64 MiB": spread.seconds,
            "limit s": own.max(link_seconds(needed / STORAGE as f64)),
            "busiest device's link s": link_seconds(outcome.most_sent_bytes),
            "MB sent for each": outcome.sent_bytes / machines as f64 / 1e6,
            "MB needed": needed / machines as f64 / 1e6, "full copy by a tree s": tree_of_copies(machines),
        }));
        outcomes.push(outcome);
    }
    let (alone, all) = (&outcomes[0], &outcomes[outcomes.len() - 1]);
    let limit = link_seconds(all.content_bytes / STORAGE as f64);
    let workload = "the objects of a recorded boot of Debian 12, in its order, 12 at a time";
    let sink =
        "virtual time; 50 devices of 8 + 2, 1 Gbit/s for each device and machine; the guest computes nothing";
    Ok(Figure::new("cluster.boots_150", &[all.seconds], "s", Bar::Shown)
        .peer("one machine alone", "", alone.seconds, "s")
        .peer("limit", "the links of 50 devices", limit, "s")
        .peer(
            "full copy first, by a tree",
            "seed 003: it is up to 30 times as fast",
            tree_of_copies(150),
            "s",
        )
        .on(workload, sink)
        .with(json!(rows)))
}
