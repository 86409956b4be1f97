//! The policies by name.

use super::{Frisbee, Multicast, Outcome, Setting, Swp2p};

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
}

impl Kind {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Frisbee, Self::Multicast, Self::Swp2p, Self::Unicast];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frisbee => "frisbee",
            Self::Multicast => "multicast",
            Self::Swp2p => "swp2p",
            Self::Unicast => "unicast",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Runs the setting. Policies that ask for batches ask for at most `batch_chunks` at a time.
    #[must_use]
    pub fn run(self, setting: &Setting, batch_chunks: u32) -> Outcome {
        match self {
            Self::Frisbee => setting.run(Frisbee::new(setting)),
            Self::Multicast => setting.run(Multicast::new(setting)),
            Self::Swp2p => setting.run(Swp2p::new(setting, batch_chunks)),
            Self::Unicast => setting.run(Swp2p::without_redirection(setting, batch_chunks)),
        }
    }
}
