//! Devices, and the metadata service, are killed at random moments under a load that verifies: nothing that was
//! acknowledged is lost, no byte is wrong. `DISKCAST_ROUNDS=100` makes it 100 rounds, `DISKCAST_SEED` repeats one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Chance;
use bytes::Bytes;
use lab::ClusterSite;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};

const DEVICES: usize = 7;
const WIDTH: (u8, u8) = (4, 2);

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    /// It has the content of this seed and length.
    Stored(u64, usize),
    Deleted,
    /// A change was tried and failed: it may have been made or not.
    Either(Vec<Option<(u64, usize)>>),
}

fn content(seed: u64, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    Chance::from_seed(seed).fill(&mut content);
    Bytes::from(content)
}

fn number(name: &str) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// One client and its names: puts, creates, deletes, and reads what it knows.
struct Load {
    store: Arc<dyn ObjectStore>,
    chance: Chance,
    prefix: String,
    known: BTreeMap<String, Known>,
    failed: u64,
    /// Bytes that may still be stored in this round: space is freed later, and disks are finite.
    budget: usize,
}

/// Bytes that one load stores in one round.
const ROUND_BYTES: usize = 20 << 20;

impl Load {
    fn new(store: Arc<dyn ObjectStore>, seed: u64, who: u64) -> Self {
        let chance = Chance::from_seed(seed.wrapping_mul(31) + who);
        Self { store, chance, prefix: format!("load-{who}"), known: BTreeMap::new(), failed: 0, budget: 0 }
    }

    async fn step(&mut self, step: u64) {
        let name = format!("{}/{}", self.prefix, self.chance.below(40));
        let path = Path::from(name.as_str());
        match self.chance.below(10) {
            0..=4 if self.budget == 0 => self.check(&name, false).await,
            0..=4 => {
                let bytes = match self.chance.below(4) {
                    0 => self.chance.below(900_000) as usize,
                    _ => self.chance.below(90_000) as usize,
                };
                self.budget = self.budget.saturating_sub(bytes);
                let seed = self.chance.u64();
                let put = self.store.put(&path, content(seed, bytes).into()).await;
                self.changed(&name, put.map(drop), Some((seed, bytes)));
            }
            5 => {
                let deleted = match self.store.delete(&path).await {
                    Err(Error::NotFound { .. }) => {
                        let may_miss = self.may_be(&name, None);
                        assert!(may_miss, "{name} was not found to be deleted: {:?}", self.known.get(&name));
                        Ok(())
                    }
                    deleted => deleted,
                };
                self.changed(&name, deleted, None);
            }
            6 => {
                let name = format!("{}/record-{step}", self.prefix);
                let (seed, bytes) = (self.chance.u64(), self.chance.below(3000) as usize);
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let path = Path::from(name.as_str());
                let created =
                    self.store.put_opts(&path, content(seed, bytes).into(), options).await.map(drop);
                self.changed(&name, created, Some((seed, bytes)));
            }
            _ => self.check(&name, false).await,
        }
    }

    fn may_be(&self, name: &str, what: Option<(u64, usize)>) -> bool {
        match (self.known.get(name), what) {
            (None | Some(Known::Deleted), None) => true,
            (Some(Known::Stored(seed, bytes)), Some(found)) => (*seed, *bytes) == found,
            (Some(Known::Either(options)), found) => options.contains(&found),
            _ => false,
        }
    }

    /// Remembers what a change made of a name.
    fn changed(&mut self, name: &str, outcome: Result<(), Error>, what: Option<(u64, usize)>) {
        let stored = |what: Option<(u64, usize)>| {
            what.map_or(Known::Deleted, |(seed, bytes)| Known::Stored(seed, bytes))
        };
        let now = match outcome {
            Ok(()) => stored(what),
            Err(_) => {
                self.failed += 1;
                let mut options = match self.known.remove(name) {
                    None | Some(Known::Deleted) => vec![None],
                    Some(Known::Stored(seed, bytes)) => vec![Some((seed, bytes))],
                    Some(Known::Either(options)) => options,
                };
                options.push(what);
                Known::Either(options)
            }
        };
        self.known.insert(name.to_owned(), now);
    }

