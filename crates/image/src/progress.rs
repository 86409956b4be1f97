//! How a capture or an install says how far it is. Called from worker threads, once a chunk: keep it cheap.

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reads, encodes and stores the allocated bytes of a disk.
    Capture,
    /// Reads a target for chunks that are right already.
    Resume,
    /// Writes chunks to a target. Counts plain bytes.
    Install,
    /// Reads back what was written.
    Verify,
}

/// Somebody who watches.
pub trait Progress: Send + Sync {
    /// `stage` begins and will handle `bytes` altogether.
    fn begin(&self, stage: Stage, bytes: u64);

    /// `bytes` more of `stage` are done.
    fn advance(&self, stage: Stage, bytes: u64);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _: Stage, _: u64) {}

    fn advance(&self, _: Stage, _: u64) {}
}
