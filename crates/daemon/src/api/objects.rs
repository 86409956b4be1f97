//! Requests on objects, named by kind and digest. To a token that is not good for all images, objects of other images
//! do not exist.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path, Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base::limits::OBJECT_BYTES_MAX;
use image::{ObjectKind, ObjectRef, ObjectSink, ObjectSource};
use net::api::{OBJECT_TYPE, ProblemKind, SESSION_HEADER, SessionId, UPLOAD_HEADER};
use net::patch;
use serde::Deserialize;
use tokio::time::Instant;

use super::access::Access;
use super::app::App;
use super::body::{Held, Pace, receive, receive_hint, refuse, reserve_answer};
use crate::auth::authority::Right;
use crate::limits::paced::SendRate;
use crate::listener::Peer;
use crate::problem::Failure;

/// Of an object that a client is about to send, it is told whether an image of the token had it this long ago: it
/// asks for each, and sends at worst what is there already.
const UPLOAD_LOOK: Duration = Duration::from_secs(30);

/// Succeeds if the object belongs to an image of the token, or belonged to it `ago`. Else the answer is the same
/// whether it exists or not.
async fn needs_object(
    access: &Access,
    app: &Arc<App>,
    object: ObjectRef,
    ago: Duration,
) -> Result<(), Failure> {
    let claims = access.claims();
    if claims.covers_all() || app.reach.knows(claims, &object) {
        return Ok(());
    }
    let asked = Instant::now();
    let since = asked.checked_sub(ago).unwrap_or(asked);
    let _turn = app.reach.turn.lock().await;
    let (now, claims) = (Instant::now(), claims.clone());
    let find = move |app: &App| app.reach.finds(&app.repository, &claims, &object, since, now);
    let found = app.blocking(find).await?;
    if found { Ok(()) } else { Err(no_such(&object)) }
}

fn no_such(object: &ObjectRef) -> Failure {
    Failure::new(ProblemKind::NotFound, format!("there is no {object} of {} bytes", object.len))
}

fn named_session(headers: &HeaderMap) -> Option<SessionId> {
    headers.get(SESSION_HEADER)?.to_str().ok()?.parse().ok()
}

pub(super) async fn get(
    access: Access,
    State(app): State<Arc<App>>,
    Name(object): Name,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(rate): Extension<SendRate>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    needs_object(&access, &app, object, Duration::ZERO).await?;
    let session = app.sessions.session_of(named_session(&headers), peer.ip());
    if session.is_some() {
        app.sessions.wait_beside(peer.ip(), object.len.into()).await?;
    }
    rate.set(session.and_then(|_| app.sessions.pace_beside()));
    let (memory, paced) = (reserve_answer(&app, peer.ip(), object.len as usize).await, Arc::clone(&app));
    let bytes = app.blocking(move |app| app.repository.fetch(&object)).await?;
    app.metrics.sent(bytes.len() as u64);
    session.iter().for_each(|session| app.sessions.sent_beside(session, bytes.len() as u64));
    let headers = [(CONTENT_TYPE, OBJECT_TYPE), (CACHE_CONTROL, "private, immutable, max-age=31536000")];
    // Those of a session have waited for their share of it.
    let pace = session.is_none().then(|| Pace::of(&paced, peer.ip()));
    Ok((headers, Body::new(Held::new(bytes, memory, pace))).into_response())
}

/// `POST`: the pieces of an object that differ from the client's damaged copy, whose digests are the body.
pub(super) async fn mend(
    access: Access,
    State(app): State<Arc<App>>,
    Name(object): Name,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(rate): Extension<SendRate>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    if let Err(refused) = needs_object(&access, &app, object, Duration::ZERO).await {
        return Err(refuse(refused, body).await);
    }
    let session = app.sessions.session_of(named_session(&headers), peer.ip());
    let (digests, _memory) =
        receive_hint(&app, peer.ip(), &headers, body, patch::digests_bytes(object.len)).await?;
    let (memory, paced) = (reserve_answer(&app, peer.ip(), object.len as usize).await, Arc::clone(&app));
    let answer = app.blocking(move |app| -> Result<Vec<u8>, Failure> {
        let object = app.repository.verified(&object)?;
        let invalid = || Failure::new(ProblemKind::Invalid, "the body has not one digest for each piece");
        patch::differing(object.bytes(), &digests).ok_or_else(invalid)
    });
    let answer = answer.await?;
    if let Some(session) = &session {
        app.sessions.wait_beside(peer.ip(), answer.len() as u64).await?;
        app.sessions.sent_beside(session, answer.len() as u64);
    }
    rate.set(session.and_then(|_| app.sessions.pace_beside()));
    app.metrics.sent(answer.len() as u64);
    let pace = session.is_none().then(|| Pace::of(&paced, peer.ip()));
    let headers = [(CONTENT_TYPE, OBJECT_TYPE)];
    Ok((headers, Body::new(Held::new(answer.into(), memory, pace))).into_response())
}

