//! Three metadata services over three members of etcd, as processes: the leader is killed, a member of etcd is killed,
//! and the next leader is stopped for longer than its lease, all under a load that verifies. One instance leads at a
//! time, one creator wins, nothing that was acknowledged is lost, and `etcdctl` sees what the service lists.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::Chance;
use cluster::client::{Cluster, ClusterAccess};
use cluster::wire::ClusterStatus;
use cluster::{ClusterToken, State};
use futures::executor::block_on;
use lab::EtcdSite;
use object_store::path::Path;
use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};
use rustix::time::{ClockId, clock_gettime};

use crate::common::Bench;
use crate::common::running::Running;

const DEVICES: usize = 5;
const STATE: &str = "diskcast/state/";

struct Site {
    bench: Bench,
    etcd: EtcdSite,
    ports: Vec<u16>,
    instances: Vec<Option<Running>>,
    devices: Vec<Running>,
    access: ClusterAccess,
}

fn running(bench: &Bench, words: &str) -> Running {
    let mut command =
        bench.command(&format!("{words} --cluster-token cluster.token --no-tls --json --with-parent"));
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    let mut running = Running::start(command);
    assert!(running.lines.next().is_some(), "it starts: {words}");
    running
}

impl Site {
    fn start() -> Option<Self> {
        let bench = Bench::new();
        let etcd = EtcdSite::start_or_skip(&bench.path(""), 3, &[])?;
        let token = ClusterToken::random().unwrap();
        bench.keep_secret("cluster.token", token.as_str());
        let free: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<_> = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(free);
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let hosts = hosts.join(",");
        let access = ClusterAccess::parse(&format!("cluster+http://{hosts}/1"), token).unwrap();
        let mut site =
            Self { bench, etcd, ports, instances: vec![None, None, None], devices: Vec::new(), access };
        (0..3).for_each(|instance| site.start_instance(instance));
        for device in 0..DEVICES {
            let words = format!("device device-{device} --new --metadata {hosts} --domain host-{device}");
            site.devices.push(running(&site.bench, &words));
        }
        site.wait_for("all devices", |status| status.formed && status.devices.len() == DEVICES);
        Some(site)
    }

    fn start_instance(&mut self, instance: usize) {
        let (members, port) = (self.etcd.addresses().join(","), self.ports[instance]);
        let words = format!("metadata --etcd {members} --listen 127.0.0.1:{port} --width 3+2");
        self.instances[instance] = Some(running(&self.bench, &words));
    }

    fn status(&self) -> Option<ClusterStatus> {
        Cluster::status(&self.access).ok()
    }

    fn wait_for(&self, what: &str, wanted: impl Fn(&ClusterStatus) -> bool) {
        for _ in 0..600 {
            if self.status().is_some_and(|status| wanted(&status)) {
                return;
            }
            moment(50);
        }
        panic!("waited for {what}: {:?}", self.status());
    }

    fn leader(&self) -> usize {
        self.wait_for("a leader", |status| status.leader.is_some());
        let leader = self.status().and_then(|status| status.leader).unwrap();
        self.ports.iter().position(|port| leader.ends_with(&format!(":{port}"))).unwrap()
    }

    /// Waits until another instance than `old` leads.
    fn wait_for_another(&self, old: usize) {
        let old = format!(":{}", self.ports[old]);
        self.wait_for("another leader", |status| {
            status.leader.as_ref().is_some_and(|leader| !leader.ends_with(&old))
        });
    }

    /// What etcd holds below a key.
    fn stored(&self, below: &str) -> Vec<(String, String)> {
        let prefix = format!("{STATE}{below}");
        let shown = self.etcd.ctl(0, &["get", "--prefix", &prefix]);
        let lines: Vec<_> = shown.lines().collect();
        let pair = |pair: &[&str]| (pair[0].strip_prefix(&prefix).unwrap().to_owned(), pair[1].to_owned());
        lines.chunks_exact(2).map(pair).collect()
    }
}

fn moment(ms: u64) {
    std::thread::park_timeout(Duration::from_millis(ms));
}

fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// What somebody did with a record, or saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Created(u8),
    /// There was one.
    Refused,
    /// The creation failed: it may have been made.
    Failed(u8),
    Read(Option<u8>),
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    record: u64,
    called: i64,
    returned: i64,
    did: Did,
}

