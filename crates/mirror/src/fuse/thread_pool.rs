//! Threads for requests that may wait for a source, a flush or a commit. The threads that read requests from the
//! kernel hand them over, so that they can answer other requests meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Maximum number of threads, and so of requests that wait at the same time.
const THREADS_MAX: usize = 64;
/// Maximum number of requests that wait for a thread. A further request is executed by the thread that reads from
/// the kernel, so that the rest stay in the kernel's queue.
const QUEUE_MAX: usize = 256;

/// A job. The argument is a buffer of the thread, for any use.
pub(super) type Job = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

/// See the module. Threads are started when they are needed, and end after the pool is dropped.
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
    /// Runs `job` on another thread; on this one if the queue is full.
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
