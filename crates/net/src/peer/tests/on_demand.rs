//! Pulls of a disk that runs: objects are demanded while it goes on.

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::*;

/// Takes what is pulled on demand for a machine.
struct OnDemand<'a> {
    machine: &'a Machine,
    came: Sender<(u64, Option<ErrorKind>)>,
    heard: Mutex<Vec<News>>,
}

impl Taker for OnDemand<'_> {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        self.machine.object(id)
    }

    fn take(&self, id: u64, bytes: Bytes) -> Result<bool> {
        let right = self.machine.take(id, bytes)?;
        if right {
            self.came.send((id, None)).unwrap();
        }
        Ok(right)
    }

    fn failed(&self, id: u64, error: Error) -> Option<Error> {
        self.came.send((id, Some(error.kind()))).unwrap();
        None
    }

    fn hear(&self, news: News) {
        self.heard.lock().push(news);
    }
}

/// A pull on demand that runs.
struct Pulling<'a> {
    demands: Sender<Demand>,
    came: Receiver<(u64, Option<ErrorKind>)>,
    taker: &'a OnDemand<'a>,
}

impl Pulling<'_> {
    /// Wants an object and waits for it. The error with which it failed.
    fn get(&self, object: u64) -> Option<ErrorKind> {
        self.demands.send(Demand::Want(object)).unwrap();
        let (came, failure) = self.came.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(came, object);
        failure
    }
}

