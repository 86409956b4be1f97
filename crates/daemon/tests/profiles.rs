//! Tests boot profiles over HTTPS on loopback: the server stores and returns them, and passes reads between machines
//! that start.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{ErrorKind, Result};
use daemon::{ServeOptions, Server, serve};
use image::Manifest;
use mirror::{BootProfiles, Mirror, MirrorOptions, ReadReport, ReadUpdate, Served, Source};
use net::client::{Client, ClientOptions};
use net::clock::Clock;
use net::profile::{BootRequest, Cursor, ExchangeRequest, chunks_of, runs_of};
use store::{Location, Repository, Shape, Stamp};

struct Bench {
    server: Server,
    repository: Arc<Repository>,
    _state: tempfile::TempDir,
}

/// Chunks of the image.
const CHUNKS: u64 = 32;

/// A server with an image `web` of 32 chunks of data.
fn start() -> Bench {
    let repository = Arc::new(Repository::create(&Location::Memory).unwrap());
    let stamp = Stamp { created: "2026-11-22T01:00:00Z".into(), creator: "test".into() };
    let blob = repository.blob(&"web".parse().unwrap());
    blob.create(&Shape { size_bytes: CHUNKS << 18, ..Shape::default() }, &stamp).unwrap();
    let content: Vec<u8> =
        (0..1u32 << 21).map(|number| number.wrapping_mul(2_654_435_761)).flat_map(u32::to_le_bytes).collect();
    blob.write(0, &content, &stamp).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(ServeOptions {
        repository: Arc::clone(&repository),
        state: folder.path().to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: true,
        multicast: None,
        token_lifetime: Duration::from_secs(600),
        token_out: None,
        places: Default::default(),
        netboot: None,
        agents: false,
        strict: false,
        public: Default::default(),
        torrent: None,
        log: Arc::new(|_| {}),
    })
    .unwrap();
    Bench { server, repository, _state: folder }
}

impl Bench {
    fn client(&self) -> Arc<Client> {
        let options = ClientOptions { patience: Duration::ZERO, ..ClientOptions::default() };
        let (address, token) = (self.server.address().to_string(), self.server.join_token());
        Arc::new(Client::connect(&address, token, options).unwrap())
    }
}

#[test]
fn a_boot_that_was_told_is_what_the_next_machine_is_given() {
    let bench = start();
    let client = bench.client();
    assert_eq!(client.profile("web", 2).unwrap(), None);
    let boot = BootRequest { version: 2, runs: runs_of(&[7, 8, 2, 3, 15]) };
    assert!(client.add_boot("web", &boot).unwrap().kept);
    let found = client.profile("web", 2).unwrap().unwrap();
    assert_eq!((found.boots, found.chunk_bytes, found.number), (1, 256 << 10, 1));
    assert_eq!(found.runs, boot.runs);
    // A second boot that ends at the same time is not kept.
    assert!(!client.add_boot("web", &boot).unwrap().kept);
    assert_eq!(bench.repository.profile(&"web".parse().unwrap(), 2).unwrap().unwrap().boots, 1);
    let missing = BootRequest { version: 9, ..boot };
    assert_eq!(client.add_boot("web", &missing).unwrap_err().kind(), ErrorKind::NotFound);
    let empty = BootRequest { version: 2, runs: Vec::new() };
    assert!(client.add_boot("lab", &empty).is_err());
}

