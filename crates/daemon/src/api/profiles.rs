//! Requests on boot profiles, and the exchange of reads between machines that start.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use base::limits::{PROFILE_CHUNKS_MAX, PROFILE_RECORD_BYTES_MAX};
use net::api::ProblemKind;
use net::profile::{
    BootAnswer, BootRequest, ExchangeAnswer, ExchangeRequest, ProfileAnswer, chunks_of, runs_of,
};
use serde::Deserialize;
use store::{ImageName, Reference, Stamp};

use super::access::Access;
use super::app::App;
use super::blobs::Asked;
use super::body::{from_json, receive_hint, receive_json};
use crate::auth::authority::Right;
use crate::clock;
use crate::listener::Peer;
use crate::problem::Failure;

#[derive(Deserialize)]
pub(super) struct Of {
    version: u64,
}

/// `GET profile`: the chunks that a machine that starts from a version is likely to read.
pub(super) async fn get(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Asked(Of { version }): Asked<Of>,
) -> Result<Json<ProfileAnswer>, Failure> {
    access.needs(Right::Read, &image)?;
    let name: ImageName = image.parse()?;
    let found = app.blocking(move |app| app.repository.profile(&name, version)).await?;
    let found = found.ok_or_else(|| {
        let text = format!("there is no profile of `{}@{version}`", image.escape_debug());
        Failure::new(ProblemKind::NotFound, text)
    })?;
    Ok(Json(ProfileAnswer {
        image: found.image.to_string(),
        number: found.number,
        chunk_bytes: found.chunk_bytes,
        boots: found.boots,
        runs: runs_of(&found.order()),
    }))
}

/// `POST profile`: adds a boot. The right `read` is enough: machines that start have no other, and a profile is only
/// a hint.
pub(super) async fn add(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<BootAnswer>, Failure> {
    access.needs(Right::Read, &image)?;
    let name: ImageName = image.parse()?;
    let (bytes, memory) = receive_hint(&app, peer.ip(), &headers, body, PROFILE_RECORD_BYTES_MAX).await?;
    let boot: BootRequest = from_json(&bytes)?;
    drop((bytes, memory));
    let chunks = chunks_of(&boot.runs, PROFILE_CHUNKS_MAX);
    // First check that the version exists: `keeps_boot` counts this boot as the one of its 30 s.
    let version = Reference::Version(name.clone(), boot.version);
    app.blocking(move |app| app.repository.look(&version).map(drop)).await?;
    if !app.reads.keeps_boot(clock::unix_seconds(), name.as_str()) {
        return Ok(Json(BootAnswer { kept: false }));
    }
    let stamp = Stamp { created: clock::now_rfc3339(), creator: format!("api@{}", peer.ip()) };
    app.blocking(move |app| app.repository.add_profile(&name, boot.version, &chunks, &stamp)).await?;
    Ok(Json(BootAnswer { kept: true }))
}

/// `POST reads`: takes what a machine has just read, and answers with what others have read.
pub(super) async fn exchange(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ExchangeAnswer>, Failure> {
    access.needs(Right::Read, &image)?;
    let name: ImageName = image.parse()?;
    let request: ExchangeRequest = receive_json(&app, &headers, body).await?;
    let now = clock::unix_seconds();
    if let Some(answer) = app.reads.exchange(now, name.as_str(), &request) {
        return Ok(Json(answer));
    }
    let version = Reference::Version(name.clone(), request.version);
    let chunks = app.blocking(move |app| -> Result<_, Failure> {
        let (sealed, _) = app.repository.look(&version)?;
        Ok(sealed.manifest.layout()?.chunk_count())
    });
    app.reads.begin(now, name.as_str(), request.version, chunks.await?);
    let answer = app.reads.exchange(now, name.as_str(), &request);
    answer.map(Json).ok_or_else(|| Failure::new(ProblemKind::Unavailable, "too many images start at once"))
}
