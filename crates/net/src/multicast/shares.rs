//! Who took how much of an interface for a fifth of a second.

use base::Duration;

/// Rates are in bits per second, with all headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    pub(super) total: u64,
    /// What the sessions sent.
    pub(super) multicast: u64,
    /// What the server answered by unicast.
    pub(super) answers: u64,
    pub(super) others: u64,
    /// Packets waited in more than half of the samples.
    pub(super) full: bool,
    /// How long packets waited at most.
    pub(super) queue: Duration,
}
