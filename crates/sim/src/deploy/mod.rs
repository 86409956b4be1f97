//! Deployments to hosts that work, fail, hang, lie and come back. The real machine (`proto::deploy`) decides; hosts and
//! the programs that reach them are simulated.
//!
//! ```text
//! scenario (from a seed) -> world: clock, queue, the attempts that run
//!                             |-- host     what an attempt says, and when
//!                             `-- checker  what may start, what must be stopped, how it must end
//! ```

mod checker;
mod host;
mod world;

use base::{Chance, Digest, Duration, Instant};
use proto::deploy::{Counts, Rules};

use self::host::Kind;
use crate::Violation;

/// The root of the version that is deployed.
const ROOT: Digest = Digest([9; Digest::BYTES]);

/// A deployment.
#[derive(Debug, Clone)]
pub struct DeployScenario {
    /// Seed of what hosts do.
    pub seed: u64,
    /// How hosts are dealt with.
    pub rules: Rules,
    /// The hosts.
    kinds: Vec<Kind>,
    /// When it is called off.
    cancel: Option<Instant>,
}

/// The result of a run.
#[derive(Debug)]
pub struct DeployOutcome {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Equal runs have equal traces.
    pub trace: u64,
    /// Events handled.
    pub steps: u64,
    /// Attempts that were started.
    pub attempts: u64,
    /// How the hosts ended.
    pub counts: Counts,
    /// Virtual time until the last host had ended.
    pub took: Duration,
}

impl DeployScenario {
    /// Some hosts of all kinds, and rules, drawn from a seed.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let hosts = 1 + chance.below(40) as usize;
        let seconds = Duration::from_secs;
        let maybe = |chance: &mut Chance, of: u64, value: u64| (chance.below(of) == 0).then_some(value);
        let rules = Rules {
            at_once: 1 + chance.below(20) as usize,
            wave: if chance.below(2) == 0 { hosts } else { 1 + chance.below(12) as usize },
            stagger: Duration::from_millis(chance.below(3) * chance.below(1000)),
            attempts: 1 + chance.below(4) as u32,
            pause: Duration::from_millis(500 + chance.below(3000)),
            silence: seconds(10 + chance.below(30)),
            standstill: seconds(60 + chance.below(100)),
            host_time: maybe(&mut chance, 6, 90).map(seconds),
            time: maybe(&mut chance, 5, 300).map(seconds),
            failures: maybe(&mut chance, 5, 3).map(|hosts| hosts as usize),
        };
        let good = chance.below(4) == 0;
        let kinds = (0..hosts).map(|_| if good { Kind::GOOD } else { Kind::draw(&mut chance) }).collect();
        let cancel = (chance.below(8) == 0).then(|| Instant::ZERO + seconds(chance.below(200)));
        Self { seed, rules, kinds, cancel }
    }

    /// Many hosts, a tenth of which do not work, 64 at once.
    #[must_use]
    pub fn large(hosts: usize, seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let rules = Rules { wave: 500, ..Rules::default() };
        let kind = |chance: &mut Chance| match chance.below(10) {
            0 => Kind::draw(chance),
            _ => Kind::GOOD,
        };
        let kinds = (0..hosts).map(|_| kind(&mut chance)).collect();
        Self { seed, rules, kinds, cancel: None }
    }
}

/// Runs a deployment to its end.
#[must_use]
pub fn run(scenario: &DeployScenario) -> DeployOutcome {
    world::World::new(scenario).run()
}
