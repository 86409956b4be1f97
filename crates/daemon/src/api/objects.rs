//! Objects by kind and digest. A digest of 256 bits cannot be guessed: who can name an object of an image has read its
//! manifest, here or elsewhere, so that objects are not checked against the images of a token.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base::Digest;
use base::limits::{CHUNK_BYTES_DEFAULT, OBJECT_BYTES_MAX};
use image::{ObjectKind, ObjectRef, ObjectSink};
use net::api::{OBJECT_TYPE, ProblemKind};

use super::access::Access;
use super::body::{Held, receive, reserve};
use super::{App, Failure};
use crate::authority::Right;

type Name = Path<(String, String)>;

pub async fn get(_: Access, State(app): State<Arc<App>>, Path(name): Name) -> Result<Response, Failure> {
    let (kind, digest) = parse(&name)?;
    // Most objects are smaller than this; the rest waits for more room when its size is known.
    let mut memory = reserve(&app, CHUNK_BYTES_DEFAULT as usize).await;
    let bytes = app.blocking(move |app| app.repository.read_named(kind, &digest)).await?;
    if bytes.len() > CHUNK_BYTES_DEFAULT as usize {
        drop(memory);
        memory = reserve(&app, bytes.len()).await;
    }
    app.metrics.sent(bytes.len() as u64);
    let headers = [(CONTENT_TYPE, OBJECT_TYPE), (CACHE_CONTROL, "private, immutable, max-age=31536000")];
    Ok((headers, Body::new(Held::new(bytes, memory))).into_response())
}

pub async fn head(_: Access, State(app): State<Arc<App>>, Path(name): Name) -> Result<Response, Failure> {
    let (kind, digest) = parse(&name)?;
    if app.blocking(move |app| app.repository.has_named(kind, &digest)).await? {
        return Ok([(CONTENT_TYPE, OBJECT_TYPE)].into_response());
    }
    Err(Failure::new(ProblemKind::NotFound, "no such object"))
}

pub async fn put(
    access: Access,
    State(app): State<Arc<App>>,
    Path(name): Name,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    access.needs_anywhere(Right::Write)?;
    let (kind, digest) = parse(&name)?;
    let (bytes, _memory) = receive(&app, &headers, body, OBJECT_BYTES_MAX).await?;
    app.metrics.received(bytes.len() as u64);
    let store = app.blocking(move |app| -> Result<(), Failure> {
        let len = u32::try_from(bytes.len()).expect("bodies are limited");
        let object = ObjectRef { kind, len, digest };
        object.verify(&bytes)?;
        Ok(app.repository.put(&object, bytes)?)
    });
    store.await.map(|()| StatusCode::NO_CONTENT)
}

fn parse((kind, digest): &(String, String)) -> Result<(ObjectKind, Digest), Failure> {
    let kind = match kind.as_str() {
        "chunks" => ObjectKind::Chunk,
        "nodes" => ObjectKind::Node,
        _ => return Err(Failure::new(ProblemKind::NotFound, "objects are `chunks` or `nodes`")),
    };
    let digest = digest.parse().map_err(|error| Failure::new(ProblemKind::Invalid, format!("{error}")))?;
    Ok((kind, digest))
}
