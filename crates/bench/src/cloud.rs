//! What a cloud would see, in virtual time: seed 003's boots, checkpoints, suspended machines and its future work, on its
//! network, with the mirror's own core in each machine (`sim::cloud`, which says what is assumed).

use std::time::Duration;

use serde_json::json;
use sim::cloud::{Boot, Cloud, Way};

use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub const GROUP: Group = Group {
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
        ("mirror.sim_sweep", "s to boot 150 machines in the best size of chunks at 10 ms; shown"),
    ],
    measure,
};

/// Data of the image that the boot was recorded from, and its encoded bytes (facts of issue 5).
const DATA_BYTES: u64 = 834 << 20;
const ENCODED_BYTES: u64 = 295 << 20;
/// Children of a node of a tree of copies: TakTuk's, where links are alike.
const TREE_ARITY: u32 = 2;
/// What it passes on at once.
const PIECE_BYTES: u64 = 1 << 20;
/// What multicast sends besides the image's bytes, measured (`multicast.16_hosts`): 5 %.
const CAST_PERCENT: u64 = 105;
const SINK: &str = "virtual time; 1 Gbit/s ports, 0.2 ms, 50 storage nodes";

fn measure(_: &Context) -> Result<Vec<Figure>> {
    let boot = Boot::recorded();
    let (boots, speedup) = boots(&boot)?;
    Ok(vec![commits(&boot)?, boots, speedup, monte_carlo(&boot), sweep(&boot)?])
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn mib(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0
}

/// All machines commit at once what they have written since they booted.
fn commits(boot: &Boot) -> Result<Figure> {
    let mut rows = Vec::new();
    let mut bar = None;
    for (machines, storage, replicas) in
        [(1, 50, 1), (16, 50, 1), (100, 50, 1), (150, 50, 1), (150, 50, 3), (16, 1, 1), (150, 1, 1)]
    {
        // The boot is not what is measured.
        let cloud = Cloud { storage, replicas, computes: Duration::ZERO, ..Cloud::new(machines, Way::Here) };
        let outcome = cloud.run(boot);
        let took = seconds(outcome.all_committed());
        if (machines, storage, replicas) == (150, 50, 1) {
            bar = Some(took);
        }
        rows.push(json!({
            "machines": machines, "storage nodes": storage, "copies": replicas, "last s": took,
            "MiB": mib(outcome.commit_bytes), "write pause ms": seconds(outcome.frozen) * 1000.0,
        }));
    }
    let took = bar.ok_or("the bar's row was not run")?;
    let workload = "each 32 chunks written in part and 1 MiB of random bytes, all frozen at the same moment";
    Ok(Figure::new("mirror.sim_commit_150", &[took], "s", Bar::AtMost(4.0))
        .peer("seed 003", "its instances' changes, from its conclusions", 4.0, "s")
        .on(workload, SINK)
        .with(rows.into()))
}

/// How long a full copy to `machines` takes by a tree, each node of which passes on what it gets.
fn tree_of_copies(cloud: &Cloud) -> Duration {
    let machines = u32::try_from(cloud.machines).unwrap_or(u32::MAX);
    let depth = (machines + 1).next_power_of_two().trailing_zeros();
    // A node sends each byte once to each child, but for the last.
    let children = TREE_ARITY.min(machines);
    cloud.link_time(DATA_BYTES) * children + cloud.link_time(PIECE_BYTES) * children * depth
}

fn boots(boot: &Boot) -> Result<(Figure, Figure)> {
    let mut rows = Vec::new();
    let (mut ours, mut tree) = (None, None);
    for machines in [1, 10, 50, 100, 150, 1000] {
        let local = Cloud::new(machines, Way::Here).run(boot);
        for storage in [50, 1] {
            for (way, name) in
                [(Way::Demand, "on demand"), (Way::Profile, "profile"), (Way::Cast, "profile by multicast")]
            {
                let outcome = Cloud { storage, ..Cloud::new(machines, way) }.run(boot);
                if (machines, storage, way) == (150, 50, Way::Profile) {
                    ours = Some(outcome.all_booted);
                }
                rows.push(json!({
                    "machines": machines, "storage nodes": storage, "way": name,
                    "mean s": seconds(outcome.mean_boot()), "all s": seconds(outcome.all_booted),
                    "MiB": mib(outcome.boot_bytes),
                }));
            }
        }
        let cloud = Cloud::new(machines, Way::Here);
        let copies = machines as u64;
        let copied = [
            ("full copy by a tree", tree_of_copies(&cloud), DATA_BYTES * copies),
            (
                "full copy by multicast",
                cloud.link_time(ENCODED_BYTES * CAST_PERCENT / 100),
                ENCODED_BYTES * CAST_PERCENT / 100,
            ),
        ];
        for (name, first, bytes) in copied {
            let all = first + local.all_booted;
            if (machines, name) == (150, "full copy by a tree") {
                tree = Some(all);
            }
            rows.push(json!({
                "machines": machines, "storage nodes": 1, "way": name,
                "mean s": seconds(first + local.mean_boot()), "all s": seconds(all), "MiB": mib(bytes),
            }));
        }
    }
    let (ours, tree) = (ours.ok_or("not run")?, tree.ok_or("not run")?);
    let workload = "a recorded boot of Debian 12 that computes for 10 s; machines start within 0.1 s";
    let shown = Figure::new("mirror.sim_boot_150", &[seconds(ours)], "s", Bar::Shown)
        .peer("full copy first, by a tree", "834 MiB of data, 2 children each", seconds(tree), "s")
        .on(workload, SINK)
        .with(rows.into());
    let local = Cloud::new(150, Way::Here).run(boot).all_booted;
    // What a boot takes beyond one from a local disk.
    let ratio = (tree - local).as_secs_f64() / ours.saturating_sub(local).as_secs_f64().max(1e-3);
    let speedup = Figure::new("mirror.sim_boot_speedup", &[ratio], "ratio", Bar::Shown)
        .peer("seed 003", "up to 30, of the whole boot", 30.0, "ratio")
        .on("the same, of the time beyond a boot from a local disk", SINK);
    Ok((shown, speedup))
}

/// 100 machines compute for five minutes: uninterrupted; suspended in the middle, and resumed on other nodes after
/// five minutes more; and after a full copy.
fn monte_carlo(boot: &Boot) -> Figure {
    const MACHINES: usize = 100;
    let (job, pause) = (Duration::from_secs(300), Duration::from_secs(300));
    let first = Cloud::new(MACHINES, Way::Profile).run(boot);
    // A node that never saw the machine fetches what its boot reads, its own changes among it.
    let resumed = Cloud { seed: 2, ..Cloud::new(MACHINES, Way::Profile) }.run(boot);
    let uninterrupted = first.all_booted + job;
    let suspended = first.all_booted + job + first.all_committed() + pause + resumed.all_booted;
    let copied = tree_of_copies(&Cloud::new(MACHINES, Way::Here))
        + Cloud::new(MACHINES, Way::Here).run(boot).all_booted
        + job;
    let rows = json!([
        {"run": "uninterrupted, on demand with profile", "s": seconds(uninterrupted)},
        {"run": "suspended, 300 s later resumed on other nodes", "s": seconds(suspended)},
        {"run": "of which commit and second boot", "s": seconds(first.all_committed() + resumed.all_booted)},
        {"run": "uninterrupted, after a full copy by a tree", "s": seconds(copied)},
    ]);
    Figure::new("mirror.sim_monte_carlo", &[seconds(suspended)], "s", Bar::Shown)
        .peer("uninterrupted", "the same", seconds(uninterrupted), "s")
        .peer("full copy first, by a tree", "uninterrupted", seconds(copied), "s")
        .on("100 machines, a job of 300 s, suspended for 300 s in the middle", SINK)
        .with(rows)
}

/// The seed's future work: size of chunks, size of the image, distance, copies.
fn sweep(boot: &Boot) -> Result<Figure> {
    const MACHINES: usize = 150;
    let mut rows = Vec::new();
    let mut best: Option<f64> = None;
    let mut run = |chunk_kib: u64, spread: u64, round_trip_ms: f64, replicas: usize| {
        let boot = boot.scaled(chunk_kib, spread);
        let scale = |bytes: u64| bytes * chunk_kib / 256;
        let cloud = |way| Cloud {
            round_trip: Duration::from_secs_f64(round_trip_ms / 1000.0),
            replicas,
            dirty_object_bytes: scale(92_600),
            random_chunks: usize::try_from((1024 / chunk_kib).max(1)).unwrap_or(1),
            ..Cloud::new(MACHINES, way)
        };
        let (demand, profile) = (cloud(Way::Demand).run(&boot), cloud(Way::Profile).run(&boot));
        if round_trip_ms > 1.0 {
            let all = seconds(demand.all_booted);
            best = Some(best.map_or(all, |best| best.min(all)));
        }
        rows.push(json!({
            "chunk KiB": chunk_kib, "image GiB": 4 * spread, "round trip ms": round_trip_ms, "copies": replicas,
            "on demand s": seconds(demand.all_booted), "profile s": seconds(profile.all_booted),
            "MiB a machine": mib(demand.boot_bytes / MACHINES as u64),
            "commit s": seconds(demand.all_committed()),
            "commit MiB a machine": mib(demand.commit_bytes / MACHINES as u64),
        }));
    };
    for chunk_kib in [64, 128, 256, 512, 1024, 4096] {
        for round_trip_ms in [0.2, 10.0] {
            run(chunk_kib, 1, round_trip_ms, 1);
        }
    }
    for spread in [16, 256] {
        run(256, spread, 0.2, 1);
    }
    run(256, 1, 100.0, 1);
    for replicas in [2, 3] {
        run(256, 1, 0.2, replicas);
    }
    let best = best.ok_or("nothing was run at 10 ms")?;
    Ok(Figure::new("mirror.sim_sweep", &[best], "s", Bar::Shown)
        .on("150 machines, the recorded boot in chunks of other sizes, images, distances, copies", SINK)
        .with(rows.into()))
}
