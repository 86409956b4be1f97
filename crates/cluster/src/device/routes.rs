//! The commands on objects and attributes, over HTTP. formats/cluster.md, section 6.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use proto::cluster::{DeviceId, ObjectId, PART_BYTES_MAX, Request, rights};
use serde::Deserialize;
use serde_json::Value;

use super::guard::{Effect, Permit};
use super::object::REWRITE_BYTES_MAX;
use super::tables::Change;
use super::work::{blocking, collect};
use super::{Device, index_routes};
use crate::clock::monotonic;
use crate::problem::{Answer, Problem, Word};
use crate::wire::{
    ATTRIBUTE_BYTES_MAX, CLIENT_PAGES, DeviceStatus, Fenced, ListedObjects, QUOTA_ATTRIBUTE, RATE_ATTRIBUTE,
};

/// Longest body of a request: the parts of runs in one append, and some room.
const BODY_BYTES_MAX: usize = PART_BYTES_MAX as usize + (1 << 20);
/// A longer answer is sent in blocks of this many bytes, each verified before it is sent.
const BLOCK_BYTES: u64 = 4 << 20;

#[derive(Debug, Deserialize)]
struct At {
    at: u64,
    #[serde(default = "durable")]
    durable: bool,
}

fn durable() -> bool {
    true
}

#[derive(Debug, Deserialize)]
struct Wanted {
    /// The component that the reader takes the object for.
    component: Option<u8>,
}

/// What the creator of a component said of it.
#[derive(Debug, Deserialize)]
struct Layout {
    component: Option<u8>,
    devices: Vec<DeviceId>,
}

#[derive(Debug, Deserialize)]
struct Length {
    bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Fence {
    fence: u32,
}

#[derive(Debug, Deserialize)]
struct Listing {
    group: u32,
    #[serde(default)]
    after: u64,
    #[serde(default = "listed")]
    limit: usize,
}

fn listed() -> usize {
    1000
}

impl Device {
    /// All commands of the device.
    pub fn router(self: &Arc<Self>) -> Router {
        let objects = Router::new()
            .route("/objects", get(list))
            .route("/objects/{id}", get(read).post(create).put(write).delete(remove))
            .route("/objects/{id}/append", post(append))
            .route("/objects/{id}/flush", post(flush))
            .route("/objects/{id}/truncate", post(truncate))
            .route("/objects/{id}/fence", post(fence))
            .route("/objects/{id}/seal", post(seal))
            .route("/objects/{id}/attributes", get(attributes))
            .route("/objects/{id}/attributes/{page}/{number}", put(set_attribute).delete(remove_attribute));
        let checked = objects
            .merge(index_routes::routes())
            .layer(middleware::from_fn_with_state(Arc::clone(self), check_capability))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
        let routes = checked.route("/status", get(status));
        Router::new().nest("/device/v1", routes).with_state(Arc::clone(self))
    }

    /// Lets a command on `object` in.
    async fn admit(
        &self,
        headers: &HeaderMap,
        right: u32,
        object: ObjectId,
        range: (u64, u64),
        effect: Effect,
    ) -> Answer<Permit> {
        let request = Request { right, object, from: range.0, to: range.1 };
        self.guard.admit(headers, request, effect).await
    }

    /// Refuses a reader that takes this object for another component of its segment: it was rebuilt since the reader
    /// learned where it is.
    fn is_component(&self, object: &super::object::Object, wanted: Option<u8>) -> Answer<()> {
        let Some(wanted) = wanted else { return Ok(()) };
        let own = self.guard.device();
        let told = object.component.get_or_init(|| {
            let layout = self.store.layout(object.id).ok().flatten()?;
            let layout: Layout = serde_json::from_slice(&layout).ok()?;
            let place = || layout.devices.iter().position(|device| Some(*device) == own);
            layout.component.or_else(|| u8::try_from(place()?).ok())
        });
        if told.is_none_or(|told| told == wanted) {
            return Ok(());
        }
        let detail = format!("object {} is another component of its segment", object.id);
        Err(Problem::new(Word::Missing, detail))
    }

