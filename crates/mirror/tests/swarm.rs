//! Disks that serve each other over loopback: what one of them got, the others get from it, and any failure costs only
//! time.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Catalogue, Cipher, Manifest, ObjectRef, ObjectSource, SignedManifest};
use mirror::{CommitOptions, Durability, Mirror, MirrorOptions, Served, Source, Swarm};
use net::api::{Name, SwarmGrant};
use net::peer::{Node, PeerOptions, RedirectorServer, SpoolLimits};
use proto::peer::{Availability, MemberId, Packet, Report, SwarmId, Window, seal_packet};
use store::{CACHE_BYTES_MIN, Cache, CacheSetting, Repository};

use crate::common::{Place, all, stamp};

const SIZE: u64 = 24 << 20;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A server's objects; it counts the bytes that it sends.
struct Counting {
    inner: Arc<Repository>,
    bytes: AtomicU64,
}

impl ObjectSource for Counting {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.bytes.fetch_add(object.len.into(), Ordering::SeqCst);
        self.inner.fetch(object)
    }
}

/// A server with one version.
struct Room {
    place: Place,
    redirector: RedirectorServer,
    source: Arc<Counting>,
    joined: AtomicU32,
    objects: u32,
    /// Bytes of all objects.
    bytes: u64,
}

impl Room {
    fn new(seed: u64) -> Arc<Self> {
        let place = Place::new(SIZE, seed);
        let catalogue =
            Catalogue::load(&place.manifest("disk"), &*place.repository, place.repository.cipher()).unwrap();
        let redirector = RedirectorServer::start(&[7; 32], (HERE, 0).into()).unwrap();
        let source = Arc::new(Counting { inner: Arc::clone(&place.repository), bytes: AtomicU64::new(0) });
        let objects = u32::try_from(catalogue.objects().len()).unwrap();
        Arc::new(Self {
            place,
            redirector,
            source,
            joined: AtomicU32::new(0),
            objects,
            bytes: catalogue.bytes(),
        })
    }

    fn swarm(&self) -> Name {
        self.name(&self.place.manifest("disk@2"))
    }

    fn name(&self, manifest: &Manifest) -> Name {
        let sealed = SignedManifest::open(&manifest.encode(None).unwrap()).unwrap();
        self.redirector.swarm_of(&sealed.digest())
    }

    fn admit(&self, swarm: Name) -> SwarmGrant {
        let rank = self.joined.fetch_add(1, Ordering::SeqCst);
        self.redirector.admit(swarm, self.objects, rank, 0).unwrap()
    }

    /// A disk that takes part.
    fn disk(self: &Arc<Self>, name: &str, cache: Option<Arc<Cache>>) -> Mirror {
        let room = Arc::clone(self);
        let join = move |manifest: &Manifest| {
            let spool = SpoolLimits::of_attached_disk();
            let grant = room.admit(room.name(manifest));
            Node::start(grant, HERE, PeerOptions { spool, ..PeerOptions::of_this_machine() }).map(Some)
        };
        self.disk_that_joins(name, cache, join)
    }

    fn disk_that_joins(
        &self,
        name: &str,
        cache: Option<Arc<Cache>>,
        join: impl Fn(&Manifest) -> Result<Option<Node>> + Send + Sync + 'static,
    ) -> Mirror {
        let server = Arc::clone(&self.source) as Arc<dyn ObjectSource>;
        let swarm = Swarm::new(join, Cipher::None, Arc::clone(&server), |_| {});
        let source = Source { name: "server".to_owned(), objects: server, cipher: Cipher::None, at_once: 4 };
        let sources = vec![source.with_peers(&swarm, cache)];
        let manifest = self.place.manifest("disk@2");
        let mirror =
            Mirror::create(&self.place.path(name), &manifest, sources, &MirrorOptions::default()).unwrap();
        mirror.join_swarm(&swarm).unwrap();
        mirror
    }

    /// Reads the whole disk and checks it.
    fn read(&self, mirror: &Mirror) {
        assert!(all(mirror) == self.place.content);
    }

    fn sent(&self) -> u64 {
        self.source.bytes.load(Ordering::SeqCst)
    }

    /// Waits until the redirector knows that everything is held.
    fn until_held(&self) {
        let whole = 0..self.objects;
        while self.redirector.held(self.swarm()).first() != Some(&whole) {
            thread::yield_now();
        }
    }

    fn until_members(&self, swarm: Name, members: u32) {
        while self.redirector.view(swarm).members != members {
            thread::yield_now();
        }
    }
}

