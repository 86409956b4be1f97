//! Sets of disks at one moment, on hosts that fail, hang, lie and come back, and with a deployment that is killed. The
//! real machine (`proto::checkpoint`) decides; hosts, their disks and the way to them are simulated.
//!
//! ```text
//! scenario (from a seed) -> world: clock, queue, words and orders on their way
//!                             |-- host     a program and a disk: when it is frozen, and of which moment its version is
//!                             `-- checker  what may be told and published, how long anybody is frozen, how it must end
//! ```

mod checker;
mod host;
mod world;

use base::{Chance, Duration, Instant};
use proto::checkpoint::Rules;

use self::host::Kind;
use crate::Violation;

/// A set to be made.
#[derive(Debug, Clone)]
pub struct CheckpointScenario {
    /// Seed of what hosts do.
    pub seed: u64,
    /// How hosts are dealt with.
    pub rules: Rules,
    /// The hosts.
    kinds: Vec<Kind>,
    /// Whether the machines are to end with the moment.
    suspends: bool,
    /// When it is called off.
    cancel: Option<Instant>,
    /// When the deployment is killed.
    killed: Option<Instant>,
    /// Whether the repository takes no version of the set.
    unpublished: bool,
}

/// The result of a run.
#[derive(Debug)]
pub struct CheckpointOutcome {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Equal runs have equal traces.
    pub trace: u64,
    /// Events handled.
    pub steps: u64,
    /// Rounds that began.
    pub rounds: u32,
    /// Whether the set is visible.
    pub published: bool,
    /// The longest time that a disk was frozen.
    pub frozen: Duration,
    /// Virtual time until all had ended.
    pub took: Duration,
}

impl CheckpointScenario {
    /// Some hosts of all kinds, and rules, drawn from a seed.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let seconds = Duration::from_secs;
        let hosts = 1 + chance.below(12) as usize;
        let rules = Rules {
            rounds: 1 + chance.below(3) as u32,
            pause: Duration::from_millis(500 + chance.below(3000)),
            freeze: seconds(3 + chance.below(10)),
            silence: seconds(15 + chance.below(20)),
            standstill: seconds(40 + chance.below(60)),
            // Hosts that never end to store are ended by nothing else.
            time: Some(seconds(200 + chance.below(400))),
        };
        // Of many hosts of all kinds some would always fail.
        let bad = [0, 1, 1, 2, hosts as u64][chance.below(5) as usize];
        let mut kinds = vec![Kind::Good; hosts];
        for _ in 0..bad {
            let host = chance.below(hosts as u64) as usize;
            kinds[host] = Kind::draw(&mut chance);
        }
        let at = |chance: &mut Chance| Instant::ZERO + Duration::from_millis(chance.below(30_000));
        let cancel = (chance.below(8) == 0).then(|| at(&mut chance));
        let killed = (chance.below(8) == 0).then(|| at(&mut chance));
        let (suspends, unpublished) = (chance.below(3) == 0, chance.below(10) == 0);
        Self { seed, rules, kinds, suspends, cancel, killed, unpublished }
    }
}

/// Runs it to its end.
#[must_use]
pub fn run(scenario: &CheckpointScenario) -> CheckpointOutcome {
    world::World::new(scenario).run()
}
