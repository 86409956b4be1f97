//! Uploads of objects to a store in a network: several run at the same time, and all are stored after
//! [`Uploads::flush`]. Objects can be read while their upload is under way.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, PutOptions};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::backend::executor::Executor;
use crate::error::from_store;

/// Most bytes of uploads under way. A thread that puts one more waits.
const UPLOAD_BYTES_MAX: usize = 32 << 20;

/// The uploads under way.
#[derive(Debug)]
pub(crate) struct Uploads {
    shared: Arc<Shared>,
    executor: Executor,
}

/// State shared by the callers and the upload tasks.
#[derive(Debug)]
struct Shared {
    /// Most uploads under way.
    uploads_max: usize,
    store: Arc<dyn ObjectStore>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Objects that the store has not acknowledged yet.
    waiting: HashMap<Path, Bytes>,
    bytes: usize,
    /// How many uploads of `waiting` are running; the others have failed.
    sending: usize,
    failed: Vec<Path>,
    /// The first error, until a caller gets it.
    error: Option<Error>,
}

impl Uploads {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, executor: Executor, uploads_max: usize) -> Self {
        let shared = Shared { uploads_max, store, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), executor }
    }

    /// Starts the upload of the object `bytes`, which is in the store after the next [`Self::flush`]. If an earlier
    /// upload failed, returns its error; then this upload was not started.
    pub(crate) fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let mut state = self.shared.state();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if state.waiting.contains_key(path) {
                return Ok(());
            }
            let has_room = state.waiting.len() < self.shared.uploads_max
                && state.bytes + bytes.len() <= UPLOAD_BYTES_MAX;
            // An object larger than the limit is sent alone.
            if has_room || state.waiting.is_empty() {
                break;
            }
            // All uploads that fill the queue have failed. Send them again, or this wait would never end.
            if state.sending == 0 {
                self.send_failed(&mut state);
            }
            self.shared.changed.wait(&mut state);
        }
        state.bytes += bytes.len();
        state.waiting.insert(path.clone(), bytes.clone());
        self.send(&mut state, path.clone(), bytes);
        Ok(())
    }

    /// The bytes of the object at `path`, if its upload is under way or failed.
    pub(crate) fn waiting(&self, path: &Path) -> Option<Bytes> {
        self.shared.state().waiting.get(path).cloned()
    }

    /// Waits until every object that was put is in the store. Uploads that failed before are sent once more. If any
    /// fails now, it stays for the next call, and this call returns the first error.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut state = self.shared.state();
        state.error = None;
        self.send_failed(&mut state);
        while state.sending > 0 {
            self.shared.changed.wait(&mut state);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn send_failed(&self, state: &mut State) {
        for path in std::mem::take(&mut state.failed) {
            let bytes = state.waiting.get(&path).cloned().expect("what failed still waits");
            self.send(state, path, bytes);
        }
    }

    fn send(&self, state: &mut State, path: Path, bytes: Bytes) {
        state.sending += 1;
        let shared = Arc::clone(&self.shared);
        self.executor.spawn(async move {
            let sent = shared.store.put_opts(&path, bytes.into(), PutOptions::default()).await;
            shared.done(path, sent.map(drop));
        });
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn done(&self, path: Path, sent: object_store::Result<()>) {
        let mut state = self.state();
        state.sending -= 1;
        match sent {
            Ok(()) => {
                let bytes = state.waiting.remove(&path).map_or(0, |bytes| bytes.len());
                state.bytes -= bytes;
            }
            Err(error) => {
                state.error.get_or_insert(from_store(format!("write `{path}`"), error));
                state.failed.push(path);
            }
        }
        self.changed.notify_all();
    }
}
