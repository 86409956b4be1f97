//! Tests fetches from a small server in this file: by multicast, by unicast, and with failures.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use base::{Chance, Extent, ExtentSet};
use bytes::Bytes;
use disk::device::MemoryDisk;
use disk::{DiskMap, Geometry, TableKind, WriteAt};
use image::manifest::{DiskRecord, FORMAT, Origin};
use image::{
    CaptureOptions, Cipher, InstallOptions, Manifest, MemoryObjects, NoProgress, ObjectKind, ObjectRef,
    Reuse, capture,
};
use parking_lot::Mutex;

use super::*;
use crate::api::ProblemKind;
use crate::client::ClientOptions;
use crate::multicast::budget::Budget;
use crate::multicast::server::{RATE_FLOOR, SessionConfig, SessionServer};
use crate::token::JoinToken;
use crate::udp::SendOptions;
use image::{Catalogue, Installer};

const SECTORS: u64 = 48 << 11;

/// An image of noise with a gap, in memory.
struct Version {
    content: Vec<u8>,
    sealed: SignedManifest,
    encoded: Bytes,
    objects: MemoryObjects,
}

impl Version {
    fn new(seed: u64) -> Arc<Self> {
        let mut content = vec![0; usize::try_from(SECTORS * 512).unwrap()];
        Chance::from_seed(seed).fill(&mut content);
        let geometry =
            Geometry { size_bytes: SECTORS * 512, logical_sector_bytes: 512, physical_sector_bytes: 512 };
        let gap = Extent::new(5000, 9000);
        let mut allocated = ExtentSet::of(Extent::new(0, SECTORS));
        allocated.remove(gap);
        content[range(gap)].fill(0);
        let map = DiskMap {
            geometry,
            table: TableKind::None,
            disk_id: None,
            partitions: Vec::new(),
            window: Extent::new(0, SECTORS),
            allocated,
            warnings: Vec::new(),
        };
        let objects = MemoryObjects::new();
        let disk = MemoryDisk::new(content.clone());
        let captured = capture(&disk, &map, &objects, &CaptureOptions::default(), &NoProgress).unwrap();
        let origin = Origin { disk_sectors: SECTORS, start_sector: 0 };
        let manifest = Manifest {
            format: FORMAT,
            features: Vec::new(),
            image: "noise".into(),
            number: 1,
            nonce: String::new(),
            repository: None,
            parent: None,
            copied: None,
            commit: None,
            made: None,
            members: Vec::new(),
            root: captured.root,
            chunk_bytes: captured.layout.chunk.bytes(),
            size_sectors: SECTORS,
            logical_sector_bytes: 512,
            physical_sector_bytes: 512,
            origin,
            disk: DiskRecord::default(),
            labels: BTreeMap::new(),
            created: "2026-11-20T00:00:00Z".into(),
            creator: "test".into(),
            statistics: captured.statistics,
            warnings: Vec::new(),
            cipher: "none".into(),
        };
        let encoded = manifest.encode(None).unwrap();
        let sealed = SignedManifest::open(&encoded).unwrap();
        Arc::new(Self { content, sealed, encoded, objects })
    }
}

/// A version of noise with a gap in chunks of the usual size, and its objects.
pub(crate) fn noise(seed: u64) -> (Manifest, Arc<MemoryObjects>) {
    let version = Arc::into_inner(Version::new(seed)).expect("nobody else has it");
    (version.sealed.manifest, Arc::new(version.objects))
}

fn range(extent: Extent) -> std::ops::Range<usize> {
    let start = usize::try_from(extent.offset_bytes()).unwrap();
    start..start + usize::try_from(extent.len_bytes()).unwrap()
}

/// Faults of the test server.
#[derive(Default)]
struct Faults {
    /// Offers no sessions.
    no_sessions: bool,
    /// Grants a group to which nothing is sent, this many times.
    dead_groups: u32,
    /// Limits the rate of sessions, in bits per second, so that there is time to break them.
    rate: Option<u64>,
    /// Does not answer the next requests, this many of them.
    mute: u32,
}

struct State {
    version: Arc<Version>,
    group: SocketAddr,
    session: Mutex<Option<SessionServer>>,
    epoch: Mutex<u32>,
    faults: Mutex<Faults>,
    requests: Mutex<HashMap<String, u32>>,
}

/// A server on loopback without TLS.
struct TestServer {
    state: Arc<State>,
    address: String,
}