    /// Reads a range for a client; damage is noted, to be mended.
    fn read_reported(&self, object: &Arc<super::object::Object>, from: u64, to: u64) -> Answer<Bytes> {
        if let Some(recent) = object.recent(from, to) {
            self.ahead.was_recent();
            return Ok(recent);
        }
        self.ahead.read(object, from..to);
        object.read(from, to).inspect_err(|problem| self.scrubs.hear(object.id, problem))
    }

    /// Waits until the group may move `bytes` more.
    async fn pace(&self, group: u32, bytes: u64) -> Answer<()> {
        let (page, number) = RATE_ATTRIBUTE;
        let rate = self.store.tables().attribute(ObjectId::of_group(group), page, number)?;
        let rate = rate.and_then(|text| String::from_utf8(text).ok()?.parse::<u64>().ok());
        if let Some(rate) = rate.filter(|&rate| rate > 0) {
            let wait = self.rates.take(group, bytes, rate, monotonic());
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }
}

/// Refuses who has no capability at all, before anything of the body is read.
async fn check_capability(
    State(device): Shared,
    request: axum::extract::Request,
    next: Next,
) -> Answer<Response> {
    device.guard.knows(request.headers())?;
    Ok(next.run(request).await)
}

/// The object of a path.
fn object_id(id: &str) -> Answer<ObjectId> {
    id.parse().map_err(|error| Problem::new(Word::Invalid, format!("`{id}`: {error}")))
}

/// The object of a path that holds data.
fn data_object(id: &str) -> Answer<ObjectId> {
    let id = object_id(id)?;
    if id.holds_data() { Ok(id) } else { Err(Problem::new(Word::Invalid, format!("{id} holds no data"))) }
}

type Shared = State<Arc<Device>>;

async fn create(
    State(device): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    layout: Bytes,
) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    device.admit(&headers, rights::CREATE, id, (0, 0), Effect::Changes).await?;
    if layout.len() > ATTRIBUTE_BYTES_MAX {
        return Err(too_long("an attribute", ATTRIBUTE_BYTES_MAX));
    }
    blocking(&device, move |device| device.store.create(id, layout.to_vec())).await?;
    Ok(StatusCode::CREATED)
}

async fn read(
    State(device): Shared,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Answer<Response> {
    let id = data_object(&id)?;
    let asked = asked_range(&headers)?;
    let (from, to) = asked.unwrap_or((0, u64::MAX));
    // Without a range the whole object is meant: the capability must then cover it all.
    device.admit(&headers, rights::READ, id, (from, to), Effect::Reads).await?;
    let object = blocking(&device, move |device| {
        let object = device.store.get(id).inspect_err(|problem| device.scrubs.hear(id, problem))?;
        device.is_component(&object, wanted.component)?;
        Ok(object)
    })
    .await?;
    let length = object.row().length;
    if asked.is_some() && from >= length {
        let detail = format!("object {id} has {length} bytes, and byte {from} was asked for");
        return Err(Problem::new(Word::Range, detail).with_number(length));
    }
    let to = to.min(length);
    device.pace(id.group, to - from).await?;
    let body = if to - from <= BLOCK_BYTES {
        Body::from(blocking(&device, move |device| device.read_reported(&object, from, to)).await?)
    } else {
        Body::from_stream(blocks(device, object, from, to))
    };
    let status = if asked.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut answer = (status, body).into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(to - from));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if asked.is_some() {
        let range = format!("bytes {from}-{}/{length}", to - 1);
        headers.insert(header::CONTENT_RANGE, HeaderValue::try_from(range).expect("digits only"));
    }
    Ok(answer)
}

/// The blocks of a long answer. One that is damaged ends the connection early, so that nobody takes it for the end.
fn blocks(
    device: Arc<Device>,
    object: Arc<super::object::Object>,
    from: u64,
    to: u64,
) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::try_unfold((device, object, from), move |(device, object, at)| async move {
        if at >= to {
            return Ok(None);
        }
        let end = to.min(at + BLOCK_BYTES);
        let reader = Arc::clone(&object);
        let block = blocking(&device, move |device| device.read_reported(&reader, at, end)).await;
        let block = block.map_err(|problem| std::io::Error::other(problem.detail))?;
        Ok(Some((block, (device, object, end))))
    })
}

