//! Statistics of a session, after Frisbee's log (seed `004`): blocks of the image, blocks sent, and per receiver its
//! runtime and concurrency. In addition every repeated block is counted under its cause.

use base::{Duration, Instant};

use crate::multicast::wire::header::ReceiverId;
use crate::multicast::wire::report::{Cause, ReceiverCounters};

/// Blocks that were sent again, by the cause in the first report that requested them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resent {
    /// They were sent before a receiver joined.
    pub late: u64,
    /// A receiver's buffer was full.
    pub buffer_full: u64,
    /// Lost on the way.
    pub lost: u64,
}

impl Resent {
    pub(super) fn book(&mut self, cause: Cause, blocks: u64) {
        match cause {
            Cause::Late => self.late += blocks,
            Cause::BufferFull => self.buffer_full += blocks,
            Cause::Lost => self.lost += blocks,
        }
    }

    /// The sum over all causes.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.late + self.buffer_full + self.lost
    }
}

/// Counts of a session since it began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionStatistics {
    /// Objects in the image.
    pub image_objects: u64,
    /// Blocks in the image.
    pub image_blocks: u64,
    /// Payload of the image in bytes.
    pub image_bytes: u64,
    /// BLOCK packets sent.
    pub blocks_sent: u64,
    /// Payload in them, in bytes.
    pub bytes_sent: u64,
    /// BLOCK packets that had been sent before, by cause.
    pub resent: Resent,
    /// BLOCK packets with repair symbols.
    pub symbols_sent: u64,
    /// Symbols that were sent before any receiver requested them (proactive symbols); the other symbols count as
    /// resent.
    pub symbols_ahead: u64,
    /// STATUS and BYE packets sent.
    pub control_sent: u64,
    /// Bytes in them, with tags.
    pub control_bytes_sent: u64,
    /// Reports taken in.
    pub reports: u64,
    /// Requested objects and groups of blocks that were already pending or in flight.
    pub merged: u64,
    /// Datagrams dropped: too short or of wrong length, of another version, session or epoch, with a wrong tag, an
    /// unknown type or values out of bounds.
    pub rejected: u64,
    /// Receivers that ever joined.
    pub receivers_total: u64,
    /// Receivers now.
    pub receivers: Vec<ReceiverStatistics>,
}

/// What the server knows of one receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverStatistics {
    /// Its number.
    pub receiver: ReceiverId,
    /// When it joined.
    pub joined: Instant,
    /// Time from join to leave, or until now.
    pub runtime: Duration,
    /// Part of that time during which at least one other receiver took part.
    pub concurrent: Duration,
    /// Reports taken in.
    pub reports: u64,
    /// Its own counters, as of its last report.
    pub counters: ReceiverCounters,
    /// Number of its requests that were ignored, because its machine had more repaired than its share.
    pub overdrawn: u64,
}
