//! Where the futures of an object store run: on the thread that waits for them; for a store in a network there is a
//! runtime of the repository's own besides, which drives connections and timers.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that drive connections. They only move bytes; the work on them is done by the callers' threads.
const THREADS: usize = 2;

/// Runs futures to their end.
#[derive(Debug, Clone)]
pub(crate) enum Executor {
    /// On the caller's thread, which is where `object_store` does the work of folders and memory.
    Here,
    /// On the caller's thread, in the context of a runtime.
    Network(Arc<Driver>),
}

/// A runtime that ends without waiting: a repository may be dropped inside somebody's async code.
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
    /// One for a store in a network.
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

    /// Runs `future` to its end while this thread waits.
    pub(crate) fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        match self {
            Self::Network(driver) => {
                let _context = driver.handle().enter();
                futures::executor::block_on(future)
            }
            Self::Here if Handle::try_current().is_err() => futures::executor::block_on(future),
            // Inside a tokio runtime `object_store` would hand its work to a thread of the runtime's pool, and a pool
            // whose threads all wait for one more thread stands still; a thread of our own has no runtime.
            Self::Here => std::thread::scope(|scope| {
                let run = scope.spawn(|| futures::executor::block_on(future));
                run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// Starts `future`, which nobody waits for here. Only for a store in a network.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Network(driver) => drop(driver.handle().spawn(future)),
            Self::Here => unreachable!("folders and memory are written while the caller waits"),
        }
    }

    /// Lets time pass before something is tried again, as [`Self::rest`] does. Where nothing is far away there is
    /// nothing to wait for.
    pub(crate) fn pause(&self, base: Duration) -> Result<()> {
        if let Self::Network(_) = self { self.rest(base) } else { Ok(()) }
    }

    /// Lets `base` to twice as much time pass, so that those who failed together do not come back together.
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
