//! How hosts are dealt with, and how far they are.

use std::time::Duration;

use base::Instant;

/// How hosts are dealt with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Rounds at most, at least 1.
    pub rounds: u32,
    /// Pause before the next round.
    pub pause: Duration,
    /// Longest time from the order to freeze until all are frozen.
    pub freeze: Duration,
    /// A host that says nothing for this time hangs.
    pub silence: Duration,
    /// Longest time until all are prepared, and until all have ended after the set was published.
    pub standstill: Duration,
    /// Longest time of all rounds together, until the set is published.
    pub time: Option<Duration>,
}

/// How far all hosts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing runs: the next round begins at this time.
    Pausing(Instant),
    /// Hosts prepare, since this time.
    Preparing(Instant),
    /// Hosts were told to freeze, at this time.
    Freezing(Instant),
    /// All were frozen at one moment; they store their disks.
    Storing,
    /// All have stored; the driver publishes.
    Publishing,
    /// The set is published, since this time; hosts end.
    Finishing(Instant),
    /// The round has failed; its programs end.
    Ending,
    /// All is over.
    Over,
}
