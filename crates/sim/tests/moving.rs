//! Other seeds at each landing: from the one that `DISKCAST_MOVING` names (`cargo xtask test` makes it of the commit's
//! name, and says so), `DISKCAST_MOVING_SECONDS` long for each family. Seeds that broke a rule once belong into the
//! family's own tests.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sim::checkpoint::CheckpointScenario;
use sim::deploy::DeployScenario;
use sim::mirror::MirrorScenario;
use sim::swarm::SwarmScenario;
use sim::{Scenario, checkpoint, deploy, mirror, run, run_cluster, run_prunes, swarm};

/// Where the seeds of a run by hand begin: behind all that other tests use.
const FIRST: u64 = 1 << 32;
const SECONDS: u64 = 1;

/// The option of `diskcast-sim` for each kind of runs, and what such a run does wrong.
type Family = (&'static str, fn(u64) -> Option<String>);

const FAMILIES: &[Family] = &[
    ("", |seed| wrong(&run(&Scenario::mixed(seed)).violations)),
    ("--harsh ", |seed| wrong(&run(&Scenario::harsh(seed)).violations)),
    ("--ailing ", |seed| wrong(&run(&Scenario::ailing(seed)).violations)),
    ("--mirror ", |seed| wrong(&mirror::run(&MirrorScenario::mixed(seed)).violations)),
    ("--prune ", |seed| wrong(&run_prunes(seed).violations)),
    ("--peers ", |seed| wrong(&swarm::run(&SwarmScenario::mixed(seed)).violations)),
    ("--cluster ", |seed| wrong(&run_cluster(seed).violations)),
    ("--checkpoint ", |seed| wrong(&checkpoint::run(&CheckpointScenario::mixed(seed)).violations)),
    ("--deploy ", |seed| wrong(&deploy::run(&DeployScenario::mixed(seed)).violations)),
];

fn wrong<V: Debug>(violations: &[V]) -> Option<String> {
    (!violations.is_empty()).then(|| format!("{violations:#?}"))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what it takes is bounded, whatever the seeds take")]
fn seeds_that_nobody_tried_before_pass() {
    let seconds = Duration::from_secs(number("DISKCAST_MOVING_SECONDS", SECONDS));
    for (option, family) in FAMILIES {
        let (next, end) = (AtomicU64::new(number("DISKCAST_MOVING", FIRST)), Instant::now() + seconds);
        let runs = || {
            while Instant::now() < end {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if let Some(wrong) = family(seed) {
                    let again = format!("cargo run --release -p diskcast-sim -- {option}--seed {seed}");
                    panic!("see it again: {again}\n{wrong}");
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(runs))));
    }
}
