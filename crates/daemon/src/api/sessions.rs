//! Multicast sessions: taking part, leaving, and what they did.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use net::api::{ProblemKind, SessionGrant, SessionId, SessionRequest, Sessions};
use store::Reference;

use super::access::Access;
use super::{App, Failure, body};
use crate::authority::Right;
use crate::statistics;

/// Statistics as JSON, or as the text that the log has, for those who accept only that.
pub async fn list(access: Access, State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let mut sessions = app.sessions.statistics();
    sessions.retain(|session| {
        let image = session.reference.split('@').next().unwrap_or_default();
        access.sees(image)
    });
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.starts_with("text/plain") {
        let texts: Vec<_> = sessions.iter().map(statistics::text).collect();
        return ([(CONTENT_TYPE, "text/plain; charset=utf-8")], texts.join("\n")).into_response();
    }
    Json(Sessions { sessions }).into_response()
}

pub async fn join(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SessionGrant>, Failure> {
    let request: SessionRequest = body::receive_json(&app, &headers, body).await?;
    let reference: Reference = request.reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    Err(Failure::new(ProblemKind::Refused, "this server offers no multicast"))
}

pub async fn leave(
    _: Access,
    State(_app): State<Arc<App>>,
    Path((session, _receiver)): Path<(String, u32)>,
) -> Result<StatusCode, Failure> {
    let invalid = |error| Failure::new(ProblemKind::Invalid, base::fault::chain(&error));
    let _session: SessionId = session.parse().map_err(invalid)?;
    Err(Failure::new(ProblemKind::NotFound, "no such session"))
}