impl TestServer {
    fn start(version: &Arc<Version>, port: u16, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            version: Arc::clone(version),
            group: SocketAddr::new("239.255.79.1".parse().unwrap(), port),
            session: Mutex::default(),
            epoch: Mutex::new(0),
            faults: Mutex::new(faults),
            requests: Mutex::default(),
        });
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&serving);
                thread::spawn(move || state.serve(stream.unwrap()));
            }
        });
        Self { state, address }
    }

    fn client(&self) -> Arc<Client> {
        let token = JoinToken { fingerprint: None, secret: "secret".parse().unwrap() };
        let options = ClientOptions { patience: Duration::from_secs(20), ..ClientOptions::default() };
        Arc::new(Client::connect(&self.address, &token, options).unwrap())
    }

    fn requests(&self, kind: &str) -> u32 {
        self.state.requests.lock().get(kind).copied().unwrap_or(0)
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap_or(0) > 0 {
            let mut body_bytes = 0;
            let mut header = String::new();
            while reader.read_line(&mut header).unwrap_or(0) > 2 {
                let lower = header.to_lowercase();
                body_bytes =
                    lower.strip_prefix("content-length: ").map_or(body_bytes, |n| n.trim().parse().unwrap());
                header.clear();
            }
            let mut body = vec![0; body_bytes];
            reader.read_exact(&mut body).unwrap();
            let Some(answer) = self.answer(line.split(' ').nth(1).unwrap(), &body) else { return };
            let (status, body) = match answer {
                Ok(body) => (200, body),
                Err(kind) => {
                    (kind.status(), serde_json::to_vec(&kind.with("as the test wants it")).unwrap().into())
                }
            };
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
            if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
                return;
            }
            line.clear();
        }
    }

    fn answer(&self, path: &str, body: &[u8]) -> Option<std::result::Result<Bytes, ProblemKind>> {
        let path = path.split('?').next().unwrap();
        let parts: Vec<_> = path.split('/').skip(3).collect();
        *self.requests.lock().entry(parts[0].to_owned()).or_default() += 1;
        if self.faults.lock().mute > 0 {
            self.faults.lock().mute -= 1;
            return None;
        }
        Some(match parts[..] {
            ["manifests", _] => Ok(self.version.encoded.clone()),
            ["objects", kind, hex] => {
                let kind = if kind == "nodes" { ObjectKind::Node } else { ObjectKind::Chunk };
                let object = ObjectRef { kind, len: 0, digest: hex.parse().unwrap() };
                self.version.objects.fetch(&object).map_err(|_| ProblemKind::NotFound)
            }
            ["sessions"] => self.admit(&serde_json::from_slice(body).unwrap()),
            _ => Err(ProblemKind::Invalid),
        })
    }

    fn admit(&self, request: &SessionRequest) -> std::result::Result<Bytes, ProblemKind> {
        if self.faults.lock().no_sessions {
            return Err(ProblemKind::Refused);
        }
        let mut session = self.session.lock();
        let running = session.take().filter(|session| !session.is_over());
        let server = running.unwrap_or_else(|| self.new_session());
        let mut grant = server.admit(request, [127, 0, 0, 1].into()).map_err(|_| ProblemKind::Unavailable)?;
        let mut faults = self.faults.lock();
        if faults.dead_groups > 0 {
            faults.dead_groups -= 1;
            grant.group.set_port(9);
        }
        drop(faults);
        *session = Some(server);
        Ok(serde_json::to_vec(&grant).unwrap().into())
    }

    fn new_session(&self) -> SessionServer {
        let catalogue =
            Catalogue::load(&self.version.sealed.manifest, &self.version.objects, &Cipher::None).unwrap();
        let send = SendOptions::on(interface::choose("lo").unwrap());
        let mut epoch = self.epoch.lock();
        *epoch += 1;
        let source: Arc<dyn ObjectSource> = Arc::clone(&self.version) as Arc<dyn ObjectSource>;
        let mut config = SessionConfig::new("noise@1", *epoch, self.group, send);
        config.budget = Budget::new(self.faults.lock().rate, RATE_FLOOR);
        SessionServer::start(config, catalogue.objects().to_vec(), catalogue.heads(), source).unwrap()
    }
}

impl ObjectSource for Version {
    fn fetch(&self, object: &ObjectRef) -> base::Result<Bytes> {
        self.objects.fetch(object)
    }
}

