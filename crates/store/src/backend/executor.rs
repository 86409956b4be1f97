//! Runs the futures of an object store on the thread that waits for them. For a store in a network there is also a
//! private tokio runtime, which drives connections and timers.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that drive connections. They only move bytes; the callers' threads do the work on these bytes.
const THREADS: usize = 2;

/// Runs futures to completion.
#[derive(Debug, Clone)]
pub(crate) enum Executor {
    /// On the caller's thread, where `object_store` also does the file and memory operations.
    Here,
    /// On the caller's thread, in the context of a runtime.
    Network(Arc<Driver>),
}

/// A runtime that shuts down without waiting: a repository may be dropped inside a caller's async code.
#[derive(Debug)]
pub(crate) struct Driver(Option<Runtime>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Driver {
    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken when dropped").handle()
    }
}

impl Executor {
    /// An executor for a store in a network. Fails if the threads can't be started.
    pub(crate) fn network() -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("store")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| Error::from_io("start the threads that talk to the store", error))?;
        Ok(Self::Network(Arc::new(Driver(Some(runtime)))))
    }

    /// Runs `future` to completion on this thread, which blocks until then.
    pub(crate) fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        match self {
            Self::Network(driver) => {
                let _context = driver.handle().enter();
                futures::executor::block_on(future)
            }
            Self::Here if Handle::try_current().is_err() => futures::executor::block_on(future),
            // Inside a tokio runtime, `object_store` would move its work to the runtime's blocking pool. If all
            // threads of that pool wait here, this would be a deadlock. A new thread has no runtime.
            Self::Here => std::thread::scope(|scope| {
                let run = scope.spawn(|| futures::executor::block_on(future));
                run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// Starts `future` in the background. Only for a store in a network.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Network(driver) => drop(driver.handle().spawn(future)),
            Self::Here => unreachable!("folders and memory are written while the caller waits"),
        }
    }

    /// Waits before a retry, as [`Self::rest`] does. Does not wait for folders and memory, where a retry costs
    /// nothing.
    pub(crate) fn pause(&self, base: Duration) -> Result<()> {
        if let Self::Network(_) = self { self.rest(base) } else { Ok(()) }
    }

    /// Waits for a random time between `base` and twice `base`, so that writers that failed together do not retry
    /// together.
    pub(crate) fn rest(&self, base: Duration) -> Result<()> {
        let share = crate::record::random::<1>()?[0];
        let time = base + base * u32::from(share) / 256;
        match self {
            Self::Network(_) => self.wait(async { tokio::time::sleep(time).await }),
            Self::Here => std::thread::park_timeout(time),
        }
        Ok(())
    }
}
