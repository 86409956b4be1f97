//! A disk that runs from an image of a server, over HTTPS on loopback, also while the server is away.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daemon::{ServeOptions, Server, serve};
use image::{Cipher, Manifest};
use mirror::{Durability, Mirror, MirrorOptions, Served, Source};
use net::client::Client;
use net::clock::Stop;
use store::{Location, Repository, Shape, Stamp};

const WORDS: u32 = 2 << 20;
const SIZE: usize = 4 * WORDS as usize;

fn start(repository: &Arc<Repository>, state: &Path, listen: SocketAddr) -> Server {
    let options = ServeOptions {
        repository: Arc::clone(repository),
        state: state.to_owned(),
        listen,
        tls: true,
        multicast: None,
        token_lifetime: Duration::from_secs(600),
        log: Arc::new(|_| {}),
    };
    serve(options).unwrap()
}

#[test]
fn a_disk_runs_from_a_server_that_goes_away_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let repository = Arc::new(Repository::create(&Location::Memory).unwrap());
    let stamp = Stamp { created: "2026-11-21T21:00:00Z".into(), creator: "test".into() };
    let blob = repository.blob(&"web".parse().unwrap());
    blob.create(&Shape { size_bytes: SIZE as u64, ..Shape::default() }, &stamp).unwrap();
    let content: Vec<u8> =
        (0..WORDS).map(|number| number.wrapping_mul(2_654_435_761)).flat_map(u32::to_le_bytes).collect();
    blob.write(0, &content, &stamp).unwrap();

    let state = folder.path().join("state");
    let server = start(&repository, &state, "127.0.0.1:0".parse().unwrap());
    let (address, token) = (server.address(), server.join_token().clone());
    let options = Source::client_options(Cipher::None, Stop::new());
    let client = Arc::new(Client::connect(&address.to_string(), &token, options).unwrap());
    let manifest = Manifest::decode(&client.manifest("web").unwrap()).unwrap();
    let sources = vec![Source::server("here", Arc::clone(&client))];
    let mirror =
        Mirror::create(&folder.path().join("disk"), &manifest, sources, &MirrorOptions::default()).unwrap();
    let mut half = vec![0; SIZE / 2];
    mirror.read(0, &mut half).unwrap();
    assert!(half == content[..SIZE / 2]);

    server.shutdown();
    mirror.write(SIZE as u64 - 512, &[7; 512], Durability::Durable).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rest = vec![0; SIZE / 2];
            mirror.read(SIZE as u64 / 2, &mut rest).unwrap();
            rest
        });
        let server = start(&repository, &state, address);
        let rest = reader.join().unwrap();
        assert!(rest[..rest.len() - 512] == content[SIZE / 2..SIZE - 512]);
        assert_eq!(rest[rest.len() - 512..], [7; 512]);
        server.shutdown();
    });
    let counters = mirror.counters();
    assert_eq!(counters.demanded_bytes + counters.prefetched_bytes, manifest.statistics.encoded_bytes);
}
