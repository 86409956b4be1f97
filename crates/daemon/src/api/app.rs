//! The state that all requests share, and the threads for their blocking work.

use std::sync::Arc;
use std::time::Duration;

use image::SignedManifest;
use net::api::ProblemKind;
use store::{Reference, Repository};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::auth::authority::Authority;
use crate::auth::join::Join;
use crate::auth::token_uses::TokenUses;
use crate::clock;
use crate::event::Log;
use crate::files::Files;
use crate::hosts::Hosts;
use crate::limits::per_address::Shares;
use crate::metrics::Metrics;
use crate::netboot::Boots;
use crate::problem::Failure;
use crate::repository::publications::Publications;
use crate::repository::reach::Reach;
use crate::repository::readings::Readings;
use crate::repository::uploads::Uploads;
use crate::sessions::Sessions;
use crate::sessions::probes::Probes;
use crate::swarms::Swarms;
use crate::swarms::boot_exchange::Reads;
use crate::swarms::torrents::Torrents;

/// Maximum number of requests at the same time; further ones get 503.
const REQUESTS_MAX: usize = 2048;
/// Maximum number of requests that do blocking work at the same time.
const REPOSITORY_THREADS_MAX: usize = 32;
/// Memory for objects in transfer from and to clients, in pieces of [`PIECE_BYTES`]: 256 MiB.
pub(super) const MEMORY_PIECES: u32 = 4096;
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of requests at the same time that read much to answer little, such as a comparison of two versions.
const SLOW_REQUESTS_MAX: usize = 2;
/// Maximum number of such requests that wait; further ones get 503.
const SLOW_WAITING_MAX: usize = 32;
/// Longest pause of a client that sends a body.
pub(super) const BODY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time limit for the body of a request.
pub(super) const BODY_TIME_MAX: Duration = Duration::from_secs(120);

/// The state that all requests share.
pub(crate) struct App {
    pub repository: Arc<Repository>,
    pub authority: Authority,
    pub join: Join,
    pub token_uses: TokenUses,
    pub sessions: Arc<Sessions>,
    pub swarms: Swarms,
    /// Versions as torrents, if they are served so.
    pub torrents: Option<Torrents>,
    pub hosts: Hosts,
    pub probes: Probes,
    pub publications: Publications,
    pub reach: Reach,
    pub readings: Readings,
    pub uploads: Uploads,
    pub reads: Reads,
    pub files: Files,
    pub metrics: Metrics,
    pub log: Log,
    /// The machines that boot from the network, if any do.
    pub boots: Option<Boots>,
    /// When the repository was last found readable.
    pub(super) ready_at: Mutex<Option<Instant>>,
    pub(super) requests: Semaphore,
    pub(super) threads: Semaphore,
    slow: Semaphore,
    slow_waiting: Semaphore,
    pub(super) memory: Arc<Semaphore>,
    /// Memory that bodies from each address and answers to it hold.
    pub(super) held: Shares,
}

impl App {
    pub(crate) fn new(
        repository: Arc<Repository>,
        authority: Authority,
        join: Join,
        (sessions, swarms, files, torrents): (Arc<Sessions>, Swarms, Files, Option<Torrents>),
        probes: Probes,
        boots: Option<Boots>,
        log: Log,
    ) -> Arc<Self> {
        let readings = Readings::new(Arc::clone(&repository), log.clone());
        Arc::new(Self {
            repository,
            authority,
            join,
            token_uses: TokenUses::default(),
            sessions,
            swarms,
            torrents,
            hosts: Hosts::new(log.clone()),
            probes,
            publications: Publications::default(),
            reach: Reach::default(),
            readings,
            uploads: Uploads::new(),
            reads: Reads::new(clock::epoch()),
            files,
            metrics: Metrics::new(),
            log,
            boots,
            ready_at: Mutex::default(),
            requests: Semaphore::new(REQUESTS_MAX),
            threads: Semaphore::new(REPOSITORY_THREADS_MAX),
            slow: Semaphore::new(SLOW_REQUESTS_MAX),
            slow_waiting: Semaphore::new(SLOW_WAITING_MAX),
            memory: Arc::new(Semaphore::new(MEMORY_PIECES as usize)),
            held: Shares::default(),
        })
    }

    /// The version that a client means by `reference` and the digest of its manifest, 64 hexadecimal digits. Blocks.
    pub(super) fn version_meant(
        &self,
        reference: &Reference,
        manifest: &str,
    ) -> Result<SignedManifest, Failure> {
        let (version, _) = self.repository.signed_manifest(reference)?;
        match version.digest().to_hex() == manifest {
            true => Ok(version),
            false => {
                Err(Failure::new(ProblemKind::Refused, format!("{reference} has another manifest here")))
            }
        }
    }

    /// Runs the blocking `work` on a thread for such work, and waits for its result. At most `REPOSITORY_THREADS_MAX`
    /// run at the same time.
    pub(super) async fn blocking<T: Send + 'static, E: Into<Failure> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure> {
        let _thread = self.threads.acquire().await.expect("the semaphore is never closed");
        self.on_thread(work).await
    }

    /// The same for requests that read much: few run at the same time, so that they do not hold up the others.
    pub(super) async fn blocking_slow<T: Send + 'static, E: Into<Failure> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure> {
        let too_many = |_| Failure::new(ProblemKind::Unavailable, "too many comparisons at once");
        let waiting = self.slow_waiting.try_acquire().map_err(too_many)?;
        let _place = self.slow.acquire().await.expect("the semaphore is never closed");
        drop(waiting);
        self.on_thread(work).await
    }

    async fn on_thread<T: Send + 'static, E: Into<Failure> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure> {
        let app = self.clone();
        match tokio::task::spawn_blocking(move || work(&app)).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(Failure::internal("the server's work on this request failed unexpectedly")),
        }
    }
}