fn options() -> FetchOptions {
    let mut options = FetchOptions::new("test host");
    options.silent_after = Duration::from_millis(500);
    options
}

/// A target with other random content, and how to begin an install on it.
fn target(reuse: Reuse) -> (Arc<MemoryDisk>, Begin) {
    let mut noise = vec![0; usize::try_from(SECTORS * 512).unwrap()];
    Chance::from_seed(99).fill(&mut noise);
    let disk = Arc::new(MemoryDisk::new(noise));
    let target: Arc<dyn WriteAt> = Arc::clone(&disk) as Arc<dyn WriteAt>;
    let install = InstallOptions { reuse, ..InstallOptions::default() };
    let begin = move |catalogue| Installer::begin(catalogue, target, install, Arc::new(NoProgress));
    (disk, Box::new(begin))
}

fn assert_installed(disk: &MemoryDisk, version: &Version) {
    let contents = disk.contents();
    for part in [Extent::new(0, 5000), Extent::between(14_000, SECTORS)] {
        assert!(contents[range(part)] == version.content[range(part)], "{part:?} differs");
    }
}

fn fetch_from(server: &TestServer, options: &FetchOptions) -> (Arc<MemoryDisk>, Result<FetchReport>) {
    let (disk, begin) = target(Reuse::Never);
    let client = server.client();
    let sealed = manifest(&client, "noise").unwrap();
    (disk, fetch(&client, &sealed, begin, options))
}

#[test]
fn multicast_brings_everything_where_it_works() {
    let version = Version::new(1);
    let server = TestServer::start(&version, 47_901, Faults::default());
    let options = options();
    let (disk, report) = fetch_from(&server, &options);
    let report = report.unwrap();
    assert_installed(&disk, &version);
    assert_eq!((report.unicast_bytes, report.sessions, &report.unicast_reason), (0, 1, &None), "{report:?}");
    // The last block of each object may be shorter.
    let arrived = options.arrived.multicast_bytes();
    let (least, most) = (report.multicast_bytes, report.multicast_bytes / 20 * 21);
    assert!(arrived >= least && arrived <= most, "{arrived} were counted of {least}");
    assert_eq!(options.arrived.unicast_bytes(), 0);
    assert!(report.multicast_bytes >= 40 << 20 && report.install.verified_bytes > 0, "{report:?}");
    assert_eq!(server.requests("objects"), 0);
}