pub(super) async fn head(
    access: Access,
    State(app): State<Arc<App>>,
    Name(object): Name,
    upload: Upload,
) -> Result<Response, Failure> {
    // An uploading client must know whether the object will stay, so its writer takes part in the answer.
    let found = if upload.is_named && access.needs_anywhere(Right::Write).is_ok() {
        let writer = app.blocking(move |app| app.uploads.writer(&app.repository, &upload.name)).await?;
        if !writer.has_stored(&object) {
            needs_object(&access, &app, object, UPLOAD_LOOK).await?;
        }
        app.blocking(move |_| writer.contains(&object)).await?
    } else {
        needs_object(&access, &app, object, Duration::ZERO).await?;
        app.blocking(move |app| app.repository.holds(&object)).await?
    };
    if found {
        return Ok([(CONTENT_TYPE, OBJECT_TYPE.to_owned()), (CONTENT_LENGTH, object.len.to_string())]
            .into_response());
    }
    Err(no_such(&object))
}

pub(super) async fn put(
    access: Access,
    State(app): State<Arc<App>>,
    Name(object): Name,
    upload: Upload,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    if let Err(refused) = access.needs_anywhere(Right::Write) {
        return Err(refuse(refused, body).await);
    }
    let (bytes, _memory) = receive(&app, upload.peer.ip(), &headers, body, object.len).await?;
    app.metrics.received(bytes.len() as u64);
    let store = app.blocking(move |app| -> Result<(), Failure> {
        object.verify(&bytes)?;
        Ok(app.uploads.writer(&app.repository, &upload.name)?.put(&object, bytes)?)
    });
    store.await.map(|()| StatusCode::NO_CONTENT)
}

/// The upload of a request.
pub(super) struct Upload {
    pub name: String,
    /// Whether the client named the upload. All requests from one address without a name are one upload.
    pub is_named: bool,
    /// Address of the client.
    pub peer: SocketAddr,
}

impl FromRequestParts<Arc<App>> for Upload {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let Extension(Peer(peer)) = Extension::<Peer>::from_request_parts(parts, app)
            .await
            .map_err(|_| Failure::internal("a request has no address of its client"))?;
        let named = parts.headers.get(UPLOAD_HEADER).and_then(|name| name.to_str().ok());
        let is_name = |name: &&str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let named = named.filter(is_name);
        let name = named.map_or_else(|| peer.ip().to_string(), str::to_owned);
        Ok(Self { name, is_named: named.is_some(), peer })
    }
}

/// The object of a request: kind and digest from the path, length from `bytes` in the query.
pub(super) struct Name(ObjectRef);

#[derive(Deserialize)]
struct Length {
    bytes: u32,
}

impl FromRequestParts<Arc<App>> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let invalid = |why: String| Failure::new(ProblemKind::Invalid, why);
        let path = Path::<(String, String)>::from_request_parts(parts, app).await;
        let Path((kind, digest)) = path.map_err(|error| invalid(error.body_text()))?;
        let query = Query::<Length>::from_request_parts(parts, app).await;
        let Query(Length { bytes: len }) = query.map_err(|error| invalid(error.body_text()))?;
        let kind = match kind.as_str() {
            "chunks" => ObjectKind::Chunk,
            "nodes" => ObjectKind::Node,
            _ => return Err(Failure::new(ProblemKind::NotFound, "objects are `chunks` or `nodes`")),
        };
        if len > OBJECT_BYTES_MAX {
            return Err(invalid(format!("no object has more than {OBJECT_BYTES_MAX} bytes")));
        }
        let digest = digest.parse().map_err(|error| invalid(format!("{error}")))?;
        Ok(Self(ObjectRef { kind, len, digest }))
    }
}
