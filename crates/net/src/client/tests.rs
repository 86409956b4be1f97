//! Tests the client with servers that answer wrongly, slowly, or not at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::api::{Problem, ProblemKind};
use crate::token::{Fingerprint, Secret};
use image::ObjectKind;

const OBJECT: &[u8] = b"an object";

fn object() -> ObjectRef {
    ObjectRef::of(ObjectKind::Chunk, OBJECT)
}

fn secret() -> Secret {
    "secret".parse().unwrap()
}

fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn failed(problem: &Problem) -> Vec<u8> {
    let body = serde_json::to_vec(problem).unwrap();
    let status = problem.status;
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), &body].concat()
}

/// Reads the head of a request. Returns its first line, and whether it had the secret.
fn read_request(stream: impl Read) -> (String, bool) {
    let lines = BufReader::new(stream).lines().map_while(std::result::Result::ok);
    let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let authorized = lines.iter().any(|line| line.eq_ignore_ascii_case("authorization: Bearer secret"));
    (lines.first().cloned().unwrap_or_default(), authorized)
}

/// A server that gives one of the answers per connection, and then stops. Returns its address.
fn server(answers: Vec<Vec<u8>>) -> (String, thread::JoinHandle<Vec<(String, bool)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let serve = |answer: Vec<u8>| {
            let (mut stream, _) = listener.accept().unwrap();
            let request = read_request(&stream);
            stream.write_all(&answer).unwrap();
            request
        };
        answers.into_iter().map(serve).collect()
    });
    (address, serving)
}

fn client(address: &str, patience: Duration) -> Client {
    let request_timeout = Duration::from_millis(300);
    client_of(
        address,
        ClientOptions { first_patience: patience, patience, request_timeout, ..ClientOptions::default() },
    )
}

fn client_of(address: &str, options: ClientOptions) -> Client {
    let token = JoinToken { fingerprint: None, secret: secret() };
    Client::connect(address, &token, options).unwrap()
}

#[test]
fn what_passes_is_tried_again() {
    let busy = failed(&ProblemKind::Unavailable.with("starting"));
    let half = ok(OBJECT)[..50].to_vec();
    let (address, serving) = server(vec![busy, Vec::new(), half, ok(OBJECT)]);
    let bytes = client(&address, Duration::from_secs(20)).object(&object()).unwrap();
    assert_eq!(&bytes[..], OBJECT);
    let requests = serving.join().unwrap();
    assert_eq!(requests.len(), 4);
    assert!(
        requests.iter().all(|(line, authorized)| *authorized && line.contains("/objects/chunks/")),
        "{requests:?}"
    );
}

#[test]
fn what_does_not_pass_is_said_at_once() {
    for (problem, kind) in [
        (ProblemKind::NotFound, ErrorKind::NotFound),
        (ProblemKind::Denied, ErrorKind::Denied),
        (ProblemKind::Internal, ErrorKind::Io),
        (ProblemKind::Full, ErrorKind::Full),
    ] {
        let (address, serving) = server(vec![failed(&problem.with("because"))]);
        let error = client(&address, Duration::from_secs(20)).images().unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("because"), "{error}");
        assert_eq!(serving.join().unwrap().len(), 1);
    }
}

#[test]
fn a_hostile_server_does_not_get_at_the_terminal() {
    let detail = format!("no\u{1b}[2J\r\n\u{9b}way{}", "!".repeat(5000));
    let (address, _) = server(vec![failed(&ProblemKind::Refused.with(&detail))]);
    let error = base::chain(&client(&address, Duration::ZERO).images().unwrap_err());
    assert!(error.contains("no[2Jway!!") && !error.contains(char::is_control), "{error:?}");
    assert!(error.len() < 2000, "{} bytes", error.len());
}

#[test]
fn a_token_that_is_not_taken_is_looked_for_again_once() {
    let token = |secret: &str| JoinToken { fingerprint: None, secret: secret.parse().unwrap() };
    let denied = || failed(&ProblemKind::Denied.with("the token has expired"));
    let options = || ClientOptions { patience: Duration::ZERO, ..ClientOptions::default() };
    // The token has been replaced by now.
    let (address, serving) = server(vec![denied(), ok(OBJECT)]);
    let credential = Credential::from_place(token("old"), Box::new(move || Some(token("secret"))));
    let client = Client::connect_by(&address, Arc::clone(&credential), options()).unwrap();
    assert_eq!(&client.object(&object()).unwrap()[..], OBJECT);
    let authorized: Vec<bool> =
        serving.join().unwrap().into_iter().map(|(_, authorized)| authorized).collect();
    assert_eq!((authorized, credential.token()), (vec![false, true], token("secret")));
    // The token is unchanged, or the new one is rejected too: the client sends the request at most twice.
    for (now, asked) in [("old", 1), ("secret", 2)] {
        let (address, serving) = server(vec![denied(); asked]);
        let credential = Credential::from_place(token("old"), Box::new(move || Some(token(now))));
        let client = Client::connect_by(&address, credential, options()).unwrap();
        let error = client.images().unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("expired"), "{error}");
        assert_eq!(serving.join().unwrap().len(), asked);
    }
}

