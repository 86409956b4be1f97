//! What is connected to what: a tree of switches with hosts at their ports, and the route between two places.

use base::{Duration, Instant};

/// A host or a switch: its number, from 0 in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// A port, and with it the direction of a link that the port sends on. The link of a place leads to its switch, so that
/// it has a port at each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port(u32);

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Rate of the port.
    pub bits_per_second: u64,
    /// Time from one end to the other.
    pub delay: Duration,
    /// Bytes that may wait at the port, including the packet that is being sent. Only [`super::Packets`] uses it.
    pub queue_bytes: u64,
}

/// What a port has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets or transfers sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub drops: u64,
    /// Their bytes.
    pub drop_bytes: u64,
}

/// A tree of switches with hosts. The first place is the switch at its top, which has no link of its own.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Node {
    switch: Option<Place>,
    depth: u32,
    below: Vec<Place>,
    is_switch: bool,
    up: Line,
    down: Line,
}

impl Port {
    /// The port of a place towards its switch.
    #[must_use]
    pub const fn up(place: Place) -> Self {
        Self(place.0 * 2)
    }

    /// The port of a place's switch towards the place.
    #[must_use]
    pub const fn down(place: Place) -> Self {
        Self(place.0 * 2 + 1)
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    const fn is_up(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// The place whose link it is.
    const fn below(self) -> Place {
        Place(self.0 / 2)
    }
}

impl Line {
    /// A line with a queue of `queue_bytes`.
    #[must_use]
    pub const fn new(bits_per_second: u64, delay: Duration, queue_bytes: u64) -> Self {
        Self { bits_per_second, delay, queue_bytes }
    }

    /// Time that the port takes to send `bytes`.
    #[must_use]
    pub const fn time(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 8_000_000_000 / self.bits_per_second)
    }

    /// Bytes that the port has still to send if it is free at `free_at`.
    pub(super) fn waiting(&self, now: Instant, free_at: Instant) -> u64 {
        let nanos = u128::from(free_at.0.saturating_sub(now.0));
        (nanos * u128::from(self.bits_per_second) / 8_000_000_000) as u64
    }
}

impl Topology {
    /// A single switch.
    #[must_use]
    pub fn new() -> Self {
        let none = Line::new(1, Duration::ZERO, 0);
        let (below, is_switch) = (Vec::new(), true);
        Self { nodes: vec![Node { switch: None, depth: 0, below, is_switch, up: none, down: none }] }
    }

    /// The switch at the top of the tree.
    #[must_use]
    pub const fn top() -> Place {
        Place(0)
    }

    /// Adds a switch below another: `up` towards the top, `down` from it.
    pub fn add_switch(&mut self, switch: Place, up: Line, down: Line) -> Place {
        self.add(switch, true, up, down)
    }

    /// Adds a host at a port of a switch: `up` is what it sends on, `down` what it receives on.
    ///
    /// # Panics
    ///
    /// Panics if `switch` is a host.
    pub fn add_host(&mut self, switch: Place, up: Line, down: Line) -> Place {
        self.add(switch, false, up, down)
    }

    fn add(&mut self, switch: Place, is_switch: bool, up: Line, down: Line) -> Place {
        assert!(self.is_switch(switch), "hosts have no ports for others");
        let place = Place(self.nodes.len() as u32);
        let depth = self.node(switch).depth + 1;
        self.nodes.push(Node { switch: Some(switch), depth, below: Vec::new(), is_switch, up, down });
        self.nodes[switch.0 as usize].below.push(place);
        place
    }

    fn node(&self, place: Place) -> &Node {
        &self.nodes[place.0 as usize]
    }

    /// Number of places.
    #[must_use]
    pub const fn places(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a place is a switch.
    pub(crate) fn is_switch(&self, place: Place) -> bool {
        self.node(place).is_switch
    }

    /// The switch that a place is connected to; the top has none.
    pub(crate) fn switch_of(&self, place: Place) -> Option<Place> {
        self.node(place).switch
    }

    /// The places directly below a switch.
    pub(super) fn below(&self, place: Place) -> &[Place] {
        &self.node(place).below
    }

    /// The line that a port sends on.
    pub(super) fn line(&self, port: Port) -> &Line {
        let node = self.node(port.below());
        if port.is_up() { &node.up } else { &node.down }
    }

    /// The place that a port sends to.
    pub(super) fn far_end(&self, port: Port) -> Place {
        let below = port.below();
        if port.is_up() { self.node(below).switch.expect("the top has no port up") } else { below }
    }

    /// The port through which `at` reaches another place `to`.
    pub(super) fn route(&self, at: Place, to: Place) -> Port {
        let depth = self.node(at).depth;
        let mut child = to;
        while self.node(child).depth > depth + 1 {
            child = self.node(child).switch.expect("only the top has none");
        }
        if self.node(child).switch == Some(at) { Port::down(child) } else { Port::up(at) }
    }

    /// The ports that a packet passes, in order.
    pub fn path(&self, from: Place, to: Place) -> impl Iterator<Item = Port> {
        let mut at = from;
        std::iter::from_fn(move || {
            let port = (at != to).then(|| self.route(at, to))?;
            at = self.far_end(port);
            Some(port)
        })
    }

    /// Time that a packet without length takes through empty queues.
    #[must_use]
    pub fn delay(&self, from: Place, to: Place) -> Duration {
        self.path(from, to).map(|port| self.line(port).delay).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_go_up_to_the_common_switch_and_down() {
        let line = |micros| Line::new(1_000_000_000, Duration::from_micros(micros), 1 << 20);
        let mut tree = Topology::new();
        let left = tree.add_switch(Topology::top(), line(10), line(10));
        let right = tree.add_switch(Topology::top(), line(20), line(20));
        let [a, b] = [1, 2].map(|delay| tree.add_host(left, line(delay), line(delay)));
        let c = tree.add_host(right, line(3), line(3));
        let path = |from, to| tree.path(from, to).collect::<Vec<_>>();
        assert_eq!(path(a, b), [Port::up(a), Port::down(b)]);
        assert_eq!(path(a, c), [Port::up(a), Port::up(left), Port::down(right), Port::down(c)]);
        assert_eq!(path(right, a), [Port::up(right), Port::down(left), Port::down(a)]);
        assert_eq!(path(left, c), [Port::up(left), Port::down(right), Port::down(c)]);
        assert_eq!(path(a, a), []);
        assert_eq!(tree.delay(a, c), Duration::from_micros(1 + 10 + 20 + 3));
        assert_eq!(tree.delay(a, c), tree.delay(c, a));
    }
}
