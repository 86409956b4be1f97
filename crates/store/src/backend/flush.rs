//! One flush for all who wait for one: a flush makes durable whatever was put before it began, whoever put it.

use base::Result;
use parking_lot::{Condvar, Mutex};

/// Joins flushes that are asked for at the same time.
#[derive(Debug, Default)]
pub(crate) struct SharedFlush {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    begun: u64,
    /// The last that began and succeeded.
    succeeded: u64,
}

impl SharedFlush {
    /// Returns after a `flush` that began after this call and succeeded, whoever made it; or with the error of one that
    /// this thread made.
    pub(crate) fn flush(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
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