/// The range that a reader asks for: first byte, and the one behind the last.
fn asked_range(headers: &HeaderMap) -> Answer<Option<(u64, u64)>> {
    let Some(text) = headers.get(header::RANGE) else { return Ok(None) };
    let parsed = text.to_str().ok().and_then(|text| {
        let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
        let from: u64 = from.parse().ok()?;
        let to = if to.is_empty() { u64::MAX } else { to.parse::<u64>().ok()?.checked_add(1)? };
        (from < to).then_some((from, to))
    });
    let wrong = || Problem::new(Word::Invalid, "a range is `bytes=FIRST-LAST` or `bytes=FIRST-`");
    parsed.ok_or_else(wrong).map(Some)
}

async fn append(
    State(device): Shared,
    Path(id): Path<String>,
    Query(at): Query<At>,
    headers: HeaderMap,
    body: Body,
) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    let content = collect(&device.buffers, body, BODY_BYTES_MAX).await?;
    let end = checked_end(at.at, &content)?;
    let permit = device.admit(&headers, rights::APPEND, id, (at.at, end), Effect::Changes).await?;
    device.pace(id.group, content.len() as u64).await?;
    blocking(&device, move |device| device.store.append(id, at.at, &content, permit.fence, at.durable))
        .await?;
    Ok(StatusCode::OK)
}

async fn write(
    State(device): Shared,
    Path(id): Path<String>,
    Query(at): Query<At>,
    headers: HeaderMap,
    content: Bytes,
) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    let end = checked_end(at.at, &content)?;
    let permit = device.admit(&headers, rights::WRITE, id, (at.at, end), Effect::Changes).await?;
    if content.len() > REWRITE_BYTES_MAX {
        return Err(too_long("what is written over older bytes", REWRITE_BYTES_MAX));
    }
    device.pace(id.group, content.len() as u64).await?;
    blocking(&device, move |device| device.store.write(id, at.at, &content, permit.fence)).await?;
    Ok(StatusCode::OK)
}

fn checked_end(at: u64, content: &Bytes) -> Answer<u64> {
    let end = at.checked_add(content.len() as u64).filter(|&end| end <= u64::MAX / 2 && !content.is_empty());
    end.ok_or_else(|| Problem::new(Word::Invalid, "the body is empty, or ends behind the end of all objects"))
}

fn too_long(what: &str, bytes_max: usize) -> Problem {
    Problem::new(Word::Invalid, format!("{what} has at most {bytes_max} bytes"))
}

async fn flush(State(device): Shared, Path(id): Path<String>, headers: HeaderMap) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    device.admit(&headers, rights::APPEND | rights::WRITE, id, (0, 0), Effect::Reads).await?;
    blocking(&device, move |device| device.store.flush(id)).await?;
    Ok(StatusCode::OK)
}

async fn truncate(
    State(device): Shared,
    Path(id): Path<String>,
    Query(length): Query<Length>,
    headers: HeaderMap,
) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    let range = (length.bytes, u64::MAX);
    let permit = device.admit(&headers, rights::WRITE, id, range, Effect::Changes).await?;
    blocking(&device, move |device| device.store.truncate(id, length.bytes, permit.fence)).await?;
    Ok(StatusCode::OK)
}

async fn fence(
    State(device): Shared,
    Path(id): Path<String>,
    Query(fence): Query<Fence>,
    headers: HeaderMap,
) -> Answer<Json<Fenced>> {
    let id = data_object(&id)?;
    device.admit(&headers, rights::MANAGE, id, (0, 0), Effect::Changes).await?;
    let length = blocking(&device, move |device| device.store.fence(id, fence.fence)).await?;
    Ok(Json(Fenced { length }))
}

