//! Boot profiles of a disk: known chunks are prefetched, and the chunks that a machine reads while it boots are
//! recorded.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use mirror::{BootProfiles, Mirror, MirrorOptions, ReadReport, ReadUpdate, Served, Source};
use net::clock::Clock;
use net::profile::Cursor;
use parking_lot::Mutex;
use store::{Location, Repository, Shape, Stamp};

const CHUNK: u64 = 256 << 10;
const CHUNKS: u64 = 64;

fn stamp() -> Stamp {
    Stamp { created: "2026-11-22T01:00:00Z".into(), creator: "test".into() }
}

/// A repository with an image `web`, of 64 chunks of data.
fn repository() -> Arc<Repository> {
    let repository = Arc::new(Repository::create(&Location::Memory).unwrap());
    let blob = repository.blob(&"web".parse().unwrap());
    blob.create(&Shape { size_bytes: CHUNKS * CHUNK, ..Shape::default() }, &stamp()).unwrap();
    let words = u32::try_from(CHUNKS * CHUNK / 4).unwrap();
    let content: Vec<u8> =
        (0..words).map(|number| number.wrapping_mul(2_654_435_761)).flat_map(u32::to_le_bytes).collect();
    blob.write(0, &content, &stamp()).unwrap();
    repository
}

fn disk(repository: &Arc<Repository>, folder: &Path) -> Mirror {
    let manifest = repository.resolve(&"web".parse().unwrap()).unwrap();
    let sources = vec![Source::repository(Arc::clone(repository))];
    Mirror::create(folder, &manifest, sources, &options()).unwrap()
}

/// No read-ahead: only chunks that other machines read are prefetched.
fn options() -> MirrorOptions {
    MirrorOptions { ahead_chunks_max: 0, ..MirrorOptions::default() }
}

/// The encoded size of `chunks` chunks in bytes; all chunks are about the same size.
fn encoded(repository: &Repository, chunks: u64) -> u64 {
    chunks * repository.resolve(&"web".parse().unwrap()).unwrap().statistics.encoded_bytes / CHUNKS
}

fn kept(repository: &Repository) -> Option<Vec<u64>> {
    repository.profile(&"web".parse().unwrap(), 2).unwrap().map(|found| found.order())
}

fn follow(mirror: &Mirror, repository: &Arc<Repository>) {
    mirror.follow_boots(Arc::clone(repository) as Arc<dyn BootProfiles>, &stamp()).unwrap();
}

fn read(mirror: &Mirror, chunks: impl IntoIterator<Item = u64>) {
    chunks.into_iter().for_each(|chunk| mirror.read(chunk * CHUNK, &mut [0; 512]).unwrap());
}

/// Waits until `is_so`; panics after some time.
fn until(mut is_so: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !is_so() {
        assert!(clock.elapsed() < Duration::from_secs(120), "it never comes");
        std::thread::yield_now();
    }
}

#[test]
fn what_one_boot_read_the_next_one_has_before_it_asks() {
    let (repository, folder) = (repository(), tempfile::tempdir().unwrap());
    let boot: Vec<u64> = (0..20).map(|number| number * 37 % CHUNKS).collect();
    let first = disk(&repository, &folder.path().join("first"));
    follow(&first, &repository);
    read(&first, boot.clone());
    first.close().unwrap();
    drop(first);
    assert_eq!(kept(&repository), Some(boot.clone()));

    let second = disk(&repository, &folder.path().join("second"));
    follow(&second, &repository);
    let bytes = |mirror: &Mirror| mirror.counters().expected_bytes;
    until(|| 2 * bytes(&second) > encoded(&repository, 39));
    read(&second, boot.clone());
    let counters = second.counters();
    assert_eq!((counters.demanded_bytes, counters.prefetched_unused_bytes()), (0, 0));
    assert_eq!(counters.expected_used_bytes, bytes(&second));
    second.close().unwrap();
    drop(second);
    let found = repository.profile(&"web".parse().unwrap(), 2).unwrap().unwrap();
    assert_eq!((found.boots, found.order()), (2, boot));
}

#[test]
fn what_is_no_start_is_not_kept() {
    let (repository, folder) = (repository(), tempfile::tempdir().unwrap());
    // Too few reads.
    let path = folder.path().join("disk");
    let mirror = disk(&repository, &path);
    follow(&mirror, &repository);
    read(&mirror, 0..3);
    mirror.close().unwrap();
    drop(mirror);
    // A disk that was used before.
    let sources = vec![Source::repository(Arc::clone(&repository))];
    let mirror = Mirror::open(&path, sources, &options()).unwrap();
    follow(&mirror, &repository);
    read(&mirror, 0..40);
    mirror.close().unwrap();
    drop(mirror);
    // A process that died.
    let mirror = disk(&repository, &folder.path().join("other"));
    follow(&mirror, &repository);
    read(&mirror, 0..40);
    drop(mirror);
    assert_eq!(kept(&repository), None);
}

/// Fails a few times, then reports some chunks of other machines and remembers the chunks that are reported to it.
#[derive(Default)]
struct Teller {
    told: Mutex<Vec<u64>>,
    failures: Mutex<u32>,
}

impl BootProfiles for Teller {
    fn boot_profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        assert_eq!((image, version), ("web", 2));
        Ok(None)
    }

    fn share_reads(&self, _: &str, told: ReadReport<'_>) -> Result<Option<ReadUpdate>> {
        let mut failures = self.failures.lock();
        if *failures < 2 {
            *failures += 1;
            return Err(Error::new(ErrorKind::Unreachable, "not now"));
        }
        self.told.lock().extend(told.chunks);
        // One of them is outside the disk.
        let chunks = if told.cursor.at == 0 { vec![50, 51, 1 << 40] } else { Vec::new() };
        Ok(Some(ReadUpdate { cursor: Cursor { telling: 1, at: 3 }, chunks, pause: Duration::from_millis(1) }))
    }

    fn record_boot(&self, _: &str, _: u64, _: &[u64], _: &Stamp) -> Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_read_is_told_once_and_what_is_heard_is_prefetched() {
    let (repository, folder) = (repository(), tempfile::tempdir().unwrap());
    let teller = Arc::new(Teller::default());
    let mirror = disk(&repository, &folder.path().join("disk"));
    mirror.follow_boots(Arc::clone(&teller) as Arc<dyn BootProfiles>, &stamp()).unwrap();
    read(&mirror, [9, 3, 7]);
    until(|| teller.told.lock().len() >= 3);
    until(|| 2 * mirror.counters().expected_bytes > encoded(&repository, 3));
    read(&mirror, [50, 51, 4]);
    until(|| teller.told.lock().len() >= 6);
    mirror.close().unwrap();
    assert_eq!(*teller.told.lock(), [9, 3, 7, 50, 51, 4]);
    assert_eq!(mirror.counters().expected_used_bytes, mirror.counters().expected_bytes);
}
