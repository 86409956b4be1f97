//! Requests on images in place: create, clone, write, append, read, their log and the differences between versions.

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base::limits::{CHUNK_BYTES_DEFAULT, OBJECT_BYTES_MAX, SECTOR_BYTES};
use bytes::Bytes;
use image::{ChunkSize, Manifest};
use net::api::{
    CloneRequest, CreateRequest, DiffAnswer, DiffRange, IDEMPOTENCY_KEY, LogAnswer, LogEntry, OBJECT_TYPE,
    ProblemKind, VERSION_HEADER, Written,
};
use net::pieces::Pieces;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store::{Blob, Changes, Closeness, Committed, ImageName, Piece, Reference, Shape, Stamp};

use super::access::Access;
use super::app::App;
use super::body::{Content, Held, Pace, receive_json, reserve_answer};
use crate::auth::authority::Right;
use crate::clock;
use crate::event::Event;
use crate::listener::Peer;
use crate::problem::Failure;

/// Maximum number of entries in an answer of `log`.
const LOG_MAX: usize = 1000;
/// Maximum number of ranges in an answer of `diff`.
const RANGES_MAX: usize = 10_000;

/// The parsed query of a request: the part of the URL after `?`.
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let query = Query::<T>::from_request_parts(parts, app).await;
        let Query(asked) = query.map_err(|error| Failure::new(ProblemKind::Invalid, error.body_text()))?;
        Ok(Self(asked))
    }
}

#[derive(Deserialize)]
pub(super) struct Window {
    offset: u64,
    bytes: u32,
}

/// `GET content`: reads bytes of a version.
pub(super) async fn read(
    access: Access,
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(reference): Path<String>,
    Asked(Window { offset, bytes }): Asked<Window>,
) -> Result<Response, Failure> {
    let reference: Reference = reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    if bytes > OBJECT_BYTES_MAX {
        let text = format!("at most {OBJECT_BYTES_MAX} bytes are read at once");
        return Err(Failure::new(ProblemKind::Invalid, text));
    }
    let memory = reserve_answer(&app, peer.ip(), bytes as usize).await;
    let (version, bytes) = app.blocking(move |app| read_from(app, &reference, offset, bytes)).await?;
    app.metrics.sent(bytes.len() as u64);
    let headers = [(CONTENT_TYPE.as_str(), OBJECT_TYPE.to_owned()), (VERSION_HEADER, version)];
    Ok((headers, Body::new(Held::new(bytes, memory, Some(Pace::of(&app, peer.ip()))))).into_response())
}

fn read_from(app: &App, reference: &Reference, offset: u64, bytes: u32) -> Result<(String, Bytes), Failure> {
    let snapshot = app.repository.snapshot(reference)?;
    let mut content = vec![0; bytes as usize];
    snapshot.read(offset, &mut content)?;
    let version = format!("{}@{}", snapshot.manifest().image, snapshot.manifest().number);
    Ok((version, content.into()))
}

/// `GET images/{name}`: the newest version of an image.
pub(super) async fn recent(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
) -> Result<Json<LogEntry>, Failure> {
    access.needs(Right::Read, &image)?;
    let newest = Reference::Newest(image.parse()?);
    let (sealed, _) = app.blocking(move |app| app.repository.look(&newest)).await?;
    Ok(Json(entry(&sealed.manifest, sealed.digest().to_hex())))
}

#[derive(Deserialize)]
pub(super) struct Page {
    /// Only versions below this one.
    before: Option<u64>,
    limit: Option<usize>,
}

/// `GET log`: the versions of an image, newest first.
pub(super) async fn log(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Asked(page): Asked<Page>,
) -> Result<Json<LogAnswer>, Failure> {
    access.needs(Right::Read, &image)?;
    let name: ImageName = image.parse()?;
    let limit = page.limit.unwrap_or(LOG_MAX).min(LOG_MAX);
    let entries = app.blocking(move |app| -> Result<_, Failure> {
        let log = app.repository.log(&name, page.before)?;
        log.take(limit)
            .map(|sealed| {
                let sealed = sealed?;
                Ok(entry(&sealed.manifest, sealed.digest().to_hex()))
            })
            .collect::<Result<Vec<_>, Failure>>()
    });
    Ok(Json(LogAnswer { versions: entries.await? }))
}

fn entry(manifest: &Manifest, digest: String) -> LogEntry {
    let parent = manifest.parent.as_ref().map(|parent| format!("{}@{}", parent.image, parent.number));
    LogEntry {
        number: manifest.number,
        manifest: digest,
        parent,
        created: manifest.created.clone(),
        creator: manifest.creator.clone(),
        disk_bytes: manifest.size_sectors * SECTOR_BYTES,
        allocated_bytes: manifest.statistics.allocated_bytes,
        encoded_bytes: manifest.statistics.encoded_bytes,
    }
}