#[test]
fn where_multicast_does_not_work_unicast_does_and_says_why() {
    let version = Version::new(2);
    let cases = [
        (Faults { no_sessions: true, ..Faults::default() }, Transport::Auto, "as the test wants it"),
        (Faults { dead_groups: u32::MAX, ..Faults::default() }, Transport::Auto, "nothing came from group"),
        (Faults::default(), Transport::Unicast, "asked for"),
    ];
    for (index, (faults, transport, reason)) in (0..).zip(cases) {
        let server = TestServer::start(&version, 47_902 + index, faults);
        let options = FetchOptions { transport, ..options() };
        let (disk, report) = fetch_from(&server, &options);
        let report = report.unwrap();
        let arrived = (options.arrived.multicast_bytes(), options.arrived.unicast_bytes());
        assert_eq!(arrived, (0, report.unicast_bytes));
        assert_installed(&disk, &version);
        assert_eq!(report.multicast_bytes, 0);
        assert!(report.unicast_reason.as_deref().unwrap().contains(reason), "{report:?}");
    }
    let server = TestServer::start(&version, 47_905, Faults { no_sessions: true, ..Faults::default() });
    let (_, report) = fetch_from(&server, &FetchOptions { transport: Transport::Multicast, ..options() });
    assert_eq!(report.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[test]
fn what_came_by_unicast_beside_a_session_always_has_a_reason() {
    let two = reason_of(&[(2, "were scattered"), (0, "came damaged"), (1, "were left")]);
    assert_eq!(two, "2 objects were scattered; 1 objects were left");
    assert!(reason_of(&[(0, "came damaged")]).contains("before multicast"));
}

/// Ends the server's session, `times` times, each time after a part of the image was sent.
fn break_sessions(server: &TestServer, times: u32) {
    for _ in 0..times {
        loop {
            let mut session = server.state.session.lock();
            if session.as_ref().is_some_and(|session| session.statistics().payload_bytes > 3 << 20) {
                drop(session.take());
                break;
            }
            drop(session);
            thread::yield_now();
        }
    }
}

#[test]
fn a_server_that_starts_anew_costs_nothing_that_is_here_already() {
    let version = Version::new(3);
    let faults = Faults { rate: Some(200_000_000), ..Faults::default() };
    let server = TestServer::start(&version, 47_906, faults);
    thread::scope(|scope| {
        scope.spawn(|| break_sessions(&server, 3));
        let (disk, report) = fetch_from(&server, &options());
        let report = report.unwrap();
        assert_installed(&disk, &version);
        assert_eq!((report.sessions, report.unicast_bytes), (4, 0), "{report:?}");
        let encoded = version.sealed.manifest.statistics.encoded_bytes;
        assert!(report.multicast_bytes < encoded + (1 << 20), "{report:?}");
    });
}

#[test]
fn a_server_that_is_away_for_a_while_is_waited_for() {
    let version = Version::new(4);
    let server = TestServer::start(&version, 47_907, Faults { mute: 4, ..Faults::default() });
    let (disk, report) = fetch_from(&server, &options());
    assert_eq!(report.unwrap().unicast_bytes, 0);
    assert_installed(&disk, &version);
}

#[test]
fn what_the_target_holds_already_is_not_fetched_again() {
    let version = Version::new(5);
    let server = TestServer::start(&version, 47_908, Faults::default());
    let (disk, begin) = target(Reuse::Always);
    let half = version.content.len() / 2;
    disk.write_all_at(&version.content[..half], 0).unwrap();
    let client = server.client();
    let report = fetch(&client, &version.sealed, begin, &options()).unwrap();
    assert_installed(&disk, &version);
    assert!(report.multicast_bytes + report.unicast_bytes < 26 << 20, "{report:?}");
    assert!(report.install.kept_bytes > 7 << 20, "{report:?}");
}

#[test]
fn multicast_that_failed_gets_another_chance() {
    let version = Version::new(8);
    // Two grants: the first one, and the one for the request why nothing arrives.
    let server = TestServer::start(&version, 47_912, Faults { dead_groups: 2, ..Faults::default() });
    let (disk, report) = fetch_from(&server, &FetchOptions { retry_after: Duration::ZERO, ..options() });
    let report = report.unwrap();
    assert_installed(&disk, &version);
    assert!(report.multicast_bytes > 40 << 20 && report.unicast_bytes < 1 << 20, "{report:?}");
    assert!(report.unicast_reason.as_deref().unwrap().contains("nothing came from group"), "{report:?}");
}

#[test]
fn scattered_rest_comes_by_unicast() {
    let version = Version::new(7);
    let server = TestServer::start(&version, 47_911, Faults::default());
    let (disk, begin) = target(Reuse::Always);
    disk.write_all_at(&version.content, 0).unwrap();
    for offset in [1 << 20, 30 << 20] {
        disk.write_all_at(&[0x55; 512], offset).unwrap();
    }
    let report = fetch(&server.client(), &version.sealed, begin, &options()).unwrap();
    assert_installed(&disk, &version);
    assert!(report.multicast_bytes < 1 << 16, "the tree only: {report:?}");
    assert_eq!((report.sessions, server.requests("objects")), (1, 2), "{report:?}");
    assert!(report.unicast_reason.as_deref().unwrap().contains("2 objects were scattered"), "{report:?}");
}

#[test]
fn a_stopped_fetch_ends_and_an_install_that_cannot_begin_is_an_error() {
    let version = Version::new(6);
    let server = TestServer::start(&version, 47_909, Faults { rate: Some(50_000_000), ..Faults::default() });
    let options = options();
    thread::scope(|scope| {
        scope.spawn(|| {
            break_sessions(&server, 1);
            options.stop.stop();
        });
        let (_, report) = fetch_from(&server, &options);
        assert_eq!(report.unwrap_err().kind(), ErrorKind::Stopped);
    });

    let server = TestServer::start(&version, 47_910, Faults::default());
    let small = Arc::new(MemoryDisk::new(vec![0; 512]));
    let begin =
        move |catalogue| Installer::begin(catalogue, small, InstallOptions::default(), Arc::new(NoProgress));
    let refused = fetch(&server.client(), &version.sealed, Box::new(begin), &self::options());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Refused);
}
