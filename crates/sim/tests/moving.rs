//! Other seeds at each landing: from the one that `DISKCAST_MOVING` names (`cargo xtask test` makes it of the commit's
//! name, and says so), `DISKCAST_MOVING_SECONDS` long for each family. Seeds that broke a rule once belong into the
//! family's own tests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sim::checkpoint::CheckpointScenario;
use sim::deploy::DeployScenario;
use sim::mirror::MirrorScenario;
use sim::swarm::SwarmScenario;
use sim::{Scenario, Violation, checkpoint, deploy, mirror, run, run_cluster, run_prunes, swarm};

/// Where the seeds of a run by hand begin: behind all that other tests use.
const FIRST: u64 = 1 << 32;
const SECONDS: u64 = 1;
/// A rule of time or traffic may be broken by one seed of so many, and by one more. About one of 1,000 harsh seeds
/// does, and one of 10,000 others.
const COSTLY_EACH: u64 = 200;

/// The option of `diskcast-sim` for each kind of runs, and what such a run does wrong.
type Family = (&'static str, fn(u64) -> Vec<Violation>);

const FAMILIES: &[Family] = &[
    ("", |seed| run(&Scenario::mixed(seed)).violations),
    ("--harsh ", |seed| run(&Scenario::harsh(seed)).violations),
    ("--ailing ", |seed| run(&Scenario::ailing(seed)).violations),
    ("--mirror ", |seed| mirror::run(&MirrorScenario::mixed(seed)).violations),
    ("--prune ", |seed| run_prunes(seed).violations),
    ("--peers ", |seed| swarm::run(&SwarmScenario::mixed(seed)).violations),
    ("--cluster ", |seed| run_cluster(seed).violations),
    ("--checkpoint ", |seed| checkpoint::run(&CheckpointScenario::mixed(seed)).violations),
    ("--deploy ", |seed| deploy::run(&DeployScenario::mixed(seed)).violations),
];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what it takes is bounded, whatever the seeds take")]
fn seeds_that_nobody_tried_before_pass() {
    let seconds = Duration::from_secs(number("DISKCAST_MOVING_SECONDS", SECONDS));
    for (option, family) in FAMILIES {
        let first = number("DISKCAST_MOVING", FIRST);
        let (next, end) = (AtomicU64::new(first), Instant::now() + seconds);
        let costly = Mutex::new(Vec::new());
        let runs = || {
            while Instant::now() < end {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let wrong = family(seed);
                if wrong.is_empty() {
                    continue;
                }
                let again = format!("cargo run --release -p diskcast-sim -- {option}--seed {seed}");
                let again = format!("see it again: {again}\n{wrong:#?}");
                assert!(wrong.iter().all(Violation::is_of_cost), "{again}");
                costly.lock().unwrap().push(again);
            }
        };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(runs))));
        let (costly, tried) = (costly.into_inner().unwrap(), next.into_inner() - first);
        let most = 1 + tried / COSTLY_EACH;
        assert!(costly.len() as u64 <= most, "of {tried} seeds, at most {most}: {}", costly.join("\n"));
    }
}