#[test]
fn what_one_disk_read_others_get_from_it() {
    let room = Room::new(1);
    let first = room.disk("first", None);
    room.read(&first);
    room.until_held();
    let sent = room.sent();
    // A node may be fetched twice: for a read, and for the numbers of objects.
    assert!(sent < room.bytes * 11 / 10, "{sent} of {}", room.bytes);
    let second = room.disk("second", None);
    room.read(&second);
    assert_eq!(room.sent(), sent, "the server is not asked for what the first has");
    let (gave, got) = (first.swarm_traffic(), second.swarm_traffic());
    assert_eq!((got.peer_bytes, gave.served_bytes, gave.peer_bytes), (room.bytes, room.bytes, 0));
    // What came from another machine is served on.
    first.close().unwrap();
    room.until_members(room.swarm(), 1);
    let third = room.disk("third", None);
    room.read(&third);
    assert_eq!((room.sent(), third.swarm_traffic().peer_bytes), (sent, room.bytes));
    assert_eq!(first.swarm_traffic(), gave, "also after the end");
}

#[test]
fn disks_that_start_together_cost_the_server_little_more_than_one() {
    let room = Room::new(2);
    let disks: Vec<Mirror> = (0..4).map(|number| room.disk(&format!("{number}"), None)).collect();
    // All know of each other.
    room.until_members(room.swarm(), 4);
    thread::scope(|scope| {
        for disk in &disks {
            scope.spawn(|| room.read(disk));
        }
    });
    let sent = room.sent();
    assert!(sent < room.bytes * 3 / 2, "{sent} of {}", room.bytes);
    for disk in &disks {
        disk.close().unwrap();
    }
}

#[test]
fn without_a_swarm_everything_comes_from_the_server() {
    let room = Room::new(3);
    let none = room.disk_that_joins("none", None, |_| Ok(None));
    room.read(&none);
    let fails = |_: &Manifest| Err(Error::new(ErrorKind::Unreachable, "nobody there"));
    let failed = room.disk_that_joins("failed", None, fails);
    room.read(&failed);
    assert_eq!(room.sent(), 2 * room.bytes);
}

#[test]
fn members_that_stall_cost_time_and_no_more() {
    let room = Room::new(4);
    // It says that it has everything, and takes connections, but sends nothing.
    let (door, packets) = (TcpListener::bind((HERE, 0)).unwrap(), UdpSocket::bind((HERE, 0)).unwrap());
    let grant = room.admit(room.swarm());
    let mut held = Availability::none(room.objects);
    (0..room.objects).for_each(|object| held.set(object.into(), true));
    let (port, objects) = (door.local_addr().unwrap().port(), room.objects);
    let report = Report { port, uploads: 0, place: 0, objects, window: Window::of(&held, 0) };
    let (key, swarm, member) = (grant.member_key.into(), SwarmId(grant.swarm.0), MemberId(grant.member.0));
    let packet = seal_packet(&key, swarm, member, 1, &Packet::Report(report));
    packets.send_to(&packet, (HERE, grant.port)).unwrap();
    room.until_held();
    let disk = room.disk("disk", None);
    room.read(&disk);
    assert_eq!(disk.swarm_traffic().peer_bytes, 0);
    assert!(room.sent() < room.bytes * 11 / 10, "{} of {}", room.sent(), room.bytes);
}

#[test]
fn a_disk_with_another_version_leaves() {
    let room = Room::new(5);
    let disk = room.disk("disk", None);
    let swarm = room.swarm();
    room.until_members(swarm, 1);
    room.read(&disk);
    disk.write(0, &[7; 4096], Durability::Durable).unwrap();
    let image = "disk".parse().unwrap();
    disk.commit(&*room.place.repository, &image, &CommitOptions::new(&stamp())).unwrap().unwrap();
    assert_eq!(disk.base().number, 3);
    room.until_members(swarm, 0);
    let mut expected = room.place.content.clone();
    expected[..4096].fill(7);
    assert!(all(&disk) == expected);
    disk.close().unwrap();
}

#[test]
fn what_is_in_the_cache_of_the_machine_is_served_on() {
    let room = Room::new(6);
    let setting = CacheSetting { folder: room.place.path("cache"), bytes_max: CACHE_BYTES_MIN };
    let cache = Arc::new(Cache::open(&setting).unwrap());
    let first = room.disk_that_joins("first", Some(Arc::clone(&cache)), |_| Ok(None));
    room.read(&first);
    let sent = room.sent();
    // It reads nothing itself.
    let second = room.disk("second", Some(cache));
    room.until_held();
    assert_eq!(second.swarm_traffic().peer_bytes, 0);
    let third = room.disk("third", None);
    room.read(&third);
    assert_eq!(third.swarm_traffic().peer_bytes, room.bytes);
    assert_eq!(room.sent(), sent);
}
