//! Writers and readers of one image, all at once: what each of them saw is explained by one order, that of the versions'
//! numbers. `versions.linearizable`. To see it again: `cargo test -p diskcast-store --test linearizable`.
//!
//! A history is a list of operations with the moments at which they were called and had returned, by one counter that
//! all threads share: of two operations the first precedes the second if it had returned before the other was called. The
//! order that explains it must keep that, and each operation must see what it would see alone at its place. A write's
//! place is its number; `recent` stands behind the write that it names and before the next; a read of a version can stand
//! anywhere behind that version's write, and sees all writes up to it, one over the other.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

mod common;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use base::{Chance, Digest};
use common::{image, in_folder, in_memory, reference, stamp};
use image::ChunkSize;
use store::{Location, Repository, Shape};

const SIZE: u64 = 1 << 20;

/// What somebody did.
#[derive(Debug, Clone)]
enum Did {
    /// Wrote, and was told this number.
    Wrote { number: u64, offset: u64, bytes: Vec<u8> },
    /// Asked for the newest number.
    Recent { number: u64 },
    /// Read all of a version that it knew of.
    Read { number: u64, content: Digest },
}

/// One operation between its call and its return.
#[derive(Debug, Clone)]
struct Operation {
    called: u64,
    returned: u64,
    did: Did,
}

/// Why no order explains `history`, which began with an empty image as version 1; `None` if one does.
fn unexplained(history: &[Operation]) -> Option<String> {
    let mut writes: BTreeMap<u64, (&Operation, u64, &[u8])> = BTreeMap::new();
    for operation in history {
        let Did::Wrote { number, offset, bytes } = &operation.did else { continue };
        if writes.insert(*number, (operation, *offset, bytes)).is_some() {
            return Some(format!("two writes are version {number}"));
        }
    }
    if !writes.keys().copied().eq(2..=writes.len() as u64 + 1) {
        return Some("numbers have gaps".to_owned());
    }
    let mut contents = BTreeMap::from([(1, vec![0; SIZE as usize])]);
    for (&number, (_, offset, bytes)) in &writes {
        let mut content = contents[&(number - 1)].clone();
        content[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
        contents.insert(number, content);
    }
    // Ascending by call: what had returned before is behind nobody that is called later.
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
            Did::Read { number, content }
                if contents.get(number).map(|known| Digest::of(known)) != Some(*content) =>
            {
                return Some(format!("version {number} does not hold the writes up to it"));
            }
            _ => {}
        }
    }
    None
}

/// Threads that write, ask and read, each with one of `repositories`, and what they did.
fn record(repositories: &[Repository], seed: u64) -> Vec<Operation> {
    const WRITERS: usize = 32;
    const READERS: usize = 8;
    let (clock, done, barrier) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(WRITERS + READERS));
    let (clock, done, barrier) = (&clock, &done, &barrier);
    let timed = move |work: &mut dyn FnMut() -> Did| {
        let called = clock.fetch_add(1, SeqCst);
        let did = work();
        Operation { called, returned: clock.fetch_add(1, SeqCst), did }
    };
    let write = move |repository: &Repository, writer: usize| {
        let mut chance = Chance::from_seed(seed * 1000 + writer as u64);
        let blob = repository.blob(&image("shared"));
        barrier.wait();
        let one = |_| {
            let offset = chance.below(SIZE);
            let mut bytes = vec![0; chance.below((SIZE - offset).min(70_000)) as usize + 1];
            chance.fill(&mut bytes);
            timed(&mut || {
                let number = blob.write(offset, &bytes, &stamp()).unwrap().manifest.number;
                Did::Wrote { number, offset, bytes: std::mem::take(&mut bytes) }
            })
        };
        (0..4).map(one).collect::<Vec<_>>()
    };
    let look = move |repository: &Repository| {
        let mut seen = Vec::new();
        barrier.wait();
        while !done.load(SeqCst) {
            let mut newest = 0;
            seen.push(timed(&mut || {
                newest = repository.blob(&image("shared")).recent().unwrap().number;
                Did::Recent { number: newest }
            }));
            seen.push(timed(&mut || {
                let mut content = vec![0; SIZE as usize];
                let snapshot = repository.snapshot(&reference(&format!("shared@{newest}"))).unwrap();
                snapshot.read(0, &mut content).unwrap();
                Did::Read { number: newest, content: Digest::of(&content) }
            }));
        }
        seen
    };
    std::thread::scope(|scope| {
        let of = |thread: usize| &repositories[thread % repositories.len()];
        let readers: Vec<_> = (0..READERS).map(|at| scope.spawn(move || look(of(at)))).collect();
        let writers: Vec<_> = (0..WRITERS).map(|at| scope.spawn(move || write(of(at), at))).collect();
        let mut history: Vec<_> = writers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        done.store(true, SeqCst);
        history.extend(readers.into_iter().flat_map(|thread| thread.join().unwrap()));
        history
    })
}

fn shape() -> Shape {
    Shape { size_bytes: SIZE, chunk: ChunkSize::from_log2(16).unwrap(), ..Shape::default() }
}

#[test]
fn one_order_explains_32_writers_and_their_readers() {
    for place in [in_folder(), in_memory()] {
        place.repository.blob(&image("shared")).create(&shape(), &stamp()).unwrap();
        let history = record(std::slice::from_ref(&place.repository), 1);
        assert_eq!(unexplained(&history), None, "{}", place.location);
    }
}

#[test]
fn one_order_explains_writers_of_several_processes() {
    let place = in_folder();
    place.repository.blob(&image("shared")).create(&shape(), &stamp()).unwrap();
    let open = |location: &Location| Repository::open(location).unwrap();
    let history = record(&[open(&place.location), open(&place.location), open(&place.location)], 2);
    assert_eq!(unexplained(&history), None);
}

#[test]
fn a_history_that_no_order_explains_is_noticed() {
    let place = in_memory();
    place.repository.blob(&image("shared")).create(&shape(), &stamp()).unwrap();
    let good = record(std::slice::from_ref(&place.repository), 3);
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
    // A newest version that was older than one seen before.
    assert!(bad(&|history| history.push(after(Did::Recent { number: 1 }))).is_some());
    // A read that saw something else, and one of a write that had not begun.
    let read = Did::Read { number: 2, content: Digest::of(b"other") };
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
    // A write that was lost, one that was made twice, and two that changed places.
    assert!(bad(&|history| drop(history.remove(write))).is_some());
    assert!(bad(&|history| history.push(history[write].clone())).is_some());
    let first = position(&|did| matches!(did, Did::Wrote { number: 2, .. }));
    let end = position(&|did| matches!(did, Did::Wrote { number, .. } if *number == 32 * 4 + 1));
    assert!(
        bad(&|history| {
            let did = history[first].did.clone();
            history[first].did = history[end].did.clone();
            history[end].did = did;
        })
        .is_some()
    );
}
