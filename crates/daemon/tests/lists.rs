//! Lists of many images.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use daemon::auth::authority::Right;
use image::Manifest;
use store::{Shape, Stamp};

use crate::common::{Bench, start};

/// How many requests the server has answered well.
fn answers(bench: &Bench) -> u64 {
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let count =
        text.lines().find_map(|line| line.strip_prefix("diskcast_http_requests_total{status=\"2xx\"} "));
    count.unwrap().parse().unwrap()
}

/// An empty image.
fn make(bench: &Bench, name: &str) -> Manifest {
    let stamp = Stamp { created: "2026-11-29T14:00:00Z".into(), creator: "test".into() };
    let shape = Shape { size_bytes: 1 << 20, ..Shape::default() };
    bench.repository.blob(&name.parse().unwrap()).create(&shape, &stamp).unwrap()
}

/// Lists all images with their manifests; returns how many there are, and how many requests that took.
fn list(bench: &Bench) -> (usize, u64) {
    let reader = bench.client(&["*"], Right::Read, u64::MAX);
    let before = answers(bench);
    let listed = reader.images_with_manifests().unwrap();
    for (summary, manifest) in &listed {
        assert_eq!(Manifest::decode(manifest.as_ref().unwrap()).unwrap().image, summary.name);
    }
    assert!(listed.is_sorted_by_key(|(summary, _)| summary.name.clone()));
    // The question itself is answered, too.
    (listed.len(), answers(bench) - before - 1)
}

#[test]
fn a_thousand_images_are_one_request() {
    let bench = start(false);
    (0..1200).for_each(|number| drop(make(&bench, &format!("lab-{number}"))));
    assert_eq!(list(&bench), (1200, 1));
}

#[test]
fn what_one_answer_does_not_hold_is_in_the_next() {
    let bench = start(false);
    let draft = Manifest { warnings: vec!["w".repeat(300_000)], ..make(&bench, "a") };
    for number in 0..60 {
        bench.repository.publish(&format!("b{number}").parse().unwrap(), draft.clone()).unwrap();
    }
    make(&bench, "z");
    // 27 of 300 kB are 8 MB.
    assert_eq!(list(&bench), (62, 3));
}
