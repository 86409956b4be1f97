//! What a policy sees and acts on: the network, the receivers with what they hold, and the counters.

use base::{Chance, Duration, Instant};

use super::bits::Bits;
use super::{Outcome, Setting, Tally, Took};
use crate::fabric::{Flows, Group, Place, Port, Target};

/// The group of the image.
const GROUP: Group = Group(0);

/// What happens at a place.
#[derive(Debug, Clone)]
pub(super) enum Event<M> {
    Start,
    /// A message arrives.
    Message {
        from: Place,
        message: M,
    },
    /// The processor of a switch or of the server has taken a message.
    Handled {
        from: Place,
        message: M,
    },
    /// A chunk has arrived, by multicast or not.
    Chunk {
        from: Place,
        chunk: u32,
        cast: bool,
    },
    /// A chunk is written.
    Written,
    /// All chunks are written.
    Ended,
    Wake(u64),
}

#[derive(Debug)]
struct Receiver {
    place: Place,
    started: Option<Instant>,
    held: Bits,
    count: u32,
    /// Chunks in memory that are not written yet.
    buffered: u32,
    /// When the disk is free.
    disk_free_at: Instant,
    complete: Option<Instant>,
    ended: Option<Instant>,
}

/// The network, the receivers and the counters of a run.
#[derive(Debug)]
pub struct Stage<M> {
    setting: Setting,
    pub(super) flows: Flows<Event<M>>,
    receivers: Vec<Receiver>,
    /// The number of the receiver at each place.
    numbers: Vec<Option<usize>>,
    /// When the processor of each place is free.
    processors: Vec<Instant>,
    chance: Chance,
    tally: Tally,
}

