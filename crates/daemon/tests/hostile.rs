//! Attacks on a server by holders of valid tokens, over real connections on loopback. The others must still be served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use daemon::auth::authority::{Claims, Right};
use daemon::{MulticastOptions, ServeOptions, Server, serve};
use net::api::{CreateRequest, Family, MULTICAST_VERSION, ProbeRequest, SessionId, SessionRequest};
use net::client::{Client, ClientOptions};
use net::token::JoinToken;
use socket2::{Domain, Socket, Type};
use store::{Location, Repository};

const EMPTY: CreateRequest =
    CreateRequest { size_bytes: 64 << 20, chunk_bytes: None, logical_sector_bytes: None };

struct Bench {
    server: Server,
    state: daemon::state::StateFolder,
    _folder: tempfile::TempDir,
}

fn on_loopback() -> MulticastOptions {
    MulticastOptions {
        interface: Some("lo".into()),
        rate_bits_per_second: None,
        rate_floor_bits_per_second: 1_000_000,
        encrypted: true,
        ttl: 1,
        together: false,
    }
}

fn start() -> Bench {
    start_with(None)
}

fn start_with(multicast: Option<MulticastOptions>) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(ServeOptions {
        repository: Arc::new(Repository::open_or_create(&Location::Memory).unwrap()),
        state: folder.path().to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: false,
        multicast,
        token_lifetime: Duration::from_secs(60),
        token_out: None,
        places: Default::default(),
        netboot: None,
        agents: true,
        strict: false,
        public: Default::default(),
        torrent: None,
        log: Arc::new(|_| {}),
    })
    .unwrap();
    let state = daemon::state::StateFolder::open(folder.path()).unwrap();
    Bench { server, state, _folder: folder }
}

impl Bench {
    fn token(&self, right: Right) -> JoinToken {
        let claims = Claims::plain(vec!["*".into()], right, u64::MAX);
        let secret = self.state.authority().unwrap().mint(&claims).unwrap();
        JoinToken { secret, ..self.server.join_token().clone() }
    }

    /// A client that does not wait long.
    fn client(&self, right: Right) -> Client {
        let options = ClientOptions {
            request_timeout: Duration::from_secs(5),
            patience: Duration::ZERO,
            first_patience: Duration::from_secs(5),
            ..ClientOptions::default()
        };
        Client::connect(&self.server.address().to_string(), &self.token(right), options).unwrap()
    }

