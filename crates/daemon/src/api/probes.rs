//! Probes of the network.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use net::api::{ProbeGrant, ProbeRequest, ProbeView, SessionId};

use super::access::Access;
use super::app::App;
use super::body;
use crate::auth::authority::Right;
use crate::listener::Peer;
use crate::problem::Failure;

/// `POST probes`.
pub(super) async fn start(
    access: Access,
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ProbeGrant>, Failure> {
    access.needs_anywhere(Right::Read)?;
    let request: ProbeRequest = body::receive_json(&app, &headers, body).await?;
    app.blocking(move |app| app.probes.start(&request, peer)).await.map(Json)
}

/// `GET probes/{id}`.
pub(super) async fn view(
    access: Access,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<ProbeView>, Failure> {
    access.needs_anywhere(Right::Read)?;
    let id: SessionId = id.parse()?;
    app.probes.view(id).map(Json)
}
