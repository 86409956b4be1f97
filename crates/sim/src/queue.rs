//! A queue of events in virtual time. Events at the same time are taken in the order in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use base::Instant;

use crate::scenario::Fault;
use crate::server_host::Sent;

/// An event of a multicast run.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The server's timer fires.
    ServerTimer,
    /// The server's repository delivers an object.
    Loaded { epoch: u32, object: u64 },
    /// A datagram reaches the server.
    ToServer(Arc<[u8]>),
    /// A datagram reaches a receiver; `damaged` has its bytes if they were changed on the way.
    ToReceiver { host: usize, sent: Arc<Sent>, damaged: Option<Arc<[u8]>> },
    /// A receiver's timer fires.
    ReceiverTimer { host: usize, life: u32 },
    /// A receiver's disk has written the oldest object in its queue.
    Written { host: usize, life: u32 },
    /// A receiver starts.
    Start { host: usize },
    /// A receiver asks the server for a grant over the control connection.
    Regrant { host: usize, life: u32 },
    /// An object arrives over the control connection.
    Unicast { host: usize, life: u32, object: u64 },
    /// A fault begins.
    Begin(Fault),
    /// A fault ends.
    End(Fault),
}

/// The queue and the clock.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    now: Instant,
    entered: u64,
    heap: BinaryHeap<Reverse<(Instant, u64, Slot)>>,
    events: Vec<Option<E>>,
    unused: Vec<usize>,
}

type Slot = usize;

impl<E> Default for Queue<E> {
    fn default() -> Self {
        let (heap, events, unused) = (BinaryHeap::new(), Vec::new(), Vec::new());
        Self { now: Instant::ZERO, entered: 0, heap, events, unused }
    }
}

impl<E> Queue<E> {
    /// The time of the last event taken.
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Adds an event at `at`, or now if that has passed.
    pub(crate) fn push(&mut self, at: Instant, event: E) {
        let slot = self.unused.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[slot] = Some(event);
        self.entered += 1;
        self.heap.push(Reverse((at.max(self.now), self.entered, slot)));
    }

    /// Takes the next event and sets the clock.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.now = at;
        self.unused.push(slot);
        self.events[slot].take()
    }
}
