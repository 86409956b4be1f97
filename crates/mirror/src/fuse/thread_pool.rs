//! Threads for requests that may wait: for a source far away, for a flush, for a commit. Whoever reads requests from
//! the kernel hands them over, so that others are answered meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Most threads, and so requests that wait at once.
const THREADS_MAX: usize = 64;
/// Most requests that wait for a thread; what is more is done by whoever brings it, so that the kernel keeps the rest.
const QUEUE_MAX: usize = 256;

/// Something to be done; the memory is the thread's, for whatever.
pub(super) type Job = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

/// See the module. Threads are started when they are needed, and end when it is dropped.
#[derive(Default)]
pub(super) struct ThreadPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ending: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn work(&self) {
        let mut memory = Vec::new();
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job(&mut memory);
                state = self.lock();
            } else if state.ending {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl ThreadPool {
    /// Does `job` on another thread; on this one if all are busy.
    pub(super) fn hand_over(&self, job: Job) {
        let mut state = self.0.lock();
        let needs_thread = state.idle <= state.queue.len();
        if needs_thread && state.threads < THREADS_MAX {
            let shared = Arc::clone(&self.0);
            let spawned = std::thread::Builder::new().name("fuse".into()).spawn(move || shared.work());
            state.threads += usize::from(spawned.is_ok());
        }
        if state.threads == 0 || state.queue.len() >= QUEUE_MAX {
            drop(state);
            return job(&mut Vec::new());
        }
        state.queue.push_back(job);
        drop(state);
        self.0.work.notify_one();
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.0.lock().ending = true;
        self.0.work.notify_all();
    }
}