/// Pulls for `machine` what `act` demands; `server` has what members do not have.
fn on_demand(machine: &Machine, server: &dyn ObjectSource, act: impl FnOnce(&Pulling<'_>)) -> Pulled {
    let ((demands, demanded), (came, coming)) = (unbounded(), unbounded());
    let taker = OnDemand { machine, came, heard: Mutex::default() };
    std::thread::scope(|scope| {
        let pull = scope.spawn(|| {
            machine.node.pull(&Want {
                objects: Vec::new(),
                taker: &taker,
                server,
                at_once: 4,
                object_bytes: 50_000,
                stop: &Stop::new(),
                alone: false,
                limit: None,
                demands: Some(demanded),
                arrived: &|_| {},
            })
        });
        act(&Pulling { demands, came: coming, taker: &taker });
        pull.join().unwrap().unwrap()
    })
}

#[test]
fn what_is_demanded_comes_from_a_member_that_has_it_and_else_from_the_server() {
    let (server, version) = (server(), Version::new(64));
    let [holder, asker] = [0, 1].map(|rank| Machine::join(&server, &version, rank));
    holder.fill(0..32);
    until_held(&server, 32);
    let pulled = on_demand(&asker, &*version, |pulling| {
        assert_eq!([5, 6, 40, 7].map(|object| pulling.get(object)), [None; 4]);
        assert!(pulling.taker.heard.lock().contains(&News::Came));
        drop(holder);
        assert_eq!([8, 9].map(|object| pulling.get(object)), [None; 2]);
    });
    assert_eq!((pulled.counters.from_members, pulled.counters.from_server), (3, 3));
    assert_eq!((pulled.missing, version.sent.load(Ordering::Relaxed)), (0, 3));
}

#[test]
fn what_arrives_in_another_way_is_not_pulled() {
    let (server, version) = (server(), Version::new(64));
    let asker = Machine::join(&server, &version, 0);
    let pulled = on_demand(&asker, &*version, |pulling| {
        pulling.demands.send(Demand::Want(3)).unwrap();
        pulling.demands.send(Demand::Have(3)).unwrap();
        assert_eq!(pulling.get(4), None);
    });
    assert_eq!((pulled.missing, version.sent.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn an_error_of_the_server_is_of_that_object_only() {
    struct Lossy(Arc<Version>);
    impl ObjectSource for Lossy {
        fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
            match self.0.by_digest[&object.digest] {
                7 => Err(Error::new(ErrorKind::NotFound, "lost")),
                8 => Ok(self.0.objects[9].1.clone()),
                _ => self.0.fetch(object),
            }
        }
    }
    let (server, version) = (server(), Version::new(64));
    let asker = Machine::join(&server, &version, 0);
    let pulled = on_demand(&asker, &Lossy(Arc::clone(&version)), |pulling| {
        let came = [6, 7, 8, 9, 7].map(|object| pulling.get(object));
        let (lost, wrong) = (Some(ErrorKind::NotFound), Some(ErrorKind::Corrupt));
        assert_eq!(came, [None, lost, wrong, None, lost]);
        assert!(pulling.taker.heard.lock().iter().all(|news| *news == News::Alone));
    });
    assert_eq!((pulled.missing, pulled.counters.from_server), (0, 2));
}

#[test]
fn a_liar_costs_an_object_on_demand_once() {
    let (server, version) = (server(), Version::new(64));
    let [liar, asker] = [0, 1].map(|rank| Machine::join(&server, &version, rank));
    for object in 0..64 {
        let mut wrong = version.objects[object as usize].1.to_vec();
        wrong[0] ^= 1;
        liar.node.spool().put(object, &wrong);
    }
    until_held(&server, 64);
    let pulled = on_demand(&asker, &*version, |pulling| {
        assert_eq!([3, 4, 5, 40].map(|object| pulling.get(object)), [None; 4]);
    });
    assert_eq!((pulled.counters.liars, pulled.counters.from_members), (1, 0));
    assert_eq!(version.sent.load(Ordering::Relaxed), 4);
}

#[test]
fn a_member_that_stalls_is_given_up_and_the_server_is_asked() {
    let (server, version) = (server(), Version::new(64));
    let asker = Machine::join(&server, &version, 0);
    // It says that it has everything, and takes connections, but sends nothing.
    let (door, packets) = (TcpListener::bind((HERE, 0)).unwrap(), UdpSocket::bind((HERE, 0)).unwrap());
    let swarm = server.swarm_of(&Digest::of(b"manifest"));
    let grant = server.admit(swarm, version.count(), 1, 0).unwrap();
    let mut held = Availability::none(version.count());
    (0..64).for_each(|object| held.set(object, true));
    let report = Report {
        port: door.local_addr().unwrap().port(),
        uploads: 0,
        place: 0,
        objects: version.count(),
        window: Window::of(&held, 0),
    };
    let key = grant.member_key.into();
    let packet = seal_packet(&key, SwarmId(swarm.0), MemberId(grant.member.0), 1, &Packet::Report(report));
    packets.send_to(&packet, (HERE, grant.port)).unwrap();
    until_held(&server, 64);
    let pulled = on_demand(&asker, &*version, |pulling| {
        assert_eq!(pulling.get(3), None);
        assert!(pulling.taker.heard.lock().contains(&News::Others), "it was named");
    });
    let counters = pulled.counters;
    assert_eq!((counters.failures, counters.from_members, counters.from_server), (1, 0, 1));
}

#[test]
fn a_redirector_that_is_gone_is_noticed() {
    let (server, version) = (server(), Version::new(64));
    let asker = Machine::join(&server, &version, 0);
    drop(server);
    on_demand(&asker, &*version, |pulling| {
        assert_eq!([3, 4].map(|object| pulling.get(object)), [None; 2]);
        let heard = pulling.taker.heard.lock();
        assert!(heard.contains(&News::Deaf) || heard.contains(&News::Overdue), "{heard:?}");
    });
}

#[test]
fn what_is_announced_is_left_to_the_one_that_gets_it() {
    let (server, version) = (server(), Version::new(64));
    let [first, second] = [0, 1].map(|rank| Machine::join(&server, &version, rank));
    on_demand(&first, &*version, |pulling| {
        // An answer that comes before the pull began is not heard.
        while pulling.taker.heard.lock().is_empty() {
            first.node.announce(3);
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let pulled = on_demand(&second, &*version, |other| {
            other.demands.send(Demand::Want(3)).unwrap();
            while !other.taker.heard.lock().contains(&News::Others) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            first.fill(3..4);
            assert_eq!(other.came.recv_timeout(Duration::from_secs(30)).unwrap(), (3, None));
        });
        assert_eq!((pulled.counters.from_members, pulled.counters.from_server), (1, 0));
    });
}
