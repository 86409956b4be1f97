//! Counters and concurrency limits of a copy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use image::ObjectRef;

/// Chunks that are sent at the same time.
pub(super) const READERS: usize = 8;
/// Chunks whose presence in the target is checked together.
pub(super) const WINDOW_CHUNKS: usize = 256;

/// What a copy has sent.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) objects: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Sent {
    /// Counts an object.
    pub(super) fn count(&self, object: &ObjectRef) {
        self.objects.fetch_add(1, Relaxed);
        self.bytes.fetch_add(u64::from(object.len), Relaxed);
    }
}
