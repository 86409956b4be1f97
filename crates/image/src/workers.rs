//! Worker threads: how many to run, and how the first one that fails stops the others.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Error;
use parking_lot::Mutex;

/// How many threads to run: `asked`, or twice the number of cores if `asked` is 0, so that some threads compute while
/// others wait for a disk. Not more than fit into `memory_bytes` if each needs `bytes_each`, but at least one.
pub(crate) fn thread_count(asked: usize, memory_bytes: u64, bytes_each: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let asked = if asked == 0 { 2 * cores } else { asked };
    let affordable = usize::try_from(memory_bytes / bytes_each).unwrap_or(usize::MAX);
    asked.min(affordable).max(1)
}

/// The first error of a group of threads.
#[derive(Default)]
pub(crate) struct FirstError {
    stopped: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl FirstError {
    /// Whether the threads should stop: one failed, or `stop` was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Asks all threads to stop.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Keeps `error` if it is the first, and asks all threads to stop.
    pub(crate) fn fail(&self, error: Error) {
        self.error.lock().get_or_insert(error);
        self.stop();
    }

    /// A copy of the first error, which stays here.
    pub(crate) fn restated(&self) -> Option<Error> {
        self.error.lock().as_ref().map(Error::restated)
    }

    /// Takes the first error out.
    pub(crate) fn take(&self) -> Option<Error> {
        self.error.lock().take()
    }
}
