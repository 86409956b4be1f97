//! What the cluster is: its secret, its width, and its map, which changes under one condition.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result, hex};
use parking_lot::Mutex;
use proto::cluster::{DeviceId, DeviceKey, Map, UNIT_BYTES, Width, place_slots};
use serde::{Deserialize, Serialize};

use super::engine::{Condition, Engine, Write};
use super::queue::{Compaction, Rebuild};
use super::recalled::Recalled;
use crate::clock::{ServiceTime, monotonic, system_ns};
use crate::token::{ClusterToken, random};
use crate::wire::DeviceHealth;

const CLUSTER: &str = "cluster";
const MAP: &str = "map";

/// How a new cluster is to be. One that exists keeps its width.
#[derive(Debug, Clone)]
pub struct ClusterSetting {
    /// Data and parity components of a segment. The cluster takes data when as many devices have joined.
    pub width: Width,
    /// How long the leases of devices and clients last.
    pub lease: Duration,
    /// How long capabilities last. The space of what was deleted is used again after that time.
    pub lifetime: Duration,
    /// Whether its parts speak TLS: all of them, or none.
    pub tls: bool,
}

impl ClusterSetting {
    pub(super) fn check(&self) -> Result<()> {
        // A client must have renewed its lease, which is three of a device's, before it is needed.
        if self.lifetime < self.lease * 4 {
            let detail = format!("capabilities must last at least four leases of {:?}", self.lease);
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        Ok(())
    }
}

/// What the engine keeps of the cluster itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    cluster: String,
    /// In hexadecimal.
    secret: String,
}

/// When a device was heard, and what it said.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SeenDevice {
    pub(super) at: Instant,
    pub(super) used: u64,
    pub(super) free: u64,
    /// How far its clock is ahead of this instance's time.
    pub(super) skew_ms: Option<i64>,
    /// Commits that it told of.
    pub(super) commits: u64,
    pub(super) health: DeviceHealth,
}

/// A client, and when its lease ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenClient {
    pub(super) end: Instant,
    pub(super) group: u32,
}

/// The metadata service.
#[derive(Debug)]
pub struct Metadata {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) token: ClusterToken,
    pub(super) lease: Duration,
    pub(super) lifetime: Duration,
    pub(super) tls: bool,
    secret: [u8; 32],
    /// The map as this instance knows it, with its revision.
    map: Mutex<(Map, u64)>,
    pub(super) devices: Mutex<HashMap<DeviceId, SeenDevice>>,
    /// When the engine was last told how many commits a device made.
    pub(super) commits_kept: Mutex<HashMap<DeviceId, Instant>>,
    pub(super) clients: Mutex<HashMap<u64, SeenClient>>,
    /// By which all parts of the cluster judge: begun by this machine's clock, and not moved by it any more.
    time: ServiceTime,
    /// When this instance began: nobody is silent for longer than that.
    pub(super) started: Mutex<Instant>,
    pub(super) http: reqwest::Client,
    pub(super) rebuild: Mutex<Rebuild>,
    pub(super) compaction: Mutex<Compaction>,
    pub(super) recalled: Mutex<Recalled>,
}

impl Metadata {
    /// The service over `engine`, whose cluster is made if there is none.
    ///
    /// # Errors
    /// Those of the engine; `Corrupt` if what it keeps can't be read; `Invalid` if capabilities would last less than
    /// four leases.
    pub fn open(engine: Arc<dyn Engine>, token: ClusterToken, setting: &ClusterSetting) -> Result<Arc<Self>> {
        setting.check()?;
        make(engine.as_ref(), setting)?;
        let record: Record = read(engine.as_ref(), CLUSTER)?.0;
        let map = read(engine.as_ref(), MAP)?;
        let unreadable = || Error::new(ErrorKind::Corrupt, "the cluster's secret can't be read");
        let secret = hex::decode(&record.secret).ok_or_else(unreadable)?;
        let http = crate::http::client(&token, setting.tls)?;
        Ok(Arc::new(Self {
            engine,
            token,
            lease: setting.lease,
            lifetime: setting.lifetime,
            tls: setting.tls,
            secret,
            map: Mutex::new(map),
            devices: Mutex::default(),
            commits_kept: Mutex::default(),
            clients: Mutex::default(),
            time: ServiceTime::told(system_ns(), monotonic()),
            started: Mutex::new(monotonic()),
            http,
            rebuild: Mutex::default(),
            compaction: Mutex::default(),
            recalled: Mutex::default(),
        }))
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> Map {
        self.map.lock().0.clone()
    }

    /// The cluster's time, in nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        self.time.ns(monotonic())
    }

