//! Bodies of requests and answers, with limits on their size, their time and their memory.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use base::limits::OBJECT_BYTES_MAX;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use net::api::ProblemKind;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::app::{App, BODY_TIME_MAX, MEMORY_BYTES, PIECE_BYTES};
use super::problem::Failure;

/// Largest JSON body of a request.
const JSON_BYTES_MAX: u32 = 16 << 10;

/// Receives the body of a request, at most `bytes_max` bytes, and reserves memory for it. `Invalid` if it has no
/// length, is too long or too slow.
pub(super) async fn receive(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
    bytes_max: u32,
) -> Result<(Bytes, OwnedSemaphorePermit), Failure> {
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let announced =
        announced.ok_or_else(|| Failure::new(ProblemKind::Invalid, "the request has no Content-Length"))?;
    if announced > bytes_max as usize {
        let detail = format!("the body has {announced} bytes, at most {bytes_max} are accepted here");
        return Err(Failure::new(ProblemKind::Invalid, detail));
    }
    let memory = reserve(app, announced).await;
    match timeout(BODY_TIME_MAX, axum::body::to_bytes(body, announced)).await {
        Ok(Ok(bytes)) => Ok((bytes, memory)),
        Ok(Err(_)) => Err(Failure::new(ProblemKind::Invalid, "the body broke off")),
        Err(_) => Err(Failure::new(ProblemKind::Invalid, "the body came too slowly")),
    }
}

/// A body of image content, at most `OBJECT_BYTES_MAX` bytes.
pub(super) struct Content {
    pub bytes: Bytes,
    /// Its reserved memory; released when this is dropped.
    _memory: OwnedSemaphorePermit,
}

impl FromRequest<Arc<App>> for Content {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let (parts, body) = request.into_parts();
        let (bytes, memory) = receive(app, &parts.headers, body, OBJECT_BYTES_MAX).await?;
        app.metrics.received(bytes.len() as u64);
        Ok(Self { bytes, _memory: memory })
    }
}

/// Receives a JSON body of at most `JSON_BYTES_MAX` bytes.
pub(super) async fn receive_json<T: DeserializeOwned>(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Failure> {
    receive_long_json(app, headers, body, JSON_BYTES_MAX).await
}

/// Receives a JSON body of at most `bytes_max` bytes.
pub(super) async fn receive_long_json<T: DeserializeOwned>(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
    bytes_max: u32,
) -> Result<T, Failure> {
    let (bytes, _memory) = receive(app, headers, body, bytes_max).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Failure::new(ProblemKind::Invalid, format!("the body does not have the expected form: {error}"))
    })
}

/// Reserves memory for `bytes` bytes, and waits until there is enough.
pub(super) async fn reserve(app: &Arc<App>, bytes: usize) -> OwnedSemaphorePermit {
    // One request gets at most a quarter, so that the wait always ends.
    let pieces = bytes.clamp(1, MEMORY_BYTES / 4).div_ceil(PIECE_BYTES);
    let pieces = u32::try_from(pieces).expect("clamped");
    app.memory.clone().acquire_many_owned(pieces).await.expect("the semaphore is never closed")
}

/// The body of an answer, which keeps its memory reserved until it is sent.
pub(super) struct Held {
    bytes: Option<Bytes>,
    _memory: OwnedSemaphorePermit,
}

impl Held {
    pub(super) fn new(bytes: Bytes, memory: OwnedSemaphorePermit) -> Self {
        Self { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()), _memory: memory }
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