async fn seal(
    State(device): Shared,
    Path(id): Path<String>,
    Query(length): Query<Length>,
    headers: HeaderMap,
) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    let right = rights::APPEND | rights::MANAGE;
    let permit = device.admit(&headers, right, id, (0, 0), Effect::Changes).await?;
    blocking(&device, move |device| device.store.seal(id, length.bytes, permit.fence)).await?;
    Ok(StatusCode::OK)
}

async fn remove(State(device): Shared, Path(id): Path<String>, headers: HeaderMap) -> Answer<StatusCode> {
    let id = data_object(&id)?;
    device.admit(&headers, rights::REMOVE, id, (0, 0), Effect::Changes).await?;
    blocking(&device, move |device| device.store.remove(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list(
    State(device): Shared,
    Query(listing): Query<Listing>,
    headers: HeaderMap,
) -> Answer<Json<ListedObjects>> {
    let group = ObjectId::of_group(listing.group);
    device.admit(&headers, rights::LIST, group, (0, 0), Effect::Reads).await?;
    let found =
        blocking(&device, move |device| device.store.list(listing.group, listing.after, listing.limit));
    found.await.map(Json)
}

async fn attributes(
    State(device): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<Json<Value>> {
    let id = object_id(&id)?;
    device.admit(&headers, rights::READ_ATTRIBUTES, id, (0, 0), Effect::Reads).await?;
    blocking(&device, move |device| device.attributes(id)).await.map(Json)
}

async fn set_attribute(
    State(device): Shared,
    Path((id, page, number)): Path<(String, u32, u32)>,
    headers: HeaderMap,
    value: Bytes,
) -> Answer<StatusCode> {
    change_attribute(&device, &id, (page, number), &headers, Some(value)).await
}

async fn remove_attribute(
    State(device): Shared,
    Path((id, page, number)): Path<(String, u32, u32)>,
    headers: HeaderMap,
) -> Answer<StatusCode> {
    change_attribute(&device, &id, (page, number), &headers, None).await
}

async fn change_attribute(
    device: &Arc<Device>,
    id: &str,
    (page, number): (u32, u32),
    headers: &HeaderMap,
    value: Option<Bytes>,
) -> Answer<StatusCode> {
    let id = object_id(id)?;
    let of_group = [QUOTA_ATTRIBUTE, RATE_ATTRIBUTE].contains(&(page, number));
    // What bounds a group is not for its own clients to change.
    let right = if of_group { rights::MANAGE } else { rights::WRITE_ATTRIBUTES };
    device.admit(headers, right, id, (0, 0), Effect::Changes).await?;
    let is_number = |value: &Bytes| std::str::from_utf8(value).is_ok_and(|text| text.parse::<u64>().is_ok());
    let fits = match (&value, of_group) {
        (Some(value), true) => is_number(value) && id.group != 0 && id.number == 0,
        (None, true) => true,
        (_, false) => page >= CLIENT_PAGES && id.holds_data(),
    };
    if !fits {
        let detail = format!("{id} has no attribute {page}/{number} that could be set to this");
        return Err(Problem::new(Word::Invalid, detail));
    }
    if value.as_ref().is_some_and(|value| value.len() > ATTRIBUTE_BYTES_MAX) {
        return Err(too_long("an attribute", ATTRIBUTE_BYTES_MAX));
    }
    let value = value.map(|value| value.to_vec());
    blocking(device, move |device| {
        if id.holds_data() {
            // Else a later commit of the new object could bring back the creator's attribute.
            device.store.flush(id)?;
        }
        Ok(device.store.commits().now(vec![Change::Attribute { id, page, number, value }])?)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn status(State(device): Shared) -> Answer<Json<DeviceStatus>> {
    blocking(&device, |device| {
        let (_, free) = device.store.space()?;
        let (reads, reads_in_memory) = device.ahead.counts();
        Ok(DeviceStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.guard.device().map_or(0, |device| device.0),
            epoch: device.guard.epoch(),
            objects: device.store.count(),
            orphans: device.store.orphans.count(),
            used: device.store.used(),
            free,
            verified: device.scrubs.counts().0,
            mended: device.scrubs.counts().1,
            reads,
            reads_in_memory,
        })
    })
    .await
    .map(Json)
}
