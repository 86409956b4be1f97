//! Disks that take part in a multicast session over loopback: chunks that many machines read are sent once for all,
//! and any failure costs only time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use base::{Chance, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Catalogue, Cipher, ObjectRef, ObjectSource};
use mirror::{Mirror, MirrorOptions, MulticastOptions, Served, Source};
use net::api::{Key, SessionGrant, SessionRequest, SessionStatistics};
use net::interface;
use net::multicast::bundle::BUNDLE_BLOCKS_ATTACHED;
use net::multicast::order::order;
use net::multicast::server::{SessionConfig, SessionServer};
use net::udp::SendOptions;
use parking_lot::Mutex;
use store::Repository;

use crate::common::{CHUNK, Place, all};

const SIZE: u64 = 24 << 20;

/// A source that counts the bytes that it delivers.
struct Counting {
    inner: Arc<Repository>,
    bytes: AtomicU64,
    /// Some objects are missing.
    lies: AtomicBool,
}

impl ObjectSource for Counting {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.bytes.fetch_add(object.len.into(), Ordering::SeqCst);
        if self.lies.load(Ordering::SeqCst) && object.digest.0[0].is_multiple_of(3) {
            return Err(Error::new(ErrorKind::NotFound, "lost"));
        }
        self.inner.fetch(object)
    }
}

/// A server's session for attached disks, and the source that its machines use otherwise.
struct Room {
    place: Place,
    server: Mutex<Option<SessionServer>>,
    source: Arc<Counting>,
    /// The chunks that machines read when they boot, each once, in this order.
    first: Vec<u64>,
    /// Bytes of the tree, and of the objects of those chunks.
    bytes: u64,
}

impl Room {
    /// `server_lies`: the server reads from a source in which objects are missing.
    fn new(group: u16, server_lies: bool) -> Self {
        let place = Place::new(SIZE, u64::from(group));
        let manifest = place.manifest("disk");
        let catalogue = Catalogue::load(&manifest, &*place.repository, place.repository.cipher()).unwrap();
        let mut chunks: Vec<u64> = catalogue.leaves().map(|run| run.unwrap().first).collect();
        let mut chance = Chance::from_seed(7);
        for at in (1..chunks.len()).rev() {
            chunks.swap(at, usize::try_from(chance.below(at as u64 + 1)).unwrap());
        }
        let first: Vec<u64> = chunks[..chunks.len() / 2].to_vec();
        let runs: Vec<(u64, u32)> = first.iter().map(|&chunk| (chunk, 1)).collect();
        let order = order(&catalogue, &runs).unwrap();
        let object = |&id: &u64| catalogue.objects()[usize::try_from(id).unwrap()];
        let objects: Vec<ObjectRef> = order.ids.iter().map(object).collect();
        let taken = usize::try_from(catalogue.heads()).unwrap() + order.first.len();
        let bytes = objects[..taken].iter().map(|object| u64::from(object.len)).sum();
        let send = SendOptions::on(interface::choose("lo").unwrap());
        let address = format!("239.255.79.{}:{}", group % 200, 48_000 + group).parse().unwrap();
        let mut config = SessionConfig::new("disk@2", 1, address, send);
        (config.order, config.bundle_blocks) = (Some(runs), BUNDLE_BLOCKS_ATTACHED);
        // Blocks of the size for Ethernet, so that a bundle is about a chunk.
        config.block_bytes = (!server_lies).then_some(1424);
        let counting = |lies: bool| {
            let (inner, lies) = (Arc::clone(&place.repository), AtomicBool::new(lies));
            Arc::new(Counting { inner, bytes: AtomicU64::new(0), lies })
        };
        let server = SessionServer::start(config, objects, catalogue.heads(), counting(server_lies)).unwrap();
        let source = counting(false);
        Self { place, server: Mutex::new(Some(server)), source, first, bytes }
    }

    fn machine(&self, name: &str) -> Mirror {
        let objects = Arc::clone(&self.source) as Arc<dyn ObjectSource>;
        let source = Source { name: "server".to_owned(), objects, cipher: Cipher::None, at_once: 4 };
        let options = MirrorOptions { ahead_chunks_max: 0, ..MirrorOptions::default() };
        Mirror::create(&self.place.path(name), &self.place.manifest("disk"), vec![source], &options).unwrap()
    }

    fn options(&self, join: Arc<mirror::Join>) -> MulticastOptions {
        MulticastOptions {
            join,
            cipher: image::Cipher::None,
            interface: interface::choose("lo").unwrap(),
            name: "machine".to_owned(),
            tell: Arc::new(|_| {}),
        }
    }

    /// Lets `mirror` take part. `change` modifies the server's grant.
    fn multicast(self: &Arc<Self>, mirror: &Mirror, change: fn(SessionGrant) -> SessionGrant) {
        let room = Arc::clone(self);
        let join = move |request: &SessionRequest| {
            let gone = || Error::new(ErrorKind::Unreachable, "the server is gone");
            let server = room.server.lock();
            server.as_ref().ok_or_else(gone)?.admit(request, [127, 0, 0, 1].into()).map(change)
        };
        mirror.join_multicast(self.options(Arc::new(join))).unwrap();
    }

