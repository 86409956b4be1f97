//! The network transfer by transfer. A transfer (a chunk, or a run of chunks) is one event at each switch on its way,
//! not one for each packet: each port is a queue that sends whole transfers, first come, first served, at its rate. A
//! switch passes on a transfer when its first byte arrives (cut-through), so that a transfer over an empty path takes
//! the time of its slowest port and the sum of the delays.
//!
//! Why this and not fair shares of concurrent flows: shares change with each start and each end of a flow, which costs
//! time in proportion to all flows. Here a transfer costs a few events, whatever else runs. The sums are the same: a
//! port that has something to send sends at its full rate, and hosts that ask for several chunks at a time get shares
//! in proportion to what they ask for, in many short turns. What differs is the time of a single transfer, by at most
//! what is queued before it. Queues have no end and nothing is lost: this stands for TCP, whose senders hold back
//! what does not pass, and for multicast that is sent no faster than its receivers' ports.

use base::Instant;

use super::groups::Groups;
use super::{Group, Place, Port, Target, Topology, Traffic};
use crate::queue::Queue;

/// The network, and the events of its user.
#[derive(Debug)]
pub struct Flows<E> {
    topology: Topology,
    groups: Groups,
    ports: Vec<State>,
    queue: Queue<Item<E>>,
    through: Vec<Port>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    free_at: Instant,
    traffic: Traffic,
}

#[derive(Debug)]
enum Item<E> {
    /// For the user.
    Event(Place, E),
    /// The first byte of a transfer is at a switch.
    Transfer(Transfer<E>),
}

#[derive(Debug, Clone)]
struct Transfer<E> {
    at: Place,
    from: Option<Place>,
    target: Target,
    /// When its last byte is at this place.
    last: Instant,
    bytes: u64,
    event: E,
}

impl<E: Clone> Flows<E> {
    /// An idle network.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let ports = vec![State::default(); topology.places() * 2];
        Self { topology, groups: Groups::default(), ports, queue: Queue::default(), through: Vec::new() }
    }

    /// The time of the last event.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.queue.now()
    }

    /// Schedules an event of the user at a place.
    pub fn schedule(&mut self, at: Instant, place: Place, event: E) {
        self.queue.push(at, Item::Event(place, event));
    }

    /// `host` starts to receive what is sent to `group`.
    pub fn join(&mut self, group: Group, host: Place) {
        self.groups.set(&self.topology, group, host, true);
    }

    /// `host` does not receive any more what is sent to `group`.
    pub fn leave(&mut self, group: Group, host: Place) {
        self.groups.set(&self.topology, group, host, false);
    }

    /// Queues a transfer of `bytes` on the wire at the port of `from`, at the time of the last event. `event` is
    /// delivered wherever the transfer has arrived completely. Returns when the port has sent all that is queued.
    pub fn send(&mut self, from: Place, target: Target, bytes: u64, event: E) -> Instant {
        let last = self.queue.now();
        self.pass(Transfer { at: from, from: None, target, last, bytes, event });
        self.free_at(Port::up(from))
    }

    /// When a port has sent all that is queued.
    pub(crate) fn free_at(&self, port: Port) -> Instant {
        self.ports[port.index()].free_at
    }

    /// Runs to the next event of the user. Returns it with the place where it happens; `None` if nothing is left.
    pub fn advance(&mut self) -> Option<(Place, E)> {
        loop {
            match self.queue.pop()? {
                Item::Event(place, event) => return Some((place, event)),
                Item::Transfer(transfer) => self.pass(transfer),
            }
        }
    }

    fn pass(&mut self, transfer: Transfer<E>) {
        if let Target::One(to) = transfer.target {
            let port = self.topology.route(transfer.at, to);
            return self.cross(port, transfer);
        }
        let mut through = std::mem::take(&mut self.through);
        self.groups.ports(&self.topology, transfer.at, transfer.from, transfer.target, &mut through);
        for port in through.drain(..) {
            self.cross(port, transfer.clone());
        }
        self.through = through;
    }

    fn cross(&mut self, port: Port, transfer: Transfer<E>) {
        let (now, to, line) = (self.queue.now(), self.topology.far_end(port), self.topology.line(port));
        let State { free_at, traffic } = &mut self.ports[port.index()];
        (traffic.packets, traffic.bytes) = (traffic.packets + 1, traffic.bytes + transfer.bytes);
        let begins = now.max(*free_at);
        *free_at = begins + line.time(transfer.bytes);
        let (first, last) = (begins + line.delay, (*free_at).max(transfer.last) + line.delay);
        if transfer.target == Target::One(to) || !self.topology.is_switch(to) {
            self.queue.push(last, Item::Event(to, transfer.event));
        } else {
            let from = Some(transfer.at);
            self.queue.push(first, Item::Transfer(Transfer { at: to, from, last, ..transfer }));
        }
    }

    /// What a port has done so far, including what it has still to send.
    #[must_use]
    pub fn traffic(&self, port: Port) -> Traffic {
        self.ports[port.index()].traffic
    }
}