    /// Reads a name and compares; with `must`, a failure to read is one of the test.
    async fn check(&mut self, name: &str, must: bool) {
        let read = match self.store.get(&Path::from(name)).await {
            Ok(found) => found.bytes().await.map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let read = match read {
            Ok(read) => read,
            Err(error) if must => panic!("{name} can't be read: {error:?}"),
            Err(_) => {
                self.failed += 1;
                return;
            }
        };
        let options: Vec<Option<(u64, usize)>> = match self.known.get(name) {
            None | Some(Known::Deleted) => vec![None],
            Some(Known::Stored(seed, bytes)) => vec![Some((*seed, *bytes))],
            // A change that failed stays undecided until the next one: it may have reached some holders of the index,
            // and a compaction brings it to all of them.
            Some(Known::Either(options)) => options.clone(),
        };
        let known = options.iter().any(|option| option.map(|(seed, bytes)| content(seed, bytes)) == read);
        assert!(
            known,
            "{name} has {:?} bytes, but should be one of {options:?}",
            read.as_ref().map(Bytes::len)
        );
    }

    async fn check_all(&mut self) {
        for name in self.known.keys().cloned().collect::<Vec<_>>() {
            self.check(&name, true).await;
        }
        let listed = self.store.list_with_delimiter(Some(&Path::from(self.prefix.as_str()))).await.unwrap();
        let mut listed: Vec<_> = listed.objects.iter().map(|object| object.location.to_string()).collect();
        listed.retain(|name| !matches!(self.known.get(name), Some(Known::Either(_))));
        listed.sort();
        let mut stored: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| matches!(known, Known::Stored(..)))
            .map(|(name, _)| name.clone())
            .collect();
        stored.sort();
        assert_eq!(listed, stored, "the listing is what can be read");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_any_two_are_killed() {
    let rounds = number("DISKCAST_ROUNDS").max(6);
    let seed = match number("DISKCAST_SEED") {
        0 => 20_261_126,
        seed => seed,
    };
    let folder = tempfile::tempdir().unwrap();
    // Short enough for segments to be compacted and freed between the kills.
    let lifetime = Duration::from_secs(6);
    let mut site = ClusterSite::start_reclaiming(folder.path(), WIDTH, DEVICES, lifetime);
    let mut chance = Chance::from_seed(seed);
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> = (0..3).map(|who| Load::new(Arc::new(site.client(1)), seed, who)).collect();
    let loads: Vec<_> = loads.into_iter().map(|load| Arc::new(Mutex::new(load))).collect();
    for round in 0..rounds {
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for load in &loads {
                scope.spawn(|| {
                    let mut load = load.lock().unwrap();
                    load.budget = ROUND_BYTES;
                    let mut step = round * 1_000_000;
                    while !stop.load(Ordering::Relaxed) {
                        futures::executor::block_on(load.step(step));
                        step += 1;
                    }
                });
            }
            // Two at a random moment of the load, not always at the same time.
            let first = chance.below(DEVICES as u64) as usize;
            let second = (first + 1 + chance.below(DEVICES as u64 - 1) as usize) % DEVICES;
            let moment = |chance: &mut Chance, ms: u64| {
                std::thread::park_timeout(Duration::from_millis(chance.below(ms)))
            };
            moment(&mut chance, 400);
            site.stop_device(first);
            moment(&mut chance, 700);
            site.stop_device(second);
            let metadata = chance.below(2) == 0;
            if metadata {
                moment(&mut chance, 500);
                site.stop_metadata();
                moment(&mut chance, 1500);
                site.start_metadata();
            }
            moment(&mut chance, 4000);
            stop.store(true, Ordering::Relaxed);
            site.start_device(second);
            moment(&mut chance, 300);
            site.start_device(first);
        });
        site.wait_for("all devices up and ready", |status| {
            let ready = |device: &cluster::wire::DeviceView| {
                device.device.state == cluster::State::Up && device.copying == 0
            };
            status.devices.iter().all(ready)
        });
        for load in &loads {
            futures::executor::block_on(load.lock().unwrap().check_all());
        }
    }
    check_with_two_away(&mut site, &loads);
}

/// A client that knows nothing, and two devices away.
fn check_with_two_away(site: &mut ClusterSite, loads: &[Arc<Mutex<Load>>]) {
    let fresh: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    site.stop_device(0);
    site.stop_device(DEVICES - 1);
    for load in loads {
        let mut load = load.lock().unwrap();
        load.store = Arc::clone(&fresh);
        futures::executor::block_on(load.check_all());
        let stored = load.known.values().filter(|known| matches!(known, Known::Stored(..))).count();
        assert!(stored > 10, "the load stored something: {stored}");
    }
}