    /// Connects and sends the head of a request.
    fn begin(&self, right: Right, line: &str, more: &str) -> TcpStream {
        let mut stream = connect(self.server.address());
        let secret = self.token(right).secret.expose().to_owned();
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// The same from another address, whose answers must come soon.
    fn begin_elsewhere(&self, line: &str) -> TcpStream {
        let stranger = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        stranger.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        stranger.connect(&self.server.address().into()).unwrap();
        let mut stream = TcpStream::from(stranger);
        let secret = self.token(Right::Read).secret.expose().to_owned();
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        stream
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

/// The status of the answer that comes.
fn status(mut stream: TcpStream) -> u16 {
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    std::str::from_utf8(&start[9..]).unwrap().parse().unwrap()
}

#[test]
fn bodies_that_never_come_take_no_memory() {
    let bench = start();
    let writer = bench.client(Right::Write);
    writer.create("web", &EMPTY).unwrap();
    let announced = "Content-Length: 16777216\r\n";
    let path = "PUT /api/v1/images/web/content?offset=0";
    // A token for reading is refused before its body comes.
    assert_eq!(status(bench.begin(Right::Read, path, announced)), 403);
    // 300 bodies of 16 MiB would take 18 times the memory for objects in transfer.
    let _waiting: Vec<_> = (0..300).map(|_| bench.begin(Right::Write, path, announced)).collect();
    assert_eq!(bench.client(Right::Read).images().unwrap().images.len(), 1);
    let mut legitimate = bench.begin(Right::Write, path, announced);
    legitimate.write_all(&vec![7; 16 << 20]).unwrap();
    legitimate.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    assert_eq!(status(legitimate), 201);
}

#[test]
fn hints_that_come_slowly_hold_up_nobody() {
    let bench = start();
    bench.client(Right::Write).create("web", &EMPTY).unwrap();
    // 400 profiles of 1 MiB would take more than the memory for objects in transfer; of each one byte comes.
    let path = "POST /api/v1/images/web/profile";
    let _slow: Vec<_> = (0..400)
        .map(|_| {
            let mut stream = bench.begin(Right::Read, path, "Content-Length: 1048576\r\n");
            stream.write_all(b" ").unwrap();
            stream
        })
        .collect();
    let mut reader = bench.begin(Right::Read, "GET /api/v1/content/web@1?offset=0&bytes=16777216", "");
    reader.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    let mut start = [0; 12];
    reader.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
}

#[test]
fn one_address_does_not_take_all_sessions() {
    let bench = start_with(Some(on_loopback()));
    let writer = bench.client(Right::Write);
    let reader = bench.client(Right::Read);
    let join = |number: u32| {
        let version = format!("web{number}@2");
        reader.join_session(&SessionRequest {
            manifest: net::fetch::manifest(&reader, &version).unwrap().digest().to_hex(),
            reference: version,
            receiver: "greedy".into(),
            families: vec![Family::V4],
            mtu: 65536,
            multicast: MULTICAST_VERSION,
            attached: false,
            peers: false,
        })
    };
    for number in 0..20 {
        writer.create(&format!("web{number}"), &EMPTY).unwrap();
        let path = format!("PUT /api/v1/images/web{number}/content?offset=0");
        let mut stream = bench.begin(Right::Write, &path, "Content-Length: 512\r\n");
        stream.write_all(&[7; 512]).unwrap();
        assert_eq!(status(stream), 201);
    }
    let joined: Vec<_> = (0..20).map(join).collect();
    let errors: Vec<_> =
        joined.iter().filter_map(|grant| grant.as_ref().err().map(ToString::to_string)).collect();
    assert_eq!(errors.len(), 12, "{errors:?}");
    let refused = joined.into_iter().filter_map(Result::err);
    refused.for_each(|error| assert_eq!(error.kind(), ErrorKind::Refused));
    assert!(join(0).is_ok(), "what runs may be joined");
}

#[test]
fn readers_that_take_nothing_hold_up_nobody_from_another_address() {
    let bench = start();
    let writer = bench.client(Right::Write);
    writer.create("web", &EMPTY).unwrap();
    // 100 answers of 16 MiB would take six times the memory for objects in transfer. Nobody reads them.
    let line = "GET /api/v1/content/web@1?offset=0&bytes=16777216";
    let _unread: Vec<_> = (0..100).map(|_| bench.begin(Right::Read, line, "")).collect();
    // What is asked for by JSON needs none of that memory, also from the same address.
    assert!(writer.create("other", &EMPTY).is_ok());
    // Another address gets its answers.
    assert_eq!(status(bench.begin_elsewhere(line)), 200);
}

#[test]
fn files_that_nobody_takes_hold_up_nobody_from_another_address() {
    let bench = start();
    bench.client(Right::Write).create("web", &EMPTY).unwrap();
    let line = "GET /images/web@1.raw";
    // Each of 100 answers would have three pieces of 2 MiB in memory: more than there is.
    let _unread: Vec<_> = (0..100).map(|_| bench.begin(Right::Read, line, "")).collect();
    let mut stream = bench.begin_elsewhere(line);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    let mut disk = vec![1; 64 << 20];
    stream.read_exact(&mut disk).unwrap();
    assert!(disk.iter().all(|byte| *byte == 0));
}

#[test]
fn comparisons_do_not_hold_up_other_requests() {
    let bench = start();
    let writer = bench.client(Right::Write);
    writer.create("web", &EMPTY).unwrap();
    for byte in [1_u8, 2] {
        let mut stream = bench.begin(
            Right::Write,
            "PUT /api/v1/images/web/content?offset=0",
            "Content-Length: 16777216\r\n",
        );
        stream.write_all(&vec![byte; 16 << 20]).unwrap();
        assert_eq!(status(stream), 201);
    }
    let line = "GET /api/v1/diff?before=web@2&after=web@3&exact=true";
    let many: Vec<_> = (0..300).map(|_| bench.begin(Right::Read, line, "")).collect();
    assert_eq!(bench.client(Right::Read).images().unwrap().images.len(), 1);
    let answers: Vec<_> = many.into_iter().map(status).collect();
    // Two run and 32 wait; those that come when all these places are taken are refused at once.
    assert!(answers.contains(&200) && answers.contains(&503), "{answers:?}");
    assert!(answers.iter().all(|answer| [200, 503].contains(answer)), "{answers:?}");
}

#[test]
fn probes_are_limited_for_each_address() {
    let bench = start_with(Some(on_loopback()));
    let client = bench.client(Right::Read);
    let request = ProbeRequest { families: Vec::new() };
    let [first, second] = [(); 2].map(|()| client.probe(&request).unwrap());
    assert_ne!((first.probe, first.report), (second.probe, second.report));
    assert_eq!(client.probe(&request).unwrap_err().kind(), ErrorKind::Refused);
    assert!(client.probe_view(first.probe).is_ok());
    assert_eq!(client.probe_view(SessionId(7)).unwrap_err().kind(), ErrorKind::NotFound);
    let without = start();
    let refused = without.client(Right::Read).probe(&request).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
}

#[test]
fn a_neighbour_gets_neither_the_job_of_a_machine_nor_its_token() {
    use net::api::{
        JobOutcome, JobRequest, JobStage, MachineCall, MachineChange, NewMachine, Order, Power, Work,
    };
    use net::machine_key::MachineKey;
    let bench = start();
    let manager = bench.client(Right::Manage);
    let mac = "52:54:00:00:00:01";
    let (own, liar) = (MachineKey::draw().unwrap(), MachineKey::draw().unwrap());
    // Who calls; with which key it signs, if it does; and what.
    let call = |key: &str, signed: Option<(&MachineKey, &str)>, working: Option<u64>, done: Option<u64>| {
        let facts = format!(r#"{{"mac":"{mac}","memory_bytes":1,"firmware":"bios","disks":[]}}"#);
        let call = MachineCall {
            facts: serde_json::from_str(&facts).unwrap(),
            key: key.to_owned(),
            signature: signed.map(|(key, nonce)| key.sign(nonce, mac)),
            working,
            progress: None,
            outcome: done.map(|job| JobOutcome { job, failure: None, exit: None, log: None }),
        };
        manager.call_of_machine(&call).unwrap()
    };
    let nonce = call(&own.public(), None, None, None).nonce;
    assert!(manager.machines().unwrap().machines.is_empty(), "nobody has shown a key");
    let key = Some(own.fingerprint());
    let machine = NewMachine { mac: mac.to_owned(), key, ..NewMachine::default() };
    manager.change_machines(&MachineChange::Add { machines: vec![machine] }).unwrap();
    let work = Work::Capture { image: "web".to_owned() };
    let machines = vec![mac.to_owned()];
    let job = JobRequest { work, machines, disk: None, begins: 0, power: Power::Leave, window: 0 };
    manager.give_job(&job).unwrap();
    // A neighbour calls as that machine: without a signature, with its own, and with some that are none.
    let attack = |job: Option<u64>| {
        let nonce = call(&own.public(), None, job, job).nonce;
        let other = call(&liar.public(), None, job, job).nonce;
        for (key, signer, nonce) in
            [(&liar, &liar, &other), (&own, &liar, &nonce), (&own, &own, &other), (&liar, &own, &other)]
        {
            let answer = call(&key.public(), Some((signer, nonce)), job, job);
            assert!(matches!(answer.order, Order::Wait { .. }), "{answer:?}");
        }
    };
    attack(None);
    let Order::Work { job, secret: Some(_), .. } =
        call(&own.public(), Some((&own, &nonce)), None, None).order
    else {
        panic!("the machine gets no job")
    };
    attack(Some(job));
    // Its nonce is still good.
    let beat = call(&own.public(), Some((&own, &nonce)), Some(job), None);
    assert!(matches!(&beat.order, Order::Wait { why } if why == "at work"), "{beat:?}");
    let status = manager.machines().unwrap().machines.remove(0);
    assert_eq!(status.job.unwrap().stage, JobStage::Taken);
    let (key, rival) = (status.key.unwrap(), status.rival.unwrap());
    assert!(key.confirmed && key.fingerprint == own.fingerprint() && key.address.is_some(), "{key:?}");
    assert_eq!(rival.fingerprint, liar.fingerprint());
    call(&own.public(), Some((&own, &nonce)), None, Some(job));
    assert_eq!(manager.machines().unwrap().machines[0].job.as_ref().unwrap().stage, JobStage::Done);
}