#[test]
fn a_server_that_goes_is_waited_for_in_words_at_once_and_its_return_is_told() {
    let (told, words) = std::sync::mpsc::channel();
    let token = JoinToken { fingerprint: None, secret: secret() };
    let options = ClientOptions {
        tell: Arc::new(move |words| told.send(words.to_owned()).unwrap()),
        ..ClientOptions::default()
    };
    let busy = || failed(&ProblemKind::Unavailable.with("it is ending"));
    let (address, _) = server(vec![ok(OBJECT), busy(), busy(), ok(OBJECT)]);
    let client = Client::connect(&address, &token, options).unwrap();
    client.object(&object()).unwrap();
    assert!(words.try_recv().is_err());
    client.object(&object()).unwrap();
    let told: Vec<String> = words.try_iter().collect();
    assert!(
        told.len() == 2 && told[0].contains("it is ending") && told[1].contains("answers again"),
        "{told:?}"
    );
}

#[test]
fn an_answer_longer_than_it_may_be_is_not_taken_in() {
    let (address, _) = server(vec![ok(&[7; 4096])]);
    let error = client(&address, Duration::from_secs(20)).object(&object()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_server_that_is_gone_or_silent_costs_patience_and_no_more() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [gone, silent.local_addr().unwrap().to_string()] {
        let error = client(&address, Duration::from_millis(700)).images().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
}

#[test]
fn the_first_answer_is_waited_for_in_words_and_for_less_long() {
    let (told, words) = std::sync::mpsc::channel();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let token = JoinToken { fingerprint: None, secret: secret() };
    let options = ClientOptions {
        first_patience: Duration::from_secs(5),
        patience: Duration::from_secs(3600),
        tell: Arc::new(move |words| told.send(words.to_owned()).unwrap()),
        ..ClientOptions::default()
    };
    let client = Client::connect(&silent.local_addr().unwrap().to_string(), &token, options).unwrap();
    let error = client.images().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let words = words.try_recv().unwrap();
    assert!(words.contains("does not answer") && words.contains("2 s more"), "{words}");
}

#[test]
fn a_stopped_client_does_not_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(&silent.local_addr().unwrap().to_string(), Duration::from_secs(3600));
    client.options.stop.stop();
    assert_eq!(client.images().unwrap_err().kind(), ErrorKind::Stopped);
}

#[test]
fn addresses_are_completed_and_plain_text_stays_on_loopback() {
    let with = JoinToken { fingerprint: Some(Fingerprint([0; 32])), secret: secret() };
    let without = JoinToken { fingerprint: None, secret: secret() };
    for (text, token, url) in [
        ("images.example", &with, "https://images.example:7717/"),
        ("images.example:8000", &with, "https://images.example:8000/"),
        ("https://images.example:443", &with, "https://images.example/"),
        ("[fd77::1]", &with, "https://[fd77::1]:7717/"),
        ("localhost", &without, "http://localhost:7717/"),
        ("http://[::1]:80", &without, "http://[::1]/"),
    ] {
        assert_eq!(address_of(text, token).unwrap().as_str(), url);
    }
    for (text, token) in
        [("images.example", &without), ("http://localhost", &with), ("ftp://localhost", &without)]
    {
        assert_eq!(address_of(text, token).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
    }
}

/// Serves one TLS connection with a new certificate. Returns address and fingerprint.
fn tls_server() -> (String, Fingerprint) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["diskcast".into()]).unwrap().self_signed(&key).unwrap();
    let fingerprint = Fingerprint::of(certificate.der());
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let config = Arc::new(config);
    thread::spawn(move || {
        let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
        let mut session = rustls::ServerConnection::new(config).unwrap();
        let mut tls = rustls::Stream::new(&mut session, &mut stream);
        read_request(&mut tls);
        let _ = tls.write_all(&ok(OBJECT));
    });
    (address, fingerprint)
}