#[derive(Deserialize)]
pub(super) struct Two {
    before: String,
    after: String,
    #[serde(default)]
    exact: bool,
}

/// `GET diff`: how two versions differ.
pub(super) async fn diff(
    access: Access,
    State(app): State<Arc<App>>,
    Asked(two): Asked<Two>,
) -> Result<Json<DiffAnswer>, Failure> {
    let (before, after): (Reference, Reference) = (two.before.parse()?, two.after.parse()?);
    access.needs(Right::Read, before.image().as_str())?;
    access.needs(Right::Read, after.image().as_str())?;
    let closeness = if two.exact { Closeness::Sectors } else { Closeness::Chunks };
    let answer = app.blocking_slow(move |app| -> Result<_, Failure> {
        let [before, after] = [app.repository.snapshot(&before)?, app.repository.snapshot(&after)?];
        let mut ranges = Vec::new();
        let totals = before.diff(&after, closeness, &mut |changed| {
            if ranges.len() < RANGES_MAX {
                let change = changed.change.name().to_owned();
                let (offset, bytes) = (changed.extent.offset_bytes(), changed.extent.len_bytes());
                ranges.push(DiffRange { offset, bytes, change });
            }
            Ok(())
        })?;
        Ok(DiffAnswer {
            complete: ranges.len() as u64 == totals.ranges,
            ranges,
            written_bytes: totals.written_bytes,
            allocated_bytes: totals.allocated_bytes,
            freed_bytes: totals.freed_bytes,
        })
    });
    Ok(Json(answer.await?))
}

/// What every request that makes a version has: a token, the client's address, and perhaps an idempotency key.
pub(super) struct Author {
    access: Access,
    peer: Peer,
    key: Option<Vec<u8>>,
}

impl FromRequestParts<Arc<App>> for Author {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let access = Access::from_request_parts(parts, app).await?;
        let peer = Extension::<Peer>::from_request_parts(parts, app).await;
        let Extension(peer) = peer.map_err(|error| Failure::internal(error.to_string()))?;
        let key = parts.headers.get(IDEMPOTENCY_KEY).map(|key| key.as_bytes().to_vec());
        if key.as_ref().is_some_and(|key| key.len() > 128) {
            return Err(Failure::new(ProblemKind::Invalid, "an idempotency key has at most 128 bytes"));
        }
        Ok(Self { access, peer, key })
    }
}

