//! Drives `mirror::machine` in virtual time: guests that read, write, zero and flush; commits while they do; sources
//! that die, lie and lack; kills of the daemon and power cuts at any moment. A plain disk ([`model`]) says what may be
//! found.

mod medium;
mod model;
mod recovery;
mod sources;
mod world;

use base::{Chance, Duration};
use mirror::machine::{Config, Counters, Cut};

use crate::Violation;

/// What is simulated, all of it drawn from a seed.
#[derive(Debug, Clone)]
pub struct MirrorScenario {
    /// The seed.
    pub seed: u64,
    /// How the disk is cut.
    pub cut: Cut,
    /// How the core works.
    pub config: Config,
    /// Requests of guests until the end.
    pub requests: u32,
    /// Guests that each have one request in flight.
    pub guests: u32,
    /// Kills, power cuts and orderly ends, spread over the requests.
    pub crashes: u32,
    /// Commits, spread over the requests.
    pub commits: u32,
    /// How often, per million events, a source changes its ways.
    pub source_faults_per_million: u32,
    /// How often, per million writes to the local file, one fails half way.
    pub local_faults_per_million: u32,
    /// How often, per million events, a session that brings chunks by itself comes or goes.
    pub casts_per_million: u32,
    /// What it is told that others read.
    pub told: Told,
    /// Guests go to chunks below this one.
    pub reach_chunks: u64,
}

/// What a mirror is told that other machines read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// Anything, in batches now and then.
    Batches,
    /// These chunks, when it starts.
    Profile(std::ops::Range<u64>),
}

impl MirrorScenario {
    /// The scenario of `seed`.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let chunk_sectors = 8 << chance.below(3);
        let tall = chance.hits(200_000);
        let chunks = if tall { 257 + chance.below(300) } else { 2 + chance.below(100) };
        let size_sectors = chunks * chunk_sectors - chance.below(chunk_sectors);
        let sources = (0..=chance.below(3)).map(|_| 1 + chance.below(4) as usize).collect();
        let fetches_max = 1 + chance.below(8) as usize;
        let config = Config {
            sources,
            fetches_max,
            demand_reserve: chance.below(fetches_max as u64) as usize,
            give_up: chance.hits(300_000).then(|| Duration::from_millis(200 + chance.below(2000))),
            ahead_chunks_max: [0, 4, 16][chance.below(3) as usize],
            background_per_second: [0, 50, 2000][chance.below(3) as usize],
            journal_bytes_max: 500 + chance.below(20_000),
        };
        Self {
            seed,
            cut: Cut { size_sectors, chunk_sectors, height: if tall { 2 } else { 1 } },
            config,
            requests: 200 + chance.below(400) as u32,
            guests: 1 + chance.below(6) as u32,
            crashes: chance.below(6) as u32,
            commits: chance.below(5) as u32,
            source_faults_per_million: [0, 0, 5_000, 30_000][chance.below(4) as usize],
            local_faults_per_million: [0, 0, 0, 30_000][chance.below(4) as usize],
            casts_per_million: [0, 5_000, 50_000][chance.below(3) as usize],
            told: if chance.hits(500_000) { Told::Batches } else { Told::Nothing },
            reach_chunks: chunks,
        }
    }

    /// Guests in the lower half of a disk of 2000 chunks, which are told that others read the lower half, if that is
    /// `right`, or the upper one. Nothing fails.
    #[must_use]
    pub fn told(seed: u64, right: bool) -> Self {
        let chunk_sectors = 16;
        let config = Config {
            sources: vec![4],
            fetches_max: 4,
            demand_reserve: 1,
            give_up: None,
            ahead_chunks_max: 4,
            background_per_second: 0,
            journal_bytes_max: 1 << 20,
        };
        Self {
            cut: Cut { size_sectors: 2000 * chunk_sectors, chunk_sectors, height: 2 },
            config,
            requests: 1500,
            guests: 4,
            crashes: 0,
            commits: 0,
            source_faults_per_million: 0,
            local_faults_per_million: 0,
            casts_per_million: 0,
            told: Told::Profile(if right { 0..1000 } else { 1000..2000 }),
            reach_chunks: 1000,
            ..Self::mixed(seed)
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct MirrorOutcome {
    /// What must not be.
    pub violations: Vec<Violation>,
    /// A digest of everything that happened: equal seeds give equal traces.
    pub trace: u64,
    /// Events.
    pub steps: u64,
    /// Commits that were published.
    pub published: u32,
    /// Of these, those that went onto what others wrote.
    pub merged: u32,
    /// Commits of which it was found out later that they were published.
    pub recognised: u32,
    /// Kills and power cuts.
    pub crashes: u32,
    /// What the core counted since the last crash, before the whole disk is read at the end.
    pub counters: Counters,
    /// Whether it still listens then to what others read.
    pub expects: bool,
}

/// Runs a scenario.
#[must_use]
pub fn run(scenario: &MirrorScenario) -> MirrorOutcome {
    world::World::new(scenario).run()
}