#[test]
fn machines_tell_each_other_what_they_read() {
    let bench = start();
    let client = bench.client();
    let tell = |machine, cursor, chunks: &[u64]| {
        let request = ExchangeRequest { version: 2, machine, cursor, runs: runs_of(chunks) };
        let answer = client.exchange_reads("web", &request).unwrap();
        (answer.cursor, chunks_of(&answer.runs, 100))
    };
    let (first, heard) = tell(1, Cursor::default(), &[3, 4, 9]);
    assert!(heard.is_empty());
    // No disk of this version has a chunk 32.
    assert_eq!(tell(2, Cursor::default(), &[5, 32]).1, [3, 4, 9]);
    assert_eq!(tell(1, first, &[]).1, [5]);
    let gone = ExchangeRequest { version: 9, machine: 1, cursor: first, runs: Vec::new() };
    assert_eq!(client.exchange_reads("web", &gone).unwrap_err().kind(), ErrorKind::NotFound);
    let long: Vec<u64> = (0..5000).map(|number| 2 * number).collect();
    let long = ExchangeRequest { version: 2, machine: 1, cursor: first, runs: runs_of(&long) };
    assert_eq!(client.exchange_reads("web", &long).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A client that counts what its machine has reported and received.
struct Counting {
    client: Arc<Client>,
    told: AtomicUsize,
    heard: AtomicUsize,
}

impl BootProfiles for Counting {
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        self.client.boot_profile(image, version)
    }

    fn share_reads(&self, image: &str, told: ReadReport<'_>) -> Result<Option<ReadUpdate>> {
        let heard = self.client.share_reads(image, told)?;
        let heard = heard.map(|heard| ReadUpdate { pause: Duration::from_millis(1), ..heard });
        self.told.fetch_add(told.chunks.len(), Ordering::SeqCst);
        self.heard.fetch_add(heard.as_ref().map_or(0, |heard| heard.chunks.len()), Ordering::SeqCst);
        Ok(heard)
    }

    fn record_boot(&self, image: &str, version: u64, chunks: &[u64], stamp: &Stamp) -> Result<()> {
        self.client.record_boot(image, version, chunks, stamp)
    }
}

/// A disk that starts from the server, and the counter of its exchange.
fn machine(bench: &Bench, folder: &Path) -> (Mirror, Arc<Counting>) {
    let client = bench.client();
    let manifest = Manifest::decode(&client.manifest("web").unwrap()).unwrap();
    let sources = vec![Source::server("here", Arc::clone(&client))];
    let options = MirrorOptions { ahead_chunks_max: 0, ..MirrorOptions::default() };
    let mirror = Mirror::create(folder, &manifest, sources, &options).unwrap();
    let guide = Counting { client, told: AtomicUsize::new(0), heard: AtomicUsize::new(0) };
    let guide = Arc::new(guide);
    let stamp = Stamp { created: "2026-11-22T01:00:00Z".into(), creator: "test".into() };
    mirror.follow_boots(Arc::clone(&guide) as Arc<dyn BootProfiles>, &stamp).unwrap();
    (mirror, guide)
}

/// Checks a condition repeatedly; panics after too long.
fn until(mut is_so: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !is_so() {
        assert!(clock.elapsed() < Duration::from_secs(120), "it never comes");
        std::thread::yield_now();
    }
}

#[test]
fn a_machine_that_starts_later_has_what_the_first_one_read() {
    const CHUNK: u64 = 256 << 10;
    let (bench, folder) = (start(), tempfile::tempdir().unwrap());
    let order: Vec<u64> = (0..CHUNKS).map(|number| number * 7 % CHUNKS).collect();
    let read = |mirror: &Mirror, chunks: &[u64]| {
        chunks.iter().for_each(|chunk| mirror.read(chunk * CHUNK, &mut [0; 4096]).unwrap());
    };
    let (first, first_guide) = machine(&bench, &folder.path().join("first"));
    read(&first, &order[..20]);
    until(|| first_guide.told.load(Ordering::SeqCst) == 20);
    // The second machine starts while the first one still runs.
    let (second, second_guide) = machine(&bench, &folder.path().join("second"));
    read(&first, &order[20..]);
    until(|| second_guide.heard.load(Ordering::SeqCst) == order.len());
    let all = first.counters().demanded_bytes;
    until(|| second.counters().expected_bytes == all);
    read(&second, &order);
    let waits = [&first, &second].map(|mirror| mirror.counters().demanded_chunks);
    assert_eq!(waits, [CHUNKS, 0], "reads that waited");
    assert_eq!(second.counters().prefetched_unused_bytes(), 0);
    first.close().unwrap();
    drop(first);
    // A machine that starts long after both gets the profile.
    let found = bench.client().profile("web", 2).unwrap().unwrap();
    assert_eq!((found.boots, found.runs), (1, runs_of(&order)));
    second.close().unwrap();
}
