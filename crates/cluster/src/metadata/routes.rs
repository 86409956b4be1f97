//! The commands of the metadata service, over HTTP, and what it does by itself. formats/cluster.md, section 7.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use base::{Error, ErrorKind, Result};
use proto::cluster::{DeviceId, Map, State as DeviceState};
use tokio::sync::watch;

use super::cluster::Metadata;
use crate::problem::{Answer, Problem, Word};
use crate::recall::{Recall, RecalledSegment};
use crate::token::ClusterToken;
use crate::wire::{
    ClientAnswer, ClientRequest, ClusterStatus, ComponentRequest, EmptiedRequest, Heartbeat, Holdings,
    HoldingsRequest, IndexRebuilt, IndexRequest, IndexRights, JoinAnswer, JoinRequest, Limits, Pulse,
    Rebalanced, RebuildTask, Rebuilt, Record, RecordList, RecordName, RecordNames, RecordRequest, Records,
    SealRequest, Segment, SegmentAnswer, SegmentList, SegmentRequest, Segments,
};

/// Longest body of a request: a heartbeat that names all slots.
const BODY_BYTES_MAX: usize = 1 << 20;

type Shared = State<Arc<Metadata>>;

impl Metadata {
    /// All commands of the service.
    pub fn router(self: &Arc<Self>) -> Router {
        let routes = Router::new()
            .route("/map", get(map))
            .route("/devices", post(join))
            .route("/devices/{device}/heartbeat", post(heartbeat))
            .route("/devices/{device}/recall", post(recall))
            .route("/devices/{device}/recall/segments", post(recall_segments))
            .route("/devices/{device}/segments", post(segments_of))
            .route("/devices/{device}/revoke", post(revoke))
            .route("/devices/{device}/lost", post(lost))
            .route("/devices/{device}/drain", post(drain))
            .route("/rebalance", post(rebalance))
            .route("/groups/{group}/limits", put(set_limits))
            .route("/clients", post(client))
            .route("/clients/{client}/renew", post(renew))
            .route("/segments", post(open_segment))
            .route("/segments/list", post(list_segments))
            .route("/index/rebuilt", post(index_rebuilt))
            .route("/segments/{segment}", get(segment))
            .route("/segments/{segment}/seal", post(seal_segment))
            .route("/segments/{segment}/index", post(index_of_segment))
            .route("/clients/{client}/index", post(index_of_group))
            .route("/segments/{segment}/rebuilt", post(rebuilt))
            .route("/segments/{segment}/component", post(component))
            .route("/segments/{segment}/emptied", post(emptied))
            .route("/records", put(put_record))
            .route("/records/get", post(record))
            .route("/records/list", post(list_records))
            .route("/records/remove", post(remove_records))
            .route("/status", get(status))
            .layer(middleware::from_fn_with_state(Arc::clone(self), check_token))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
        Router::new().nest("/metadata/v1", routes).with_state(Arc::clone(self))
    }

    /// Watches leases until `stop` becomes true. `event` is told what an operator should know.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>, event: impl Fn(&str)) {
        // Apart: devices that hang while a segment is sealed must not keep others from being declared down.
        let devices = self.every(&event, || async {
            let own = Arc::clone(&self);
            let swept = move || {
                if own.is_recalling() {
                    return Ok(());
                }
                own.sweep_devices().and_then(|()| own.plan_rebuild())
            };
            let swept = tokio::task::spawn_blocking(swept).await;
            swept.map_err(|error| Error::from_source(ErrorKind::Io, "watch the devices", error))?
        });
        let segments = self.every(&event, || self.sweep_segments());
        let reclaim = self.every(&event, || self.reclaim());
        tokio::select! {
            () = devices => {}
            () = segments => {}
            () = reclaim => {}
            _ = stop.wait_for(|&stop| stop) => {}
        }
    }

    /// Does something again and again; tells of a failure once.
    async fn every<F: Future<Output = Result<()>>>(&self, event: &impl Fn(&str), act: impl Fn() -> F) {
        let mut told = false;
        loop {
            tokio::time::sleep(self.lease / 4).await;
            match act().await {
                Ok(()) => told = false,
                Err(error) if !std::mem::replace(&mut told, true) => event(&Problem::from(error).detail),
                Err(_) => {}
            }
        }
    }
}

