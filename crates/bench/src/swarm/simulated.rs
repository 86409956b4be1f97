//! Figures of simulated machines that serve each other, in virtual time, with the machines of `proto::peer` that are
//! shipped: starts apart from each other as in seed 004, 10,000 machines in racks, and seeds with faults.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::RUNS;
use crate::context::{Context, timed};
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(super) const SIMULATED: Group = Group {
    figures: &[
        (
            "peers.start_delay",
            "bytes over the least of SWP2P's model and multicast alone, 30 simulated machines, the worst of eleven \
             start delays; at most 1.02",
        ),
        (
            "peers.start_delay_time",
            "median run time over the shorter of the same two, the worst of eleven start delays; at most 1.01",
        ),
        (
            "switch.start_delay",
            "bytes redirected by a simulated switch over those redirected by the server, the worst of eleven start \
             delays; at most 1.05",
        ),
        (
            "peers.sim_10000",
            "images that the server sends to 10,000 simulated machines in 300 racks, starts over one transfer time; at \
             most 1.5",
        ),
        ("peers.sim_10000_uplink", "images through the busiest uplink of a rack, the same run; at most 2"),
        (
            "peers.sim_10000_time",
            "time of the slowest machine over that of one alone, the same run; at most 1.3",
        ),
        (
            "peers.sim_seeds",
            "of 2000 seeds with lost packets, dead, stalled, lying and hostile members, those that fail; none",
        ),
    ],
    measure,
};

const SEEDS: u64 = 2000;
const SINK: &str = "virtual time";
/// Policies of the sweep. The loss that SWP2P's authors saw is left out, since diskcast repairs with symbols.
const POLICIES: [&str; 5] = ["hybrid", "swp2p", "multicast", "server", "switch"];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let program = context.diskcast.with_file_name("diskcast-sim");
    let mut figures = sweep(&program)?;
    figures.extend(hall(&program)?);
    figures.push(seeds(&program)?);
    Ok(figures)
}

/// The lines of JSON that the simulator prints.
fn lines(program: &Path, words: &[&str]) -> Result<Vec<Value>> {
    let said = timed(Command::new(program).args(words).arg("--json"))?;
    said.output.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// A point of the sweep: the medians of all seeds, in the order of [`POLICIES`].
struct Point {
    delay: f64,
    images: Vec<f64>,
    seconds: Vec<f64>,
}

impl Point {
    /// A value of the hybrid over the least of both that it combines.
    fn share(values: &[f64]) -> f64 {
        values[0] / values[1].min(values[2])
    }

    fn row(&self) -> Value {
        let mut row = json!({ "start delay s": self.delay });
        for (index, policy) in POLICIES.iter().enumerate() {
            row[format!("{policy} images")] = self.images[index].into();
            row[format!("{policy} s")] = self.seconds[index].into();
        }
        row
    }
}

fn points(program: &Path) -> Result<Vec<Point>> {
    let mut runs = Vec::new();
    for seed in 1..=RUNS {
        let seed = seed.to_string();
        let mut words = vec!["--sweep"];
        words.extend(POLICIES);
        words.extend(["--misses", "0", "--handling-us", "20", "--seed", &seed]);
        runs.push(lines(program, &words)?);
    }
    let delays = runs[0].len() / POLICIES.len();
    let value = |index: usize, key: &str| {
        median(&runs.iter().map(|run| run[index][key].as_f64().unwrap_or(f64::NAN)).collect::<Vec<_>>())
    };
    let of =
        |at: usize, key: &str| (0..POLICIES.len()).map(|policy| value(policy * delays + at, key)).collect();
    let point = |at| Point { delay: value(at, "delay"), images: of(at, "images"), seconds: of(at, "median") };
    Ok((0..delays).map(point).collect())
}

fn sweep(program: &Path) -> Result<Vec<Figure>> {
    let points = points(program)?;
    let worst = |share: &dyn Fn(&Point) -> f64| points.iter().map(share).fold(f64::NEG_INFINITY, f64::max);
    let images = worst(&|point| Point::share(&point.images));
    let seconds = worst(&|point| Point::share(&point.seconds));
    let switch = worst(&|point| point.images[4] / point.images[3]);
    let workload = "30 machines, 730 MB, starts 0 to 20 s apart; a machine leaves when it has written all";
    let rows: Vec<Value> = points.iter().map(Point::row).collect();
    Ok(vec![
        Figure::new("peers.start_delay", &[images], "ratio", Bar::AtMost(1.02))
            .on(workload, SINK)
            .with(rows.into()),
        Figure::new("peers.start_delay_time", &[seconds], "ratio", Bar::AtMost(1.01)).on(workload, SINK),
        Figure::new("switch.start_delay", &[switch], "ratio", Bar::AtMost(1.05)).on(workload, SINK),
    ])
}

fn hall(program: &Path) -> Result<Vec<Figure>> {
    let run = lines(program, &["--hall", "hybrid", "--receivers", "10000", "--racks", "300"])?;
    let run = run.first().ok_or("the simulator said nothing")?;
    let number =
        |key: &str| run[key].as_f64().ok_or_else(|| format!("the simulator did not say {key}: {run}"));
    let workload = "10,000 machines in 300 racks, 1 Gbit/s, 2 GiB, starts at random over one transfer time";
    let figure =
        |name, value, unit, bar| Figure::new(name, &[value], unit, Bar::AtMost(bar)).on(workload, SINK);
    Ok(vec![
        figure("peers.sim_10000", number("images")?, "images", 1.5),
        figure("peers.sim_10000_uplink", number("uplink_images_max")?, "images", 2.0),
        figure("peers.sim_10000_time", number("times_alone_max")?, "ratio", 1.3).with(json!([{
            "median time over alone": number("times_alone_median")?,
            "most time over alone": number("times_alone_max")?,
            "requests": number("requests")?,
            "chunks from machines": number("peer_chunks")?,
        }])),
    ])
}

fn seeds(program: &Path) -> Result<Figure> {
    let output = Command::new(program)
        .args(["--peers", "--seed", "100000", "--count", &SEEDS.to_string()])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let failed =
        text.lines().last().and_then(|line| line.split(' ').next()).ok_or("the simulator said nothing")?;
    let workload = format!("{SEEDS} seeds, 2 to 11 members each");
    Ok(Figure::new("peers.sim_seeds", &[failed.parse()?], "failed", Bar::AtMost(0.0)).on(&workload, SINK))
}
