//! What a client knows of its cluster: the map, its capabilities, its lease; and how it speaks to devices.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{Instant, Result};
use parking_lot::{Mutex, RwLock};
use proto::cluster::{DeviceId, Map};
use reqwest::{Client, Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::access::ClusterAccess;
use super::memory::Memory;
use super::rights::Rights;
use crate::clock::{ServiceTime, monotonic, system_ns};
use crate::http::{Reply, ask_in_turn, json, with_json};
use crate::problem::Word;
use crate::wire::{
    CAPABILITY_HEADER, ClientAnswer, ClientRequest, ClusterStatus, EPOCH_HEADER, Limits, Rebalanced,
};

/// Longest wait for an answer of the metadata service.
const METADATA_MAX: Duration = Duration::from_secs(10);
/// Longest wait for an instance of it that leads.
const LEADER_MAX: Duration = Duration::from_secs(15);
/// A device that failed is asked last for so long.
const SUSPECT_FOR: Duration = Duration::from_secs(5);
/// The map is not fetched again within this time, whoever wants a newer one.
const RENEW_PAUSE: Duration = Duration::from_millis(50);
/// A client that changed something within this time counts as one that changes things.
const CHANGES_FOR: Duration = Duration::from_secs(3600);
/// How far a client's stamps may run ahead of the time because it makes so many.
const STAMP_LEAD_MAX_NS: u64 = 60 * 1_000_000_000;

/// The client's place in its cluster.
pub(super) struct Session {
    access: ClusterAccess,
    pub(super) http: Client,
    known: RwLock<Known>,
    /// One renewal at a time; when the last one ended.
    renewing: tokio::sync::Mutex<Instant>,
    suspects: Mutex<HashMap<DeviceId, Instant>>,
    last_stamp: AtomicU64,
    pub(super) rights: Rights,
    /// What is known of records while the metadata service is gone.
    pub(super) memory: Memory,
    /// No instance of the metadata service answered the last question.
    silent: AtomicBool,
    /// When this client changed something last, or began to.
    changed: Mutex<Option<Instant>>,
}

struct Known {
    client: u64,
    lease: Duration,
    map: Arc<Map>,
    capabilities: Arc<BTreeMap<DeviceId, String>>,
    /// Stamps are made of it, not of this machine's clock.
    time: Option<ServiceTime>,
}

impl Session {
    pub(super) async fn open(access: ClusterAccess) -> Result<Arc<Self>> {
        let http = access.http()?;
        let request = ClientRequest { group: access.group };
        let answer: ClientAnswer = ask(&http, &access, "clients", &request, METADATA_MAX)
            .await
            .map_err(|failure| failure.into_error(&format!("join the cluster at {access}")))?;
        let session = Arc::new(Self {
            access,
            http,
            known: RwLock::new(Known {
                client: answer.client,
                lease: Duration::from_millis(answer.lease_ms),
                map: Arc::new(answer.map),
                capabilities: Arc::new(answer.capabilities),
                time: told(answer.now),
            }),
            renewing: tokio::sync::Mutex::new(Instant::ZERO),
            suspects: Mutex::default(),
            last_stamp: AtomicU64::new(0),
            rights: Rights::default(),
            memory: Memory::default(),
            silent: AtomicBool::new(false),
            changed: Mutex::default(),
        });
        let weak = Arc::downgrade(&session);
        tokio::spawn(async move {
            loop {
                let Some(session) = weak.upgrade() else { return };
                let wait = session.known.read().lease / 3;
                drop(session);
                tokio::time::sleep(wait).await;
                let Some(session) = weak.upgrade() else { return };
                // Without the metadata service everything goes on that needs no new capability.
                if session.renew(0).await.is_ok() && session.memory.is_due(monotonic()) {
                    session.remember_records().await;
                }
            }
        });
        Ok(session)
    }

    pub(super) fn group(&self) -> u32 {
        self.access.group
    }

    pub(super) fn client(&self) -> u64 {
        self.known.read().client
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.known.read().map)
    }

    /// Renews the lease, and gets the map and new capabilities, unless the map is newer than `than` already and nobody
    /// needs more: 0 renews in any case.
    pub(super) async fn renew(&self, than: u64) -> Reply<()> {
        let mut last = self.renewing.lock().await;
        if than > 0 && self.map().epoch > than {
            return Ok(());
        }
        let rest = RENEW_PAUSE.saturating_sub(monotonic().since(*last));
        tokio::time::sleep(rest).await;
        let path = format!("clients/{}/renew", self.client());
        let request = ClientRequest { group: self.group() };
        // An instance that hangs must not cost the lease.
        let wait = self.known.read().lease / 3;
        let mut answer: Reply<ClientAnswer> = ask(&self.http, &self.access, &path, &request, wait).await;
        if answer.as_ref().is_err_and(|failure| failure.word() == Some(Word::Missing)) {
            // It was silent for too long: it goes on as another client.
            answer = ask(&self.http, &self.access, "clients", &request, wait).await;
        }
        *last = monotonic();
        self.hear(&answer);
        let answer = answer?;
        let mut known = self.known.write();
        known.client = answer.client;
        known.lease = Duration::from_millis(answer.lease_ms);
        if answer.map.epoch >= known.map.epoch {
            known.map = Arc::new(answer.map);
        }
        known.capabilities = Arc::new(answer.capabilities);
        known.time = told(answer.now).or(known.time);
        Ok(())
    }

    /// Asks the metadata service, each instance in turn.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Reply<T> {
        let answer = ask(&self.http, &self.access, path, body, METADATA_MAX).await;
        self.hear(&answer);
        answer
    }

    /// Whether the metadata service answers.
    fn hear<T>(&self, answer: &Reply<T>) {
        let silent = answer.as_ref().is_err_and(|failure| failure.word().is_none());
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Whether no metadata service answered the last question.
    pub(super) fn is_cut_off(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Whether what may be old is better than nothing: no metadata service answers, and this client only reads. One
    /// that changes something, such as a prune, would decide by what it reads.
    pub(super) fn reads_old(&self) -> bool {
        let changes = |at: Instant| monotonic().since(at) < CHANGES_FOR;
        self.is_cut_off() && !self.changed.lock().is_some_and(changes)
    }

    /// This client changes something from here on.
    pub(super) fn begin_change(&self) {
        *self.changed.lock() = Some(monotonic());
    }

    /// A request to the metadata service without an answer that matters.
    pub(super) async fn tell(&self, method: Method, path: &str, body: &impl Serialize) -> Reply<()> {
        tell(&self.http, &self.access, method, path, body).await
    }

    /// A question to the metadata service that others can answer, too: it waits for no leader.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Reply<T> {
        get(&self.http, &self.access, path, Duration::ZERO).await
    }

    /// A request to a device, under this map. `capability` stands in for the client's own.
    pub(super) fn to_device(
        &self,
        map: &Map,
        device: DeviceId,
        method: Method,
        path: &str,
        capability: Option<&str>,
    ) -> RequestBuilder {
        let address = map.device(device).map_or("http://unknown.invalid", |device| device.address.as_str());
        let request = self.http.request(method, format!("{address}/device/v1/{path}"));
        let own = Arc::clone(&self.known.read().capabilities);
        let capability = capability.or_else(|| own.get(&device).map(String::as_str)).unwrap_or_default();
        request.header(CAPABILITY_HEADER, capability).header(EPOCH_HEADER, map.epoch)
    }

    /// A stamp that is larger than all before, and that no other client makes.
    pub(super) fn stamp(&self) -> u64 {
        let own = self.client() & 0x3ff;
        let next = |last: u64| stamp_after(last, self.now_ns()) | own;
        let mut last = self.last_stamp.load(Ordering::Relaxed);
        loop {
            let stamp = next(last);
            match self.last_stamp.compare_exchange_weak(last, stamp, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return stamp,
                Err(newer) => last = newer,
            }
        }
    }

    /// The cluster's time, in nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.known.read().time.map_or_else(system_ns, |time| time.ns(monotonic()))
    }

    /// A stamp that is also larger than `stamp`, which another client made.
    pub(super) fn stamp_above(&self, stamp: u64) -> u64 {
        self.stamp().max(behind(stamp) | (self.client() & 0x3ff))
    }

    /// A device failed: others are asked first for a while.
    pub(super) fn suspect(&self, device: DeviceId) {
        self.suspects.lock().insert(device, monotonic() + SUSPECT_FOR);
    }

    /// Devices that failed lately.
    pub(super) fn suspects(&self) -> Vec<DeviceId> {
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, until| *until >= monotonic());
        suspects.keys().copied().collect()
    }

    /// Whether a device should be asked.
    pub(super) fn is_trusted(&self, map: &Map, device: DeviceId) -> bool {
        map.answers(device) && self.suspects.lock().get(&device).is_none_or(|&until| until < monotonic())
    }
}

