//! Machines that serve each other, over real sockets.
#![expect(clippy::cast_possible_truncation, reason = "tests count to some hundreds")]

mod on_demand;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectKind, ObjectRef, ObjectSource};
use parking_lot::Mutex;
use proto::peer::{Availability, MemberId, Packet, Part, Record, Report, SwarmId, Window, seal_packet};

use super::*;
use crate::clock::{Clock, Stop};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A version without an image: objects with content of their own, and a server that counts what it sends.
struct Version {
    objects: Vec<(ObjectRef, Bytes)>,
    by_digest: HashMap<Digest, usize>,
    sent: AtomicU64,
}

impl Version {
    fn new(objects: u32) -> Arc<Self> {
        let content =
            |object: u32| Bytes::from(vec![object.to_le_bytes()[0]; 3000 + object as usize * 70 % 90_000]);
        let objects: Vec<_> = (0..objects)
            .map(content)
            .enumerate()
            .map(|(number, bytes)| [&number.to_le_bytes()[..], &bytes].concat())
            .map(|bytes| (ObjectRef::of(ObjectKind::Chunk, &bytes), Bytes::from(bytes)))
            .collect();
        let by_digest = objects.iter().enumerate().map(|(at, (object, _))| (object.digest, at)).collect();
        Arc::new(Self { objects, by_digest, sent: AtomicU64::new(0) })
    }

    fn count(&self) -> u32 {
        u32::try_from(self.objects.len()).unwrap()
    }
}

impl ObjectSource for Version {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(self.objects[self.by_digest[&object.digest]].1.clone())
    }
}

/// A machine that takes objects and keeps them for others.
struct Machine {
    version: Arc<Version>,
    node: Node,
    got: Mutex<Vec<bool>>,
}

impl Machine {
    fn join(server: &RedirectorServer, version: &Arc<Version>, rank: u32) -> Self {
        let swarm = server.swarm_of(&Digest::of(b"manifest"));
        let grant = server.admit(swarm, version.count(), rank, 0).unwrap();
        let node = Node::start(grant, HERE, PeerOptions::of_this_machine()).unwrap();
        Self { version: Arc::clone(version), node, got: Mutex::new(vec![false; version.objects.len()]) }
    }

    fn fill(&self, objects: Range<u64>) {
        for object in objects {
            self.node.spool().put(object, &self.version.objects[object as usize].1);
        }
    }

    fn missing(&self) -> Vec<Range<u64>> {
        let got = self.got.lock();
        (0..got.len()).filter(|&object| !got[object]).map(|object| object as u64..object as u64 + 1).collect()
    }

    fn pull(&self) -> Result<Pulled> {
        let stop = Stop::new();
        self.node.pull(&Want {
            objects: self.missing(),
            taker: self,
            server: &*self.version,
            at_once: 4,
            object_bytes: 50_000,
            stop: &stop,
            alone: false,
            limit: Some(Duration::from_secs(60)),
            demands: None,
            arrived: &|_| {},
        })
    }
}

impl Taker for Machine {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        Some(self.version.objects.get(id as usize)?.0)
    }

    fn take(&self, id: u64, bytes: Bytes) -> Result<bool> {
        let Some(object) = self.object(id) else { return Ok(false) };
        if object.verify(&bytes).is_err() {
            return Ok(false);
        }
        self.got.lock()[id as usize] = true;
        self.node.spool().put(id, &bytes);
        Ok(true)
    }
}

