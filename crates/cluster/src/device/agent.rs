//! Joins the cluster, keeps the device's lease, follows the map, copies the slots that it is to hold, and seals
//! components whose segment was sealed without it. formats/cluster.md, sections 3, 4 and 7.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use proto::cluster::{DeviceId, DeviceKey, Holder, Map, ObjectId, State, decode_batch, teachers};
use reqwest::RequestBuilder;
use tokio::sync::{Notify, watch};

use super::Device;
use super::index_routes::slots_text;
use super::rebuild::rebuild;
use super::work::blocking;
use crate::clock::monotonic;
use crate::http::{Failure, Reply, get_json, send, send_json};
use crate::problem::{Answer, Problem, Word};
use crate::token::ClusterToken;
use crate::wire::{
    CAPABILITY_HEADER, EPOCH_HEADER, Heartbeat, JoinAnswer, JoinRequest, MORE_HEADER, Pulse, RebuildTask,
    Rebuilt, Segment, SegmentState,
};

/// Waits between tries to join.
const JOIN_PAUSE: Duration = Duration::from_millis(300);
/// Waits before a slot that could not be copied is tried again.
const COPY_PAUSE: Duration = Duration::from_millis(500);
/// How often components that are not sealed are looked at.
const TIDY_EVERY: Duration = Duration::from_secs(20);
/// Longest wait for the answer to a heartbeat.
const HEARTBEAT_MAX: Duration = Duration::from_secs(2);
/// Entries in one answer to a copy.
const COPY_BATCH: usize = 4096;

/// Where a device belongs.
#[derive(Debug, Clone)]
pub struct AgentSetting {
    /// Addresses of the metadata service, tried in order: `http://10.0.0.1:7400`.
    pub metadata: Vec<String>,
    /// The cluster's token.
    pub token: ClusterToken,
    /// Where clients reach this device.
    pub address: String,
    /// What fails together with it.
    pub domain: String,
    /// Bytes per second that it rebuilds at most.
    pub rebuild_bytes_per_second: Option<u64>,
}

/// Speaks to the metadata service for a device.
#[derive(Debug)]
pub struct Agent {
    device: Arc<Device>,
    setting: AgentSetting,
    client: reqwest::Client,
    /// Slots that were copied, with the `from` that they were copied for.
    copied: Mutex<HashSet<(usize, u64)>>,
    /// Something was copied: the next heartbeat is due now.
    news: Notify,
    peers: Mutex<BTreeMap<DeviceId, String>>,
    /// Components that are to be rebuilt here.
    tasks: watch::Sender<Vec<RebuildTask>>,
}

impl Agent {
    /// An agent of `device`.
    ///
    /// # Errors
    /// `Io` if the HTTP client can't be set up.
    pub fn new(device: Arc<Device>, setting: AgentSetting) -> Result<Self> {
        let client = crate::http::client()?;
        Ok(Self {
            device,
            setting,
            client,
            copied: Mutex::default(),
            news: Notify::new(),
            peers: Mutex::default(),
            tasks: watch::Sender::new(Vec::new()),
        })
    }

