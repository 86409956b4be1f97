//! Bodies of requests and answers, with limits on their size, their time and their memory.

use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts as _, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use base::limits::OBJECT_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use net::api::ProblemKind;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::access::Access;
use super::app::{App, BODY_PAUSE_MAX, BODY_TIME_MAX, MEMORY_BYTES, PIECE_BYTES};
use super::problem::Failure;
use crate::address_share::AddressShare;
use crate::authority::Right;

/// Largest JSON body of a request.
const JSON_BYTES_MAX: u32 = 16 << 10;

/// Receives the body of a request, at most `bytes_max` bytes, and reserves memory for it. `Invalid` if it has no
/// length, is too long or too slow.
pub(super) async fn receive(
    app: &Arc<App>,
    headers: &HeaderMap,
    mut body: Body,
    bytes_max: u32,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Failure> {
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let announced =
        announced.ok_or_else(|| Failure::new(ProblemKind::Invalid, "the request has no Content-Length"))?;
    if announced > bytes_max as usize {
        let detail = format!("the body has {announced} bytes, at most {bytes_max} are accepted here");
        return Err(Failure::new(ProblemKind::Invalid, detail));
    }
    // No memory is reserved for a client that announces a body and sends none.
    let first = next(&mut body).await?;
    // Small bodies do not wait for it: their memory is bounded by the number of connections.
    let memory = match announced > JSON_BYTES_MAX as usize {
        true => Some(reserve(app, announced).await),
        false => None,
    };
    let rest = async {
        let mut bytes = BytesMut::with_capacity(announced);
        let mut piece = first;
        while let Some(more) = piece {
            if more.len() > announced - bytes.len() {
                return Err(Failure::new(ProblemKind::Invalid, "the body is longer than announced"));
            }
            bytes.extend_from_slice(&more);
            piece = next(&mut body).await?;
        }
        Ok(bytes.freeze())
    };
    let bytes = timeout(BODY_TIME_MAX, rest).await.unwrap_or_else(|_| Err(too_slow()))?;
    if bytes.len() < announced {
        return Err(Failure::new(ProblemKind::Invalid, "the body broke off"));
    }
    Ok((bytes, memory))
}

/// Reads the body of a refused request and drops it. A client that is still sending when the connection is closed
/// would see only that.
pub(super) async fn refuse(refused: Failure, mut body: Body) -> Failure {
    let all = async { while let Ok(Some(_)) = next(&mut body).await {} };
    // A client that sends for longer does not get to know why.
    let _ = timeout(BODY_PAUSE_MAX, all).await;
    refused
}

/// The next bytes of a body; `None` at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Failure> {
    use http_body::Body as _;
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let Some(frame) = timeout(BODY_PAUSE_MAX, frame).await.map_err(|_| too_slow())? else {
            return Ok(None);
        };
        let frame = frame.map_err(|_| Failure::new(ProblemKind::Invalid, "the body broke off"))?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
}

fn too_slow() -> Failure {
    Failure::new(ProblemKind::Invalid, "the body came too slowly")
}

/// A body of image content, at most `OBJECT_BYTES_MAX` bytes.
pub(super) struct Content {
    pub bytes: Bytes,
    /// Its reserved memory; released when this is dropped.
    _memory: Option<OwnedSemaphorePermit>,
}

impl FromRequest<Arc<App>> for Content {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        // Before the body is received: a client that may not write gets no memory for it.
        let access = Access::from_request_parts(&mut parts, app).await?;
        if let Err(refused) = access.needs_anywhere(Right::Write) {
            return Err(refuse(refused, body).await);
        }
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

/// The memory of an answer: its part of what its address may hold, and of all.
pub(super) struct AnswerMemory {
    _address: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// Reserves memory for an answer of `bytes` bytes to the client at `address`, and waits until there is enough. One
/// address holds at most a quarter of it, so that its slow readers hold up nobody else.
pub(super) async fn reserve_answer(app: &Arc<App>, address: IpAddr, bytes: usize) -> AnswerMemory {
    let pieces = u32::try_from(pieces_of(bytes)).expect("clamped");
    let held = app.answers.of(address, MEMORY_BYTES / 4 / PIECE_BYTES);
    let own = held.acquire_many_owned(pieces).await.expect("the semaphore is never closed");
    AnswerMemory { _address: own, _all: reserve(app, bytes).await }
}

/// Pieces of memory for `bytes` bytes. One request gets at most a quarter of all, so that the wait always ends.
fn pieces_of(bytes: usize) -> usize {
    bytes.clamp(1, MEMORY_BYTES / 4).div_ceil(PIECE_BYTES)
}

/// Reserves memory for `bytes` bytes, and waits until there is enough.
async fn reserve(app: &Arc<App>, bytes: usize) -> OwnedSemaphorePermit {
    let pieces = u32::try_from(pieces_of(bytes)).expect("clamped");
    app.memory.clone().acquire_many_owned(pieces).await.expect("the semaphore is never closed")
}

/// The body of an answer. It is handed on in small pieces and keeps its memory reserved until the last one, so a slow
/// reader has little in the buffers of its connection.
pub(super) struct Held {
    bytes: Bytes,
    pace: Option<Pace>,
    _memory: AnswerMemory,
}

/// Who gets an answer, and the limit of its address.
pub(super) struct Pace {
    share: Arc<AddressShare>,
    address: IpAddr,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Held {
    /// `pace` limits the rate; `None`: the answer was waited for already.
    pub(super) fn new(bytes: Bytes, memory: AnswerMemory, pace: Option<Pace>) -> Self {
        Self { bytes, pace, _memory: memory }
    }
}

impl Pace {
    /// The limit of the client at `address`.
    pub(super) fn of(app: &App, address: IpAddr) -> Self {
        Self { share: app.sessions.address_share(), address, waiting: None }
    }

    /// Ready when `bytes` bytes may be sent.
    fn poll(&mut self, context: &mut Context<'_>, bytes: usize) -> Poll<()> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                std::task::ready!(waiting.as_mut().poll(context));
                self.waiting = None;
            }
            match self.share.take(self.address, bytes, Instant::now()) {
                Ok(()) => return Poll::Ready(()),
                Err(pause) => self.waiting = Some(Box::pin(sleep(pause))),
            }
        }
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.bytes.len().min(PIECE_BYTES);
        if let Some(pace) = self.pace.as_mut().filter(|_| next > 0) {
            std::task::ready!(pace.poll(context, next));
        }
        let piece = self.bytes.split_to(next);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
