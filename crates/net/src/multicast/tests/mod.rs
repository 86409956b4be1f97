//! Tests server and receivers as threads, over loopback and over a link between two network namespaces.

mod forged;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{Chance, ErrorKind, Result};
use bytes::Bytes;
use crossbeam_channel::{Sender, unbounded as channel};
use image::{MemoryObjects, ObjectKind, ObjectRef, ObjectSink, ObjectSource};
use proto::multicast::{BLOCK_HEADER_BYTES, TAG_BYTES};

use super::budget::Budget;
use super::bundle::BUNDLE_BLOCKS_ATTACHED;
use super::receiver::{Accept, Consumer, End, ReceiveOptions, Received, SessionView, Wish, receive};
use super::server::{SessionConfig, SessionServer};
use crate::api::{Key, MULTICAST_VERSION, SessionGrant, SessionRequest};
use crate::clock::Stop;
use crate::interface::{self, Interface};
use crate::testbed;
use crate::udp::{Arrivals, GroupReceiver, SendOptions};

/// The machine of receivers on loopback.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Objects of many lengths, including an empty one and exact multiples of common block sizes.
fn objects(seed: u64, count: usize) -> (Vec<ObjectRef>, Arc<MemoryObjects>) {
    let (mut chance, memory) = (Chance::from_seed(seed), MemoryObjects::new());
    let mut names = Vec::new();
    for index in 0..count {
        let len = match index {
            0 => 1,
            1 => 8960,
            2 => 1424 * 64,
            _ => usize::try_from(chance.below(200_000)).unwrap(),
        };
        let mut bytes = vec![0; len];
        chance.fill(&mut bytes);
        let name = ObjectRef::of(ObjectKind::Chunk, &bytes);
        memory.put(&name, bytes.into()).unwrap();
        names.push(name);
    }
    (names, Arc::new(memory))
}

fn request(receiver: &str, mtu: u32) -> SessionRequest {
    SessionRequest {
        reference: "image@1".into(),
        manifest: String::new(),
        receiver: receiver.into(),
        families: Vec::new(),
        mtu,
        multicast: MULTICAST_VERSION,
        attached: false,
        peers: false,
    }
}

fn start(
    group: &str,
    interface: &Interface,
    names: &[ObjectRef],
    source: Arc<dyn ObjectSource>,
) -> SessionServer {
    let send = SendOptions::on(interface.clone());
    let config = SessionConfig::new("image@1", 1, group.parse().unwrap(), send);
    SessionServer::start(config, names.to_vec(), 2, source).unwrap()
}

/// Wants everything, compares digests, and causes the trouble that a test requests.
struct Collector<'a> {
    names: &'a [ObjectRef],
    got: HashMap<u64, Bytes>,
    asked: bool,
    /// Has no room at every n-th object.
    full_every: usize,
    offers: usize,
    /// Reports this object as damaged.
    spoils: Option<u64>,
    /// Objects that it was told to get in another way.
    otherwise: Vec<u64>,
    have: Vec<u64>,
    /// Stops when it has this many objects.
    stop_at: Option<(usize, Stop)>,
}

impl<'a> Collector<'a> {
    fn new(names: &'a [ObjectRef]) -> Self {
        let (got, have) = (HashMap::new(), Vec::new());
        Self {
            names,
            got,
            asked: false,
            full_every: usize::MAX,
            offers: 0,
            spoils: None,
            otherwise: Vec::new(),
            have,
            stop_at: None,
        }
    }
}

impl Consumer for Collector<'_> {
    fn wishes(&mut self) -> Result<Vec<Wish>> {
        let mut wishes: Vec<_> = self.have.drain(..).map(Wish::Have).collect();
        if !std::mem::replace(&mut self.asked, true) {
            let lengths = self.names.iter().map(|name| name.len).collect();
            let (heads, others) = (Wish::Want(0..2), Wish::Want(2..self.names.len() as u64));
            wishes.extend([heads, Wish::Lengths(lengths), others, Wish::Nothing]);
        }
        Ok(wishes)
    }

    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept> {
        self.offers += 1;
        if self.offers.is_multiple_of(self.full_every) {
            return Ok(Accept::Full);
        }
        if self.spoils == Some(object) || self.names[usize::try_from(object).unwrap()].verify(bytes).is_err()
        {
            return Ok(Accept::Bad);
        }
        assert!(self.got.insert(object, bytes.clone()).is_none(), "object {object} was handed on twice");
        if let Some((count, stop)) = &self.stop_at
            && self.got.len() >= *count
        {
            stop.stop();
        }
        Ok(Accept::Taken)
    }

    fn get_otherwise(&mut self, object: u64) {
        self.otherwise.push(object);
        self.got.insert(object, Bytes::new());
        self.have.push(object);
    }
}

