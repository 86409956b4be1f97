//! The client of a cluster: stripes what it stores over devices, computes parity, reads from any k components of a
//! segment, and keeps names in the index. It implements `object_store`. formats/cluster.md.
//!
//! - `session` the map, capabilities, the lease
//! - `index` inserts and finds entries
//! - `form` lays out runs and computes parity
//! - `write` drives `proto::cluster::Writer`
//! - `hold` keeps segments from being compacted while entries are on their way
//! - `fetch` reads ranges of runs, also without some components
//! - `read` reads contents by their entries; caches runs
//! - `memory` records that were read, for the time without a metadata service
//! - `records` names that only one client can create
//! - `rights` to write the index
//! - `directories` what is in a segment
//! - `compact` stores what is in use of a segment elsewhere
//! - `salvage` rebuilds the index from the segments
//! - `names` what `store` asks for, over these
//! - `object_store` the trait

mod access;
mod compact;
mod directories;
mod errors;
mod fetch;
mod form;
mod hold;
mod index;
mod memory;
mod multipart;
mod names;
mod object_store;
mod read;
mod records;
mod rights;
mod salvage;
mod session;
mod write;

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Runtime};

pub use access::ClusterAccess;
pub(crate) use compact::{Pace, compact};
pub use salvage::Salvage;

use crate::http::Reply;
use crate::wire::{ClusterStatus, Limits};
use read::Reads;
use session::Session;
use write::Writes;

/// Threads that drive connections, compute parity and verify.
const THREADS: usize = 2;
/// Longest wait for segments to be sealed at the end. What is left open, the metadata service seals later.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// A group of objects in a cluster: what a repository lies in.
pub struct Cluster {
    parts: Arc<Parts>,
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({})", self.parts.name)
    }
}

/// What the tasks of a client share.
struct Parts {
    name: String,
    immutable: &'static [&'static str],
    session: Arc<Session>,
    writes: Writes,
    reads: Arc<Reads>,
}

impl Cluster {
    /// Joins the cluster.
    ///
    /// # Errors
    /// `Unreachable` if no metadata service answers, `Denied` if the token is wrong.
    pub fn open(access: &ClusterAccess) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("cluster")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| Error::from_io("start the threads that talk to the cluster", error))?;
        let opening = open(access.clone());
        let (answer, opened) = std::sync::mpsc::channel();
        runtime.spawn(async move { answer.send(opening.await) });
        let parts =
            opened.recv().map_err(|_| Error::new(ErrorKind::Io, "join the cluster: a thread failed"))??;
        Ok(Self { parts, runtime: Some(runtime) })
    }

    /// What the cluster says of itself, without joining it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn status(access: &ClusterAccess) -> Result<ClusterStatus> {
        ask(access, session::status(access))
    }

    /// Declares that what a device held is gone: its parts are computed from the others, and stored elsewhere.
    ///
    /// # Errors
    /// As [`Self::open`]; `NotFound` if there is no such device.
    pub fn declare_lost(access: &ClusterAccess, device: u32) -> Result<()> {
        Self::tell(access, &format!("devices/{device}/lost"))
    }

    /// Moves what a device holds to others, so that it can be taken away.
    ///
    /// # Errors
    /// As [`Self::declare_lost`].
    pub fn drain(access: &ClusterAccess, device: u32) -> Result<()> {
        Self::tell(access, &format!("devices/{device}/drain"))
    }

    /// Sets what a group may use on all devices together; devices learn it with their next heartbeats.
    ///
    /// # Errors
    /// As [`Self::open`]; `Invalid` if the group has no number that groups have.
    pub fn limit(access: &ClusterAccess, group: u32, limits: Limits) -> Result<()> {
        ask(access, session::limit(access, group, limits))
    }

    /// Moves parts from devices that are fuller than others, as after new ones joined. Returns how many are to be
    /// moved.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn rebalance(access: &ClusterAccess) -> Result<u64> {
        ask(access, session::rebalance(access))
    }

    /// Rebuilds the index of all groups from what lies on the devices, and tells `told` how far it is. Contents that
    /// were deleted come back only if the index forgot that, too.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn rebuild_index(access: &ClusterAccess, told: impl Fn(&Salvage)) -> Result<Salvage> {
        let failed = |error| Error::from_io("start threads that talk to the cluster", error);
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().map_err(failed)?;
        let done = runtime.block_on(salvage::salvage(access, told));
        done.map_err(|failure| failure.into_error(&format!("rebuild the index of the cluster at {access}")))
    }

    fn tell(access: &ClusterAccess, path: &str) -> Result<()> {
        ask(access, session::order(access, path))
    }

    /// Runs work of the client on its own threads, whoever waits for it.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.as_ref().expect("it is taken when dropped").spawn(work)
    }
}

/// Waits for the answer to one question.
fn ask<T>(access: &ClusterAccess, asking: impl Future<Output = Result<Reply<T>>>) -> Result<T> {
    let failed = |error| Error::from_io("start a thread that talks to the cluster", error);
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(failed)?;
    let answer = runtime.block_on(asking)?;
    answer.map_err(|failure| failure.into_error(&format!("ask the cluster at {access}")))
}

async fn open(access: ClusterAccess) -> Result<Arc<Parts>> {
    let (name, immutable) = (access.to_string(), access.immutable);
    let session = Session::open(access).await?;
    let writes = Writes::start(&session);
    Ok(Arc::new(Parts { name, immutable, reads: Arc::default(), writes, session }))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let (answer, ended) = std::sync::mpsc::channel();
        let parts = Arc::clone(&self.parts);
        runtime.spawn(async move {
            parts.writes.finish().await;
            answer.send(())
        });
        let _ = ended.recv_timeout(FAREWELL_MAX);
        // The caller may be in async code, where waiting for the threads is not allowed.
        runtime.shutdown_background();
    }
}
