//! Progress of a capture or an install. Worker threads call it once per chunk, so it must be cheap.

/// What a capture or install is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reads, encodes and stores the allocated bytes of a disk.
    Capture,
    /// Reads a target to find chunks that it already holds.
    Resume,
    /// Writes chunks to a target. Counts plain bytes.
    Install,
    /// Reads back the written data.
    Verify,
}

/// Receives progress.
pub trait Progress: Send + Sync {
    /// `stage` begins and will process `bytes` in total.
    fn begin(&self, stage: Stage, bytes: u64);

    /// Another `bytes` of `stage` are done.
    fn advance(&self, stage: Stage, bytes: u64);
}

/// Drops all progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _: Stage, _: u64) {}

    fn advance(&self, _: Stage, _: u64) {}
}
