//! Fetches objects by unicast while a session runs, because they arrived damaged or unicast is cheaper for them.

use std::sync::Arc;
use std::thread;

use base::Result;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use image::{ObjectRef, ObjectSource};

use crate::waker::Waker;

/// Number of objects that are fetched at the same time: multicast has precedence. As many fetched objects may wait to
/// be taken.
const AT_ONCE: usize = 2;

/// Up to `AT_ONCE` threads that fetch objects, started when they are needed. They end when this is dropped.
pub(super) struct UnicastFallback {
    source: Arc<dyn ObjectSource>,
    /// Wakes the thread that takes the fetched objects.
    taker: Arc<Waker>,
    /// The queue is bounded by the objects of the version, because each is ordered at most once per session.
    orders: Sender<(u64, ObjectRef)>,
    ordered: Receiver<(u64, ObjectRef)>,
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
        Self { source, taker, orders, ordered, deliver, delivered, threads: 0, held: None }
    }

    /// Orders object `id`, whose digest and length are in `name`.
    pub(super) fn order(&mut self, id: u64, name: ObjectRef) {
        // It cannot fail: `self.ordered` keeps the queue open.
        let _ = self.orders.send((id, name));
        if self.threads < AT_ONCE {
            self.threads += 1;
            let (source, ordered) = (Arc::clone(&self.source), self.ordered.clone());
            let (deliver, taker) = (self.deliver.clone(), Arc::clone(&self.taker));
            thread::spawn(move || {
                while let Ok((id, name)) = ordered.recv() {
                    if deliver.send((id, source.fetch(&name))).is_err() {
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
