//! Durable put and cached get of objects as large as a chunk's, by 8 threads: the repository beside `object_store`
//! alone with a flush for each object. Rounds alternate, so that a busy machine is busy for both, and what others have
//! written to the disk is flushed before, since one `syncfs` waits for all of it.
//!
//! `cargo run --release -p diskcast-store --example durable_put [FOLDER [OBJECTS [OBJECT_BYTES]]]`
#![expect(clippy::print_stdout, reason = "a measurement talks to who measures")]
#![expect(clippy::unwrap_used, reason = "a measurement that fails is none")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::Chance;
use bytes::Bytes;
use futures::executor::block_on;
use image::{ObjectKind, ObjectRef, ObjectSink as _, ObjectSource as _};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStoreExt as _, path};
use store::{Location, Repository};

const THREADS: usize = 8;
const ROUNDS: usize = 7;
const NAMES: [&str; 5] = [
    "object_store, fsync each: put",
    "object_store: get",
    "repository: put and settle",
    "repository: get",
    "repository: get and verify",
];

fn main() {
    let mut args = std::env::args().skip(1);
    let folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let count: u32 = args.next().map_or(3000, |count| count.parse().unwrap());
    let object_bytes: u32 = args.next().map_or(90_000, |bytes| bytes.parse().unwrap());
    let megabytes = f64::from(count) * f64::from(object_bytes) / 1e6;
    let mut rates = [const { Vec::new() }; NAMES.len()];
    for round in 0..ROUNDS {
        let objects = objects(round as u64, count, object_bytes);
        let places =
            ["peer", "own"].map(|name| folder.join(format!("durable-put-{name}-{}", std::process::id())));
        let measured = [&peer(&places[0], &objects)[..], &own(&places[1], &objects)].concat();
        places.iter().for_each(|place| std::fs::remove_dir_all(place).unwrap());
        rates.iter_mut().zip(measured).for_each(|(rates, seconds)| rates.push(megabytes / seconds));
    }
    println!(
        "{count} objects of {object_bytes} bytes, {THREADS} threads, median of {ROUNDS} rounds (lowest, highest)"
    );
    for (name, rates) in NAMES.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        println!("{name:30} {:6.0} MB/s ({:.0}, {:.0})", rates[ROUNDS / 2], rates[0], rates[ROUNDS - 1]);
    }
}

/// Objects that no disk shrinks and no other round repeats.
fn objects(round: u64, count: u32, object_bytes: u32) -> Vec<(ObjectRef, Bytes)> {
    let mut chance = Chance::from_seed(round);
    let make = |_| {
        let mut bytes = vec![0; object_bytes as usize];
        chance.fill(&mut bytes);
        (ObjectRef::of(ObjectKind::Chunk, &bytes), Bytes::from(bytes))
    };
    (0..count).map(make).collect()
}

/// Seconds that put and get take with `object_store` alone.
fn peer(folder: &Path, objects: &[(ObjectRef, Bytes)]) -> [f64; 2] {
    std::fs::create_dir_all(folder).unwrap();
    let store = LocalFileSystem::new_with_prefix(folder).unwrap().with_fsync(true);
    let path = |object: &ObjectRef| {
        let hex = object.digest.to_hex();
        path::Path::from_iter(["chunks", &hex[..2], &hex])
    };
    rustix::fs::sync();
    let put = all(objects, |(object, bytes)| {
        block_on(store.put(&path(object), bytes.clone().into())).unwrap();
    });
    let get = all(objects, |(object, bytes)| {
        let found = block_on(async { store.get(&path(object)).await.unwrap().bytes().await.unwrap() });
        assert_eq!(found.len(), bytes.len());
    });
    [put, get]
}

/// Seconds that put until durable, get, and get with verification take with a repository.
fn own(folder: &Path, objects: &[(ObjectRef, Bytes)]) -> [f64; 3] {
    let repository = Repository::create(&Location::Folder(folder.to_owned())).unwrap();
    rustix::fs::sync();
    let put = all(objects, |(object, bytes)| repository.put(object, bytes.clone()).unwrap());
    let put = put + seconds(|| repository.settle().unwrap());
    let get = all(objects, |(object, bytes)| {
        assert_eq!(repository.fetch(object).unwrap().len(), bytes.len());
    });
    let verified = all(objects, |(object, _)| {
        object.verified(repository.fetch(object).unwrap()).unwrap();
    });
    [put, get, verified]
}

/// Seconds until all threads together did `work` on all objects.
fn all(objects: &[(ObjectRef, Bytes)], work: impl Fn(&(ObjectRef, Bytes)) + Sync) -> f64 {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(object) = objects.get(next.fetch_add(1, Relaxed)) {
            work(object);
        }
    };
    seconds(|| {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(run);
            }
        });
    })
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn seconds(work: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    work();
    start.elapsed().as_secs_f64()
}