/// The first stamp behind `stamp`, for the client whose number ends in zeros.
fn behind(stamp: u64) -> u64 {
    (stamp & !0x3ff).saturating_add(0x400)
}

/// The stamp of `now`, or the one behind the `last` that this client made. If the time went back, as with another
/// instance of the metadata service, stamps follow it: devices refuse those that are far ahead.
fn stamp_after(last: u64, now_ns: u64) -> u64 {
    let next = behind(last);
    if next > now_ns.saturating_add(STAMP_LEAD_MAX_NS) { now_ns & !0x3ff } else { next.max(now_ns & !0x3ff) }
}

/// What an answer tells of the time, now.
fn told(now: Option<u64>) -> Option<ServiceTime> {
    now.map(|ns| ServiceTime::told(ns, monotonic()))
}

async fn ask<T: DeserializeOwned>(
    http: &Client,
    access: &ClusterAccess,
    path: &str,
    body: &impl Serialize,
    wait: Duration,
) -> Reply<T> {
    let request =
        |address: &str| with_json(to(http, access, Method::POST, address, path), body).timeout(wait);
    ask_in_turn(access.instances(LEADER_MAX), request, json).await
}

async fn get<T: DeserializeOwned>(
    http: &Client,
    access: &ClusterAccess,
    path: &str,
    patience: Duration,
) -> Reply<T> {
    let request = |address: &str| to(http, access, Method::GET, address, path);
    ask_in_turn(access.instances(patience), request, json).await
}

