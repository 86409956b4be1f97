//! The cache for a repository in a network: it saves requests, never returns wrong bytes, keeps its size limit, and
//! survives processes that share it and are killed.
//! To repeat one test: `cargo test --workspace --test store cache::<name>`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base::Chance;
use bytes::Bytes;
use image::{NoProgress, ObjectKind, ObjectRef, ObjectSink as _, ObjectSource as _};
use lab::{Engine, Gateway};
use store::{CACHE_BYTES_MIN, CacheSetting, Repository, Scope, Setting};

use crate::common::proxy::Proxy;
use crate::common::{bucket, image, publish, put_image, reference, s3_setting};

/// Set in the child processes of these tests: the address of the store, and the folder of the cache.
const READER: &str = "DISKCAST_TEST_READER";
/// Number of objects that the readers read, of [`OBJECT_BYTES`] each: more than fit in the cache.
const OBJECTS: u64 = 500;
const OBJECT_BYTES: usize = 1 << 20;

fn cached(address: SocketAddr, folder: &Path) -> Setting {
    let cache = CacheSetting { folder: folder.to_owned(), bytes_max: CACHE_BYTES_MIN };
    Setting { cache: Some(cache), ..s3_setting(address) }
}

fn object(seed: u64) -> (ObjectRef, Bytes) {
    let mut bytes = vec![0; OBJECT_BYTES];
    Chance::from_seed(seed).fill(&mut bytes);
    (ObjectRef::of(ObjectKind::Chunk, &bytes), bytes.into())
}

fn files_below(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => files.extend(files_below(&path)),
            Ok(found) => files.push((path, found.len())),
            // Evicted just now.
            Err(_) => {}
        }
    }
    files
}

#[test]
fn the_second_read_asks_nobody_and_verify_asks_the_store() {
    let Some(gateway) = Gateway::start_or_skip(Engine::VersityGw) else { return };
    let proxy = Proxy::before(gateway.address());
    let folder = tempfile::tempdir().unwrap();
    let setting = cached(proxy.address(), folder.path());
    let repository = Repository::create_with(&bucket(), &setting).unwrap();
    let (draft, chunks) = put_image(&repository, 1, 30);
    repository.publish(&image("debian"), draft).unwrap();
    let read_all = |repository: &Repository| {
        proxy.set(Box::new(|_, _| None));
        chunks.iter().for_each(|chunk| drop(chunk.verified(repository.fetch(chunk).unwrap()).unwrap()));
        proxy.count()
    };
    assert_eq!(read_all(&repository), chunks.len() as u64);
    assert_eq!(read_all(&repository), 0);
    assert_eq!(
        read_all(&Repository::open_with(&bucket(), &setting).unwrap()),
        0,
        "another handle has them too"
    );

    // A damaged cache file is fetched again. A damaged object in the store is found although the cache has a good
    // copy.
    let files = files_below(folder.path());
    std::fs::write(&files[0].0, "spoilt").unwrap();
    assert_eq!(read_all(&repository), 1);
    assert_eq!(read_all(&repository), 0);
    let hex = chunks[0].digest.to_hex();
    let stored = gateway.folder().join("images/lab/first/chunks").join(&hex[..2]).join(&hex);
    let mut bytes = std::fs::read(&stored).unwrap();
    bytes[7] ^= 1;
    std::fs::write(&stored, bytes).unwrap();
    let damaged = repository.verify(&Scope::All, &NoProgress).unwrap().damaged;
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!(damaged[0].versions, [reference("debian@1")]);
    // Bytes that were read wrong are not cached.
    let (path, _) = files.iter().find(|(path, _)| path.to_string_lossy().contains(&hex)).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(repository.fetch(&chunks[0]).is_err());
    assert!(!path.exists());
}

#[test]
fn without_room_or_rights_reading_goes_on() {
    let Some(gateway) = Gateway::start_or_skip(Engine::VersityGw) else { return };
    let folder = tempfile::tempdir().unwrap();
    let setting = cached(gateway.address(), folder.path());
    let repository = Repository::create_with(&bucket(), &setting).unwrap();
    publish(&repository, "debian", 1);
    let (_, chunks) = put_image(&repository, 1, 7);
    repository.flush().unwrap();
    std::fs::remove_dir_all(folder.path().join("objects")).unwrap();
    std::fs::write(folder.path().join("objects"), "a file where the cache was").unwrap();
    for chunk in &chunks {
        chunk.verified(repository.fetch(chunk).unwrap()).unwrap();
    }
}

/// Not a test, but a child process: reads objects in its own order, verifies each, and reports its progress.
#[test]
fn reader() {
    let Ok(what) = std::env::var(READER) else { return };
    let (address, folder) = what.split_once(' ').unwrap();
    let setting = cached(address.parse().unwrap(), Path::new(folder));
    let repository = Repository::open_with(&bucket(), &setting).unwrap();
    let names: Vec<ObjectRef> = (0..OBJECTS).map(|seed| object(seed).0).collect();
    let mut chance = Chance::from_seed(u64::from(std::process::id()));
    for round in 0.. {
        for _ in 0..100 {
            let name = &names[usize::try_from(chance.below(OBJECTS)).unwrap()];
            name.verified(repository.fetch(name).unwrap()).unwrap();
        }
        // Written directly, because the test harness would hold it back until the end.
        writeln!(std::io::stderr(), "read {round}").unwrap();
    }
}

fn start_reader(address: SocketAddr, folder: &Path) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache::reader", "--nocapture"])
        .env(READER, format!("{address} {}", folder.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    (child, lines.filter(|line| line.starts_with("read ")))
}

#[test]
fn processes_share_it_and_die_at_any_moment() {
    let Some(gateway) = Gateway::start_or_skip(Engine::VersityGw) else { return };
    let folder = tempfile::tempdir().unwrap();
    let setting = cached(gateway.address(), folder.path());
    let repository = Repository::create_with(&bucket(), &setting).unwrap();
    for seed in 0..OBJECTS {
        let (name, bytes) = object(seed);
        repository.put(&name, bytes).unwrap();
    }
    repository.flush().unwrap();
    let most = CACHE_BYTES_MIN + 2 * CACHE_BYTES_MIN / 8 + 2 * OBJECT_BYTES as u64;
    for round in 0..6 {
        let (mut first, mut first_read) = start_reader(gateway.address(), folder.path());
        let (mut second, mut second_read) = start_reader(gateway.address(), folder.path());
        for _ in 0..=round % 3 {
            assert!(first_read.next().is_some() && second_read.next().is_some(), "a reader died by itself");
        }
        first.kill().unwrap();
        assert!(second_read.next().is_some(), "the death of one harms the other");
        second.kill().unwrap();
        first.wait().unwrap();
        second.wait().unwrap();
        let there: u64 = files_below(folder.path()).iter().map(|(_, bytes)| bytes).sum();
        assert!(there <= most, "{there} bytes, at most {most}");
    }
    // Every complete file in the cache is correct, and the next process can read all objects.
    let whole =
        files_below(folder.path()).into_iter().filter(|(path, _)| path.to_string_lossy().ends_with("-chunk"));
    assert!(whole.inspect(|(path, bytes)| assert_eq!(*bytes, OBJECT_BYTES as u64, "{path:?}")).count() > 100);
    for seed in 0..OBJECTS {
        let (name, bytes) = object(seed);
        assert_eq!(repository.fetch(&name).unwrap(), bytes);
    }
    let there: u64 = files_below(folder.path()).iter().map(|(_, bytes)| bytes).sum();
    assert!(there <= most, "{there} bytes, at most {most}");
}