/// Why no order explains what was done with one record that nobody removes; `None` if one does.
fn unexplained(history: &[Operation]) -> Option<String> {
    let winners: BTreeSet<u8> = history
        .iter()
        .filter_map(|one| match one.did {
            Did::Created(who) | Did::Read(Some(who)) => Some(who),
            _ => None,
        })
        .collect();
    let created = history.iter().filter(|one| matches!(one.did, Did::Created(_))).count();
    if winners.len() > 1 || created > 1 {
        return Some(format!("more than one won: {winners:?}"));
    }
    let tries = history
        .iter()
        .filter(|one| winners.iter().any(|&who| one.did == Did::Created(who) || one.did == Did::Failed(who)));
    let begun = tries.map(|one| one.called).min();
    let is_there = |one: &&Operation| matches!(one.did, Did::Created(_) | Did::Refused | Did::Read(Some(_)));
    if history.iter().filter(is_there).any(|one| begun.is_some_and(|begun| one.returned < begun)) {
        return Some("it was seen before it was created".to_owned());
    }
    let known = history.iter().filter(is_there).map(|one| one.returned).min();
    let is_gone =
        |one: &Operation| one.did == Did::Read(None) && known.is_some_and(|known| one.called > known);
    history.iter().any(is_gone).then(|| "it was not seen after it was created".to_owned())
}

#[test]
fn a_history_that_no_order_explains_is_noticed() {
    let done = |called, returned, did| Operation { record: 1, called, returned, did };
    let good = [
        done(1, 3, Did::Created(1)),
        done(2, 4, Did::Refused),
        done(2, 2, Did::Read(None)),
        done(3, 5, Did::Read(Some(1))),
    ];
    assert_eq!(unexplained(&good), None);
    for bad in [
        done(1, 2, Did::Created(2)),
        done(5, 6, Did::Created(1)),
        done(6, 7, Did::Read(Some(2))),
        done(6, 7, Did::Read(None)),
        done(0, 0, Did::Refused),
    ] {
        assert!(unexplained(&[&good[..], &[bad]].concat()).is_some(), "{bad:?}");
    }
}

/// Clients that put, create and read, and what they were told.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    failed: AtomicU64,
    /// Seeds of contents that were stored, each under its own name.
    stored: Mutex<Vec<u64>>,
    history: Mutex<Vec<Operation>>,
}

fn content(seed: u64) -> Vec<u8> {
    let mut chance = Chance::from_seed(seed);
    let bytes = usize::try_from(chance.below(60_000)).unwrap();
    let mut content = vec![0; bytes];
    chance.fill(&mut content);
    content
}

fn data(seed: u64) -> Path {
    Path::from(format!("data/{seed:016x}"))
}

fn race(record: u64) -> Path {
    Path::from(format!("race/{record:06}"))
}

impl Load {
    fn put(&self, client: &Cluster) {
        let mut chance = Chance::from_seed(7);
        while !self.stop.load(Ordering::Relaxed) {
            let seed = chance.u64();
            match block_on(client.put(&data(seed), content(seed).into())) {
                Ok(_) => self.stored.lock().unwrap().push(seed),
                Err(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            }
            let seen = {
                let stored = self.stored.lock().unwrap();
                stored.get(usize::try_from(chance.below(stored.len().max(1) as u64)).unwrap()).copied()
            };
            if let Some(seed) = seen {
                check(client, seed);
            }
            moment(20);
        }
    }

    /// Creates records that others create, too, and reads them and those after.
    fn race(&self, client: &Cluster, who: u8) {
        for record in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let ahead = record + u64::from(who % 2);
            self.note(ahead, || read(client, ahead));
            self.note(record, || {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                Some(match block_on(client.put_opts(&race(record), vec![who].into(), options)) {
                    Ok(_) => Did::Created(who),
                    Err(Error::AlreadyExists { .. }) => Did::Refused,
                    Err(_) => Did::Failed(who),
                })
            });
            self.note(record, || read(client, record));
            moment(10);
        }
    }

    fn note(&self, record: u64, work: impl FnOnce() -> Option<Did>) {
        let called = now();
        let Some(did) = work() else { return };
        let failed = u64::from(matches!(did, Did::Failed(_)));
        self.failed.fetch_add(failed, Ordering::Relaxed);
        self.history.lock().unwrap().push(Operation { record, called, returned: now(), did });
    }

    fn check_history(&self) -> usize {
        let history = self.history.lock().unwrap();
        let records: BTreeSet<u64> = history.iter().map(|one| one.record).collect();
        for &record in &records {
            let own: Vec<_> = history.iter().filter(|one| one.record == record).copied().collect();
            assert_eq!(unexplained(&own), None, "{own:#?}");
        }
        records.len()
    }
}

fn read(client: &Cluster, record: u64) -> Option<Did> {
    match block_on(async { client.get(&race(record)).await?.bytes().await }) {
        Ok(bytes) => Some(Did::Read(Some(bytes[0]))),
        Err(Error::NotFound { .. }) => Some(Did::Read(None)),
        Err(_) => None,
    }
}

