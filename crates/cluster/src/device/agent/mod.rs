//! Speaks to the metadata service for a device: joins the cluster, keeps the lease, follows the map.
//! formats/cluster.md, sections 4 and 7.

mod missing;
mod recall;
mod slots;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result, hex};
use parking_lot::Mutex;
use proto::cluster::{DeviceId, DeviceKey, Map};
use reqwest::{Method, RequestBuilder};
use tokio::sync::{Notify, watch};

use super::Device;
use super::work::blocking;
use crate::clock::{monotonic, system_ns};
use crate::http::{Failure, Instances, Reply, ask_in_turn, json, with_json};
use crate::problem::{Answer, Problem, Word};
use crate::token::{ClusterToken, random};
use crate::wire::{CompactTask, DeviceHealth, Heartbeat, JoinAnswer, JoinRequest, Pulse, RebuildTask};

/// Waits between tries to join.
const JOIN_PAUSE: Duration = Duration::from_millis(300);
/// Longest wait for the answer to a heartbeat.
const HEARTBEAT_MAX: Duration = Duration::from_secs(2);

/// Where a device belongs.
#[derive(Debug, Clone)]
pub struct AgentSetting {
    /// Addresses of the metadata service, tried in order: `https://10.0.0.1:7400`.
    pub metadata: Vec<String>,
    /// The cluster's token.
    pub token: ClusterToken,
    /// Where clients reach this device: `https://10.0.0.7:7420`. All parts speak TLS, or none.
    pub address: String,
    /// What fails together with it.
    pub domain: String,
    /// Bytes per second that it rebuilds at most.
    pub rebuild_bytes_per_second: Option<u64>,
    /// Bytes per second of its disk that it looks through for damage.
    pub scrub_bytes_per_second: u64,
}

/// Speaks to the metadata service for a device.
#[derive(Debug)]
pub struct Agent {
    device: Arc<Device>,
    setting: AgentSetting,
    client: reqwest::Client,
    /// The instance of the metadata service that answered last.
    last: AtomicUsize,
    /// Slots that were copied, with the `from` that they were copied for.
    copied: Mutex<HashSet<(usize, u64)>>,
    /// Something was copied: the next heartbeat is due now.
    news: Notify,
    peers: Mutex<BTreeMap<DeviceId, String>>,
    /// Components that are to be rebuilt here.
    tasks: watch::Sender<Vec<RebuildTask>>,
    /// Segments that are to be compacted here.
    compaction: watch::Sender<Option<CompactTask>>,
    /// Random, of this start.
    start: String,
    /// It was away: what lies here by what the service knows has yet to be compared with what is here.
    was_away: AtomicBool,
    /// Whether it is not known what is missing here.
    searching: AtomicBool,
    /// Components that lie here and are to be computed anew.
    missing: AtomicU64,
    /// Segments that were open when it came back: only their end says what is missing of them here.
    unsure: Mutex<BTreeSet<u64>>,
}

impl Agent {
    /// An agent of `device`.
    ///
    /// # Errors
    /// `Io` if the HTTP client can't be set up.
    pub fn new(device: Arc<Device>, setting: AgentSetting) -> Result<Self> {
        let client = crate::http::client(&setting.token, setting.address.starts_with("https://"))?;
        Ok(Self {
            device,
            setting,
            client,
            last: AtomicUsize::new(0),
            copied: Mutex::default(),
            news: Notify::new(),
            peers: Mutex::default(),
            tasks: watch::Sender::new(Vec::new()),
            compaction: watch::Sender::new(None),
            start: hex::encode(&random::<8>()?),
            was_away: AtomicBool::new(true),
            searching: AtomicBool::new(true),
            missing: AtomicU64::new(0),
            unsure: Mutex::default(),
        })
    }