async fn tell(
    http: &Client,
    access: &ClusterAccess,
    method: Method,
    path: &str,
    body: &impl Serialize,
) -> Reply<()> {
    let request = |address: &str| with_json(to(http, access, method.clone(), address, path), body);
    ask_in_turn(access.instances(LEADER_MAX), request, |answer| answer.map(drop)).await
}

fn to(http: &Client, access: &ClusterAccess, method: Method, address: &str, path: &str) -> RequestBuilder {
    let request = http.request(method, format!("{address}/metadata/v1/{path}"));
    request.bearer_auth(access.token.as_str()).timeout(METADATA_MAX)
}

/// The status of the cluster.
pub(super) async fn status(access: &ClusterAccess) -> Result<Reply<ClusterStatus>> {
    Ok(get(&access.http()?, access, "status", LEADER_MAX).await)
}

/// Orders parts to be moved; returns how many.
pub(super) async fn rebalance(access: &ClusterAccess) -> Result<Reply<u64>> {
    let planned: Reply<Rebalanced> = ask(&access.http()?, access, "rebalance", &(), METADATA_MAX).await;
    Ok(planned.map(|planned| planned.moves))
}

/// Sets what a group may use.
pub(super) async fn limit(access: &ClusterAccess, group: u32, limits: Limits) -> Result<Reply<()>> {
    Ok(tell(&access.http()?, access, Method::PUT, &format!("groups/{group}/limits"), &limits).await)
}

/// An operator's order.
pub(super) async fn order(access: &ClusterAccess, path: &str) -> Result<Reply<()>> {
    Ok(tell(&access.http()?, access, Method::POST, path, &()).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_follow_the_time_and_never_repeat_while_it_goes_on() {
        let (hour, now) = (3_600_000_000_000, 1_700_000_000_000_000_000);
        assert_eq!(stamp_after(0, now), now & !0x3ff);
        let first = stamp_after(now, now) | 7;
        assert!(first > now && stamp_after(first, now) == (first & !0x3ff) + 0x400, "within one microsecond");
        assert_eq!(stamp_after(now + 2 * hour, now), now & !0x3ff, "the time went back");
    }
}
