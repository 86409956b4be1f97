//! The API over real connections on loopback: what a server takes, what it refuses, and that repeating is safe.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use base::{Digest, Extent, ExtentSet};
use bytes::Bytes;
use daemon::{ServeOptions, Server, serve};
use disk::device::MemoryDisk;
use disk::{DiskMap, Geometry, TableKind};
use image::{CaptureOptions, Manifest, NoProgress, ObjectKind, ObjectRef, ObjectSink};
use net::ErrorKind;
use net::client::{Client, ClientOptions};
use net::token::JoinToken;
use store::{Location, Repository};

struct Bench {
    server: Server,
    repository: Arc<Repository>,
    _state: tempfile::TempDir,
    state: daemon::state::StateFolder,
}

fn start(tls: bool) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let repository = Arc::new(Repository::open_or_create(&Location::Memory).unwrap());
    let server = serve(ServeOptions {
        repository: repository.clone(),
        state: folder.path().to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls,
        multicast: None,
        token_lifetime: Duration::from_secs(60),
        log: Arc::new(|_| {}),
    })
    .unwrap();
    let state = daemon::state::StateFolder::open(folder.path()).unwrap();
    Bench { server, repository, _state: folder, state }
}

impl Bench {
    fn client(&self, images: &[&str], right: daemon::authority::Right, expires: u64) -> Client {
        let claims = daemon::authority::Claims {
            images: images.iter().map(ToString::to_string).collect(),
            right,
            expires,
        };
        let secret = self.state.authority().unwrap().mint(&claims).unwrap();
        let token = JoinToken { secret, ..self.server.join_token().clone() };
        let options = ClientOptions {
            patience: Duration::ZERO,
            first_patience: Duration::from_secs(5),
            ..ClientOptions::default()
        };
        Client::connect(&self.server.address().to_string(), &token, options).unwrap()
    }

    fn writer(&self) -> Client {
        self.client(&["web"], daemon::authority::Right::Write, u64::MAX)
    }
}

/// A version of a small disk, its objects in `sink`.
fn draft(sink: &dyn ObjectSink) -> Bytes {
    let disk = MemoryDisk::new((0..1u32 << 18).flat_map(u32::to_le_bytes).collect());
    let geometry = Geometry { size_bytes: 1 << 20, logical_sector_bytes: 512, physical_sector_bytes: 512 };
    let window = Extent::new(0, 2048);
    let map = DiskMap {
        geometry,
        table: TableKind::None,
        disk_id: None,
        partitions: Vec::new(),
        window,
        allocated: ExtentSet::of(window),
        warnings: Vec::new(),
    };
    let captured = image::capture(&disk, &map, sink, &CaptureOptions::default(), &NoProgress).unwrap();
    Manifest::draft("web", &map, &captured, "2026-11-20T14:00:00Z").encode(None).unwrap()
}

#[test]
fn a_version_is_published_once_and_only_when_all_of_it_is_there() {
    let bench = start(true);
    let writer = bench.writer();
    let elsewhere = image::MemoryObjects::new();
    let incomplete = writer.publish("web", draft(&elsewhere), "first").unwrap_err();
    assert_eq!(incomplete.kind(), ErrorKind::Refused, "{incomplete:?}");

    let draft = draft(&writer);
    let published = writer.publish("web", draft.clone(), "second").unwrap();
    assert_eq!(
        writer.publish("web", draft.clone(), "second").unwrap(),
        published,
        "the same key, the same version"
    );
    assert_eq!(Manifest::decode(&published).unwrap().number, 1);
    let next = writer.publish("web", draft, "third").unwrap();
    assert_eq!(Manifest::decode(&next).unwrap().number, 2);
    assert_eq!(writer.manifest("web@1").unwrap(), published);
    assert_eq!(writer.versions("web").unwrap().versions.len(), 2);
    assert_eq!(bench.repository.images().unwrap().len(), 1);
}

