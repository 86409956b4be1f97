//! Reads ahead of streams, into the kernel's page cache: what is there was read once, so the kernel keeps it no longer
//! than what is read again, and it is there for all readers of an image, not only for the first.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proto::cluster::ReadAhead;

use super::object::Object;
use crate::clock::monotonic;

/// What may be read ahead of all streams together. Seed 002, section 3.2, has as much.
const CACHE_BYTES: u64 = 150 << 20;

/// The streams of a device, and how well they are foreseen.
#[derive(Debug)]
pub(super) struct Ahead {
    streams: Mutex<ReadAhead>,
    reads: AtomicU64,
    in_memory: AtomicU64,
}

impl Default for Ahead {
    fn default() -> Self {
        let streams = Mutex::new(ReadAhead::new(CACHE_BYTES));
        Self { streams, reads: AtomicU64::new(0), in_memory: AtomicU64::new(0) }
    }
}

impl Ahead {
    /// Somebody read what was appended lately.
    pub(super) fn was_recent(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.in_memory.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody reads `range` of an object's file: counts whether it is in memory, and has what comes next read.
    pub(super) fn read(&self, object: &Arc<Object>, range: Range<u64>) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if object.is_in_memory(&range) {
            self.in_memory.fetch_add(1, Ordering::Relaxed);
        }
        let next = self.streams.lock().read(object.id, range, object.row().length, monotonic());
        if let Some(next) = next {
            let object = Arc::clone(object);
            // The reader does not wait for it.
            tokio::task::spawn_blocking(move || object.read_ahead(&next));
        }
    }

    /// Ranges that were read since the start, and those of them that were in memory.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.in_memory.load(Ordering::Relaxed))
    }
}
