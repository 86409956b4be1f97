//! Fuzzing: each parser and each machine gets damaged input, made from valid input by mutation under a seed, and may
//! answer with an error, but never panic, hang or take memory without bound. Runs in the tests for a bounded number of
//! rounds; `cargo run --release -p diskcast-fuzz -- TARGET ROUNDS [SEED]` runs longer, and replays.

mod cluster;
mod frames;
mod images;
mod journal;
mod mutate;
mod nbd;
mod packets;
mod peers;
mod records;
mod torrents;
mod words;

use base::Chance;

/// One thing that takes input from outside.
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Valid inputs to begin from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Takes an input in. Returning is passing.
    pub take: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    cluster::ENTRY,
    cluster::DIRECTORY,
    cluster::BATCH,
    cluster::CAPABILITY,
    cluster::MAP,
    frames::FRAME,
    images::CHUNK,
    images::NODE,
    images::MANIFEST,
    images::CATALOGUE,
    images::SEALED,
    images::SURVEY,
    packets::DOWNSTREAM,
    packets::UPSTREAM,
    packets::SERVER,
    packets::RECEIVER,
    peers::REDIRECTOR,
    peers::SEEKER,
    peers::RECORD,
    journal::JOURNAL,
    nbd::HANDSHAKE,
    nbd::REQUEST,
    records::PRUNING,
    records::APPENDS,
    records::REPAIR,
    records::PROFILES,
    torrents::METAINFO,
    torrents::MESSAGES,
    torrents::TRACKER,
    words::REFERENCE,
    words::TOKEN,
    words::TAG,
    words::CUT_OVER,
    words::KEYS,
    words::PIECES,
];

/// Feeds `target` with `rounds` damaged inputs from `seed` on. A panic names the input's seed first.
pub fn run(target: &Target, rounds: u64, seed: u64) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "a target begins from valid input");
    seeds.iter().for_each(|input| (target.take)(input));
    for round in seed..seed + rounds {
        let replay = Replay(target.name, round);
        let mut chance = Chance::from_seed(round);
        let pick = usize::try_from(chance.below(seeds.len() as u64)).expect("an index of a vector");
        (target.take)(&mutate::mutate(&mut chance, &seeds[pick]));
        std::mem::forget(replay);
    }
}

/// Says how to see a failure again while a panic unwinds.
struct Replay(&'static str, u64);

impl Drop for Replay {
    #[expect(clippy::print_stderr, reason = "tells the developer how to replay")]
    fn drop(&mut self) {
        eprintln!("replay: cargo run --release -p diskcast-fuzz -- {} 1 {}", self.0, self.1);
    }
}
