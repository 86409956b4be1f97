//! Requests on multicast sessions: join one, and statistics. There is no request to leave; a receiver leaves by a
//! packet of multicast.md.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use net::api::{SessionGrant, SessionRequest, Sessions};
use store::Reference;

use super::access::Access;
use super::app::App;
use super::body;
use crate::auth::authority::Right;
use crate::listener::Peer;
use crate::problem::Failure;
use crate::sessions::statistics;

/// `GET sessions`: statistics as JSON, or as text like in the log if the client accepts `text/plain` first.
pub(super) async fn list(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let mut sessions = app.blocking(|app| Ok::<_, Failure>(app.sessions.statistics())).await?;
    sessions.retain(|session| {
        let image = session.reference.split('@').next().unwrap_or_default();
        access.sees(image)
    });
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.starts_with("text/plain") {
        let texts: Vec<_> = sessions.iter().map(statistics::text).collect();
        return Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], texts.join("\n")).into_response());
    }
    Ok(Json(Sessions { sessions }).into_response())
}

/// `POST sessions`: admits the client to the session of a version.
pub(super) async fn join(
    access: Access,
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SessionGrant>, Failure> {
    let mut request: SessionRequest = body::receive_json(&app, &headers, body).await?;
    let reference: Reference = request.reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    request.receiver = printable(&request.receiver);
    let grant = app.blocking(move |app| -> Result<_, Failure> {
        let knows_root = request.attached && request.manifest.is_empty();
        let version = match knows_root {
            true => app.repository.signed_manifest(&reference)?.0,
            false => app.version_meant(&reference, &request.manifest)?,
        };
        if !request.attached {
            app.readings.begin(reference.image(), version.manifest.number)?;
        }
        let held = if request.peers { app.swarms.held(&version.digest()) } else { None };
        app.sessions.join(&request, &version, peer, held)
    });
    Ok(Json(grant.await?))
}

/// The client's name without control characters, at most 64 characters: it goes into logs and onto terminals.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}
