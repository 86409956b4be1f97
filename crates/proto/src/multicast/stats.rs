//! What a session counts, in the shape of Frisbee's log (seed `004`): blocks of the image, blocks sent, and per
//! receiver runtime and concurrency; besides, every resend is booked with its cause.

use base::{Duration, Instant};

use crate::multicast::wire::header::ReceiverId;
use crate::multicast::wire::report::{Cause, ReceiverCounters};

/// Blocks sent again, by the cause that the first report for them gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resent {
    /// Went by before a receiver joined.
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

    /// All of them.
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
    /// Those that had been sent before, by cause.
    pub resent: Resent,
    /// Those of them that were repair symbols.
    pub symbols_sent: u64,
    /// Those of the symbols that went ahead of any wish for them; the others count as resent.
    pub symbols_ahead: u64,
    /// STATUS and BYE packets sent.
    pub control_sent: u64,
    /// Bytes in them, with tags.
    pub control_bytes_sent: u64,
    /// Reports taken in.
    pub reports: u64,
    /// Objects and runs of blocks asked for that were pending or on their way already.
    pub merged: u64,
    /// Datagrams dropped: too short or of wrong length, other version, other session or epoch, bad tag, unknown, out of
    /// bounds.
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
    /// Since when it takes part.
    pub joined: Instant,
    /// Time from join to leave, or until now.
    pub runtime: Duration,
    /// Part of that time in which at least one other took part.
    pub concurrent: Duration,
    /// Reports taken in.
    pub reports: u64,
    /// What it counted itself, as of its last report.
    pub counters: ReceiverCounters,
}
