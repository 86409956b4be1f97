//! Fetches objects by unicast while a session runs, because they arrived damaged or unicast is cheaper for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use base::Result;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use image::{ObjectRef, ObjectSource};

use crate::waker::Waker;

/// Number of objects that are fetched at the same time: multicast has precedence. As many fetched objects may wait to
/// be taken.
pub(super) const AT_ONCE: usize = 2;
/// Most bytes of damaged copies that wait to be mended. Objects beyond it are fetched whole.
const COPIES_BYTES_MAX: u64 = 64 << 20;

/// An object to fetch: its number, its name, and a damaged copy if there is one.
type Order = (u64, ObjectRef, Option<Vec<u8>>);

/// Up to `AT_ONCE` threads that fetch objects, started when they are needed. They end when this is dropped.
pub(super) struct UnicastFallback {
    source: Arc<dyn ObjectSource>,
    /// Wakes the thread that takes the fetched objects.
    taker: Arc<Waker>,
    /// The queue is bounded by the objects of the version, because each is ordered at most once per session.
    orders: Sender<Order>,
    ordered: Receiver<Order>,
    /// Bytes of the damaged copies in the queue.
    copies_bytes: Arc<AtomicU64>,
    deliver: Sender<(u64, Result<Bytes>)>,
    delivered: Receiver<(u64, Result<Bytes>)>,
    threads: usize,
    /// An object that could not be taken when it arrived.
    held: Option<(u64, Bytes)>,
}

impl UnicastFallback {
    pub(super) fn new(source: Arc<dyn ObjectSource>, taker: Arc<Waker>) -> Self {
        let (orders, ordered) = unbounded();
        let (deliver, delivered) = bounded(AT_ONCE);
        let copies_bytes = Arc::default();
        Self { source, taker, orders, ordered, copies_bytes, deliver, delivered, threads: 0, held: None }
    }

    /// Orders object `id`, whose digest and length are in `name`.
    pub(super) fn order(&mut self, id: u64, name: ObjectRef) {
        self.enqueue((id, name, None));
    }

    /// Orders object `id`, of which `damaged` is a damaged copy.
    pub(super) fn mend(&mut self, id: u64, name: ObjectRef, damaged: &[u8]) {
        let bytes = damaged.len() as u64;
        let fits = self.copies_bytes.load(Ordering::Relaxed) + bytes <= COPIES_BYTES_MAX;
        if fits {
            self.copies_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.enqueue((id, name, fits.then(|| damaged.to_vec())));
    }

    fn enqueue(&mut self, order: Order) {
        // It cannot fail: `self.ordered` keeps the queue open.
        let _ = self.orders.send(order);
        if self.threads < AT_ONCE {
            self.threads += 1;
            let (source, ordered) = (Arc::clone(&self.source), self.ordered.clone());
            let (deliver, taker) = (self.deliver.clone(), Arc::clone(&self.taker));
            let copies_bytes = Arc::clone(&self.copies_bytes);
            thread::spawn(move || {
                while let Ok((id, name, damaged)) = ordered.recv() {
                    let bytes = match damaged {
                        Some(damaged) => {
                            copies_bytes.fetch_sub(damaged.len() as u64, Ordering::Relaxed);
                            source.mend(&name, damaged)
                        }
                        None => source.fetch(&name),
                    };
                    if deliver.send((id, bytes)).is_err() {
                        break;
                    }
                    taker.wake();
                }
            });
        }
    }

    /// The next object that has arrived or failed, if any.
    pub(super) fn next(&mut self) -> Option<(u64, Result<Bytes>)> {
        let held = self.held.take().map(|(id, bytes)| (id, Ok(bytes)));
        held.or_else(|| self.delivered.try_recv().ok())
    }

    /// Keeps an object that cannot be taken now, for the next call of [`Self::next`].
    pub(super) fn hold(&mut self, id: u64, bytes: Bytes) {
        self.held = Some((id, bytes));
    }
}
