//! Tests the API over real connections on loopback: what a server accepts, what it refuses, and that repeated
//! requests have no second effect.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use base::{Digest, ErrorKind, Result};
use bytes::Bytes;
use daemon::{ServeOptions, serve};
use image::{Cipher, Manifest, NoProgress, ObjectKind, ObjectRef};
use net::api::CreateRequest;
use net::client::{Changes, Client, ClientOptions};
use net::token::JoinToken;
use store::{Location, Overseer, PruneEvent, PruneOptions, PruneReport, Scope, Stamp};

use crate::common::{Bench, draft, start, start_at};

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
fn a_token_says_what_it_grants_and_gives_another_that_grants_the_same() {
    let bench = start(true);
    let address = bench.server.address().to_string();
    let connect = |token: &JoinToken| Client::connect(&address, token, ClientOptions::default()).unwrap();
    let client = connect(bench.server.join_token());
    let grant = client.token_grant().unwrap();
    assert_eq!((&grant.images[..], grant.right.as_str()), (&["*".to_owned()][..], "read"));
    assert!(grant.lasts_seconds == Some(60) && grant.left_seconds <= 60 && grant.secret.is_none());
    let (token, renewed) = client.renew_token().unwrap();
    assert!(renewed.expires >= grant.expires && renewed.lasts_seconds == Some(60));
    assert_eq!(connect(&token).token_grant().unwrap().right, "read");
    connect(&token).images().unwrap();
    assert!(!format!("{renewed:?}").contains(token.secret.expose()), "no log holds a secret");
    // The renewed token grants no more than the old one.
    let writer = bench.client(&["web"], daemon::auth::authority::Right::Write, u64::MAX);
    let (token, _) = writer.renew_token().unwrap();
    let refused = connect(&token).publish("other", Bytes::new(), "key").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    // A token without `lasts` cannot be renewed.
    let claims = daemon::auth::authority::Claims::plain(
        vec!["*".to_owned()],
        daemon::auth::authority::Right::Read,
        u64::MAX,
    );
    let secret = bench.state.authority().unwrap().mint(&claims).unwrap();
    let last = connect(&JoinToken { secret, ..bench.server.join_token().clone() });
    assert_eq!(last.token_grant().unwrap().lasts_seconds, None);
    let refused = last.renew_token().unwrap_err();
    assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("renewed"), "{refused}");
}

/// Shortens the waits of a prune, and calls the closure at each event.
struct Watching<'a>(&'a dyn Fn(&PruneEvent));

impl Overseer for Watching<'_> {
    fn event(&self, event: &PruneEvent) {
        self.0(event);
    }

    fn pause(&self, _: Duration) {}
}

fn prune(bench: &Bench, looks: u32, act: &dyn Fn(&PruneEvent)) -> PruneReport {
    let options = PruneOptions { looks, pause: Duration::ZERO, ..PruneOptions::default() };
    let stamp = Stamp { created: "2026-11-21T12:00:00Z".into(), creator: "tester".into() };
    bench.repository.prune(&options, &stamp, &Watching(act)).unwrap()
}

#[test]
fn a_prune_waits_for_an_upload_and_harms_no_reader() {
    let bench = start(true);
    let (first, second) = (bench.writer(), bench.writer());
    first.publish("web", draft(&first), "first").unwrap();
    let orphan = ObjectRef::of(ObjectKind::Chunk, b"sent and never published");
    second.put_object(&orphan, Bytes::from_static(b"sent and never published")).unwrap();
    // A third upload of the same content, which will be published later.
    let third = bench.writer();
    let draft = draft(&third);
    let published = std::sync::atomic::AtomicBool::new(false);
    let report = prune(&bench, 3, &|event| {
        let is_waiting = matches!(event, PruneEvent::Waiting(owner) if owner.creator.starts_with("upload "));
        if is_waiting && !published.swap(true, std::sync::atomic::Ordering::Relaxed) {
            third.publish("web", draft.clone(), "third").unwrap();
        }
        // A reader finds the published version complete during the prune.
        let manifest = Manifest::decode(&first.manifest("web@1").unwrap()).unwrap();
        assert!(image::Catalogue::load(&manifest, &first, &Cipher::None).is_ok(), "{event:?}");
    });
    assert!(published.into_inner(), "the upload was waited for");
    // The second upload was never published.
    assert_eq!((report.deleted.objects, report.revoked), (1, 1), "{report:?}");
    let any = bench.client(&["*"], daemon::auth::authority::Right::Write, u64::MAX);
    assert!(!any.has_object(&orphan).unwrap());
    let verified = bench.repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((verified.versions, verified.unreferenced, verified.damaged.len()), (2, 0, 0));
}