#[test]
fn only_the_pinned_certificate_is_trusted() {
    for right in [true, false] {
        let (address, fingerprint) = tls_server();
        let pin = if right { fingerprint } else { Fingerprint([1; 32]) };
        let token = JoinToken { fingerprint: Some(pin), secret: secret() };
        let options = ClientOptions { patience: Duration::from_secs(5), ..ClientOptions::default() };
        let client = Client::connect(&address, &token, options).unwrap();
        match client.object(&object()) {
            Ok(bytes) => assert!(right && &bytes[..] == OBJECT),
            Err(error) => assert!(!right && error.kind() == ErrorKind::Untrusted, "{error:?}"),
        }
    }
}

/// A server that, of each connection, is told whether its segments are small and what was asked, and says what it
/// answers, if anything. Returns its address.
fn picky_server(answer: impl Fn(bool, &str) -> Option<Vec<u8>> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let is_small = socket2::SockRef::from(&stream).tcp_mss().unwrap() < 1300;
            let (line, _) = read_request(&stream);
            match answer(is_small, &line) {
                Some(answer) => stream.write_all(&answer).unwrap(),
                None => silent.push(stream),
            }
        }
    });
    address
}

#[test]
fn where_full_size_packets_are_lost_small_ones_are_used_from_then_on() {
    let (told, asked) = std::sync::mpsc::channel();
    let address = picky_server(move |is_small, line| {
        told.send((is_small, line.to_owned())).unwrap();
        is_small.then(|| if line.starts_with("GET / ") { ok(&[b'-'; 5000]) } else { ok(OBJECT) })
    });
    let (tell, words) = std::sync::mpsc::channel();
    // Long enough for small tests on a busy machine.
    let client = client_of(
        &address,
        ClientOptions {
            request_timeout: Duration::from_secs(1),
            tell: Arc::new(move |words| tell.send(words.to_owned()).unwrap()),
            ..ClientOptions::default()
        },
    );
    for _ in 0..2 {
        assert_eq!(&client.object(&object()).unwrap()[..], OBJECT);
    }
    let said: Vec<String> =
        words.try_iter().filter(|words| words.contains("loses full-size packets")).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    // One attempt on a usual connection; after the test, all are on small ones.
    let asked: Vec<_> = asked.try_iter().filter(|(_, line)| line.contains("/objects/")).collect();
    let small: Vec<bool> = asked.into_iter().map(|(is_small, _)| is_small).collect();
    assert_eq!(small, [false, true, true]);
}

#[test]
fn a_server_that_is_slow_once_is_not_taken_for_a_network_that_loses_full_size_packets() {
    let (told, asked) = std::sync::mpsc::channel();
    let slow = AtomicBool::new(true);
    let address = picky_server(move |is_small, line| {
        told.send((is_small, line.to_owned())).unwrap();
        if line.starts_with("GET / ") {
            return Some(ok(&[b'-'; 5000]));
        }
        (!slow.swap(false, Ordering::Relaxed)).then(|| ok(OBJECT))
    });
    assert_eq!(&client(&address, Duration::from_secs(20)).object(&object()).unwrap()[..], OBJECT);
    // Only tests may be small: the next attempt is not.
    let asked: Vec<_> = asked.try_iter().filter(|(_, line)| line.contains("/objects/")).collect();
    assert!(!asked.is_empty() && asked.iter().all(|(is_small, _)| !is_small), "{asked:?}");
}

#[test]
fn a_network_that_is_busy_is_not_taken_for_one_that_loses_full_size_packets() {
    // Of each three tests two get no answer, whatever the size of their packets, and each request only the second time.
    let (tests, requests) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let address = picky_server(move |_, line| {
        if line.starts_with("GET / ") {
            return (tests.fetch_add(1, Ordering::Relaxed) % 3 == 2).then(|| ok(&[b'-'; 5000]));
        }
        let again = line.contains("/objects/") && requests.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        again.then(|| ok(OBJECT))
    });
    let (tell, words) = std::sync::mpsc::channel();
    let client = client_of(
        &address,
        ClientOptions {
            request_timeout: Duration::from_millis(300),
            tell: Arc::new(move |words| tell.send(words.to_owned()).unwrap()),
            ..ClientOptions::default()
        },
    );
    for _ in 0..3 {
        assert_eq!(&client.object(&object()).unwrap()[..], OBJECT);
    }
    // A session that takes it for such a network is not believed either.
    client.narrow();
    let said: Vec<String> = words.try_iter().collect();
    assert!(said.iter().all(|words| !words.contains("full-size")), "{said:?}");
}