fn fetch_all(grant: &SessionGrant, interface: &Interface, names: &[ObjectRef]) -> Received {
    let mut collector = Collector::new(names);
    let received = receive(grant, &ReceiveOptions::on(interface.clone()), &mut collector).unwrap();
    assert_eq!(received.end, End::Complete, "{received:?}");
    assert_eq!(collector.got.len(), names.len());
    received
}

fn loopback() -> Interface {
    interface::choose("lo").unwrap()
}

#[test]
fn several_receivers_get_everything_and_it_is_sent_once() {
    let (names, memory) = objects(1, 300);
    let server = start("239.255.78.1:47801", &loopback(), &names, memory);
    let grants: Vec<_> =
        (0..3).map(|n| server.admit(&request(&format!("host {n}"), 65536), HERE).unwrap()).collect();
    thread::scope(|scope| {
        for grant in &grants {
            scope.spawn(|| fetch_all(grant, &loopback(), &names));
        }
    });
    let statistics = server.stop();
    assert_eq!(statistics.receivers.len(), 3, "{statistics:#?}");
    assert_eq!(statistics.receivers[2].name, "host 2");
    // Without loss everything is sent once, or twice for a receiver that starts a moment later; never once per
    // receiver.
    assert!(statistics.payload_bytes < 2 * statistics.image_bytes, "{statistics:#?}");
    assert!(!statistics.running && statistics.read_failures == 0, "{statistics:#?}");
}

#[test]
fn a_receiver_that_is_full_and_spoils_objects_still_ends_right() {
    let (names, memory) = objects(2, 100);
    let server = start("239.255.78.2:47802", &loopback(), &names, memory);
    let grant = server.admit(&request("difficult", 65536), HERE).unwrap();
    let mut collector = Collector { full_every: 3, spoils: Some(7), ..Collector::new(&names) };
    let mut options = ReceiveOptions::on(loopback());
    options.buffer_bytes = 600_000;
    let received = receive(&grant, &options, &mut collector).unwrap();
    assert_eq!(received.end, End::Complete, "{received:?} {:#?}", server.statistics());
    assert_eq!(collector.otherwise, [7]);
    assert_eq!(collector.got.len(), names.len());
}

#[test]
fn over_a_link_with_both_families_and_a_late_joiner() {
    for group in ["239.255.78.3:47803", "[ff12::7803]:47803"] {
        let (names, memory) = objects(3, 200);
        let (to_client, grants) = channel();
        let (done, is_done) = channel();
        let (ready, is_ready) = channel();
        let tried = testbed::on_a_link(
            || {
                let group: SocketAddr = group.parse().unwrap();
                let interface = interface::preferred().unwrap();
                let server = start(&group.to_string(), &interface, &names, memory);
                is_ready.recv().unwrap();
                for name in ["early", "late"] {
                    to_client.send(server.admit(&request(name, 1500), HERE).unwrap()).unwrap();
                }
                assert_eq!(
                    server.admit(&request("tiny", 1280), HERE).unwrap_err().kind(),
                    ErrorKind::Refused
                );
                is_done.recv().unwrap();
                server.stop();
            },
            |joined| {
                joined.give();
                ready.send(()).unwrap();
                let interface = interface::preferred().unwrap();
                let (early, late) = (grants.recv().unwrap(), grants.recv().unwrap());
                let stop = Stop::new();
                let half = names.len() / 2;
                let mut cut = Collector { stop_at: Some((half, stop.clone())), ..Collector::new(&names) };
                let options = ReceiveOptions { stop, ..ReceiveOptions::on(interface.clone()) };
                let received = receive(&early, &options, &mut cut).unwrap();
                assert_eq!(received.end, End::Stopped);
                assert!(cut.got.len() >= half);
                fetch_all(&late, &interface, &names);
                done.send(()).unwrap();
            },
        );
        if !tried {
            return;
        }
    }
}