#[test]
fn an_upload_that_was_taken_for_dead_is_refused_and_starts_again() {
    let bench = start(true);
    let slow = bench.writer();
    let unlucky = draft(&slow);
    assert_eq!(prune(&bench, 1, &|_| {}).revoked, 1);
    let refused = slow.publish("web", unlucky, "first").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused:?}");
    assert!(bench.repository.images().unwrap().is_empty());
    let again = bench.writer();
    again.publish("web", draft(&again), "second").unwrap();
    let verified = bench.repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((verified.versions, verified.unreferenced, verified.damaged.len()), (1, 0, 0));
}

#[test]
fn only_the_bytes_of_a_digest_are_stored_under_it() {
    let bench = start(true);
    let writer = bench.client(&["*"], daemon::auth::authority::Right::Write, u64::MAX);
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
    use daemon::auth::authority::Right;
    let bench = start(true);
    let writer = bench.writer();
    writer.publish("web", draft(&writer), "key").unwrap();
    let denied = |result: Result<Bytes>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Denied);
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

#[test]
fn only_an_administrator_manages_machines() {
    use daemon::auth::authority::Right;
    use net::api::{JobRequest, MachineChange, Power, Switch, SwitchRequest, Work};
    let bench = start(true);
    let job = JobRequest {
        work: Work::Wipe,
        machines: vec!["*".to_owned()],
        disk: None,
        begins: 0,
        power: Power::Leave,
        window: 0,
    };
    let power = SwitchRequest { switch: Switch::Off, machines: vec!["*".to_owned()] };
    let all = |right: Right| {
        let client = bench.client(&["*"], right, u64::MAX);
        let errors = [
            client.give_job(&job).unwrap_err(),
            client.plan_job(&job).unwrap_err(),
            client.change_machines(&MachineChange::RemoveStrangers).unwrap_err(),
            client.plan_change(&MachineChange::Open { seconds: 60 }).unwrap_err(),
            client.machines().unwrap_err(),
            client.machine_log("52:54:00:00:00:01").unwrap_err(),
            client.switch_machines(7, &power).unwrap_err(),
            client.switched(7).unwrap_err(),
        ];
        errors.map(|error| error.kind())
    };
    assert_eq!([all(Right::Read), all(Right::Write)], [[ErrorKind::Denied; 8]; 2]);
    // No machine boots from this server.
    assert_eq!(all(Right::Manage), [ErrorKind::Refused; 8]);
}