fn check(client: &Cluster, seed: u64) {
    match block_on(async { client.get(&data(seed)).await?.bytes().await }) {
        Ok(bytes) => assert!(bytes == content(seed), "{seed} has another content"),
        Err(error @ Error::NotFound { .. }) => panic!("{error:?}"),
        // Too many were away at that moment.
        Err(_) => {}
    }
}

/// A request that creates a record, sent to an instance that is stopped: it answers when it goes on.
fn late_create(site: &Site, instance: usize) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", site.ports[instance])).unwrap();
    let body = r#"{"group":1,"name":"late","value":"","nonce":"n","mode":"put"}"#;
    let request = format!(
        "PUT /metadata/v1/records HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        site.access.token.as_str(),
        body.len(),
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// What goes wrong, in turn.
fn disturb(site: &mut Site) {
    moment(2000);
    let killed = site.leader();
    site.instances[killed] = None;
    site.wait_for_another(killed);
    site.start_instance(killed);
    moment(2000);

    site.etcd.kill(0);
    moment(3000);
    site.etcd.start(0);
    assert!(site.etcd.wait_until_healthy());

    // One that is told to end gives the lead away: the seat is free at once, not when a lease ends.
    let ended = site.leader();
    let mut leader = site.instances[ended].take().unwrap();
    leader.signal("TERM");
    assert!(leader.child.wait().unwrap().success());
    let seat = site.etcd.ctl(0, &["get", "diskcast/leader", "--print-value-only"]);
    assert!(!seat.contains(&format!(":{}", site.ports[ended])), "{seat}");
    site.wait_for_another(ended);
    site.start_instance(ended);

    let stopped = site.leader();
    site.instances[stopped].as_ref().unwrap().suspend();
    let mut late = late_create(site, stopped);
    site.wait_for_another(stopped);
    moment(1000);
    site.instances[stopped].as_ref().unwrap().signal("CONT");
    let mut answer = String::new();
    late.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("not-leader"), "{answer}");
    moment(2000);
}

#[test]
fn one_of_three_instances_leads_whatever_happens_to_them() {
    let Some(mut site) = Site::start() else { return };
    let load = Load::default();
    let clients: Vec<_> = (0..4).map(|_| Cluster::open(&site.access).unwrap()).collect();
    let access = site.access.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| load.put(&clients[0]));
        for (who, client) in (1u8..).zip(&clients[1..]) {
            let load = &load;
            scope.spawn(move || load.race(client, who));
        }
        scope.spawn(|| {
            while !load.stop.load(Ordering::Relaxed) {
                let status = Cluster::status(&access).ok();
                let devices = status.map(|status| status.devices).unwrap_or_default();
                assert!(devices.iter().all(|view| view.device.state == State::Up), "{devices:#?}");
                moment(100);
            }
        });
        disturb(&mut site);
        load.stop.store(true, Ordering::Relaxed);
    });
    let records = load.check_history();
    let stored = load.stored.lock().unwrap().clone();
    assert!(records > 100 && stored.len() > 50, "{records} records, {} contents", stored.len());
    let fresh = Cluster::open(&site.access).unwrap();
    stored.iter().for_each(|&seed| check(&fresh, seed));

    // The oracle: etcd's own client sees what the service lists, and nothing of the one that came late.
    let kept: BTreeSet<String> = site.stored("record/00000001/").into_iter().map(|(name, _)| name).collect();
    let listed = block_on(fresh.list_with_delimiter(Some(&Path::from("race")))).unwrap().objects;
    let listed: BTreeSet<String> = listed.into_iter().map(|object| object.location.to_string()).collect();
    assert_eq!(kept, listed);
    // No segment was taken from a client that lives.
    let segments = [site.stored("open/"), site.stored("segment/")].concat();
    assert!(
        !segments.is_empty() && segments.iter().all(|(_, text)| text.contains(r#""fence":0"#)),
        "{segments:?}"
    );
    let table = site.bench.command("cluster status --cluster-token cluster.token");
    let status = { table }.env("DISKCAST_REPO", site.access.to_string()).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains(&format!("; 127.0.0.1:{} leads", site.ports[site.leader()])), "{status}");

    // Without any instance, who has a map and capabilities reads on, and records fail with a reason.
    site.instances.clear();
    for &seed in stored.iter().rev().take(20) {
        let read = block_on(async { fresh.get(&data(seed)).await?.bytes().await }).unwrap();
        assert!(read == content(seed));
    }
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    let error = block_on(fresh.put_opts(&race(999_999), vec![0].into(), options)).unwrap_err();
    assert!(base::chain(&error).contains("Connection refused"), "{error:?}");
}
