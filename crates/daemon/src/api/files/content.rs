//! The content of a file: made from the chunks piece by piece, some pieces ahead of the connection.

use std::net::IpAddr;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use futures_core::Stream;
use http_body::Body as _;
use http_serve::{BoxError, Entity};
use store::{Form, FormKind};
use tokio::sync::mpsc;

use super::super::app::App;
use super::super::body::{Held, Pace, reserve_answer};
use crate::clock;
use crate::event::Event;
use crate::files::FileKey;
use crate::problem::Failure;

/// What is made at a time, by all cores: at least one chunk. One piece is being sent while one waits and one is made.
const PIECE_BYTES: u64 = 2 << 20;

/// A file for one client.
pub(super) struct Content {
    pub app: Arc<App>,
    pub form: Arc<Form>,
    pub key: FileKey,
    pub peer: IpAddr,
}

impl Entity for Content {
    type Error = BoxError;
    type Data = Bytes;

    fn len(&self) -> u64 {
        self.form.file_bytes()
    }

    fn get_range(
        &self,
        range: Range<u64>,
    ) -> Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send + Sync>> {
        let (send, ready) = mpsc::channel(1);
        tokio::spawn(read_ahead(Arc::clone(&self.app), Arc::clone(&self.form), self.peer, range, send));
        Box::pin(Pieces { ready, current: None })
    }

    fn add_headers(&self, headers: &mut HeaderMap) {
        let kind = match self.key.kind {
            FormKind::Raw => "application/octet-stream",
            FormKind::Qcow2 => "application/x-qemu-disk",
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }

    fn etag(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(format!("\"{}\"", self.key)).ok()
    }

    fn last_modified(&self) -> Option<SystemTime> {
        clock::moment(&self.form.manifest().created)
    }
}

/// Reads the pieces of `range` until all are sent, one fails, or nobody takes them any more.
async fn read_ahead(
    app: Arc<App>,
    form: Arc<Form>,
    peer: IpAddr,
    range: Range<u64>,
    send: mpsc::Sender<Result<Held, BoxError>>,
) {
    // Chunks that lie in two pieces are decoded twice, so pieces end where chunks of a raw disk do.
    let piece_bytes = PIECE_BYTES.max(form.manifest().chunk_bytes.into());
    let mut at = range.start;
    while at < range.end {
        let end = (at / piece_bytes + 1).saturating_mul(piece_bytes).min(range.end);
        let len = usize::try_from(end - at).expect("a piece fits memory");
        let (memory, from) = (reserve_answer(&app, peer, len).await, Arc::clone(&form));
        let read = app.blocking(move |_| -> Result<Bytes, Failure> {
            let mut bytes = vec![0; len];
            from.read_at(at, &mut bytes)?;
            Ok(bytes.into())
        });
        let piece = match read.await {
            Ok(bytes) => {
                app.metrics.sent(len as u64);
                Ok(Held::new(bytes, memory, Some(Pace::of(&app, peer))))
            }
            Err(failure) => {
                let manifest = form.manifest();
                let request = format!("GET {}@{} at {at}", manifest.image, manifest.number);
                (app.log)(&Event::RequestFailed { request, error: failure.into_cause() });
                Err("the server's log says more".into())
            }
        };
        let is_last = piece.is_err();
        if send.send(piece).await.is_err() || is_last {
            return;
        }
        at = end;
    }
}

/// The pieces of a file, as they are sent.
struct Pieces {
    ready: mpsc::Receiver<Result<Held, BoxError>>,
    current: Option<Held>,
}

impl Stream for Pieces {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(current) = &mut self.current {
                match ready!(pin!(current).poll_frame(context)) {
                    Some(Ok(frame)) => return Poll::Ready(frame.into_data().ok().map(Ok)),
                    Some(Err(never)) => match never {},
                    None => self.current = None,
                }
            }
            match ready!(self.ready.poll_recv(context)) {
                Some(Ok(piece)) => self.current = Some(piece),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}
