//! What becomes of the machines that fetch: their reports, `GET status`, and a page that shows it.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use net::api::{HostReport, NextReport, ProblemKind, SessionStatistics, SessionStatus, Status};
use store::Reference;
use tokio::time::Instant;

use super::access::Access;
use super::app::App;
use super::body;
use crate::auth::authority::Right;
use crate::listener::Peer;
use crate::problem::Failure;
use crate::sessions::statistics;

/// One file without anything from elsewhere. It shows no data by itself: it asks for a token.
const PAGE: &str = include_str!("status.html");
/// The page may run its own script and style, and ask this server; nothing else.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                           connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `PUT hosts/{id}`.
pub(super) async fn report(
    access: Access,
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<NextReport>, Failure> {
    let invalid = |why: &str| Failure::new(ProblemKind::Invalid, why);
    let id = Some(&id).filter(|id| id.len() == 32).and_then(|id| u128::from_str_radix(id, 16).ok());
    let id = id.ok_or_else(|| invalid("the id of a fetch has 32 hexadecimal digits"))?;
    let report: HostReport = body::receive_json(&app, &headers, body).await?;
    let reference: Reference = report.reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    let ended = report.ended;
    let next = app.hosts.report(id, peer.ip(), report, Instant::now());
    if ended {
        app.readings.end(&reference);
    } else if let Reference::Version(image, number) = reference
        && !app.readings.touch(&image, number)
    {
        // A version that was removed before is not protected any more: then the fetch may fail.
        let _ = app.blocking(move |app| app.readings.begin(&image, number)).await;
    }
    Ok(Json(NextReport { next_ms: u64::try_from(next.as_millis()).unwrap_or(u64::MAX) }))
}

/// `GET status`.
pub(super) async fn status(access: Access, State(app): State<Arc<App>>) -> Result<Json<Status>, Failure> {
    let sessions = app.blocking(|app| Ok::<_, Failure>(app.sessions.statistics())).await?;
    let sees =
        |session: &SessionStatistics| access.sees(session.reference.split('@').next().unwrap_or_default());
    let sessions = sessions.iter().filter(|session| sees(session)).map(summary).collect();
    let hosts = app.hosts.list(|image| access.sees(image), Instant::now());
    let swarms = app.swarms.status().into_iter();
    let swarms = swarms.filter(|swarm| access.sees(swarm.reference.split('@').next().unwrap_or_default()));
    Ok(Json(Status { sessions, hosts, swarms: swarms.collect() }))
}

fn summary(session: &SessionStatistics) -> SessionStatus {
    SessionStatus {
        reference: session.reference.clone(),
        group: session.group,
        running: session.running,
        receivers: session.receivers.iter().filter(|receiver| !receiver.left).count() as u64,
        rate_bits_per_second: session.recent_bits_per_second.filter(|_| session.running),
        image_bytes: session.image_bytes,
        payload_bytes: session.payload_bytes,
        loss: statistics::loss(&session.receivers),
        blocks_sent: session.blocks_sent,
        resent_late: session.resent_late,
        resent_buffer_full: session.resent_buffer_full,
        resent_lost: session.resent_lost,
        unicast_bytes: session.unicast_bytes,
    }
}

/// `GET /`.
pub(super) async fn page() -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, PAGE)
}
