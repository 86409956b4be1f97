//! Threads that read objects in advance, so that the sending thread never waits for a disk.
//!
//! An object of a session is a bundle of stored objects, which are read and verified one by one. A stored object that
//! cannot be read is sent as zeros, which have a wrong digest for every receiver; the rest of the bundle is not
//! affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender, unbounded};
use image::{ObjectRef, ObjectSource};
use parking_lot::Mutex;

use super::bundle::Packing;
use crate::clock::Clock;
use crate::waker::Waker;

/// Counters of reading.
#[derive(Default)]
pub(super) struct ReadCounters {
    nanoseconds: AtomicU64,
    bytes: AtomicU64,
    bytes_again: AtomicU64,
    failures: AtomicU64,
}

impl ReadCounters {
    /// Reading time, summed over the threads.
    pub(super) fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// Bytes of all objects read.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of objects read more than once.
    pub(super) fn bytes_again(&self) -> u64 {
        self.bytes_again.load(Ordering::Relaxed)
    }

    /// Objects that could not be read, or were damaged.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// The driver's end of the queues to and from the readers. The state machine bounds their length: it requests no more
/// than its cache holds. The threads end when this is dropped.
pub(super) struct ReadAhead {
    wanted: Sender<u64>,
    loaded: Receiver<(u64, Option<Bytes>)>,
}

/// What the threads share.
struct Job {
    packing: Arc<Packing>,
    objects: Vec<ObjectRef>,
    source: Arc<dyn ObjectSource>,
    counters: Arc<ReadCounters>,
    waker: Arc<Waker>,
    seen: Mutex<Vec<bool>>,
}

impl ReadAhead {
    /// Starts `threads` readers of `objects`, packed by `packing`, which wake the driver by `waker`.
    pub(super) fn start(
        threads: usize,
        packing: Arc<Packing>,
        objects: Vec<ObjectRef>,
        source: Arc<dyn ObjectSource>,
        counters: Arc<ReadCounters>,
        waker: Arc<Waker>,
    ) -> Result<Self> {
        let (wanted, orders) = unbounded::<u64>();
        let (deliver, loaded) = unbounded();
        let seen = Mutex::new(vec![false; objects.len()]);
        let job = Arc::new(Job { packing, objects, source, counters, waker, seen });
        for number in 0..threads.max(1) {
            let (job, orders, deliver) = (Arc::clone(&job), orders.clone(), deliver.clone());
            let read = move || {
                for id in &orders {
                    if deliver.send((id, job.fetch(id))).is_err() {
                        break;
                    }
                    job.waker.wake();
                }
            };
            let spawned = thread::Builder::new().name(format!("multicast-read-{number}")).spawn(read);
            spawned.map_err(|error| {
                Error::from_source(ErrorKind::Io, "start a thread that reads ahead", error)
            })?;
        }
        Ok(Self { wanted, loaded })
    }

    /// Requests an object of the session.
    pub(super) fn ask(&self, object: u64) {
        // It cannot fail: the readers live as long as this end of the queue.
        let _ = self.wanted.send(object);
    }

    /// The objects that were read since the last call; `None` for an object of which nothing could be read.
    pub(super) fn loaded(&self) -> impl Iterator<Item = (u64, Option<Bytes>)> + '_ {
        self.loaded.try_iter()
    }
}

impl Job {
    /// Reads an object of the session: its stored objects one after the other. `None` if none of them can be read.
    fn fetch(&self, id: u64) -> Option<Bytes> {
        let mut parts = self.packing.parts(id).map(|(stored, part)| (self.fetch_stored(stored), part));
        if self.packing.stored(id).count() == 1 {
            return parts.next()?.0;
        }
        let mut bundle = BytesMut::with_capacity(self.packing.bytes(id) as usize);
        let mut got = false;
        for (bytes, part) in parts {
            got |= bytes.is_some();
            bundle.extend_from_slice(&bytes.unwrap_or_default());
            bundle.resize(part.end, 0);
        }
        got.then(|| bundle.freeze())
    }

    /// Reads and verifies a stored object: damage of the repository is found here once, not by every receiver.
    fn fetch_stored(&self, stored: u64) -> Option<Bytes> {
        let index = usize::try_from(stored).ok()?;
        let object = self.objects.get(index)?;
        let clock = Clock::start();
        let bytes = self.source.verified(object).ok().map(|object| object.bytes().clone());
        let nanoseconds = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let len = u64::from(object.len);
        let again = std::mem::replace(&mut self.seen.lock()[index], true);
        let counters = &self.counters;
        counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        counters.bytes.fetch_add(len, Ordering::Relaxed);
        counters.bytes_again.fetch_add(if again { len } else { 0 }, Ordering::Relaxed);
        counters.failures.fetch_add(u64::from(bytes.is_none()), Ordering::Relaxed);
        bytes
    }
}
