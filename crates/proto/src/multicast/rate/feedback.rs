//! The part of a receiver's report that the rate depends on.

use crate::multicast::wire::header::ReceiverId;

/// What a receiver reports about its path.
#[derive(Debug, Clone, Copy)]
pub(in crate::multicast) struct Feedback {
    pub receiver: ReceiverId,
    /// See `DelayMeter::take`.
    pub queue_us: u32,
    /// BLOCKs that arrived, since it joined.
    pub arrived: u64,
    /// BLOCKs that were lost, since it joined.
    pub lost: u64,
    /// Other traffic wants room on its full link.
    pub crowded: bool,
}
