//! Runs `mirror::machine` in virtual time: guests that read, write, zero and flush; commits at the same time; sources
//! that are unreachable, damaged or incomplete; kills of the process and power cuts at any moment. A plain disk
//! ([`model`]) says which content is allowed.

mod medium;
mod model;
mod recovery;
mod sources;
mod world;

use base::{Chance, Duration};
use mirror::machine::{Config, Counters, Cut};

use crate::Violation;

/// The parameters of a run, all drawn from a seed.
#[derive(Debug, Clone)]
pub struct MirrorScenario {
    /// The seed.
    pub seed: u64,
    /// Size, chunks and tree of the disk.
    pub cut: Cut,
    /// Configuration of the core.
    pub config: Config,
    /// Total number of requests by guests.
    pub requests: u32,
    /// Number of guests; each has one request in flight.
    pub guests: u32,
    /// Number of kills, power cuts and orderly ends, spread over the requests.
    pub crashes: u32,
    /// Number of commits, spread over the requests.
    pub commits: u32,
    /// Changes of a source's behaviour, per million events.
    pub source_faults_per_million: u32,
    /// Failures of writes to the local file, per million.
    pub local_faults_per_million: u32,
    /// Starts and ends of a multicast session, per million events.
    pub casts_per_million: u32,
    /// What the mirror is told about other machines' reads.
    pub hints: Hints,
    /// Guests access only chunks below this one.
    pub reach_chunks: u64,
}

/// What a mirror is told about other machines' reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hints {
    /// Nothing.
    Nothing,
    /// Random chunks, in batches from time to time.
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
            hints: if chance.hits(500_000) { Hints::Batches } else { Hints::Nothing },
            reach_chunks: chunks,
        }
    }

    /// Guests use the lower half of a disk of 2000 chunks, and the mirror is told that other machines read the lower
    /// half (`right`) or the upper half. There are no faults.
    #[must_use]
    pub fn hinted(seed: u64, right: bool) -> Self {
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
            hints: Hints::Profile(if right { 0..1000 } else { 1000..2000 }),
            reach_chunks: 1000,
            ..Self::mixed(seed)
        }
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct MirrorOutcome {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Hash of everything that happened: equal seeds give equal traces.
    pub trace: u64,
    /// Number of events.
    pub steps: u64,
    /// Number of published commits.
    pub published: u32,
    /// Of these, the ones merged onto versions of other writers.
    pub merged: u32,
    /// Commits in doubt that were later found to be published.
    pub recognised: u32,
    /// Kills, power cuts and orderly ends.
    pub crashes: u32,
    /// Counters of the core since the last crash, before the whole disk is read at the end.
    pub counters: Counters,
    /// Whether the core then still prefetches what other machines read.
    pub expects: bool,
}

/// Runs a scenario.
#[must_use]
pub fn run(scenario: &MirrorScenario) -> MirrorOutcome {
    world::World::new(scenario).run()
}
