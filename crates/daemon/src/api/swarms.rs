//! Requests on swarms: join one. A member leaves by a packet of peer.md.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use net::api::{ProblemKind, SwarmGrant, SwarmRequest};
use store::Reference;

use super::access::Access;
use super::app::App;
use super::body;
use crate::auth::authority::Right;
use crate::listener::Peer;
use crate::problem::Failure;

/// How long the answer to the first of a swarm waits for others.
const GATHERING: Duration = Duration::from_millis(15);

/// `POST swarms`: admits the client to those that serve each other a version.
pub(super) async fn join(
    access: Access,
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SwarmGrant>, Failure> {
    let request: SwarmRequest = body::receive_json(&app, &headers, body).await?;
    let reference: Reference = request.reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    if request.peer != net::peer::VERSION {
        let text = format!("this server speaks version {} of the peer protocol", net::peer::VERSION);
        return Err(Failure::new(ProblemKind::Refused, text));
    }
    let join = move |app: &App| -> Result<_, Failure> {
        let version = app.version_meant(&reference, &request.manifest)?;
        app.readings.begin(reference.image(), version.manifest.number)?;
        Ok(app.swarms.join(&app.repository, &version, peer.ip())?)
    };
    let grant = app.blocking(join).await?;
    if grant.others {
        return Ok(Json(grant));
    }
    // Machines that are switched on together ask within some milliseconds of each other. The first of them should know
    // of the others.
    tokio::time::sleep(GATHERING).await;
    let others = app.swarms.has_others(grant.swarm, grant.rank);
    Ok(Json(SwarmGrant { others, ..grant }))
}