async fn check_token(State(metadata): Shared, request: Request, next: Next) -> Answer<Response> {
    check(&metadata.token, &request)?;
    let path = request.uri().path();
    let is_recall = path.contains("/devices") || path.ends_with("/status");
    if !is_recall && metadata.is_recalling() {
        return Err(metadata.recalling().into());
    }
    Ok(next.run(request).await)
}

/// Refuses a request that does not show the cluster's token.
pub(super) fn check(token: &ClusterToken, request: &Request) -> Answer<()> {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|shown| shown.to_str().ok());
    if token.is_shown_by(shown) {
        return Ok(());
    }
    Err(Problem::new(Word::Token, "the cluster's token is missing or wrong"))
}

/// Runs what waits for the engine where it holds nobody up.
async fn blocking<T: Send + 'static>(
    metadata: Arc<Metadata>,
    work: impl FnOnce(&Metadata) -> Result<T> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(move || work(&metadata)).await;
    Ok(done.map_err(|error| Problem::failed("run a command", error))??)
}

async fn map(State(metadata): Shared) -> Answer<Json<Map>> {
    blocking(metadata, |metadata| metadata.stored_map()).await.map(Json)
}

async fn join(State(metadata): Shared, Json(request): Json<JoinRequest>) -> Answer<Json<JoinAnswer>> {
    blocking(metadata, move |metadata| metadata.join(&request)).await.map(Json)
}

async fn heartbeat(
    State(metadata): Shared,
    Path(device): Path<u32>,
    Json(beat): Json<Heartbeat>,
) -> Answer<Json<Pulse>> {
    blocking(metadata, move |metadata| metadata.heartbeat(DeviceId(device), &beat)).await.map(Json)
}

async fn recall(
    State(metadata): Shared,
    Path(device): Path<u32>,
    Json(told): Json<Recall>,
) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.recall(DeviceId(device), told)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn recall_segments(
    State(metadata): Shared,
    Path(device): Path<u32>,
    Json(told): Json<Vec<RecalledSegment>>,
) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.recall_segments(DeviceId(device), &told)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn segments_of(
    State(metadata): Shared,
    Path(device): Path<u32>,
    Json(wanted): Json<HoldingsRequest>,
) -> Answer<Json<Holdings>> {
    blocking(metadata, move |metadata| metadata.segments_of(DeviceId(device), wanted)).await.map(Json)
}

async fn revoke(State(metadata): Shared, Path(device): Path<u32>) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.revoke(DeviceId(device))).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn lost(State(metadata): Shared, Path(device): Path<u32>) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.retire(DeviceId(device), DeviceState::Lost)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn drain(State(metadata): Shared, Path(device): Path<u32>) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.retire(DeviceId(device), DeviceState::Draining)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rebalance(State(metadata): Shared) -> Answer<Json<Rebalanced>> {
    let planned = blocking(metadata, |metadata| metadata.rebalance()).await?;
    Ok(Json(Rebalanced { moves: planned }))
}

async fn set_limits(
    State(metadata): Shared,
    Path(group): Path<u32>,
    Json(limits): Json<Limits>,
) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.set_limits(group, limits)).await?;
    Ok(StatusCode::OK)
}

async fn component(
    State(metadata): Shared,
    Path(segment): Path<u64>,
    Json(request): Json<ComponentRequest>,
) -> Answer<Json<RebuildTask>> {
    blocking(metadata, move |metadata| metadata.component_of(segment, request.device)).await.map(Json)
}