#[test]
fn a_stranger_hears_nothing_and_says_so() {
    let (names, memory) = objects(4, 10);
    let server = start("239.255.78.4:47804", &loopback(), &names, memory);
    let grant = server.admit(&request("stranger", 65536), HERE).unwrap();
    let mut options = ReceiveOptions::on(loopback());
    options.silent_after = Duration::from_millis(300);
    options.stalled_after = Duration::from_millis(300);
    let strange = SessionGrant { group_key: Key([1; 16]), ..grant.clone() };
    let received = receive(&strange, &options, &mut Collector::new(&names)).unwrap();
    assert_eq!(received.end, End::Silent { heard: false });
    let strange = SessionGrant { receiver_key: Key([1; 16]), ..grant };
    let received = receive(&strange, &options, &mut Collector::new(&names)).unwrap();
    assert_ne!(received.end, End::Complete);
    assert!(server.statistics().rejected > 0);
}

#[test]
fn a_session_that_ends_says_so_and_one_without_receivers_ends_itself() {
    let (names, memory) = objects(5, 500);
    let server = start("239.255.78.5:47805", &loopback(), &names, memory);
    let grant = server.admit(&request("abandoned", 65536), HERE).unwrap();
    let (began, has_begun) = channel();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            struct Slow(Sender<()>, bool);
            impl Consumer for Slow {
                fn wishes(&mut self) -> Result<Vec<Wish>> {
                    Ok(if std::mem::replace(&mut self.1, true) { vec![] } else { vec![Wish::Want(0..2)] })
                }
                fn take(&mut self, _: u64, _: &Bytes) -> Result<Accept> {
                    let _ = self.0.send(());
                    Ok(Accept::Full)
                }
                fn get_otherwise(&mut self, _: u64) {}
            }
            receive(&grant, &ReceiveOptions::on(loopback()), &mut Slow(began, false)).unwrap().end
        });
        has_begun.recv().unwrap();
        server.stop();
        assert_eq!(receiver.join().unwrap(), End::Ended);
    });

    let (names, memory) = objects(6, 5);
    let mut config =
        SessionConfig::new("image@1", 1, "239.255.78.6:47806".parse().unwrap(), SendOptions::on(loopback()));
    config.deserted_after = Duration::from_millis(10);
    let server = SessionServer::start(config, names, 1, memory).unwrap();
    while !server.is_over() {
        thread::yield_now();
    }
    assert_eq!(server.admit(&request("too late", 65536), HERE).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn what_the_server_cannot_read_is_not_sent_as_something_else() {
    let (names, memory) = objects(7, 20);
    memory.tamper(&names[5], Some(Bytes::from_static(b"decayed")));
    memory.tamper(&names[6], None);
    let server = start("239.255.78.7:47807", &loopback(), &names, memory);
    let grant = server.admit(&request("host", 65536), HERE).unwrap();
    let mut collector = Collector::new(&names);
    let received = receive(&grant, &ReceiveOptions::on(loopback()), &mut collector).unwrap();
    assert_eq!((received.end, received.objects, received.spoilt), (End::Complete, 18, 2), "{received:?}");
    assert_eq!(collector.otherwise, [5, 6], "what lies in one bundle with them is none the worse");
    assert!(server.stop().read_failures >= 2);
}

/// Wants everything, then one object urgently; records the order in which objects arrive.
struct Hurried<'a> {
    names: &'a [ObjectRef],
    came: Vec<u64>,
    asked: bool,
    hurried: bool,
    view: SessionView,
}

impl Consumer for Hurried<'_> {
    fn wishes(&mut self) -> Result<Vec<Wish>> {
        let last = self.names.len() as u64 - 1;
        if !std::mem::replace(&mut self.asked, true) {
            let lengths = self.names.iter().map(|name| name.len).collect();
            return Ok(vec![Wish::Want(0..2), Wish::Lengths(lengths), Wish::Want(2..last)]);
        }
        if self.came.len() < 5 || std::mem::replace(&mut self.hurried, true) {
            return Ok(Vec::new());
        }
        Ok(vec![Wish::Hurry(last), Wish::Nothing])
    }

    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept> {
        self.names[usize::try_from(object).unwrap()].verify(bytes).unwrap();
        self.came.push(object);
        Ok(Accept::Taken)
    }

    fn observe(&mut self, view: SessionView) {
        self.view = view;
    }

    fn get_otherwise(&mut self, object: u64) {
        panic!("object {object} was not left to others");
    }
}

