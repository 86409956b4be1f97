//! The state that all requests share, and the threads for their blocking work.

use std::sync::Arc;
use std::time::Duration;

use store::Repository;
use tokio::sync::Semaphore;

use super::problem::Failure;
use crate::authority::Authority;
use crate::boot_exchange::Reads;
use crate::clock;
use crate::event::Log;
use crate::join::Join;
use crate::metrics::Metrics;
use crate::publications::Publications;
use crate::sessions::Sessions;
use crate::token_uses::TokenUses;
use crate::uploads::Uploads;

/// Maximum number of requests at the same time; further ones get 503.
const REQUESTS_MAX: usize = 2048;
/// Maximum number of requests that do blocking work at the same time.
const REPOSITORY_THREADS_MAX: usize = 32;
/// Memory for objects in transfer from and to clients, reserved in pieces of [`PIECE_BYTES`].
pub(super) const MEMORY_BYTES: usize = 256 << 20;
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Time limit for the body of a request.
pub(super) const BODY_TIME_MAX: Duration = Duration::from_secs(120);

/// The state that all requests share.
pub(crate) struct App {
    pub repository: Arc<Repository>,
    pub authority: Authority,
    pub join: Join,
    pub token_uses: TokenUses,
    pub sessions: Arc<Sessions>,
    pub publications: Publications,
    pub uploads: Uploads,
    pub reads: Reads,
    pub metrics: Metrics,
    pub log: Log,
    pub(super) requests: Semaphore,
    pub(super) threads: Semaphore,
    pub(super) memory: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(
        repository: Arc<Repository>,
        authority: Authority,
        join: Join,
        sessions: Arc<Sessions>,
        log: Log,
    ) -> Arc<Self> {
        Arc::new(Self {
            repository,
            authority,
            join,
            token_uses: TokenUses::default(),
            sessions,
            publications: Publications::default(),
            uploads: Uploads::default(),
            reads: Reads::new(clock::epoch()),
            metrics: Metrics::new(),
            log,
            requests: Semaphore::new(REQUESTS_MAX),
            threads: Semaphore::new(REPOSITORY_THREADS_MAX),
            memory: Arc::new(Semaphore::new(MEMORY_BYTES / PIECE_BYTES)),
        })
    }

    /// Runs the blocking `work` on a thread for such work, and waits for its result. At most `REPOSITORY_THREADS_MAX`
    /// run at the same time.
    pub(super) async fn blocking<T: Send + 'static, E: Into<Failure> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure> {
        let _thread = self.threads.acquire().await.expect("the semaphore is never closed");
        let app = self.clone();
        match tokio::task::spawn_blocking(move || work(&app)).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(Failure::internal("the server's work on this request failed unexpectedly")),
        }
    }
}