    /// Joins, and keeps the lease until `stop` becomes true. `event` is told what an operator should know.
    ///
    /// # Errors
    /// `Denied` and `Refused` if the metadata service does not take this device, `Io` if its disk fails.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>, event: impl Fn(&str)) -> Result<()> {
        let stopped = stop.clone();
        tokio::select! {
            outcome = self.live(&event) => outcome,
            _ = stop.wait_for(|&stop| stop) => {
                drop(stopped);
                Ok(())
            }
        }
    }

    async fn live(self: &Arc<Self>, event: &impl Fn(&str)) -> Result<()> {
        self.join(event).await?;
        let copier = Arc::clone(self);
        let tidier = Arc::clone(self);
        // Both end with the runtime, or with this future.
        let mut side = tokio::task::JoinSet::new();
        side.spawn(async move { copier.copy_for_ever().await });
        side.spawn(async move { tidier.tidy_for_ever().await });
        let builder = Arc::clone(self);
        side.spawn(async move { builder.rebuild_for_ever().await });
        let mut silent = false;
        let mut seen = self.device.guard.seen();
        loop {
            let wait = match self.heartbeat().await {
                Ok(lease) => {
                    if std::mem::take(&mut silent) {
                        event("the metadata service answers again");
                    }
                    lease / 3
                }
                Err(Failure::Refused(problem)) if problem.word == Word::Missing => {
                    self.join(event).await?;
                    Duration::ZERO
                }
                Err(Failure::Refused(problem)) if problem.word == Word::Failed => {
                    return Err(Error::new(ErrorKind::Io, problem.detail));
                }
                Err(failure) => {
                    if !std::mem::replace(&mut silent, true) {
                        event(&format!("the metadata service does not answer: {failure}"));
                    }
                    JOIN_PAUSE
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.news.notified() => {}
                _ = seen.changed(), if !silent => {}
            }
        }
    }

    /// Joins the cluster; tries until the metadata service answers.
    async fn join(&self, event: &impl Fn(&str)) -> Result<()> {
        let mut told = false;
        loop {
            let space = blocking(&self.device, |device| Ok(device.store.space()?)).await;
            let (bytes, free) = space.map_err(|problem| Error::new(ErrorKind::Io, problem.detail))?;
            let request = JoinRequest {
                identity: self.device.identity.clone(),
                address: self.setting.address.clone(),
                domain: self.setting.domain.clone(),
                bytes,
                free,
            };
            match self.ask::<JoinAnswer>("devices", &request).await {
                Ok(answer) => return self.joined(answer).await,
                Err(Failure::Refused(problem)) if problem.word != Word::Failed => {
                    return Err(Failure::Refused(problem).into_error("join the cluster"));
                }
                Err(failure) if !std::mem::replace(&mut told, true) => {
                    event(&format!("wait for the metadata service: {failure}"));
                }
                Err(_) => {}
            }
            tokio::time::sleep(JOIN_PAUSE).await;
        }
    }

    async fn joined(&self, answer: JoinAnswer) -> Result<()> {
        let key = key(&answer.key)?;
        self.device.guard.joined(answer.device, key, answer.key_epoch);
        let followed = self.follow(answer.map).await;
        followed.map_err(|problem| Error::new(ErrorKind::Io, problem.detail))
    }

    /// Asks the metadata service, each instance in turn.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Reply<T> {
        let mut last = Failure::Unreachable("no address of a metadata service is known".to_owned());
        for address in &self.setting.metadata {
            match send_json(self.to(address, path), body).await {
                // Its own failure is none of this device's.
                Err(Failure::Refused(problem)) if problem.word == Word::Failed => {
                    last = Failure::Unreachable(problem.detail);
                }
                Err(failure @ Failure::Unreachable(_)) => last = failure,
                answer => return answer,
            }
        }
        Err(last)
    }

    fn to(&self, address: &str, path: &str) -> RequestBuilder {
        let request = self.client.post(format!("{address}/metadata/v1/{path}")).timeout(HEARTBEAT_MAX);
        request.bearer_auth(self.setting.token.as_str())
    }

    /// Renews the lease; returns how long it lasts.
    async fn heartbeat(&self) -> Reply<Duration> {
        let guard = &self.device.guard;
        let device = guard.device().expect("it joined before");
        let used = self.device.store.used();
        let (_, free) = self.device.store.space().map_err(|error| Failure::Refused(error.into()))?;
        if let Some(why) = self.device.store.commits().broken() {
            // Without a lease it takes no change, and others take its place.
            return Err(Failure::Refused(Problem::failed("the device's disk failed", why)));
        }
        let ready = self.copied.lock().iter().copied().collect();
        let beat =
            Heartbeat { identity: self.device.identity.clone(), epoch: guard.epoch(), used, free, ready };
        // The lease counts from before the request: the metadata service counts from later.
        let sent = monotonic();
        let pulse: Pulse = self.ask(&format!("devices/{device}/heartbeat"), &beat).await?;
        let key = key(&pulse.key).map_err(|error| Failure::Refused(error.into()))?;
        guard.joined(device, key, pulse.key_epoch);
        *self.peers.lock() = pulse.peers;
        self.tasks.send_replace(pulse.rebuild);
        if let Some(map) = pulse.map.filter(|map| map.epoch > guard.epoch()) {
            self.follow(map).await.map_err(Failure::Refused)?;
        }
        let lease = Duration::from_millis(pulse.lease_ms);
        // Only under the newest map, and only where it counts this device: else others may hold its slots.
        if guard.epoch() >= pulse.epoch && guard.is_counted() {
            guard.renewed(sent + lease);
        }
        Ok(lease)
    }

    async fn follow(&self, map: Map) -> Answer<()> {
        blocking(&self.device, move |device| {
            let own = device.guard.device().expect("it joined before");
            let old = device.guard.map();
            if old.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
                return Ok(());
            }
            let newer = map.clone();
            Ok(device.index.adopt(own, old.as_ref(), &map, || device.guard.follow(newer))?)
        })
        .await?;
        let held = self.device.guard.map();
        let device = self.device.guard.device();
        // What was copied for a slot that is not held any more says nothing.
        self.copied.lock().retain(|&(slot, from)| {
            let holders = held.as_ref().map_or(&[][..], |map| map.holders(slot));
            holders
                .iter()
                .any(|holder| Some(holder.device) == device && holder.from == from && !holder.is_ready())
        });
        Ok(())
    }

    async fn copy_for_ever(&self) {
        loop {
            let own = self.device.guard.epoch();
            if self.copy_all().await {
                // Nothing is left to copy under this map.
                let mut epoch = self.device.guard.epochs();
                let _ = epoch.wait_for(|&epoch| epoch > own).await;
            } else {
                tokio::time::sleep(COPY_PAUSE).await;
            }
        }
    }

    /// Copies all slots that wait for it, as far as their ready holders answer. Returns whether none is left.
    async fn copy_all(&self) -> bool {
        let (Some(map), Some(own)) = (self.device.guard.map(), self.device.guard.device()) else {
            return false;
        };
        let answers = |device: DeviceId| {
            map.device(device).is_some_and(|device| matches!(device.state, State::Up | State::Draining))
        };
        let mut sources: BTreeMap<DeviceId, Vec<(usize, u64)>> = BTreeMap::new();
        // How many have yet to teach a slot.
        let mut lessons: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        let mut complete = true;
        for (slot, holders) in map.slots.iter().enumerate() {
            let waits = |holder: &&Holder| {
                holder.device == own
                    && holder.takes_entries()
                    && !holder.is_ready()
                    && !self.copied.lock().contains(&(slot, holder.from))
            };
            let Some(learner) = holders.iter().find(waits) else { continue };
            let Some(chosen) = teachers(holders, learner, answers) else {
                complete = false;
                continue;
            };
            let key = (slot, learner.from);
            lessons.insert(key, chosen.len());
            chosen.into_iter().for_each(|device| sources.entry(device).or_default().push(key));
        }
        for (source, slots) in sources {
            if self.copy_from(&map, source, &slots).await.is_err() {
                complete = false;
                continue;
            }
            for slot in slots {
                let left = lessons.get_mut(&slot).expect("it was counted");
                *left -= 1;
                if *left == 0 {
                    self.copied.lock().insert(slot);
                }
            }
            self.news.notify_one();
        }
        complete
    }

    async fn copy_from(&self, map: &Map, source: DeviceId, slots: &[(usize, u64)]) -> Reply<()> {
        let address = map.device(source).map(|device| device.address.clone()).unwrap_or_default();
        let capability = self.peers.lock().get(&source).cloned().unwrap_or_default();
        let get = |path: &str| {
            let request = self.client.get(format!("{address}/device/v1/index/{path}"));
            request.header(CAPABILITY_HEADER, &capability).header(EPOCH_HEADER, map.epoch)
        };
        let groups: Vec<u32> = get_json(get("groups")).await?;
        let numbers: Vec<usize> = slots.iter().map(|(slot, _)| *slot).collect();
        let text = slots_text(&numbers);
        for group in groups {
            let mut after = String::new();
            loop {
                let limit = COPY_BATCH.to_string();
                let query = [
                    ("group", group.to_string()),
                    ("slots", text.clone()),
                    ("after", after),
                    ("limit", limit),
                ];
                let answer = send(get("copy").query(&query)).await?;
                let more = answer.headers().get(MORE_HEADER).is_some_and(|more| more == "true");
                let body = answer.bytes().await.map_err(|error| Failure::Unreachable(error.to_string()))?;
                let items = decode_batch(&body)
                    .ok_or_else(|| Failure::Unreachable("the answer is no batch of names".to_owned()))?;
                after = items.last().map(|item| item.name.clone()).unwrap_or_default();
                let slots = slots.to_vec();
                blocking(&self.device, move |device| {
                    let _same_map = device.index.hold();
                    device.still_waits(&slots)?;
                    Ok(device.index.insert(items)?)
                })
                .await
                .map_err(Failure::Refused)?;
                if !more {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn rebuild_for_ever(&self) {
        let mut tasks = self.tasks.subscribe();
        loop {
            let next = tasks.wait_for(|tasks| !tasks.is_empty()).await;
            let Some(task) = next.ok().and_then(|tasks| tasks.first().cloned()) else { return };
            let setting = (&self.device.rates, self.setting.rebuild_bytes_per_second);
            let rebuilt = rebuild(&self.device, &self.client, &task, setting).await;
            let done = match rebuilt {
                Ok(()) => self.tell_rebuilt(&task).await,
                Err(failure) => Err(failure),
            };
            match done {
                // Others are waiting: the next heartbeat is due now.
                Ok(()) => self.news.notify_one(),
                Err(_) => tokio::time::sleep(COPY_PAUSE).await,
            }
            // What was done, or failed, comes again with the next heartbeat if it is still to be done.
            self.tasks.send_modify(|tasks| tasks.retain(|other| other.segment != task.segment));
        }
    }

    async fn tell_rebuilt(&self, task: &RebuildTask) -> Reply<()> {
        let device = self.device.guard.device().expect("it joined before");
        let mut last = Failure::Unreachable("no address of a metadata service is known".to_owned());
        for address in &self.setting.metadata {
            let request = self.to(address, &format!("segments/{}/rebuilt", task.segment));
            let body = serde_json::to_vec(&Rebuilt { component: task.component, device });
            let request = request.header(reqwest::header::CONTENT_TYPE, "application/json");
            match send(request.body(body.expect("it is plain data"))).await {
                Err(failure @ Failure::Unreachable(_)) => last = failure,
                answer => return answer.map(drop),
            }
        }
        Err(last)
    }

    async fn tidy_for_ever(&self) {
        loop {
            tokio::time::sleep(TIDY_EVERY).await;
            // What can't be sealed now is tried again.
            let _ = self.tidy().await;
        }
    }

    /// Seals components whose segment was sealed while this device did not answer.
    async fn tidy(&self) -> Reply<()> {
        let open = blocking(&self.device, |device| {
            let mut open = Vec::new();
            device.store.tables().all_objects(|id, row| {
                if !row.sealed && id.holds_data() {
                    open.push(id);
                }
            })?;
            Ok(open)
        });
        for id in open.await.map_err(Failure::Refused)? {
            self.seal_as_segment(id).await?;
        }
        Ok(())
    }

    async fn seal_as_segment(&self, id: ObjectId) -> Reply<()> {
        let own = self.device.guard.device().expect("it joined before");
        let mut last = Ok(());
        for address in &self.setting.metadata {
            let request = self.client.get(format!("{address}/metadata/v1/segments/{}", id.number));
            let request = request.bearer_auth(self.setting.token.as_str()).timeout(HEARTBEAT_MAX);
            match get_json::<Segment>(request).await {
                // One that is being rebuilt here is not this device's yet.
                Ok(segment)
                    if segment.state == SegmentState::Sealed
                        && segment.group == id.group
                        && segment.devices.contains(&own) =>
                {
                    // Shorter than the others: it missed runs that nobody was told are stored.
                    let bytes = segment.length;
                    let sealed = blocking(&self.device, move |device| device.store.seal_at_most(id, bytes));
                    return sealed.await.map_err(Failure::Refused);
                }
                // An object that is no component of a segment is its creator's business.
                Ok(_) | Err(Failure::Refused(_)) => return Ok(()),
                Err(failure) => last = Err(failure),
            }
        }
        last
    }
}

impl Device {
    /// Whether all these slots are still to be copied here.
    fn still_waits(&self, slots: &[(usize, u64)]) -> Answer<()> {
        let map = self.guard.map();
        let own = self.guard.device();
        let waits = |&(slot, from): &(usize, u64)| {
            let holders = map.as_ref().map_or(&[][..], |map| map.holders(slot));
            holders.iter().any(|holder| Some(holder.device) == own && holder.from == from)
        };
        if slots.iter().all(waits) {
            return Ok(());
        }
        Err(Problem::new(Word::NotReady, "the map changed while a slot was copied"))
    }
}

fn key(text: &str) -> Result<DeviceKey> {
    let bytes: Option<Vec<u8>> = (0..text.len() / 2)
        .map(|at| text.get(2 * at..2 * at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
        .collect();
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let wrong = || Error::new(ErrorKind::Corrupt, "the metadata service sent no key of 32 bytes");
    bytes.map(DeviceKey::from_bytes).ok_or_else(wrong)
}