#[test]
fn what_somebody_waits_for_comes_before_the_rest_and_once_for_all() {
    let (names, memory) = objects(8, 60);
    let send = SendOptions::on(loopback());
    let mut config = SessionConfig::new("image@1", 1, "239.255.78.8:47808".parse().unwrap(), send);
    config.budget = Budget::new(Some(40_000_000), 1_000_000);
    config.bundle_blocks = BUNDLE_BLOCKS_ATTACHED;
    config.order = Some(vec![(3, 4)]);
    let server = SessionServer::start(config, names.clone(), 2, memory).unwrap();
    let grants: Vec<_> =
        (0..3).map(|n| server.admit(&request(&format!("{n}"), 65536), HERE).unwrap()).collect();
    assert!(grants.iter().all(|grant| grant.order == Some(vec![(3, 4)])));
    let options = ReceiveOptions { scattered_bytes_max: 0, ..ReceiveOptions::on(loopback()) };
    thread::scope(|scope| {
        for grant in &grants {
            scope.spawn(|| {
                let view = SessionView { receivers: 0, blocks: 0 };
                let (came, asked, hurried) = (Vec::new(), false, false);
                let mut consumer = Hurried { names: &names, came, asked, hurried, view };
                let received = receive(grant, &options, &mut consumer).unwrap();
                assert_eq!((received.end, received.objects), (End::Complete, 60), "{received:?}");
                let place = consumer.came.iter().position(|&object| object == 59).unwrap();
                assert!(place < 40, "{:?}", consumer.came);
                assert!(consumer.view.receivers >= 1 && consumer.view.blocks >= 60, "{:?}", consumer.view);
            });
        }
    });
    let statistics = server.stop();
    assert!(statistics.payload_bytes < 2 * statistics.image_bytes, "{statistics:#?}");
}

/// BLOCKs of a session as a machine without any key hears them: payloads by sequence.
fn eavesdrop(
    config: SessionConfig,
    names: &[ObjectRef],
    memory: Arc<dyn ObjectSource>,
) -> BTreeMap<u64, Vec<u8>> {
    let ear = GroupReceiver::join(config.group, &loopback(), None).unwrap();
    let server = SessionServer::start(config, names.to_vec(), 2, memory).unwrap();
    let grant = server.admit(&request("member", 65536), HERE).unwrap();
    let mut heard = BTreeMap::new();
    thread::scope(|scope| {
        let member = scope.spawn(|| fetch_all(&grant, &loopback(), names));
        let mut arrivals = Arrivals::default();
        while !member.is_finished() {
            while ear.receive(&mut arrivals).unwrap() {
                let packets = arrivals.trains().flat_map(|train| train.bytes.chunks(train.packet_bytes));
                for packet in packets.filter(|packet| packet[1] == 1) {
                    let sequence = u64::from_le_bytes(packet[16..24].try_into().unwrap());
                    let payload = packet[BLOCK_HEADER_BYTES..packet.len() - TAG_BYTES].to_vec();
                    assert!(
                        heard.insert(sequence, payload).is_none(),
                        "sequence {sequence} encrypts only once"
                    );
                }
            }
        }
    });
    heard
}

#[test]
fn who_is_no_member_reads_nothing_and_no_two_starts_encrypt_alike() {
    let (names, memory) = objects(9, 100);
    let content: Vec<_> = names.iter().map(|name| memory.fetch(name).unwrap()).collect();
    let is_known = |payload: &Vec<u8>| {
        let start = &payload[..payload.len().min(32)];
        payload.len() > 64 && content.iter().any(|object| object.windows(32).any(|part| part == start))
    };
    let config = |epoch| {
        let send = SendOptions::on(loopback());
        SessionConfig::new("image@1", epoch, "239.255.78.9:47809".parse().unwrap(), send)
    };
    let mut plain = config(1);
    plain.encrypted = false;
    let plain = eavesdrop(plain, &names, memory.clone());
    assert!(plain.values().filter(|payload| is_known(payload)).count() > 100, "the ear is good");
    let starts = [2, 3].map(|epoch| eavesdrop(config(epoch), &names, memory.clone()));
    assert!(starts.iter().all(|heard| heard.len() > 100 && !heard.values().any(is_known)));
    let alike = starts[0].iter().filter(|(sequence, payload)| starts[1].get(sequence) == Some(payload));
    assert_eq!(alike.count(), 0, "one image, one order of sending: only the keys differ");
}

#[test]
fn other_versions_of_multicast_are_refused_by_both_sides() {
    let (names, memory) = objects(10, 5);
    let server = start("239.255.78.10:47810", &loopback(), &names, memory);
    let old = SessionRequest { multicast: 2, ..request("old", 65536) };
    let refused = server.admit(&old, HERE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(base::chain(&refused).contains("version 3 of multicast, the receiver 2"), "{refused}");
    let grant = SessionGrant { multicast: 2, ..server.admit(&request("new", 65536), HERE).unwrap() };
    let refused = receive(&grant, &ReceiveOptions::on(loopback()), &mut Collector::new(&names)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