#[test]
fn only_the_bytes_of_a_digest_are_stored_under_it() {
    let bench = start(true);
    let writer = bench.writer();
    let object = ObjectRef::of(ObjectKind::Chunk, b"right");
    let wrong = writer.put_object(&object, Bytes::from_static(b"wrong")).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt, "{wrong:?}");
    let long = writer.put_object(&object, Bytes::from_static(b"right and more")).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Invalid, "{long:?}");
    assert!(!writer.has_object(&object).unwrap());
    writer.put_object(&object, Bytes::from_static(b"right")).unwrap();
    assert!(writer.has_object(&object).unwrap());
    assert_eq!(writer.object(&object).unwrap(), &b"right"[..]);
    let missing = ObjectRef { digest: Digest([7; 32]), ..object };
    assert_eq!(writer.object(&missing).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_token_opens_what_it_names_until_it_expires() {
    use daemon::authority::Right;
    let bench = start(true);
    let writer = bench.writer();
    writer.publish("web", draft(&writer), "key").unwrap();
    let denied = |result: net::Result<Bytes>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Denied);
    denied(bench.client(&["lab*"], Right::Write, u64::MAX).manifest("web"));
    denied(bench.client(&["*"], Right::Write, 1).manifest("web"));
    let reader = bench.client(&["*"], Right::Read, u64::MAX);
    denied(reader.publish("web", draft(&image::MemoryObjects::new()), "key"));
    denied(bench.writer().publish("lab", draft(&image::MemoryObjects::new()), "key"));
    assert!(reader.manifest("web").is_ok());
    assert!(bench.client(&["lab*"], Right::Read, u64::MAX).images().unwrap().images.is_empty());
    let object = ObjectRef::of(ObjectKind::Chunk, b"x");
    assert_eq!(reader.put_object(&object, Bytes::from_static(b"x")).unwrap_err().kind(), ErrorKind::Denied);
}

/// Sends `request` as it is and returns all that comes back.
fn raw(bench: &Bench, request: &str) -> String {
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn hostile_requests_get_a_problem_and_no_more() {
    let bench = start(false);
    let secret = bench.server.join_token().secret.expose().to_owned();
    let with = |line: &str, more: &str| {
        format!(
            "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n{more}\r\n"
        )
    };
    let digest = Digest::of(b"").to_hex();
    for (request, status) in [
        (with("GET /api/v1/objects/chunks/xyz?bytes=1", ""), 400),
        (with(&format!("GET /api/v1/objects/chunks/{digest}"), ""), 400),
        (with(&format!("GET /api/v1/objects/chunks/{digest}?bytes=4294967295"), ""), 400),
        (with(&format!("GET /api/v1/objects/secrets/{digest}?bytes=1"), ""), 404),
        (with("GET /api/v1/manifests/..%2F..%2Fformat", ""), 400),
        (with("POST /api/v1/sessions", "Content-Length: 99999999\r\n"), 400),
        (with("POST /api/v1/sessions", "Transfer-Encoding: chunked\r\n"), 400),
        (with("DELETE /api/v1/images", ""), 405),
        (with("GET /%00", ""), 404),
        ("GET /api/v1/images HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic eDp5\r\n\r\n".into(), 401),
        ("GET /api/v1/images HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer e30.e30\r\n\r\n".into(), 401),
    ] {
        let answer = raw(&bench, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}\n{answer}");
        assert!(answer.contains("application/problem+json"), "{request}\n{answer}");
    }
    assert!(raw(&bench, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(raw(&bench, &with("GET /healthz", "")).ends_with("ok\n"), "and the server lives");
    assert!(raw(&bench, &with("GET /readyz", "")).ends_with("ready\n"));
}

#[test]
fn an_address_in_use_is_refused_before_anything_runs() {
    let bench = start(true);
    let folder = tempfile::tempdir().unwrap();
    let error = serve(ServeOptions {
        repository: bench.repository.clone(),
        state: folder.path().to_owned(),
        listen: bench.server.address(),
        tls: true,
        multicast: None,
        token_lifetime: Duration::from_secs(60),
        log: Arc::new(|_| {}),
    })
    .err()
    .expect("the address is in use");
    assert_eq!(error.kind(), daemon::ErrorKind::Refused, "{error:?}");
    bench.server.shutdown();
}
