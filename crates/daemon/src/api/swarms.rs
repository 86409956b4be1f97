//! Requests on swarms: join one. A member leaves by a packet of peer.md.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use net::api::{ProblemKind, SwarmGrant, SwarmRequest};
use store::Reference;

use super::access::Access;
use super::app::App;
use super::body;
use super::problem::Failure;
use crate::authority::Right;
use crate::listener::Peer;

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
    let grant = app.blocking(move |app| -> Result<_, Failure> {
        let (version, _) = app.repository.signed_manifest(&reference)?;
        if version.digest().to_hex() != request.manifest {
            return Err(Failure::new(ProblemKind::Refused, format!("{reference} has another manifest here")));
        }
        Ok(app.swarms.join(&app.repository, &version, peer.ip())?)
    });
    Ok(Json(grant.await?))
}