    /// Three machines that have all received something from the session.
    fn three(self: &Arc<Self>) -> Vec<Mirror> {
        let machines: Vec<Mirror> = (0..3).map(|number| self.machine(&format!("{number}"))).collect();
        machines.iter().for_each(|mirror| self.multicast(mirror, |grant| grant));
        while machines.iter().any(|mirror| mirror.counters().arrived_bytes == 0) {
            thread::yield_now();
        }
        machines
    }

    /// Reads the chunks of a boot, and checks their content.
    fn boot(&self, mirror: &Mirror) {
        for &chunk in &self.first {
            let at = chunk * CHUNK;
            let mut bytes = vec![0; usize::try_from(CHUNK.min(SIZE - at)).unwrap()];
            mirror.read(at, &mut bytes).unwrap();
            let at = usize::try_from(at).unwrap();
            assert_eq!(bytes, self.place.content[at..at + bytes.len()], "chunk {chunk}");
        }
    }

    /// Adds another receiver that wants nothing.
    fn admit_somebody(&self) {
        let request = SessionRequest {
            reference: "disk@2".to_owned(),
            manifest: String::new(),
            receiver: "somebody".to_owned(),
            families: Vec::new(),
            mtu: 65536,
            multicast: net::api::MULTICAST_VERSION,
            attached: true,
            peers: false,
        };
        self.server.lock().as_ref().unwrap().admit(&request, [127, 0, 0, 1].into()).unwrap();
    }

    fn sent(&self) -> SessionStatistics {
        self.server.lock().as_ref().unwrap().statistics()
    }

    fn unicast_bytes(&self) -> u64 {
        self.source.bytes.load(Ordering::SeqCst)
    }
}

/// Runs `act` for all machines at the same time.
fn together(machines: &[Mirror], act: impl Fn(&Mirror) + Sync) {
    let begin = Barrier::new(machines.len());
    thread::scope(|scope| {
        for mirror in machines {
            scope.spawn(|| {
                begin.wait();
                act(mirror);
            });
        }
    });
}

#[test]
fn what_three_machines_read_when_they_start_comes_once_for_all() {
    let room = Arc::new(Room::new(1, false));
    let machines = room.three();
    together(&machines, |mirror| room.boot(mirror));
    let sent = room.sent();
    assert!(sent.payload_bytes < room.bytes * 3 / 2, "{} of {}: {sent:#?}", sent.payload_bytes, room.bytes);
    assert!(room.unicast_bytes() < room.bytes / 4, "{} of {}", room.unicast_bytes(), room.bytes);
    for mirror in &machines {
        let counters = mirror.counters();
        assert!(counters.arrived_bytes > room.bytes / 2, "{counters:?}");
        mirror.close().unwrap();
    }
}

#[test]
fn what_several_wait_for_outside_the_order_comes_once_too() {
    let room = Arc::new(Room::new(2, false));
    let machines = room.three();
    together(&machines, |mirror| assert!(all(mirror) == room.place.content));
    let sent = room.sent();
    let (payload, image) = (sent.payload_bytes, sent.image_bytes);
    assert!(payload + room.unicast_bytes() < 2 * image, "{payload} and {} of {image}", room.unicast_bytes());
}

#[test]
fn a_machine_that_is_alone_asks_its_sources() {
    let room = Arc::new(Room::new(3, false));
    let mirror = room.machine("alone");
    room.multicast(&mirror, |grant| grant);
    room.boot(&mirror);
    assert_eq!(mirror.counters().arrived_bytes, 0);
    assert_eq!(room.sent().payload_bytes, 0);
}

#[test]
fn a_session_that_brings_nothing_costs_a_wait_and_no_more() {
    let room = Arc::new(Room::new(4, false));
    let mirror = room.machine("stranger");
    room.admit_somebody();
    room.multicast(&mirror, |grant| SessionGrant { receiver_key: Key([1; 16]), ..grant });
    room.boot(&mirror);
    assert_eq!(mirror.counters().arrived_bytes, 0);
}

#[test]
fn when_the_server_of_the_session_dies_reads_go_on() {
    let room = Arc::new(Room::new(5, false));
    let mirror = room.machine("orphan");
    room.admit_somebody();
    room.multicast(&mirror, |grant| grant);
    while mirror.counters().arrived_bytes == 0 {
        thread::yield_now();
    }
    drop(room.server.lock().take());
    room.boot(&mirror);
}

#[test]
fn what_comes_damaged_is_fetched_and_never_served() {
    let room = Arc::new(Room::new(6, true));
    let machines: Vec<Mirror> = (0..2).map(|number| room.machine(&format!("{number}"))).collect();
    machines.iter().for_each(|mirror| room.multicast(mirror, |grant| grant));
    together(&machines, |mirror| room.boot(mirror));
    assert!(room.unicast_bytes() > 0);
}
