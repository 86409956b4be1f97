//! The policies by name.

use super::torrent::{BLOCK_BYTES, Torrent};
use super::{Frisbee, Multicast, Outcome, Redirected, Setting, Swp2p, Way};

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Multicast on request, as Frisbee does.
    Frisbee,
    /// Multicast of what somebody lacks, as diskcast does.
    Multicast,
    /// Unicast, redirected to other receivers at the switch.
    Swp2p,
    /// Unicast from the server.
    Unicast,
    /// diskcast without multicast: the server redirects receivers to each other.
    Server,
    /// The same, but switches redirect.
    Switch,
    /// diskcast: multicast of what was not sent yet, the rest from other receivers.
    Hybrid,
    /// BitTorrent, by diskcast's own member of it.
    Torrent,
}

/// How many of diskcast's objects are as long as a chunk of 1 MiB, the unit of the others.
const OBJECTS_PER_CHUNK: u32 = 4;

impl Kind {
    /// All policies that sweeps compare. [`Self::Torrent`] takes 64 times as many events.
    pub const ALL: [Self; 7] = [
        Self::Frisbee,
        Self::Multicast,
        Self::Swp2p,
        Self::Unicast,
        Self::Server,
        Self::Switch,
        Self::Hybrid,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frisbee => "frisbee",
            Self::Multicast => "multicast",
            Self::Swp2p => "swp2p",
            Self::Unicast => "unicast",
            Self::Server => "server",
            Self::Switch => "switch",
            Self::Hybrid => "hybrid",
            Self::Torrent => "torrent",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Torrent]).find(|kind| kind.name() == name)
    }

    /// Runs the setting. Policies that ask for batches ask for at most `batch_chunks` at a time.
    #[must_use]
    pub fn run(self, setting: &Setting, batch_chunks: u32) -> Outcome {
        match self {
            Self::Frisbee => setting.run(Frisbee::new(setting)),
            Self::Multicast => setting.run(Multicast::new(setting)),
            Self::Swp2p => setting.run(Swp2p::new(setting, batch_chunks)),
            Self::Unicast => setting.run(Swp2p::without_redirection(setting, batch_chunks)),
            Self::Server => redirected(setting, Way::Server),
            Self::Switch => redirected(setting, Way::Switch),
            Self::Hybrid => redirected(setting, Way::Hybrid),
            Self::Torrent => {
                let blocks = setting.chunk_bytes / u64::from(BLOCK_BYTES);
                let setting = setting.clone().cut(u32::try_from(blocks).expect("a chunk has few blocks"));
                setting.run(Torrent::new(&setting))
            }
        }
    }
}

/// Runs [`Setting::hall`] without cutting its image into smaller objects.
#[must_use]
pub fn hall(way: Way, racks: usize, receivers: usize, seed: u64) -> Outcome {
    let setting = Setting::hall(racks, receivers, seed);
    setting.run(Redirected::new(&setting, way))
}

/// Runs diskcast's machines on an image that is cut into objects of diskcast's size.
fn redirected(setting: &Setting, way: Way) -> Outcome {
    let setting = setting.clone().cut(OBJECTS_PER_CHUNK);
    setting.run(Redirected::new(&setting, way))
}
