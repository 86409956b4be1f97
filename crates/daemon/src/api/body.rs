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
use super::app::{App, BODY_PAUSE_MAX, BODY_TIME_MAX, MEMORY_PIECES, PIECE_BYTES};
use crate::auth::authority::Right;
use crate::limits::address_share::AddressShare;
use crate::limits::per_address::Part;
use crate::listener::Peer;
use crate::problem::Failure;

/// Most pieces of memory that one address holds.
const ADDRESS_PIECES_MAX: u32 = MEMORY_PIECES / 4;
/// Largest JSON body of a request.
const JSON_BYTES_MAX: u32 = 16 << 10;

/// Receives the body of a request from `address`, at most `bytes_max` bytes, and reserves memory for all of it with its
/// first byte. Only for clients whose right to write was checked. `Invalid` if it has no length, is too long or too
/// slow.
pub(super) async fn receive(
    app: &Arc<App>,
    address: IpAddr,
    headers: &HeaderMap,
    body: Body,
    bytes_max: u32,
) -> Result<(Bytes, BodyMemory), Failure> {
    let mut memory = BodyMemory { reserves_whole: true, ..BodyMemory::new(app, address) };
    let bytes = read(headers, body, bytes_max, &mut memory).await?;
    Ok((bytes, memory))
}

/// The same for a client that may only read: memory is reserved as the bytes arrive. `Unavailable` if there is none.
pub(super) async fn receive_hint(
    app: &Arc<App>,
    address: IpAddr,
    headers: &HeaderMap,
    body: Body,
    bytes_max: u32,
) -> Result<(Bytes, BodyMemory), Failure> {
    let mut memory = BodyMemory::new(app, address);
    let bytes = read(headers, body, bytes_max, &mut memory).await?;
    Ok((bytes, memory))
}

async fn read(
    headers: &HeaderMap,
    mut body: Body,
    bytes_max: u32,
    memory: &mut BodyMemory,
) -> Result<Bytes, Failure> {
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let announced =
        announced.ok_or_else(|| Failure::new(ProblemKind::Invalid, "the request has no Content-Length"))?;
    if announced > bytes_max as usize {
        let detail = format!("the body has {announced} bytes, at most {bytes_max} are accepted here");
        return Err(Failure::new(ProblemKind::Invalid, detail));
    }
    // No memory is reserved for a client that announces a body and sends none.
    let mut next_piece = next(&mut body).await?;
    if next_piece.is_some() && memory.reserves_whole && announced > JSON_BYTES_MAX as usize {
        // Waiting for memory is not the client's fault, so it takes none of its time.
        memory.reserve(pieces_of(announced)).await;
    }
    let all = async {
        let mut bytes = BytesMut::new();
        while let Some(piece) = next_piece {
            let len = bytes.len() + piece.len();
            if len > announced {
                return Err(Failure::new(ProblemKind::Invalid, "the body is longer than announced"));
            }
            if len > bytes.capacity() {
                let capacity = memory.grow(len, announced).await?;
                bytes.reserve(capacity - bytes.len());
            }
            bytes.extend_from_slice(&piece);
            next_piece = next(&mut body).await?;
        }
        Ok(bytes.freeze())
    };
    let bytes = timeout(BODY_TIME_MAX, all).await.unwrap_or_else(|_| Err(too_slow()))?;
    if bytes.len() < announced {
        return Err(Failure::new(ProblemKind::Invalid, "the body broke off"));
    }
    Ok(bytes)
}

/// The memory of a body: its part of what its address may hold, and of all.
pub(super) struct BodyMemory {
    app: Arc<App>,
    address: IpAddr,
    reserves_whole: bool,
    pieces: u32,
    of_address: Part,
    of_all: Vec<OwnedSemaphorePermit>,
}

impl BodyMemory {
    fn new(app: &Arc<App>, address: IpAddr) -> Self {
        let app = Arc::clone(app);
        Self {
            app,
            address,
            reserves_whole: false,
            pieces: 0,
            of_address: Part::default(),
            of_all: Vec::new(),
        }
    }

    /// Reserves memory for `len` bytes of a body of `announced` bytes, and returns for how many there is.
    async fn grow(&mut self, len: usize, announced: usize) -> Result<usize, Failure> {
        let capacity = if self.reserves_whole { announced } else { len.next_power_of_two().min(announced) };
        // Small bodies do not wait for it: their memory is bounded by the number of connections.
        if capacity <= JSON_BYTES_MAX as usize {
            return Ok(capacity);
        }
        let more = pieces_of(capacity) - self.pieces;
        if more > 0 {
            // Bodies that each hold a part, and wait for the rest, must not wait for each other for ever.
            let full = |_| Failure::new(ProblemKind::Unavailable, "too many bodies at once");
            timeout(BODY_PAUSE_MAX, self.reserve(more)).await.map_err(full)?;
        }
        Ok(capacity)
    }

    async fn reserve(&mut self, more: u32) {
        self.of_address.add(self.app.held.take(self.address, ADDRESS_PIECES_MAX, more).await);
        self.of_all.push(reserve(&self.app, more).await);
        self.pieces += more;
    }
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
    _memory: BodyMemory,
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
        let peer = parts.extensions.get::<Peer>().copied();
        let Peer(peer) = peer.ok_or_else(|| Failure::internal("a request has no address of its client"))?;
        let (bytes, memory) = receive(app, peer.ip(), &parts.headers, body, OBJECT_BYTES_MAX).await?;
        app.metrics.received(bytes.len() as u64);
        Ok(Self { bytes, _memory: memory })
    }
}

/// Receives a JSON body of at most `JSON_BYTES_MAX` bytes, for which no memory is reserved.
pub(super) async fn receive_json<T: DeserializeOwned>(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Failure> {
    let mut none = BodyMemory::new(app, IpAddr::from([0; 4]));
    from_json(&read(headers, body, JSON_BYTES_MAX, &mut none).await?)
}

/// The value of a JSON body.
pub(super) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::new(ProblemKind::Invalid, format!("the body does not have the expected form: {error}"))
    })
}

/// The memory of an answer: its part of what its address may hold, and of all.
pub(super) struct AnswerMemory {
    _address: Part,
    _all: OwnedSemaphorePermit,
}

/// Reserves memory for an answer of `bytes` bytes to the client at `address`, and waits until there is enough. One
/// address holds at most a quarter of it, so that its slow readers hold up nobody else.
pub(super) async fn reserve_answer(app: &Arc<App>, address: IpAddr, bytes: usize) -> AnswerMemory {
    let pieces = pieces_of(bytes);
    let own = app.held.take(address, ADDRESS_PIECES_MAX, pieces).await;
    AnswerMemory { _address: own, _all: reserve(app, pieces).await }
}

/// Pieces of memory for `bytes` bytes. One request gets at most a quarter of all, so that the wait always ends.
fn pieces_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX).clamp(1, ADDRESS_PIECES_MAX)
}

/// Reserves so many pieces of memory, and waits until there are enough.
async fn reserve(app: &Arc<App>, pieces: u32) -> OwnedSemaphorePermit {
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
