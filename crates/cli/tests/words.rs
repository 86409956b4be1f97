//! What people read when a command fails or is interrupted: errors, hints, and nothing that a terminal obeys.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use base::Digest;
use common::Bench;

/// A server that gives one answer to every request. Returns its URL.
fn parrot(status: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        listener.incoming().for_each(|client| drop(answer(&client.unwrap(), status, &body)))
    });
    url
}

fn answer(mut client: &TcpStream, status: &str, body: &[u8]) -> std::io::Result<()> {
    let head = BufReader::new(client).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    head.for_each(drop);
    write!(client, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len())?;
    client.write_all(body)
}

/// A manifest of which the checksum is right.
fn manifest(body: &str) -> Vec<u8> {
    let mut bytes = b"DCMF\x01\0\0\0".to_vec();
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(body.as_bytes());
    bytes.extend(Digest::of(&bytes).0);
    bytes
}

#[test]
fn a_hostile_server_does_not_control_the_terminal() {
    let bench = Bench::new();
    bench.keep_secret("any.token", "diskcast1.-.secret");
    let needs = manifest(r#"{"format": 1, "features": ["\u001b[2Jhostile\nhint: sudo this"]}"#);
    let stage = r#"{"sessions": [], "hosts": [{"stage": "\u001b[2Jhostile"}]}"#;
    let reason = r#"{"type": "denied", "title": "", "status": 403, "detail": "\u001b[2Jhostile\u009b2J"}"#;
    for (words, url) in [
        ("fetch URL lab null:", parrot("200 OK", needs)),
        ("status URL", parrot("200 OK", stage.into())),
        ("status URL", parrot("403 Forbidden", reason.into())),
    ] {
        let line = format!("{} --token-file any.token", words.replace("URL", &url));
        let output = bench.command(&line).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("[2Jhostile"), "{words}: {said:?}");
        assert!(!said.replace('\n', "").contains(char::is_control), "{words}: {said:?}");
        assert!(!said.contains("\nhint: sudo"), "{words}: {said:?}");
    }
}
