//! Requests for operators and monitoring: health, readiness and metrics. They need no token and answer without names
//! of images or machines.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use tokio::time::Instant;

use super::app::App;
use crate::clock;
use crate::metrics::{self, TokenTotals};
use crate::problem::Failure;

/// For this time a repository that could be read counts as readable.
const READY_LASTS: Duration = Duration::from_secs(2);

pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Answers 200 while the repository can be read. That is tried at most once in `READY_LASTS`.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Failure> {
    let mut ready_at = app.ready_at.lock().await;
    if ready_at.is_none_or(|at| at.elapsed() >= READY_LASTS) {
        *ready_at = None;
        app.blocking(|app| app.repository.check_readable()).await?;
        *ready_at = Some(Instant::now());
    }
    Ok("ready\n")
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let totals = app.blocking(|app| Ok::<_, Failure>(app.sessions.totals())).await?;
    let (in_use, ending) = app.token_uses.count(clock::unix_seconds());
    let tokens = TokenTotals { in_use, ending, join_expires: app.join.expires() };
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], app.metrics.text(&totals, &tokens, app.swarms.counters()))
        .into_response())
}
