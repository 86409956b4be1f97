//! Shares flushes between threads: a flush makes durable everything that any thread put before the flush began.

use base::Result;
use parking_lot::{Condvar, Mutex};

/// Combines flushes that several threads request at the same time.
#[derive(Debug, Default)]
pub(crate) struct SharedFlush {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last flush that began.
    running: bool,
    begun: u64,
    /// Number of the last flush that began and then succeeded.
    succeeded: u64,
}

impl SharedFlush {
    /// Returns `Ok` after any thread's `flush` that began after this call has succeeded. Returns an error only if
    /// this thread ran the flush and it failed.
    pub(crate) fn flush(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        // A flush that already runs may have begun before this caller's last put: only the next one counts.
        let needed = state.begun + 1;
        while state.running && state.succeeded < needed {
            self.moved.wait(&mut state);
        }
        if state.succeeded >= needed {
            return Ok(());
        }
        state.running = true;
        state.begun += 1;
        let this = state.begun;
        drop(state);
        let result = flush();
        let mut state = self.state.lock();
        state.running = false;
        if result.is_ok() {
            state.succeeded = this;
        }
        self.moved.notify_all();
        result
    }
}