    /// The cluster's time, in seconds since 1970.
    pub(super) fn now_s(&self) -> u64 {
        self.now_ns() / 1_000_000_000
    }

    /// The map as the engine has it: also one that another instance changed.
    pub(super) fn stored_map(&self) -> Result<Map> {
        Ok(read(self.engine.as_ref(), MAP)?.0)
    }

    /// The map as the engine has it, which this instance knows from now on. An instance that leads no more learns so.
    pub(super) fn newest_map(&self) -> Result<Map> {
        let mut own = self.map.lock();
        *own = read(self.engine.as_ref(), MAP)?;
        Ok(own.0.clone())
    }

    /// Begins a new epoch, so that devices refuse what an earlier leader asked of them as soon as they know.
    pub(super) fn begin_epoch(&self) -> Result<()> {
        let begin = |map: &mut Map| {
            place_slots(map, false);
            true
        };
        self.change_map(begin).map(drop)
    }

    /// Changes the map by `change`, which returns whether it did; then the epoch grows. Returns the map after that.
    pub(super) fn change_map(&self, mut change: impl FnMut(&mut Map) -> bool) -> Result<Map> {
        let mut own = self.map.lock();
        loop {
            let mut map = own.0.clone();
            if !change(&mut map) {
                return Ok(map);
            }
            map.epoch += 1;
            let text = serde_json::to_vec(&map).expect("a map is plain data");
            let condition = Condition::Revision(MAP.to_owned(), own.1);
            if self.engine.commit(&[condition], &[Write::Put(MAP.to_owned(), text)])? {
                *own = read(self.engine.as_ref(), MAP)?;
                return Ok(own.0.clone());
            }
            // Another instance changed it: the change is tried on what it is now.
            *own = read(self.engine.as_ref(), MAP)?;
        }
    }

    /// The key of a device.
    pub(super) fn key(&self, device: DeviceId, key_epoch: u32) -> DeviceKey {
        DeviceKey::derive(&self.secret, device, key_epoch)
    }

    /// A number that was never returned before, from 1.
    pub(super) fn next(&self, what: &str) -> Result<u64> {
        let key = format!("next/{what}");
        loop {
            let found = self.engine.get(&key)?;
            let (number, condition) = match &found {
                None => (1, Condition::Absent(key.clone())),
                Some(found) => {
                    let number: u64 = parse(&key, &found.value)?;
                    (number + 1, Condition::Revision(key.clone(), found.revision))
                }
            };
            let text = number.to_string().into_bytes();
            if self.engine.commit(&[condition], &[Write::Put(key.clone(), text)])? {
                return Ok(number);
            }
        }
    }
}

/// Makes the cluster, if there is none.
fn make(engine: &dyn Engine, setting: &ClusterSetting) -> Result<()> {
    if engine.get(CLUSTER)?.is_some() {
        return Ok(());
    }
    let cluster = hex::encode(&random::<16>()?);
    let map = Map {
        cluster: cluster.clone(),
        epoch: 1,
        k: setting.width.data,
        m: setting.width.parity,
        unit: UNIT_BYTES,
        devices: Vec::new(),
        slots: Vec::new(),
    };
    let record = Record { cluster, secret: hex::encode(&random::<32>()?) };
    let text = |value: serde_json::Result<Vec<u8>>| value.expect("it is plain data");
    let writes = [
        Write::Put(CLUSTER.to_owned(), text(serde_json::to_vec(&record))),
        Write::Put(MAP.to_owned(), text(serde_json::to_vec(&map))),
    ];
    // If another instance was faster, its cluster is the one.
    engine.commit(&[Condition::Absent(CLUSTER.to_owned())], &writes).map(drop)
}

/// The value of a key that must be there, and its revision.
fn read<T: serde::de::DeserializeOwned>(engine: &dyn Engine, key: &str) -> Result<(T, u64)> {
    let missing = || Error::new(ErrorKind::Corrupt, format!("the metadata service has lost its `{key}`"));
    let found = engine.get(key)?.ok_or_else(missing)?;
    Ok((parse(key, &found.value)?, found.revision))
}

/// The value of `key`, of JSON.
pub(super) fn parse<T: serde::de::DeserializeOwned>(key: &str, value: &[u8]) -> Result<T> {
    serde_json::from_slice(value).map_err(|error| {
        Error::from_source(ErrorKind::Corrupt, format!("read `{key}` of the cluster"), error)
    })
}
