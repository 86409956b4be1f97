//! The HTTP API, version 1, as specified in formats/api.md: its routes, and the checks that every request passes.

mod access;
mod app;
mod blobs;
mod body;
mod files;
mod images;
mod machines;
mod objects;
mod operations;
mod probes;
mod profiles;
mod sessions;
mod status;
mod swarms;
mod tokens;
mod torrents;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use net::api::ProblemKind;

use crate::event::Event;
use crate::problem::{Cause, Failure};
pub(crate) use app::App;

/// All routes of the API.
pub(crate) fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/repository", get(images::repository))
        .route("/token", get(tokens::get).post(tokens::renew))
        .route("/images", get(images::list))
        .route("/images/{image}/versions", get(images::versions).post(images::publish))
        .route("/images/{image}/tags/{tag}", get(images::tag))
        .route("/images/{image}/cut-over", get(images::cut_over))
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
        .route(
            "/objects/{kind}/{digest}",
            get(objects::get).head(objects::head).put(objects::put).post(objects::mend),
        )
        .route("/sessions", get(sessions::list).post(sessions::join))
        .route("/swarms", post(swarms::join))
        .route("/probes", post(probes::start))
        .route("/probes/{id}", get(probes::view))
        .route("/hosts/{id}", put(status::report))
        .route("/machines", get(machines::list))
        .route("/machines/call", post(machines::call))
        .route("/machines/changes", post(machines::change))
        .route("/machines/changes/plan", post(machines::plan_change))
        .route("/machines/{mac}/log", get(machines::log))
        .route("/machines/power/{id}", put(machines::switch).get(machines::switched))
        .route("/jobs", post(machines::give))
        .route("/jobs/plan", post(machines::plan_job))
        .route("/torrents/{reference}", get(torrents::metainfo))
        .route("/status", get(status::status));
    Router::new()
        .nest(net::api::PREFIX, api)
        .route("/", get(status::page))
        .route(torrents::ANNOUNCE, get(torrents::announce))
        .route(torrents::SCRAPE, get(torrents::scrape))
        .route("/healthz", get(operations::health))
        .route("/readyz", get(operations::ready))
        .route("/metrics", get(operations::metrics))
        .merge(files::routes())
        .fallback(|| async { Failure::new(ProblemKind::NotFound, "no such path in this API") })
        .method_not_allowed_fallback(|| async { Failure::method_not_allowed() })
        .layer(middleware::from_fn_with_state(app.clone(), watch))
        .with_state(app)
}

/// The routes of files alone, of images that are for everybody, for connections without TLS.
pub(crate) fn public_router(app: Arc<App>) -> Router {
    files::routes()
        .layer(Extension(files::InPlain))
        .fallback(|| async { Failure::new(ProblemKind::NotFound, "only files of images are here") })
        .layer(middleware::from_fn_with_state(app.clone(), watch))
        .with_state(app)
}

/// What is answered without TLS on the port of the API: the tracker, since clients of BitTorrent do not know the
/// certificate. All else is told to speak TLS.
pub(crate) fn plain_router(app: Arc<App>) -> Router {
    Router::new()
        .route(torrents::ANNOUNCE, get(torrents::announce))
        .route(torrents::SCRAPE, get(torrents::scrape))
        .fallback(|| async { Failure::new(ProblemKind::Invalid, "this port speaks TLS") })
        .layer(middleware::from_fn_with_state(app.clone(), watch))
        .with_state(app)
}

/// Limits the number of requests at the same time, counts them, and logs those that failed because of the server.
async fn watch(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let name = format!("{} {}", request.method(), request.uri().path());
    let response = match app.requests.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => Failure::new(ProblemKind::Unavailable, "too many requests at once").into_response(),
    };
    app.metrics.request(response.status().as_u16());
    if let Some(Cause(error)) = response.extensions().get() {
        (app.log)(&Event::RequestFailed { request: name, error: error.clone() });
    }
    response
}
