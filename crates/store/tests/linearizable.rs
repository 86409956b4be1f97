//! Concurrent writers and readers of one image: all results must be consistent with one order, that of the version
//! numbers. `versions.linearizable`. To repeat it: `cargo test --workspace --test store linearizable::`.
//!
//! A history is a list of operations with the times of call and return, by a clock that all threads and processes of
//! the machine share. Operation A precedes B if A returned before B was called. The order must respect this, and each
//! operation must have the result that it would have alone at its place. The place of a write is its number; `recent`
//! is after the write that it returns and before the next; a read of a version may be anywhere after that version's
//! write, and sees all writes up to it, each over the one before.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use base::{Chance, Digest};
use image::ChunkSize;
use lab::Engine;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use store::{Repository, Shape};

use crate::common::{self, Place, image, in_cluster, in_folder, in_memory, in_s3, reference, stamp};

const SIZE: u64 = 1 << 20;
const WRITERS: u64 = 32;
const WRITES: u64 = 4;
const READERS: u64 = 8;

/// A range of bytes of an image, whose content is generated from a seed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Bytes {
    offset: u64,
    count: u64,
    seed: u64,
}

impl Bytes {
    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.count as usize];
        Chance::from_seed(self.seed).fill(&mut bytes);
        bytes
    }
}

/// An operation and its result.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Did {
    /// A write that returned this number.
    Wrote { number: u64, bytes: Bytes },
    /// A query for the newest number.
    Recent { number: u64 },
    /// A read of all of a known version, whose content had this digest.
    Read { number: u64, content: String },
}

/// An operation with the times of its call and its return.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Operation {
    called: u64,
    returned: u64,
    did: Did,
}

/// Explains why no order is consistent with `history`, which began with an empty image as version 1; `None` if one
/// is.
fn unexplained(history: &[Operation]) -> Option<String> {
    let mut writes: BTreeMap<u64, (&Operation, Bytes)> = BTreeMap::new();
    for operation in history {
        let Did::Wrote { number, bytes } = &operation.did else { continue };
        if writes.insert(*number, (operation, *bytes)).is_some() {
            return Some(format!("two writes are version {number}"));
        }
    }
    if !writes.keys().copied().eq(2..=writes.len() as u64 + 1) {
        return Some("numbers have gaps".to_owned());
    }
    let mut content = vec![0; SIZE as usize];
    let mut contents = BTreeMap::from([(1, Digest::of(&content).to_hex())]);
    for (&number, (_, bytes)) in &writes {
        let from = bytes.offset as usize;
        content[from..from + bytes.count as usize].copy_from_slice(&bytes.content());
        contents.insert(number, Digest::of(&content).to_hex());
    }
    // In the order of calls: every operation that returned before a call is placed before it.
    let mut by_call: Vec<&Operation> = history.iter().collect();
    by_call.sort_unstable_by_key(|operation| operation.called);
    let mut by_return = by_call.clone();
    by_return.sort_unstable_by_key(|operation| operation.returned);
    let (mut returned, mut newest) = (by_return.into_iter().peekable(), 1);
    for operation in by_call {
        while let Some(before) = returned.next_if(|before| before.returned < operation.called) {
            let (Did::Wrote { number, .. } | Did::Recent { number } | Did::Read { number, .. }) = before.did;
            newest = newest.max(number);
        }
        match &operation.did {
            Did::Wrote { number, .. } if *number <= newest => {
                return Some(format!("version {number} was written after version {newest} was seen"));
            }
            Did::Recent { number } if *number < newest => {
                return Some(format!("version {number} was the newest after version {newest} was seen"));
            }
            Did::Recent { number } | Did::Read { number, .. }
                if writes.get(number).is_some_and(|(write, ..)| write.called > operation.returned) =>
            {
                return Some(format!("version {number} was seen before its write had begun"));
            }
            Did::Read { number, content } if contents.get(number) != Some(content) => {
                return Some(format!("version {number} does not hold the writes up to it"));
            }
            _ => {}
        }
    }
    None
}

/// Nanoseconds of the clock that all processes share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn timed(work: impl FnOnce() -> Did) -> Operation {
    let called = now();
    let did = work();
    Operation { called, returned: now(), did }
}