async fn rebuilt(
    State(metadata): Shared,
    Path(segment): Path<u64>,
    Json(done): Json<Rebuilt>,
) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.rebuilt(segment, &done)).await?;
    Ok(StatusCode::OK)
}

async fn emptied(
    State(metadata): Shared,
    Path(segment): Path<u64>,
    Json(request): Json<EmptiedRequest>,
) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.emptied(segment, &request)).await?;
    Ok(StatusCode::OK)
}

async fn client(State(metadata): Shared, Json(request): Json<ClientRequest>) -> Answer<Json<ClientAnswer>> {
    blocking(metadata, move |metadata| metadata.client(&request)).await.map(Json)
}

async fn renew(
    State(metadata): Shared,
    Path(client): Path<u64>,
    Json(request): Json<ClientRequest>,
) -> Answer<Json<ClientAnswer>> {
    blocking(metadata, move |metadata| metadata.renew(client, &request)).await.map(Json)
}

async fn index_of_segment(
    State(metadata): Shared,
    Path(segment): Path<u64>,
    Json(request): Json<IndexRequest>,
) -> Answer<Json<IndexRights>> {
    blocking(metadata, move |metadata| metadata.index_of_segment(segment, &request)).await.map(Json)
}

async fn index_of_group(
    State(metadata): Shared,
    Path(client): Path<u64>,
    Json(request): Json<ClientRequest>,
) -> Answer<Json<IndexRights>> {
    blocking(metadata, move |metadata| metadata.index_of_group(client, &request)).await.map(Json)
}

async fn open_segment(
    State(metadata): Shared,
    Json(request): Json<SegmentRequest>,
) -> Answer<Json<SegmentAnswer>> {
    blocking(metadata, move |metadata| metadata.open_segment(&request)).await.map(Json)
}

async fn list_segments(State(metadata): Shared, Json(wanted): Json<SegmentList>) -> Answer<Json<Segments>> {
    blocking(metadata, move |metadata| metadata.list_segments(&wanted)).await.map(Json)
}

async fn index_rebuilt(State(metadata): Shared, Json(done): Json<IndexRebuilt>) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.index_rebuilt(done.epoch)).await?;
    Ok(StatusCode::OK)
}

async fn segment(State(metadata): Shared, Path(segment): Path<u64>) -> Answer<Json<Segment>> {
    blocking(metadata, move |metadata| metadata.segment(segment)).await.map(Json)
}

async fn seal_segment(
    State(metadata): Shared,
    Path(segment): Path<u64>,
    Json(request): Json<SealRequest>,
) -> Answer<StatusCode> {
    if request.length == 0 {
        // Its components are empty: they are removed, as those of a client that died.
        let taken = metadata.take_segment(segment).await;
        return taken
            .map(|()| StatusCode::OK)
            .map_err(|failure| Problem::failed("give a segment back", failure));
    }
    blocking(metadata, move |metadata| metadata.seal_segment(segment, &request)).await?;
    Ok(StatusCode::OK)
}

async fn put_record(State(metadata): Shared, Json(request): Json<RecordRequest>) -> Answer<StatusCode> {
    blocking(metadata, move |metadata| metadata.put_record(&request)).await?;
    Ok(StatusCode::CREATED)
}

async fn record(State(metadata): Shared, Json(name): Json<RecordName>) -> Answer<Json<Record>> {
    blocking(metadata, move |metadata| metadata.record(&name)).await.map(Json)
}

async fn list_records(State(metadata): Shared, Json(wanted): Json<RecordList>) -> Answer<Json<Records>> {
    blocking(metadata, move |metadata| metadata.list_records(&wanted)).await.map(Json)
}

async fn remove_records(State(metadata): Shared, Json(names): Json<RecordNames>) -> Answer<Json<Records>> {
    blocking(metadata, move |metadata| metadata.remove_records(&names)).await.map(Json)
}

async fn status(State(metadata): Shared) -> Answer<Json<ClusterStatus>> {
    blocking(metadata, |metadata| metadata.status()).await.map(Json)
}