impl Author {
    /// Makes a version of `image` with `work` and answers with it. A repeated request with the same key gets the
    /// version that the first one made.
    async fn version(
        self,
        app: Arc<App>,
        image: String,
        work: impl FnOnce(&Blob<'_>, &Stamp) -> Result<Written, Failure> + Send + 'static,
    ) -> Result<Response, Failure> {
        self.access.needs(Right::Write, &image)?;
        let name: ImageName = image.parse()?;
        let slot = self.key.map(|key| app.publications.slot(name.as_str(), key));
        let mut made = match &slot {
            Some(slot) => Some(slot.lock().await),
            None => None,
        };
        if let Some(number) = made.as_ref().and_then(|made| **made) {
            let reference = Reference::Version(name, number);
            let known = app.blocking(move |app| app.repository.resolve(&reference)).await?;
            return Ok((StatusCode::CREATED, Json(written(&known))).into_response());
        }
        let Peer(peer) = self.peer;
        let stamp = Stamp { created: clock::now_rfc3339(), creator: format!("api@{}", peer.ip()) };
        let done = app.blocking(move |app| work(&app.repository.blob(&name), &stamp)).await?;
        if let Some(made) = &mut made {
            **made = Some(done.number);
        }
        (app.log)(&Event::Published { reference: format!("{}@{}", done.image, done.number), peer });
        Ok((StatusCode::CREATED, Json(done)).into_response())
    }
}

fn written(manifest: &Manifest) -> Written {
    Written {
        image: manifest.image.clone(),
        number: manifest.number,
        disk_bytes: manifest.size_sectors * SECTOR_BYTES,
        offset: None,
        retries: 0,
        merged_chunks: 0,
        stored_bytes: 0,
    }
}

fn committed(done: &Committed) -> Written {
    Written {
        retries: done.retries,
        merged_chunks: done.merged_chunks,
        stored_bytes: done.stored_bytes,
        ..written(&done.manifest)
    }
}

/// `POST images/{name}`: makes an empty image.
pub(super) async fn create(
    author: Author,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let asked: CreateRequest = receive_json(&app, &headers, body).await?;
    let chunk_bytes = asked.chunk_bytes.unwrap_or(CHUNK_BYTES_DEFAULT);
    let chunk = ChunkSize::from_bytes(chunk_bytes)
        .ok_or_else(|| Failure::new(ProblemKind::Invalid, format!("chunks of {chunk_bytes} bytes")))?;
    let logical_sector_bytes = asked.logical_sector_bytes.unwrap_or(512);
    let shape = Shape { size_bytes: asked.size_bytes, chunk, logical_sector_bytes };
    let made = author.version(app, image, move |blob, stamp| Ok(written(&blob.create(&shape, stamp)?)));
    made.await
}

/// `POST clone`: makes an image that begins as a version of another one.
pub(super) async fn clone(
    author: Author,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let CloneRequest { from } = receive_json(&app, &headers, body).await?;
    let from: Reference = from.parse()?;
    author.access.needs(Right::Read, from.image().as_str())?;
    author.version(app, image, move |blob, stamp| Ok(written(&blob.clone_from(&from, stamp)?))).await
}

#[derive(Deserialize)]
pub(super) struct Place {
    offset: u64,
    /// The number that the newest version must have.
    expect: Option<u64>,
}

/// `PUT content`: writes the body at an offset.
pub(super) async fn write(
    author: Author,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Asked(Place { offset, expect }): Asked<Place>,
    content: Content,
) -> Result<Response, Failure> {
    let bytes = content.bytes.clone();
    let made = author.version(app, image, move |blob, stamp| {
        let end = offset.checked_add(bytes.len() as u64);
        let end = end.ok_or_else(|| Failure::new(ProblemKind::Invalid, "no image reaches that far"))?;
        let (range, content) = (offset..end, &Piece { offset, bytes: &bytes });
        let changes = Changes { written: std::slice::from_ref(&range), content, freed: &[] };
        Ok(committed(&blob.commit(&changes, expect, stamp)?))
    });
    made.await
}

#[derive(Deserialize)]
pub(super) struct Room {
    /// Total bytes to append, if that is more than the body. The client writes the rest by later requests.
    bytes: Option<u64>,
}

/// `POST content`: appends the body to the image.
pub(super) async fn append(
    author: Author,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Asked(Room { bytes: room }): Asked<Room>,
    content: Content,
) -> Result<Response, Failure> {
    let bytes = content.bytes.clone();
    let made = author.version(app, image, move |blob, stamp| {
        let (offset, done) = blob.append_begun(&bytes, room.unwrap_or(bytes.len() as u64), stamp)?;
        Ok(Written { offset: Some(offset), ..committed(&done) })
    });
    made.await
}

#[derive(Deserialize)]
pub(super) struct Expect {
    /// The number that the newest version must have.
    pub expect: Option<u64>,
}

/// `POST commit`: writes and frees several pieces as one version.
pub(super) async fn commit(
    author: Author,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Asked(Expect { expect }): Asked<Expect>,
    content: Content,
) -> Result<Response, Failure> {
    let pieces = Pieces::parse(content.bytes.clone());
    let invalid = |why| Failure::new(ProblemKind::Invalid, format!("the pieces of a commit {why}"));
    let Pieces { written, freed } = pieces.map_err(invalid)?;
    let made = author.version(app, image, move |blob, stamp| {
        let ranges: Vec<_> = written.iter().map(|(range, _)| range.clone()).collect();
        let changes = Changes { written: &ranges, content: &InPieces(&written), freed: &freed };
        Ok(committed(&blob.commit(&changes, expect, stamp)?))
    });
    made.await
}

/// The written pieces of a commit, ascending.
struct InPieces<'a>(&'a [(Range<u64>, Bytes)]);

impl store::Content for InPieces<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        // The store merges adjacent pieces into one range, so a read may span several of them.
        let (mut rest, mut at) = (into, offset);
        let first = self.0.partition_point(|(range, _)| range.end <= offset);
        for (range, bytes) in &self.0[first..] {
            // A gap before this piece: the client sent no bytes for it.
            let inside = at.checked_sub(range.start).filter(|_| !rest.is_empty());
            let Some(inside) = inside else { break };
            let from = usize::try_from(inside).map_err(|_| std::io::ErrorKind::InvalidInput)?;
            let count = rest.len().min(bytes.len() - from);
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(&bytes[from..from + count]);
            (rest, at) = (behind, at + count as u64);
        }
        if rest.is_empty() { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    }
}

#[cfg(test)]
mod tests {
    use store::Content as _;

    use super::*;

    #[test]
    fn pieces_read_back_across_their_borders() {
        let piece =
            |start: u64, bytes: &'static [u8]| (start..start + bytes.len() as u64, Bytes::from_static(bytes));
        let pieces = [piece(5, b"ab"), piece(7, b"cde"), piece(100, b"x")];
        let mut read = [0; 4];
        InPieces(&pieces).read_at(6, &mut read).unwrap();
        assert_eq!(&read, b"bcde");
        assert!(InPieces(&pieces).read_at(7, &mut read).is_err());
    }
}
