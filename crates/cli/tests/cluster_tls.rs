//! TLS between the parts of a cluster, each a process of its own: openssl and curl verify it, nothing readable passes
//! on the wire, and what is no part of the cluster is refused with a word on what to do.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::running::Running;
use crate::common::wire::Wire;
use crate::common::{Bench, assert_same};

/// A part of a cluster that runs, and its port.
struct Part {
    _running: Running,
    port: u16,
}

impl Part {
    fn start(bench: &Bench, words: &str) -> Self {
        let listen = "--listen 127.0.0.1:0 --cluster-token cluster.token --json";
        let mut running = Running::start(bench.command(&format!("{words} {listen}")));
        let said = running.wait_for(|record| record["address"].is_string());
        let (_, port) = said["address"].as_str().unwrap().rsplit_once(':').unwrap();
        Self { port: port.parse().unwrap(), _running: running }
    }
}

fn openssl(bench: &Bench, words: &str) -> (bool, String) {
    run(bench, Command::new("openssl").args(words.split_whitespace()))
}

fn curl(bench: &Bench, words: &str) -> (bool, String) {
    run(bench, Command::new("curl").args(["--silent", "--show-error"]).args(words.split_whitespace()))
}

/// Whether a program succeeds, and all that it says.
fn run(bench: &Bench, command: &mut Command) -> (bool, String) {
    let done = command.current_dir(bench.path("")).stdin(Stdio::null()).output().unwrap();
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

#[test]
fn openssl_and_curl_verify_the_parts() {
    let bench = Bench::new();
    let metadata = Part::start(&bench, "metadata meta --width 1+1");
    let place = format!("127.0.0.1:{}", metadata.port);
    let device = Part::start(&bench, &format!("device disk --new --metadata {place}"));
    let pem = |token: &str, file: &str| {
        let made = bench.command(&format!("cluster certificate --cluster-token {token}")).output().unwrap();
        std::fs::write(bench.path(file), made.stdout).unwrap();
    };
    pem("cluster.token", "cluster.pem");
    bench.keep_secret("other.token", "0123456789abcdef".repeat(4));
    pem("other.token", "other.pem");
    for port in [metadata.port, device.port] {
        // Strictly by RFC 5280, by its name and by its address, and at both ends of time.
        for check in
            ["-verify_hostname cluster.diskcast", "-verify_ip 127.0.0.1", "-attime 1", "-attime 253370764800"]
        {
            let strictly = "-CAfile cluster.pem -x509_strict -verify_return_error -brief";
            let words = format!("s_client -connect 127.0.0.1:{port} {strictly} {check}");
            let (well, said) = openssl(&bench, &words);
            assert!(well && said.contains("Verification: OK") && said.contains("TLSv1.3"), "{check}: {said}");
        }
        let words =
            format!("s_client -connect 127.0.0.1:{port} -CAfile other.pem -verify_return_error -brief");
        assert!(!openssl(&bench, &words).0, "another token's authority did not sign it");
    }
    let status = format!("https://127.0.0.1:{}/device/v1/status", device.port);
    let (well, said) = curl(&bench, &format!("--fail --cacert cluster.pem {status}"));
    assert!(well && said.contains("\"version\""), "{said}");
    let (well, said) = curl(&bench, &format!("--fail --cacert other.pem {status}"));
    assert!(!well && said.contains("certificate"), "{said}");
    // By its name, wherever it is.
    let port = metadata.port;
    let named = format!(
        "--resolve cluster.diskcast:{port}:127.0.0.1 https://cluster.diskcast:{port}/metadata/v1/status"
    );
    let token = std::fs::read_to_string(bench.path("cluster.token")).unwrap();
    let (well, said) = run(
        &bench,
        Command::new("curl")
            .args(["--silent", "--fail", "--cacert", "cluster.pem", "--oauth2-bearer", token.trim()])
            .args(named.split_whitespace()),
    );
    assert!(well && said.contains("\"epoch\""), "{said}");
    // A device in plain HTTP has no place among them.
    let identity = "0123456789abcdef".repeat(2);
    let join = format!(
        r#"{{"identity":"{identity}","address":"http://10.0.0.7:1","domain":"a","bytes":1,"free":1}}"#
    );
    let (well, said) = run(
        &bench,
        Command::new("curl")
            .args(["--silent", "--cacert", "cluster.pem", "--oauth2-bearer", token.trim()])
            .args(["--json", &join, &format!("https://{place}/metadata/v1/devices")]),
    );
    assert!(well && said.contains("which begins with https://"), "{said}");
}

#[test]
fn who_does_not_belong_is_told_what_to_do() {
    let bench = Bench::new();
    bench.keep_secret("other.token", "0123456789abcdef".repeat(4));
    let secure = Part::start(&bench, "metadata secure");
    let plain = Part::start(&bench, "metadata plain --new --no-tls");
    let (secure, plain) = (format!("127.0.0.1:{}", secure.port), format!("127.0.0.1:{}", plain.port));
    let status = |location: &str, token: &str| {
        bench.see(&format!("cluster status --repo {location} --cluster-token {token}"))
    };
    let well = [format!("cluster://{secure}"), format!("cluster+http://{plain}")];
    for location in well {
        let seen = status(&location, "cluster.token");
        assert!(seen.contains("0 devices have joined") && seen.ends_with("exit: 0\n"), "{location}: {seen}");
    }
    let device = |metadata: &str, words: &str| {
        bench.see(&format!("device disk --new --metadata {metadata} --quiet --cluster-token {words}"))
    };
    let secure_url = format!("cluster://{secure}");
    for (seen, told) in [
        (status(&secure_url, "other.token"), "has no certificate of this cluster"),
        (device(&secure, "other.token"), "has no certificate of this cluster"),
        (
            status(&format!("cluster+http://{secure}"), "cluster.token"),
            "speaks TLS: its location begins with cluster://",
        ),
        (device(&secure, "cluster.token --no-tls"), "speaks TLS: its location begins with cluster://"),
        (
            status(&format!("cluster://{plain}"), "cluster.token"),
            "plain HTTP: its location begins with cluster+http://",
        ),
        (device(&plain, "cluster.token"), "plain HTTP: its location begins with cluster+http://"),
        (
            status(&format!("cluster+http://{plain}"), "other.token"),
            "the cluster's token is missing or wrong",
        ),
        (device(&plain, "other.token --no-tls"), "the cluster's token is missing or wrong"),
    ] {
        assert!(seen.contains(told) && seen.ends_with("exit: 13\n"), "{told}: {seen}");
    }
    // Programs without TLS get an answer that they can read, and what they sent is not taken.
    let (_, said) = curl(&bench, &format!("--include http://{secure}/metadata/v1/map"));
    assert!(said.starts_with("HTTP/1.1 400") && said.ends_with("\"type\":\"invalid\"}"), "{said}");
}

/// What a part would see of a client: a server that has this certificate, and prints what it is sent.
fn impostor(bench: &Bench, certificate: &str, key: &str) -> String {
    bench.keep_secret("impostor.pem", certificate);
    bench.keep_secret("impostor.key", key);
    let mut server = Command::new("openssl");
    server.args("s_server -accept 127.0.0.1:0 -naccept 1 -cert impostor.pem -key impostor.key".split(' '));
    server.current_dir(bench.path("")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let mut place = String::new();
    while !place.starts_with("ACCEPT ") {
        place.clear();
        assert!(said.read_line(&mut place).unwrap() > 0, "openssl serves");
    }
    let seen = bench.see(&format!(
        "cluster status --repo cluster://{} --cluster-token cluster.token",
        &place[7..].trim()
    ));
    assert!(seen.contains("has no certificate of this cluster") && seen.ends_with("exit: 13\n"), "{seen}");
    server.kill().unwrap();
    server.wait().unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    rest
}

#[test]
fn an_impostor_is_sent_nothing() {
    let bench = Bench::new();
    bench.keep_secret("cluster.token", "fedcba9876543210".repeat(4));
    let names =
        || rcgen::CertificateParams::new(["cluster.diskcast".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let itself = names().self_signed(&key).unwrap();
    // An authority of the same name signs it.
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "diskcast cluster");
    let issuer = rcgen::Issuer::new(authority, rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap());
    let signed = names().signed_by(&key, &issuer).unwrap();
    for certificate in [itself, signed] {
        let seen = impostor(&bench, &certificate.pem(), &key.serialize_pem());
        assert!(!seen.contains("Bearer") && !seen.contains("HTTP/1.1"), "{seen}");
    }
}

/// All that passes between the parts of a cluster while a disk is captured and installed.
fn overheard(scheme: &str, words: &str) -> (Bench, Vec<u8>) {
    let bench = Bench::new();
    let seen = Arc::default();
    let to_metadata = Wire::new(&seen);
    let metadata = Part::start(&bench, &format!("metadata meta --width 2+1 {words}"));
    to_metadata.lead_to(metadata.port);
    let _devices: Vec<_> = (0..3)
        .map(|number| {
            let wire = Wire::new(&seen);
            let places = format!("--metadata {} --address {}", to_metadata.place, wire.place);
            let device = Part::start(
                &bench,
                &format!("device disk-{number} --new {places} --domain {number} {words}"),
            );
            wire.lead_to(device.port);
            device
        })
        .collect();
    let there = format!("--repo {scheme}://{} --cluster-token cluster.token", to_metadata.place);
    let ready = (0..600).any(|_| {
        std::thread::park_timeout(Duration::from_millis(50));
        bench.see(&format!("cluster status {there}")).contains("all is well")
    });
    assert!(ready, "{}", bench.see(&format!("cluster status {there}")));
    let disk = bench.disk("disk.img", 4, 7);
    for words in ["init", "capture disk.img web -q", "install web out.img -q"] {
        let seen = bench.see(&format!("{words} {there}"));
        assert!(seen.ends_with("exit: 0\n"), "{words}: {seen}");
    }
    assert_same(&disk, &bench.path("out.img"));
    drop(metadata);
    let seen = to_metadata.take_seen();
    (bench, seen)
}

#[test]
fn nothing_readable_passes_on_the_wire_unless_told() {
    for (scheme, words, readable) in [("cluster", "", false), ("cluster+http", "--no-tls", true)] {
        let (bench, wire) = overheard(scheme, words);
        assert!(wire.len() > 5 << 19, "{} bytes: 1 MiB with parity, and the way back", wire.len());
        let token = std::fs::read_to_string(bench.path("cluster.token")).unwrap();
        let disk = std::fs::read(bench.path("disk.img")).unwrap();
        let parts = [
            ("the token", token.trim().as_bytes()),
            ("a capability", b"diskcast-capability: "),
            ("a name", b"chunks/"),
            ("content", &disk[1000..1064]),
        ];
        for (what, part) in parts {
            let passes = wire.windows(part.len()).any(|window| window == part);
            assert_eq!(passes, readable, "{what} in {} bytes of {scheme}", wire.len());
        }
    }
}
