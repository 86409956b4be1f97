//! The HTTP API, version 1: routes and what every request passes. Specified in formats/api.md.

mod access;
mod blobs;
mod body;
mod images;
mod objects;
mod operations;
mod problem;
mod profiles;
mod sessions;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use net::api::ProblemKind;
use store::Repository;
use tokio::sync::Semaphore;

use crate::authority::Authority;
use crate::clock;
use crate::event::{Event, Log};
use crate::join::Join;
use crate::metrics::Metrics;
use crate::publications::Publications;
use crate::reads::Reads;
use crate::sessions::Sessions;
use crate::token_uses::TokenUses;
use crate::uploads::Uploads;
pub use problem::Failure;

/// Most requests at once; more are told to come back.
const REQUESTS_MAX: usize = 2048;
/// Most threads that work on the repository for requests at once.
const REPOSITORY_THREADS_MAX: usize = 32;
/// Memory for objects on their way from and to clients, in pieces of [`PIECE_BYTES`].
const MEMORY_BYTES: usize = 256 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// For the body of a request to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);

/// What all requests share.
pub struct App {
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
    requests: Semaphore,
    threads: Semaphore,
    memory: Arc<Semaphore>,
}

impl App {
    pub fn new(
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

    /// Runs `work`, which blocks, where it holds nobody up.
    async fn blocking<T: Send + 'static, E: Into<Failure> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure> {
        let _thread = self.threads.acquire().await.expect("the semaphore is never closed");
        let app = self.clone();
        match tokio::task::spawn_blocking(move || work(&app)).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(Failure::internal("the server's work on this request broke down")),
        }
    }
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/repository", get(images::repository))
        .route("/token", get(tokens::get).post(tokens::renew))
        .route("/images", get(images::list))
        .route("/images/{image}/versions", get(images::versions).post(images::publish))
        .route("/images/{image}/tags/{tag}", get(images::tag))
        .route("/images/{image}", get(blobs::recent).post(blobs::create))
        .route("/images/{image}/clone", post(blobs::clone))
        .route("/images/{image}/log", get(blobs::log))
        .route("/images/{image}/content", put(blobs::write).post(blobs::append))
        .route("/images/{image}/commit", post(blobs::commit))
        .route("/images/{image}/profile", get(profiles::get).post(profiles::add))
        .route("/images/{image}/reads", post(profiles::exchange))
        .route("/content/{reference}", get(blobs::read))
        .route("/diff", get(blobs::diff))
        .route("/manifests/{reference}", get(images::manifest))
        .route("/objects/{kind}/{digest}", get(objects::get).head(objects::head).put(objects::put))
        .route("/sessions", get(sessions::list).post(sessions::join));
    Router::new()
        .nest(net::api::PREFIX, api)
        .route("/healthz", get(operations::health))
        .route("/readyz", get(operations::ready))
        .route("/metrics", get(operations::metrics))
        .fallback(|| async { Failure::new(ProblemKind::NotFound, "no such path in this API") })
        .method_not_allowed_fallback(|| async { Failure::method_not_allowed() })
        .layer(middleware::from_fn_with_state(app.clone(), watch))
        .with_state(app)
}

/// Bounds requests in number, counts them, and logs those that failed through no fault of the client.
async fn watch(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let name = format!("{} {}", request.method(), request.uri().path());
    let response = match app.requests.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => Failure::new(ProblemKind::Unavailable, "too many requests at once").into_response(),
    };
    app.metrics.request(response.status().as_u16());
    if let Some(problem::Cause(error)) = response.extensions().get() {
        (app.log)(&Event::RequestFailed { request: name, error: error.clone() });
    }
    response
}