fn write(repository: &Repository, seed: u64) -> Vec<Operation> {
    let mut chance = Chance::from_seed(seed);
    let blob = repository.blob(&image("shared"));
    let one = |_| {
        let offset = chance.below(SIZE);
        let bytes =
            Bytes { offset, count: 1 + chance.below((SIZE - offset).min(70_000)), seed: chance.u64() };
        let content = bytes.content();
        timed(|| Did::Wrote {
            number: blob.write(offset, &content, &stamp()).unwrap().manifest.number,
            bytes,
        })
    };
    (0..WRITES).map(one).collect()
}

fn look(repository: &Repository, done: &AtomicBool) -> Vec<Operation> {
    let mut seen = Vec::new();
    while !done.load(SeqCst) {
        let mut newest = 0;
        seen.push(timed(|| {
            newest = repository.blob(&image("shared")).recent().unwrap().number;
            Did::Recent { number: newest }
        }));
        seen.push(timed(|| {
            let mut content = vec![0; SIZE as usize];
            let snapshot = repository.snapshot(&reference(&format!("shared@{newest}"))).unwrap();
            snapshot.read(0, &mut content).unwrap();
            Did::Read { number: newest, content: Digest::of(&content).to_hex() }
        }));
    }
    seen
}

/// Runs threads that write, query and read, each with one of `repositories`; returns their operations.
fn record(repositories: &[Repository], writers: u64, readers: u64, seed: u64) -> Vec<Operation> {
    let (done, barrier) = (AtomicBool::new(false), Barrier::new((writers + readers) as usize));
    let (done, barrier) = (&done, &barrier);
    let begin = |thread: u64| {
        barrier.wait();
        &repositories[thread as usize % repositories.len()]
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..readers).map(|at| scope.spawn(move || look(begin(at), done))).collect();
        let writers: Vec<_> =
            (0..writers).map(|at| scope.spawn(move || write(begin(at), seed * 1000 + at))).collect();
        let mut history: Vec<_> = writers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        done.store(true, SeqCst);
        history.extend(readers.into_iter().flat_map(|thread| thread.join().unwrap()));
        history
    })
}

/// A place with an empty image.
fn with_image(place: Place) -> Place {
    let shape = Shape { size_bytes: SIZE, chunk: ChunkSize::from_log2(16).unwrap(), ..Shape::default() };
    place.repository.blob(&image("shared")).create(&shape, &stamp()).unwrap();
    place
}

fn explained(place: Place, history: impl FnOnce(&Place) -> Vec<Operation>) {
    let place = with_image(place);
    let history = history(&place);
    let writes = history.iter().filter(|operation| matches!(operation.did, Did::Wrote { .. })).count() as u64;
    assert_eq!(writes, WRITERS * WRITES);
    assert!(history.len() as u64 > writes, "somebody read");
    assert_eq!(unexplained(&history), None, "{}", place.location);
}

fn by_one_handle(place: &Place) -> Vec<Operation> {
    record(std::slice::from_ref(&place.repository), WRITERS, READERS, 1)
}

fn by_three_handles(place: &Place) -> Vec<Operation> {
    let handles: Vec<_> = (0..3).map(|_| place.another().unwrap()).collect();
    record(&handles, WRITERS, READERS, 2)
}

/// Set in the child processes of these tests: the repository's location, and a seed.
const PROCESS: &str = "DISKCAST_TEST_PROCESS";
const PROCESSES: u64 = 4;

/// Not a test, but one of several child processes: starts when it gets a line, and prints its operations as lines.
#[test]
fn process() {
    let Some(told) = std::env::var_os(PROCESS) else { return };
    let (seed, location) = told.to_str().unwrap().split_once(' ').unwrap();
    let setting = common::setting_from(&|name| std::env::var(name).ok());
    let repository = Repository::open_with(&location.parse().unwrap(), &setting).unwrap();
    let (mut out, mut line) = (std::io::stderr(), String::new());
    writeln!(out, "ready").unwrap();
    std::io::stdin().read_line(&mut line).unwrap();
    let (writers, readers) = (WRITERS / PROCESSES, READERS / PROCESSES);
    for operation in record(&[repository], writers, readers, seed.parse().unwrap()) {
        writeln!(out, "{}", serde_json::to_string(&operation).unwrap()).unwrap();
    }
}