/// Sends `request` unchanged and returns the whole answer.
fn raw(bench: &Bench, request: &str) -> String {
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_is_for_everyone_and_holds_nothing_but_itself() {
    let bench = start(false);
    let writer = bench.writer();
    writer.publish("web", draft(&writer), "key").unwrap();
    let get =
        |path: &str| raw(&bench, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    let answer = get("/");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/html; charset=utf-8"), "{head}");
    let policy = head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    let rules: Vec<_> = policy.split("; ").collect();
    for rule in ["default-src 'none'", "connect-src 'self'", "form-action 'none'", "frame-ancestors 'none'"] {
        assert!(rules.contains(&rule), "{rule} is missing in {policy}");
    }
    assert!(
        head.contains("x-content-type-options: nosniff") && head.contains("cache-control: no-store"),
        "{head}"
    );
    for elsewhere in ["http:", "https:", "src=", "@import", "innerHTML", "eval("] {
        assert!(!page.contains(elsewhere), "the page has {elsewhere}");
    }
    assert_eq!(page, include_str!("../src/api/status.html"), "no data without a token");
    assert!(get("/api/v1/status").starts_with("HTTP/1.1 401 "));
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
        (
            "GET /api/v1/images HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Basic eDp5\r\n\r\n"
                .into(),
            401,
        ),
        (
            "GET /api/v1/images HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Bearer e30.e30\r\n\r\n"
                .into(),
            401,
        ),
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
fn a_server_is_ready_while_its_repository_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("repository");
    let bench = start_at(false, &Location::Folder(place.clone()));
    let ask = || raw(&bench, "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    std::fs::rename(place.join("format"), place.join("away")).unwrap();
    assert!(!ask().starts_with("HTTP/1.1 200 "), "{}", ask());
    std::fs::rename(place.join("away"), place.join("format")).unwrap();
    assert!(ask().ends_with("ready\n"), "{}", ask());
}

#[test]
fn answers_name_no_path_of_the_repository() {
    let folder = tempfile::tempdir().unwrap();
    let bench = start_at(true, &Location::Folder(folder.path().to_owned()));
    let writer = bench.writer();
    writer.publish("web", draft(&writer), "first").unwrap();
    let first = |name: &str| {
        let two = std::fs::read_dir(folder.path().join(name)).unwrap().next().unwrap().unwrap().path();
        if two.is_file() { two } else { std::fs::read_dir(two).unwrap().next().unwrap().unwrap().path() }
    };
    let chunk = first("chunks");
    let object = ObjectRef {
        kind: ObjectKind::Chunk,
        len: u32::try_from(chunk.metadata().unwrap().len()).unwrap(),
        digest: chunk.file_name().unwrap().to_str().unwrap().parse().unwrap(),
    };
    std::fs::write(&chunk, vec![0; object.len as usize]).unwrap();
    let damaged = writer.object(&object).unwrap_err();
    std::fs::remove_file(&chunk).unwrap();
    let missing = writer.object(&object).unwrap_err();
    std::fs::write(first("versions"), "nothing").unwrap();
    let unreadable = writer.manifest("web@1").unwrap_err();
    let kinds = [&damaged, &missing, &unreadable].map(base::Error::kind);
    assert_eq!(kinds, [ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::Corrupt]);
    for error in [damaged, missing, unreadable] {
        let said = base::chain(&error);
        assert!(said.contains("in the server's repository"), "{said}");
        assert!(
            !said.contains("chunks/") && !said.contains("versions/") && !said.contains("os error"),
            "{said}"
        );
    }
}

#[test]
fn an_address_in_use_is_refused_before_anything_runs() {
    let (bench, folder) = (start(true), tempfile::tempdir().unwrap());
    let error = serve(ServeOptions {
        repository: bench.repository.clone(),
        state: folder.path().to_owned(),
        listen: bench.server.address(),
        tls: true,
        multicast: None,
        token_lifetime: Duration::from_secs(60),
        token_out: None,
        places: Default::default(),
        netboot: None,
        agents: false,
        strict: false,
        public: Default::default(),
        torrent: None,
        log: Arc::new(|_| {}),
    })
    .err()
    .expect("the address is in use");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    bench.server.shutdown();
}

/// Sends a request with a body; returns the status and the body of the answer.
fn ask(bench: &Bench, secret: &str, line: &str, more: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n\
         Content-Length: {length}\r\n{more}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let split = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
    (status, answer[split + 4..].to_vec())
}

#[test]
fn images_are_made_written_cloned_compared_and_read_in_place() {
    let bench = start(false);
    let mint = |images: &[&str], right| {
        let images = images.iter().map(ToString::to_string).collect();
        let claims = daemon::auth::authority::Claims::plain(images, right, u64::MAX);
        bench.state.authority().unwrap().mint(&claims).unwrap().expose().to_owned()
    };
    let writer = mint(&["web", "copy"], daemon::auth::authority::Right::Write);
    let reader = mint(&["web"], daemon::auth::authority::Right::Read);
    let json = |line: &str, more: &str, body: &[u8]| {
        let (status, answer) = ask(&bench, &writer, line, more, body);
        (status, serde_json::from_slice::<serde_json::Value>(&answer).unwrap())
    };
    let read = |reference: &str, offset: u64, bytes: u32| {
        let line = format!("GET /api/v1/content/{reference}?offset={offset}&bytes={bytes}");
        ask(&bench, &writer, &line, "", b"")
    };

    let (status, made) = json("POST /api/v1/images/web", "", br#"{"size_bytes": 1099511627776}"#);
    assert_eq!((status, made["number"].as_u64()), (201, Some(1)), "{made}");
    assert_eq!(json("POST /api/v1/images/web", "", br#"{"size_bytes": 512}"#).0, 409);
    assert_eq!(json("POST /api/v1/images/web", "", br#"{"size_bytes": 513, "chunk_bytes": 3}"#).0, 400);

    let key = "Idempotency-Key: once\r\n";
    let write = "PUT /api/v1/images/web/content?offset=1000000&expect=1";
    let (status, first) = json(write, key, b"hello");
    assert_eq!((status, first["number"].as_u64()), (201, Some(2)), "{first}");
    assert_eq!(json(write, key, b"hello").1["number"], 2, "the same key, the same version");
    assert_eq!(json(write, "", b"late").0, 412, "it is at version 2 by now");
    assert_eq!(json("PUT /api/v1/images/web/content?offset=1099511627776", "", b"x").0, 412);
    assert_eq!(json("PUT /api/v1/images/web/content", "", b"x").0, 400);

    let (status, cloned) = json("POST /api/v1/images/copy/clone", "", br#"{"from": "web@2"}"#);
    assert_eq!((status, cloned["number"].as_u64()), (201, Some(1)), "{cloned}");
    let mut pieces = Vec::new();
    for (offset, bytes) in [(1_000_000u64, &b"HE"[..]), (1_000_004, b"O there")] {
        pieces.extend(offset.to_le_bytes());
        pieces.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
        pieces.extend_from_slice(bytes);
    }
    assert_eq!(json("POST /api/v1/images/copy/commit?expect=1", "", &pieces).1["number"], 2);
    assert_eq!(json("POST /api/v1/images/copy/commit", "", &pieces[..20]).0, 400);
    let (status, appended) = json("POST /api/v1/images/copy/content", "", &[b'x'; 512]);
    assert_eq!((status, appended["offset"].as_u64()), (201, Some(1 << 40)));

    assert_eq!(read("web", 1_000_000, 7), (200, b"hello\0\0".to_vec()));
    assert_eq!(read("copy", 1_000_000, 11), (200, b"HEllO there".to_vec()));
    assert_eq!(read("copy", 1 << 40, 512), (200, vec![b'x'; 512]));
    assert_eq!(read("copy@1", 1 << 40, 1).0, 412, "behind its end");
    assert_eq!(read("none", 0, 1).0, 403);

    let (_, diff) = json("GET /api/v1/diff?before=web&after=copy&exact=true", "", b"");
    assert_eq!(diff["complete"], true);
    let expected = serde_json::json!([
        {"offset": 999_936, "bytes": 512, "change": "written"},
        {"offset": 1u64 << 40, "bytes": 512, "change": "allocated"},
    ]);
    assert_eq!(diff["ranges"], expected);
    let (_, log) = json("GET /api/v1/images/copy/log?before=3", "", b"");
    assert_eq!(log["versions"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&log["versions"][0]["parent"], &log["versions"][1]["parent"]),
        (&"copy@1".into(), &"web@2".into())
    );

    for line in [write, "POST /api/v1/images/web/clone", "GET /api/v1/diff?before=web&after=copy"] {
        let body: &[u8] = if line.contains("clone") { br#"{"from": "web"}"# } else { b"" };
        assert_eq!(ask(&bench, &reader, line, "", body).0, 403, "{line}");
    }
}

#[test]
fn a_client_writes_reads_appends_and_frees_more_than_a_request_holds() {
    let bench = start(false);
    let client = bench.client(&["web", "copy"], daemon::auth::authority::Right::Write, u64::MAX);
    let mib = 1u64 << 20;
    let request =
        CreateRequest { size_bytes: 64 * mib, chunk_bytes: Some(1 << 20), logical_sector_bytes: None };
    assert_eq!(client.create("web", &request).unwrap().number, 1);
    assert_eq!(client.create("web", &request).unwrap_err().kind(), ErrorKind::Exists);
    let bytes: Bytes = (0..(40 << 20) / 4).flat_map(u32::to_le_bytes).collect::<Vec<_>>().into();
    let written = client.write("web", 5, bytes.clone(), Some(1)).unwrap();
    assert_eq!(written.number, 4, "three requests, three versions");
    assert_eq!(client.write("web", 5, bytes.clone(), Some(1)).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(client.recent("web").unwrap().number, 4);
    let mut read = vec![0; bytes.len()];
    assert_eq!(client.read("web", 5, &mut read).unwrap(), "web@4");
    assert!(read == bytes);
    assert_eq!(client.read("web", 64 * mib, &mut [0]).unwrap_err().kind(), ErrorKind::Refused);

    let mut content = |offset: u64, into: &mut [u8]| {
        let from = usize::try_from(offset).unwrap();
        into.copy_from_slice(&bytes[from..from + into.len()]);
        Ok(())
    };
    let appended = client.append("web", 20 * mib, &mut content).unwrap();
    assert_eq!((appended.number, appended.offset, appended.disk_bytes), (6, Some(64 * mib), 84 * mib));
    let mut read = vec![0; 20 << 20];
    client.read("web", 64 * mib, &mut read).unwrap();
    assert!(read == bytes[..20 << 20]);
    let odd = client.append("web", 17 * mib + 100, &mut content).unwrap();
    assert_eq!((odd.offset, odd.disk_bytes), (Some(84 * mib), 101 * mib + 512));
    assert_eq!(client.append("web", 0, &mut content).unwrap_err().kind(), ErrorKind::Invalid);

    assert_eq!(client.clone_image("copy", "web@4").unwrap().number, 1);
    let changes = Changes {
        written: vec![3 * mib..4 * mib, 10 * mib..28 * mib],
        freed: vec![0..3 * mib, 28 * mib..64 * mib],
    };
    let done = client.commit("copy", &changes, &mut content, Some(1)).unwrap();
    assert_eq!(done.number, 3, "two requests");
    let newest = client.recent("copy").unwrap();
    assert_eq!((newest.parent.as_deref(), newest.allocated_bytes), (Some("copy@2"), 25 * mib));
    let mut read = vec![1; 64 << 20];
    client.read("copy", 0, &mut read).unwrap();
    let expected = [
        &[0; 3 << 20][..],
        &bytes[3 << 20..4 << 20],
        // Content not changed since it was written, moved by five bytes.
        &bytes[(4 << 20) - 5..(10 << 20) - 5],
        &bytes[10 << 20..28 << 20],
        &[0; 36 << 20],
    ];
    assert!(read == expected.concat());
    let overlapping = Changes { written: vec![0..10, 20..30], freed: vec![5..6, 40..50] };
    assert_eq!(
        client.commit("web", &overlapping, &mut content, None).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let reader = bench.client(&["web"], daemon::auth::authority::Right::Read, u64::MAX);
    assert_eq!(reader.write("web", 0, bytes, None).unwrap_err().kind(), ErrorKind::Denied);
}