    /// Joins, and keeps the lease until `stop` becomes true. `event` is told what an operator should know.
    ///
    /// # Errors
    /// `Denied`, `Refused` and `Untrusted` if this device and the metadata service do not belong together, `Io` if its
    /// disk fails.
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
        let finder = Arc::clone(self);
        side.spawn(async move { finder.find_missing_for_ever().await });
        let builder = Arc::clone(self);
        side.spawn(async move { builder.rebuild_for_ever().await });
        let compactor = Arc::clone(self);
        side.spawn(async move { compactor.compact_for_ever().await });
        let scrubber = Arc::clone(self);
        side.spawn(async move { scrubber.scrub_for_ever().await });
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
                Err(Failure::Refused(problem)) if problem.word == Word::Older => {
                    if !std::mem::replace(&mut silent, true) {
                        event(&problem.detail);
                    }
                    // What fails is asked for again.
                    let _ = self.recall().await;
                    JOIN_PAUSE
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
                // Also told to the metadata service at once.
                notes = self.device.scrubs.notes() => notes.iter().for_each(|note| event(note)),
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
                epoch: self.device.guard.epoch(),
                clock: Some(system_ns()),
                cluster: self.cluster(),
                start: self.start.clone(),
                commits: self.device.store.tables().commits(),
            };
            match self.ask::<JoinAnswer>("devices", &request).await {
                Ok(answer) => {
                    if answer.older {
                        event(&format!(
                            "this folder is an older copy of what device {} had: it copies its part of the index from \
                             others, and computes what is missing anew",
                            answer.device
                        ));
                    }
                    return self.joined(answer).await;
                }
                // Its failure, or a database without room, is none of this device's.
                Err(Failure::Refused(problem)) if !matches!(problem.word, Word::Failed | Word::Full) => {
                    return Err(Failure::Refused(problem).into_error("join the cluster"));
                }
                Err(failure @ Failure::Untrusted(_)) => return Err(failure.into_error("join the cluster")),
                Err(failure) if !std::mem::replace(&mut told, true) => {
                    event(&format!("wait for the metadata service: {failure}"));
                }
                Err(_) => {}
            }
            tokio::time::sleep(JOIN_PAUSE).await;
        }
    }

    /// The cluster that the device belongs to; empty before it joined one.
    fn cluster(&self) -> String {
        self.device.guard.map().map(|map| map.cluster).unwrap_or_default()
    }

    async fn joined(&self, answer: JoinAnswer) -> Result<()> {
        let key = key(&answer.key)?;
        super::folder::keep_note(&self.device.folder, answer.device, &answer.map.cluster)?;
        self.device.guard.joined(answer.device, key, answer.key_epoch);
        self.learn_time(answer.now);
        let followed = self.follow(answer.map).await;
        followed.map_err(|problem| Error::new(ErrorKind::Io, problem.detail))
    }

    /// Asks the metadata service, each instance in turn.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Reply<T> {
        let request = |address: &str| with_json(self.to(Method::POST, address, path), body);
        let read = |answer| match json(answer) {
            // Its own failure is none of this device's.
            Err(Failure::Refused(problem)) if problem.word == Word::Failed => {
                Err(Failure::Unreachable(problem.detail))
            }
            answer => answer,
        };
        ask_in_turn(self.instances(), request, read).await
    }

    /// None of them is waited for: what failed is tried again.
    fn instances(&self) -> Instances<'_> {
        Instances { addresses: &self.setting.metadata, last: &self.last, patience: Duration::ZERO }
    }

    fn to(&self, method: Method, address: &str, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{address}/metadata/v1/{path}"));
        request.timeout(HEARTBEAT_MAX).bearer_auth(self.setting.token.as_str())
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
        let beat = Heartbeat {
            identity: self.device.identity.clone(),
            epoch: guard.epoch(),
            used,
            free,
            ready,
            clock: Some(system_ns()),
            cluster: self.cluster(),
            commits: self.device.store.tables().commits(),
            health: DeviceHealth {
                orphans: self.device.store.orphans.count(),
                missing: self.missing.load(Ordering::Relaxed),
                // Who gets its lease back was away.
                searching: self.searching.load(Ordering::Relaxed) || !guard.has_lease(),
                ..self.device.scrubs.health()
            },
        };
        // The lease counts from before the request: the metadata service counts from later.
        let sent = monotonic();
        let pulse: Pulse = self.ask(&format!("devices/{device}/heartbeat"), &beat).await?;
        let key = key(&pulse.key).map_err(|error| Failure::Refused(error.into()))?;
        guard.joined(device, key, pulse.key_epoch);
        self.learn_time(pulse.now);
        *self.peers.lock() = pulse.peers;
        self.tasks.send_replace(pulse.rebuild);
        self.compaction.send_replace(pulse.compact);
        if !pulse.limits.is_empty() {
            let limits = pulse.limits;
            let limited = move |device: &Device| {
                limits.iter().try_for_each(|limits| device.limit(limits)).map_err(Problem::from)
            };
            blocking(&self.device, limited).await.map_err(Failure::Refused)?;
        }
        if let Some(map) = pulse.map.filter(|map| map.epoch > guard.epoch()) {
            self.follow(map).await.map_err(Failure::Refused)?;
        }
        let lease = Duration::from_millis(pulse.lease_ms);
        // Only under the newest map, and only where it counts this device: else others may hold its slots.
        if guard.epoch() >= pulse.epoch && guard.is_counted() {
            if !guard.has_lease() {
                self.was_away.store(true, Ordering::Relaxed);
                self.searching.store(true, Ordering::Relaxed);
            }
            guard.renewed(sent + lease);
        }
        Ok(lease)
    }

    /// An answer told the metadata service's time. It is older by the time that the answer took, which is short beside
    /// all that is judged by it.
    fn learn_time(&self, told: Option<u64>) {
        if let Some(ns) = told {
            self.device.guard.told_time(ns, monotonic());
        }
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
}

fn key(text: &str) -> Result<DeviceKey> {
    let wrong = || Error::new(ErrorKind::Corrupt, "the metadata service sent no key of 32 bytes");
    hex::decode(text).map(DeviceKey::from_bytes).ok_or_else(wrong)
}
