//! Experiments with start delays: the sweep of seed 004, and the skewed starts of the Frisbee paper.

use base::{Duration, Instant};

use super::swp2p::BATCH_CHUNKS;
use super::{Kind, Outcome, Setting};

/// The start delays of the sweep, in seconds.
pub const DELAYS_S: [u64; 11] = [0, 1, 2, 4, 6, 8, 9, 10, 12, 15, 20];

/// One point of the sweep.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Seed of everything random.
    pub seed: u64,
    /// The policy.
    pub kind: Kind,
    /// Number of receivers.
    pub receivers: usize,
    /// Number of racks, each with a switch of its own; 0 for one switch.
    pub racks: usize,
    /// Time between successive starts.
    pub delay: Duration,
    /// Each start is later than that by up to this time, at random.
    pub within: Duration,
    /// Chunks of a request at most.
    pub batch_chunks: u32,
    /// Time of a switch's processor for a message.
    pub handling: Duration,
    /// Time of the server's processor for a message.
    pub server_handling: Duration,
    /// Chunks of a multicast that a receiver loses, per million.
    pub misses_per_million: u32,
}

impl Sweep {
    /// A point of seed 004's sweep: 30 receivers, 730 chunks.
    ///
    /// Assumed, since the seed does not say it: starts are spread over 50 ms even when they are meant to be
    /// simultaneous, and a client of a multicast loses 2 % of the chunks. The seed says that there was such loss
    /// ("UDP still has loss on receiving side", and nearly all resends are of whole chunks), but not how much. Without,
    /// multicast would send hardly more than one image at delay 0, and nothing could be 21 % better.
    #[must_use]
    pub fn new(kind: Kind, delay: Duration) -> Self {
        Self {
            seed: 1,
            kind,
            receivers: 30,
            racks: 0,
            delay,
            within: Duration::from_millis(50),
            batch_chunks: BATCH_CHUNKS,
            handling: Setting::switch_assisted(0).handling,
            server_handling: Duration::ZERO,
            misses_per_million: 20_000,
        }
    }

    /// Runs the point.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let base = match self.racks {
            0 => Setting::switch_assisted(self.receivers),
            racks => Setting::racks(racks, self.receivers),
        };
        let Self { seed, handling, server_handling, misses_per_million, .. } = *self;
        let setting = Setting { seed, handling, server_handling, misses_per_million, ..base };
        self.kind.run(&setting.start_every(self.delay, self.within), self.batch_chunks)
    }
}

/// How the starts of the Frisbee paper's table 3 are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skew {
    /// All 80 at once.
    Once,
    /// Four groups of 20, every 10 s.
    Groups,
    /// Evenly over 30 s.
    Spread,
}

impl Skew {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Once, Self::Groups, Self::Spread];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Groups => "groups",
            Self::Spread => "spread",
        }
    }

    /// Runs 80 clients with the small or the large image.
    #[must_use]
    pub fn run(self, kind: Kind, large: bool, seed: u64) -> Outcome {
        let mut setting = Setting { seed, ..Setting::frisbee(80, large) };
        for (number, start) in (0..).zip(&mut setting.starts) {
            let after = match self {
                Self::Once => Duration::ZERO,
                Self::Groups => Duration::from_secs(10) * (number / 20),
                Self::Spread => Duration::from_secs(30) * number / 80,
            };
            *start = Instant::ZERO + after;
        }
        kind.run(&setting, BATCH_CHUNKS)
    }
}