fn by_four_processes(place: &Place) -> Vec<Operation> {
    let start = |seed: u64| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "linearizable::process", "--nocapture"])
            .env(PROCESS, format!("{seed} {}", place.location))
            .envs(place.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut ready = String::new();
        lines.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        (child, lines)
    };
    let mut children: Vec<_> = (3..3 + PROCESSES).map(start).collect();
    children.iter_mut().for_each(|(child, _)| writeln!(child.stdin.as_mut().unwrap()).unwrap());
    // Listen to all at the same time: a child whose output is not read blocks.
    std::thread::scope(|scope| {
        let listen = |(mut child, mut lines): (std::process::Child, BufReader<_>)| {
            let mut told = String::new();
            lines.read_to_string(&mut told).unwrap();
            assert!(child.wait().unwrap().success(), "{told}");
            told.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Operation>>()
        };
        let listeners: Vec<_> =
            children.into_iter().map(|child| scope.spawn(move || listen(child))).collect();
        listeners.into_iter().flat_map(|listener| listener.join().unwrap()).collect()
    })
}

macro_rules! one_order_explains_writers {
    ($($name:ident),* $(,)?) => {
        mod in_a_folder {
            $(#[test] fn $name() { super::explained(super::in_folder(), super::$name); })*
        }
        mod in_a_store {
            $(#[test] fn $name() {
                if let Some(place) = super::in_s3(super::Engine::VersityGw) { super::explained(place, super::$name); }
            })*
        }
        mod in_minio {
            // Does not need the built engine, as in the conformance tests.
            $(#[test] fn $name() {
                let engine = super::Engine::MinIo;
                let place = engine.is_built().then(|| super::in_s3(engine)).flatten();
                if let Some(place) = place { super::explained(place, super::$name); }
            })*
        }
    };
}

one_order_explains_writers![by_one_handle, by_three_handles, by_four_processes];

#[test]
fn one_order_explains_writers_in_a_cluster() {
    explained(in_cluster(), by_one_handle);
    explained(in_cluster(), by_three_handles);
}

#[test]
fn one_order_explains_writers_in_memory() {
    explained(in_memory(), by_one_handle);
}

#[test]
fn a_history_that_no_order_explains_is_noticed() {
    let place = with_image(in_memory());
    let good = by_one_handle(&place);
    assert_eq!(unexplained(&good), None);
    let position =
        |wanted: &dyn Fn(&Did) -> bool| good.iter().position(|operation| wanted(&operation.did)).unwrap();
    let last = good.iter().map(|operation| operation.returned).max().unwrap();
    let bad = |harm: &dyn Fn(&mut Vec<Operation>)| {
        let mut history = good.clone();
        harm(&mut history);
        unexplained(&history)
    };
    let after = |did: Did| Operation { called: last + 1, returned: last + 2, did };
    // A newest version that is older than one seen before.
    assert!(bad(&|history| history.push(after(Did::Recent { number: 1 }))).is_some());
    // A read of wrong content, and a result of a write that had not begun.
    let read = Did::Read { number: 2, content: Digest::of(b"other").to_hex() };
    assert!(bad(&|history| history.push(after(read.clone()))).is_some());
    let write = position(&|did| matches!(did, Did::Wrote { number, .. } if *number > 5));
    let Did::Wrote { number, .. } = good[write].did else { unreachable!() };
    let early = Operation { called: 0, returned: 0, did: Did::Recent { number } };
    assert!(
        bad(&|history| {
            history.iter_mut().for_each(|operation| {
                (operation.called, operation.returned) = (operation.called + 1, operation.returned + 1)
            });
            history.push(early.clone());
        })
        .is_some()
    );
    // A lost write, a duplicated write, and two exchanged writes.
    assert!(bad(&|history| drop(history.remove(write))).is_some());
    assert!(bad(&|history| history.push(history[write].clone())).is_some());
    let first = position(&|did| matches!(did, Did::Wrote { number: 2, .. }));
    let end = position(&|did| matches!(did, Did::Wrote { number, .. } if *number == WRITERS * WRITES + 1));
    assert!(
        bad(&|history| {
            let did = history[first].did.clone();
            history[first].did = history[end].did.clone();
            history[end].did = did;
        })
        .is_some()
    );
}