impl<M: Clone> Stage<M> {
    pub(super) fn new(setting: &Setting) -> Self {
        let places = setting.topology.places();
        let mut numbers = vec![None; places];
        let receiver = |(number, &place): (usize, &Place)| {
            numbers[place.0 as usize] = Some(number);
            Receiver {
                place,
                started: None,
                held: Bits::new(setting.chunks),
                count: 0,
                buffered: 0,
                disk_free_at: Instant::ZERO,
                complete: None,
                ended: None,
            }
        };
        Self {
            receivers: setting.receivers.iter().enumerate().map(receiver).collect(),
            flows: Flows::new(setting.topology.clone()),
            numbers,
            processors: vec![Instant::ZERO; places],
            chance: Chance::from_seed(setting.seed).fork(),
            tally: Tally::default(),
            setting: setting.clone(),
        }
    }

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.flows.now()
    }

    /// The parameters of the run.
    #[must_use]
    pub const fn setting(&self) -> &Setting {
        &self.setting
    }

    /// The number of the receiver at a place, from 0; `None` for the server and switches.
    #[must_use]
    pub fn number(&self, place: Place) -> Option<usize> {
        self.numbers[place.0 as usize]
    }

    fn receiver(&self, place: Place) -> &Receiver {
        &self.receivers[self.number(place).expect("a receiver")]
    }

    /// The switch of a host.
    #[must_use]
    pub fn switch(&self, host: Place) -> Place {
        self.setting.topology.switch_of(host).expect("hosts have a switch")
    }

    /// Whether a receiver has started and not left.
    pub(super) fn is_present(&self, receiver: Place) -> bool {
        let receiver = self.receiver(receiver);
        receiver.started.is_some() && receiver.ended.is_none()
    }

    /// Whether a receiver has received a chunk.
    #[must_use]
    pub fn holds(&self, receiver: Place, chunk: u32) -> bool {
        self.receiver(receiver).held.has(chunk)
    }

    /// Whether a receiver has received all chunks.
    #[must_use]
    pub fn is_complete(&self, receiver: Place) -> bool {
        self.receiver(receiver).complete.is_some()
    }

    /// Number of chunks that a receiver has memory for.
    #[must_use]
    pub fn room(&self, receiver: Place) -> u32 {
        self.setting.machine.memory_chunks - self.receiver(receiver).buffered
    }

    /// Sends a chunk to a receiver. Returns when the sender's port has sent all that is queued there.
    pub fn send(&mut self, from: Place, to: Place, chunk: u32) -> Instant {
        // TCP over IPv4 with full frames and the gap between them.
        let bytes = self.setting.chunk_bytes.div_ceil(1448) * 1538;
        self.count_sent(from);
        self.flows.send(from, Target::One(to), bytes, Event::Chunk { from, chunk, cast: false })
    }

    /// Multicasts a chunk that has `wire_bytes` to all receivers that listen. Returns when the sender may send the next
    /// chunk, at the rate of the setting.
    pub fn cast(&mut self, from: Place, chunk: u32, wire_bytes: u64) -> Instant {
        self.count_sent(from);
        self.flows.send(from, Target::All(GROUP), wire_bytes, Event::Chunk { from, chunk, cast: true });
        self.now() + Duration::from_nanos(wire_bytes * 8_000_000_000 / self.setting.cast_bits_per_second)
    }

    fn count_sent(&mut self, from: Place) {
        let by_server = from == self.setting.server;
        *(if by_server { &mut self.tally.server_chunks } else { &mut self.tally.peer_chunks }) += 1;
    }

    /// A receiver starts to receive what is multicast. It stops when it has all chunks.
    pub fn listen(&mut self, receiver: Place) {
        self.flows.join(GROUP, receiver);
    }

    /// A receiver does not receive any more what is multicast.
    pub(super) fn unlisten(&mut self, receiver: Place) {
        self.flows.leave(GROUP, receiver);
    }

    /// Sends a message.
    pub fn tell(&mut self, from: Place, to: Place, message: M) {
        self.tally.messages += 1;
        let at = self.now() + self.setting.topology.delay(from, to);
        self.flows.schedule(at, to, Event::Message { from, message });
    }

    /// Sends a message that is counted as a request for chunks.
    pub fn ask(&mut self, from: Place, to: Place, message: M) {
        self.tally.requests += 1;
        self.tell(from, to, message);
    }

    /// Asks for a call of `woken` at a time.
    pub fn wake(&mut self, place: Place, at: Instant, token: u64) {
        self.flows.schedule(at, place, Event::Wake(token));
    }

    /// Queues a message at the processor of the switch or server that it has reached.
    pub(super) fn handle(&mut self, at: Place, from: Place, message: M) {
        let is_server = at == self.setting.server;
        let takes = if is_server { self.setting.server_handling } else { self.setting.handling };
        let (now, free_at) = (self.now(), &mut self.processors[at.0 as usize]);
        let begins = now.max(*free_at);
        self.tally.handling_waited = self.tally.handling_waited.max(begins.since(now));
        *free_at = begins + takes;
        let handled = *free_at;
        self.flows.schedule(handled, at, Event::Handled { from, message });
    }

    pub(super) fn start(&mut self, place: Place) {
        let (now, number) = (self.now(), self.number(place).expect("only receivers start"));
        self.receivers[number].started = Some(now);
    }

    /// Stores a chunk that has arrived. Returns whether it was lacking; `None` if the receiver lost it.
    pub(super) fn take(&mut self, place: Place, chunk: u32, cast: bool) -> Option<bool> {
        let (now, number) = (self.now(), self.number(place).expect("only receivers are sent chunks"));
        self.tally.arrived_chunks += 1;
        let Setting { machine, misses_per_million, .. } = self.setting;
        let each = self.setting.chunk_writing();
        let receiver = &mut self.receivers[number];
        if receiver.held.has(chunk) {
            return Some(false);
        }
        if cast && (receiver.buffered >= machine.memory_chunks || self.chance.hits(misses_per_million)) {
            self.tally.missed_chunks += 1;
            return None;
        }
        receiver.held.set(chunk);
        self.tally.fresh_chunks += 1;
        (receiver.count, receiver.buffered) = (receiver.count + 1, receiver.buffered + 1);
        if machine.overlaps {
            receiver.disk_free_at = receiver.disk_free_at.max(now) + each;
            if machine.memory_chunks < self.setting.chunks {
                self.flows.schedule(receiver.disk_free_at, place, Event::Written);
            }
        }
        if receiver.count == self.setting.chunks {
            receiver.complete = Some(now);
            self.flows.leave(GROUP, place);
            let ends = if machine.overlaps { receiver.disk_free_at } else { now + machine.writing };
            self.flows.schedule(ends, place, Event::Ended);
        }
        Some(true)
    }

    pub(super) fn written(&mut self, place: Place) {
        let number = self.number(place).expect("only receivers write");
        self.receivers[number].buffered -= 1;
    }

    pub(super) fn end(&mut self, place: Place) {
        let (now, number) = (self.now(), self.number(place).expect("only receivers end"));
        self.receivers[number].ended = Some(now);
    }

    pub(super) fn outcome(&self, steps: u64) -> Outcome {
        let took = |receiver: &Receiver| {
            let (started, ended) = (receiver.started?, receiver.ended?);
            let network = receiver.complete?.since(started);
            Some(Took { started: started.since(Instant::ZERO), network, total: ended.since(started) })
        };
        let bytes = |port| self.flows.traffic(port).bytes;
        let switches = (1..self.setting.topology.places() as u32)
            .map(Place)
            .filter(|&place| self.setting.topology.is_switch(place));
        let trunks: Vec<u64> =
            switches.flat_map(|place| [bytes(Port::up(place)), bytes(Port::down(place))]).collect();
        Outcome {
            chunks: self.setting.chunks,
            took: self.receivers.iter().map(took).collect(),
            tally: self.tally,
            server_bytes: bytes(Port::up(self.setting.server)),
            trunk_bytes: trunks.iter().sum(),
            trunk_bytes_max: trunks.iter().copied().max().unwrap_or(0),
            steps,
        }
    }

    /// The receivers and their starts.
    pub(super) fn starts(&self) -> Vec<(Instant, Place)> {
        let places = self.receivers.iter().map(|receiver| receiver.place);
        self.setting.starts.iter().copied().zip(places).collect()
    }
}
