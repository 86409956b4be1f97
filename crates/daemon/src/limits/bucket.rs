//! A token bucket: bytes that may be sent now, at a rate that may change.

use std::time::Duration;

use tokio::time::Instant;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    bytes: i64,
    filled_at: Instant,
}

impl Bucket {
    /// An empty one.
    pub(super) fn new(now: Instant) -> Self {
        Self { bytes: 0, filled_at: now }
    }

    /// Adds what came since the last call. Keeps what comes in the time `saved`, at most. Returns the bytes that may be
    /// sent now; below zero after a piece that was larger.
    pub(super) fn fill(&mut self, bytes_per_second: u64, saved: Duration, now: Instant) -> i64 {
        let in_time = |time: Duration| {
            i64::try_from(u128::from(bytes_per_second) * time.as_micros() / 1_000_000).unwrap_or(i64::MAX)
        };
        let filled = self.bytes.saturating_add(in_time(now.duration_since(self.filled_at)));
        (self.bytes, self.filled_at) = (filled.min(in_time(saved)), now);
        self.bytes
    }

    /// Takes `bytes`, also more than there are.
    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }

    /// When it was filled for the last time.
    pub(super) fn filled_at(&self) -> Instant {
        self.filled_at
    }
}