fn server() -> RedirectorServer {
    RedirectorServer::start(&[7; 32], "127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Waits until the redirector knows that `objects` objects are held.
fn until_held(server: &RedirectorServer, objects: u32) {
    until(server, |held| held >= objects);
}

/// Waits until the redirector knows that as many objects are held as `is_it` wants.
fn until(server: &RedirectorServer, is_it: impl Fn(u32) -> bool) {
    let clock = Clock::start();
    let held = || {
        server
            .held(server.swarm_of(&Digest::of(b"manifest")))
            .iter()
            .map(|run| run.end - run.start)
            .sum::<u32>()
    };
    while !is_it(held()) {
        assert!(clock.elapsed() < Duration::from_secs(20), "the redirector was not told");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn what_another_machine_holds_comes_from_it_and_the_rest_from_the_server() {
    let (server, version) = (server(), Version::new(300));
    let [holder, asker] = [0, 1].map(|rank| Machine::join(&server, &version, rank));
    holder.fill(0..200);
    until_held(&server, 200);
    let pulled = asker.pull().unwrap();
    assert!(asker.missing().is_empty());
    assert_eq!((pulled.missing, pulled.counters.from_members, pulled.counters.from_server), (0, 200, 100));
    assert_eq!(version.sent.load(Ordering::Relaxed), 100);
    let sent: usize = version.objects[..200].iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!((pulled.peer_bytes, holder.node.traffic().sent_bytes), (sent as u64, sent as u64));
}

#[test]
fn machines_that_start_together_get_one_copy_from_the_server() {
    let (server, version) = (server(), Version::new(600));
    let machines: Vec<_> = (0..6).map(|rank| Machine::join(&server, &version, rank)).collect();
    std::thread::scope(|scope| {
        for machine in &machines {
            scope.spawn(|| machine.pull().unwrap());
        }
    });
    assert!(machines.iter().all(|machine| machine.missing().is_empty()));
    let sent = version.sent.load(Ordering::Relaxed);
    assert!(sent < 700, "{sent} of 600 objects");
}

#[test]
fn a_restarted_redirector_learns_from_reports_and_transfers_go_on() {
    let version = Version::new(100);
    let first = server();
    let port = first.admit(first.swarm_of(&Digest::of(b"manifest")), 100, 0, 0).unwrap().port;
    let [holder, asker] = [0, 1].map(|rank| Machine::join(&first, &version, rank));
    holder.fill(0..100);
    until_held(&first, 100);
    drop(first);
    let second = RedirectorServer::start(&[7; 32], (HERE, port).into()).unwrap();
    until_held(&second, 100);
    assert_eq!(asker.pull().unwrap().counters.from_members, 100);
}

#[test]
fn without_a_redirector_everything_comes_from_the_server() {
    let version = Version::new(40);
    let server = server();
    let machine = Machine::join(&server, &version, 0);
    drop(server);
    let pulled = machine.pull().unwrap();
    assert_eq!((pulled.missing, pulled.counters.from_server), (0, 40));
}

#[test]
fn a_liar_is_left_after_its_first_object() {
    let (server, version) = (server(), Version::new(64));
    let [liar, honest, asker] = [0, 1, 2].map(|rank| Machine::join(&server, &version, rank));
    for object in 0..64 {
        let mut wrong = version.objects[object as usize].1.to_vec();
        wrong[0] ^= 1;
        liar.node.spool().put(object, &wrong);
    }
    honest.fill(0..64);
    until_held(&server, 64);
    let pulled = asker.pull().unwrap();
    assert!(asker.missing().is_empty() && pulled.counters.liars <= 1);
    // Whether the liar was named at all is chance; if so, the redirector knows.
    let again = Machine::join(&server, &version, 3);
    again.pull().unwrap();
    assert!(again.missing().is_empty());
}

#[test]
fn who_does_not_know_the_key_gets_nothing() {
    let (server, version) = (server(), Version::new(4));
    let machine = Machine::join(&server, &version, 0);
    machine.fill(0..4);
    let address = (HERE, machine.node.port()).into();
    assert!(channel::connect(address, machine.node.swarm(), &[0; 32], false).is_err());
    assert!(channel::connect(address, SwarmId(1), machine.node.transfer_key(), false).is_err());
    let (mut sender, mut receiver) =
        channel::connect(address, machine.node.swarm(), machine.node.transfer_key(), false).unwrap();
    sender.put(Record::Get(Part { batch: 0, mask: 0b10_0010 }), &[]).unwrap();
    sender.flush().unwrap();
    let Record::Object { object: 1, bytes } = receiver.record().unwrap() else { panic!("object 1") };
    let mut content = vec![0; bytes as usize];
    receiver.fill(&mut content).unwrap();
    assert_eq!(content, version.objects[1].1);
    assert_eq!(receiver.record().unwrap(), Record::Lacks(Part { batch: 0, mask: 0b10_0000 }));
}

#[test]
fn a_machine_that_leaves_sends_what_was_asked_for_first() {
    let (server, version) = (server(), Version::new(128));
    let machine = Machine::join(&server, &version, 0);
    machine.fill(0..128);
    until_held(&server, 128);
    let (swarm, key) = (machine.node.swarm(), *machine.node.transfer_key());
    let (mut sender, mut receiver) =
        channel::connect((HERE, machine.node.port()).into(), swarm, &key, false).unwrap();
    for batch in 0..4 {
        sender.put(Record::Get(Part { batch, mask: u32::MAX }), &[]).unwrap();
    }
    sender.flush().unwrap();
    let leaving = std::thread::spawn(move || drop(machine));
    // More is under way than sockets hold, so it cannot have sent everything yet.
    until(&server, |held| held == 0);
    for number in 0..128 {
        let Record::Object { object, bytes } = receiver.record().unwrap() else { panic!("object {number}") };
        let mut content = vec![0; bytes as usize];
        receiver.fill(&mut content).unwrap();
        assert_eq!((object, &content[..]), (number, &version.objects[number as usize].1[..]));
    }
    leaving.join().unwrap();
}

#[test]
fn a_changed_byte_of_a_transfer_ends_it() {
    let door = TcpListener::bind((HERE, 0)).unwrap();
    let address = door.local_addr().unwrap();
    let answer =
        std::thread::spawn(move || channel::accept(door.accept().unwrap().0, |_| Some([1; 32])).unwrap());
    let (mut sender, _receiver) = channel::connect(address, SwarmId(5), &[1; 32], false).unwrap();
    let (_, mut other) = answer.join().unwrap();
    let stream: TcpStream = sender.stream().unwrap();
    std::io::Write::write_all(&mut &stream, &[0, 28, 9]).unwrap();
    std::io::Write::write_all(&mut &stream, &[7; 27]).unwrap();
    sender.put(Record::Busy, &[]).unwrap();
    sender.flush().unwrap();
    assert_eq!(other.record().unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn an_error_of_the_target_ends_the_pull() {
    struct Full(Arc<Version>);
    impl Taker for Full {
        fn object(&self, id: u64) -> Option<ObjectRef> {
            Some(self.0.objects[id as usize].0)
        }
        fn take(&self, _: u64, _: Bytes) -> Result<bool> {
            Err(Error::new(ErrorKind::Full, "no room"))
        }
    }
    let (server, version) = (server(), Version::new(64));
    let [holder, asker] = [0, 1].map(|rank| Machine::join(&server, &version, rank));
    holder.fill(0..64);
    until_held(&server, 64);
    let (stop, taker) = (Stop::new(), Full(Arc::clone(&version)));
    let want = Want {
        objects: vec![0..32, 32..64],
        taker: &taker,
        server: &*version,
        at_once: 2,
        object_bytes: 50_000,
        stop: &stop,
        alone: false,
        limit: None,
        demands: None,
        arrived: &|_| {},
    };
    assert_eq!(asker.node.pull(&want).unwrap_err().kind(), ErrorKind::Full);
}
