//! How a capture or an install reports its progress.

use std::sync::Arc;

use parking_lot::Mutex;

/// A stage of a capture or an install.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Decompresses a source, or reads a stream, into a temporary file. Counts the bytes that are read.
    Unpack,
    /// Reads, encodes and stores the allocated bytes of a disk.
    Capture,
    /// Reads a target to find chunks that are already correct.
    Resume,
    /// Writes chunks to a target. Counts plain bytes.
    Install,
    /// Reads the written chunks back.
    Verify,
}

/// Receives progress reports. Worker threads call it once for each chunk, so it must be cheap.
pub trait Progress: Send + Sync {
    /// `stage` begins and will process `bytes` bytes in total; 0 if that is not known.
    fn begin(&self, stage: Stage, bytes: u64);

    /// `stage` has processed `bytes` more bytes.
    fn advance(&self, stage: Stage, bytes: u64);
}

/// Ignores progress reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _: Stage, _: u64) {}

    fn advance(&self, _: Stage, _: u64) {}
}

/// The work on several targets as one: each stage begins once and counts all of them.
pub(crate) struct Several {
    inner: Arc<dyn Progress>,
    /// Number of targets.
    count: u64,
    /// The stage that began last.
    stage: Mutex<Option<Stage>>,
}

impl Several {
    /// Reports the work on `count` targets to `inner`.
    pub(crate) fn new(inner: Arc<dyn Progress>, count: u64) -> Self {
        Self { inner, count, stage: Mutex::new(None) }
    }
}

impl Progress for Several {
    fn begin(&self, stage: Stage, bytes: u64) {
        let mut last = self.stage.lock();
        if last.replace(stage) != Some(stage) {
            self.inner.begin(stage, bytes * self.count);
        }
    }

    fn advance(&self, stage: Stage, bytes: u64) {
        self.inner.advance(stage, bytes);
    }
}
