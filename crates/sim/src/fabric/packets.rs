//! The network packet by packet: each port sends its queue at its rate, a switch passes on whole packets, and a packet
//! that does not fit into a port's queue is dropped and counted there.

use base::Instant;

use super::groups::Groups;
use super::{Group, Place, Port, Target, Topology, Traffic};
use crate::queue::Queue;

/// The network, and the events of its user.
#[derive(Debug)]
pub struct Packets<E> {
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
    /// A packet is at a place, completely.
    Packet { at: Place, from: Option<Place>, target: Target, bytes: u64, event: E },
}

impl<E: Clone> Packets<E> {
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

    /// Gives a packet of `bytes` on the wire to the port of `from`, at the time of the last event. `event` is delivered
    /// wherever the packet arrives.
    pub fn send(&mut self, from: Place, target: Target, bytes: u64, event: &E) {
        self.pass(from, None, target, bytes, event);
    }

    /// Runs to the next event of the user. Returns it with the place where it happens; `None` if nothing is left.
    pub fn advance(&mut self) -> Option<(Place, E)> {
        loop {
            match self.queue.pop()? {
                Item::Event(place, event) => return Some((place, event)),
                Item::Packet { at, from, target, bytes, event } => {
                    if target == Target::One(at)
                        || (matches!(target, Target::All(_)) && !self.topology.is_switch(at))
                    {
                        return Some((at, event));
                    }
                    self.pass(at, from, target, bytes, &event);
                }
            }
        }
    }

    fn pass(&mut self, at: Place, from: Option<Place>, target: Target, bytes: u64, event: &E) {
        let mut through = std::mem::take(&mut self.through);
        self.groups.ports(&self.topology, at, from, target, &mut through);
        for port in through.drain(..) {
            if let Some(arrives) = self.enqueue(port, bytes) {
                let (to, from, event) = (self.topology.far_end(port), Some(at), event.clone());
                self.queue.push(arrives, Item::Packet { at: to, from, target, bytes, event });
            }
        }
        self.through = through;
    }

    /// Returns when a packet has arrived at the far end; `None` if the port's queue is full.
    fn enqueue(&mut self, port: Port, bytes: u64) -> Option<Instant> {
        let (now, line) = (self.queue.now(), self.topology.line(port));
        let State { free_at, traffic } = &mut self.ports[port.index()];
        if line.waiting(now, *free_at) + bytes > line.queue_bytes {
            (traffic.drops, traffic.drop_bytes) = (traffic.drops + 1, traffic.drop_bytes + bytes);
            return None;
        }
        (traffic.packets, traffic.bytes) = (traffic.packets + 1, traffic.bytes + bytes);
        *free_at = now.max(*free_at) + line.time(bytes);
        Some(*free_at + line.delay)
    }

    /// What a port has done so far, including what it has still to send.
    #[must_use]
    pub fn traffic(&self, port: Port) -> Traffic {
        self.ports[port.index()].traffic
    }
}
