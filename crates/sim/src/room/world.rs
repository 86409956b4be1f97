//! The simulated world of a room: the server, the classes of receivers, and the queue of events.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use base::{Chance, Duration, Instant};
use proto::multicast::{
    BLOCK_HEADER_BYTES, Downstream, Gathering, MachineId, RateConfig, ReceiverConfig, ReceiverId, Server,
    ServerConfig, ServerEvent, Shape, TAG_BYTES, Transmit, open_downstream, open_upstream, peek_receiver,
    seal,
};

use super::class::{Burst, Class, Flight};
use super::host::{Acts, Host, Image, SILENT_AFTER};
use super::{Room, RoomOutcome, rules};
use crate::checkers::Violation;
use crate::network::Link;
use crate::queue::Queue;
use crate::scenario::OVERHEAD_BYTES;
use crate::server_host::{RECEIVER_TIMEOUT, group_key, receiver_key};

/// Payload of a full Ethernet packet.
const BLOCK_BYTES: u16 = 1424;
/// Time of a read from the repository.
const LOAD: Duration = Duration::from_micros(200);
/// Capacity of the queue of a switch's port, in bytes.
const QUEUE_BYTES: u64 = 256 << 10;
/// The same values as in the server's driver.
const GATHERING: Gathering = Gathering {
    quiet_heads: Duration::from_millis(4),
    quiet: Duration::from_millis(12),
    most: Duration::from_millis(200),
};
/// Maximum number of reported violations.
const BREACHES_MAX: usize = 10;

#[derive(Debug)]
enum Event {
    ServerTimer,
    Loaded(u64),
    ToServer(Vec<u8>),
    Arrive(Flight),
    HostTimer(usize),
    Start(usize),
}

pub(super) struct World<'a> {
    room: &'a Room,
    shape: Shape,
    image: Image,
    queue: Queue<Event>,
    server: Server,
    server_timer: Option<Instant>,
    /// Which blocks were sent at least once, by object.
    sent_once: Vec<Box<[bool]>>,
    classes: Vec<Class>,
    hosts: Vec<Host>,
    chance: Chance,
    acts: Acts,
    outcome: RoomOutcome,
    /// Number of receivers admitted so far.
    admitted: u32,
    /// Number of receivers that have not left yet, including those that have not started.
    here: usize,
}

impl<'a> World<'a> {
    pub(super) fn new(room: &'a Room) -> Self {
        let mut chance = Chance::from_seed(room.seed);
        let object_bytes: Arc<[u32]> = room.object_bytes().into();
        let objects = object_bytes.len();
        let (session, block_bytes) = (chance.u64(), BLOCK_BYTES);
        let shape = Shape { session, epoch: 1, objects: objects as u64, heads: 1, block_bytes };
        let server = Server::new(Instant::ZERO, server_config(room, shape, &object_bytes));
        let classes = classes(room);
        let mut queue = Queue::default();
        for host in 0..room.receivers {
            let part = room.starts_over.mul_f64(host as f64 / room.receivers as f64);
            queue.push(Instant::ZERO + part, Event::Start(host));
        }
        queue.push(Instant::ZERO, Event::ServerTimer);
        Self {
            room,
            shape,
            sent_once: object_bytes
                .iter()
                .map(|&bytes| vec![false; shape.blocks(bytes) as usize].into())
                .collect(),
            image: Image {
                blocks: object_bytes.iter().map(|&bytes| shape.blocks(bytes)).collect(),
                object_bytes,
            },
            queue,
            outcome: RoomOutcome {
                violations: Vec::new(),
                took: Vec::new(),
                control_packets: 0,
                control_bytes: 0,
                data_bytes: 0,
                blocks_useless: 0,
                blocks_first: 0,
                unicast_bytes: 0,
                statistics: server.statistics(Instant::ZERO),
                deliveries: 0,
                losses: 0,
                steps: 0,
            },
            server,
            server_timer: Some(Instant::ZERO),
            hosts: hosts(&classes, objects, &mut chance),
            classes,
            chance,
            acts: Acts::default(),
            admitted: 0,
            here: room.receivers,
        }
    }

    pub(super) fn run(mut self) -> RoomOutcome {
        while let Some(event) = self.queue.pop() {
            let now = self.queue.now();
            if self.here == 0 || now > self.room.deadline {
                break;
            }
            self.outcome.steps += 1;
            self.handle(now, event);
        }
        self.end()
    }

    fn handle(&mut self, now: Instant, event: Event) {
        match event {
            Event::ServerTimer => {
                if self.server_timer.is_some_and(|at| at <= now) {
                    self.server_timer = None;
                }
                self.server.handle_timeout(now);
                self.drive_server(now);
            }
            Event::Loaded(object) => {
                self.server.loaded(object, true);
                self.drive_server(now);
            }
            Event::ToServer(datagram) => {
                self.outcome.control_packets += 1;
                self.outcome.control_bytes += datagram.len() as u64 + u64::from(OVERHEAD_BYTES);
                let receiver = peek_receiver(&datagram).expect("a whole packet");
                let packet = open_upstream(&receiver_key(receiver), &self.shape, &datagram);
                self.server.handle_input(now, &packet.expect("packets of receivers can be opened"));
                self.drive_server(now);
            }
            Event::Arrive(flight) => self.arrive(flight),
            Event::HostTimer(host) if self.hosts[host].machine.is_none() => {}
            Event::HostTimer(host) => {
                if self.hosts[host].timer.is_some_and(|at| at <= now) {
                    self.hosts[host].timer = None;
                }
                self.hosts[host].tick(now, &self.image, &mut self.acts);
                self.rearm(host);
            }
            Event::Start(host) => {
                self.server.admit(now, receiver_id(host), MachineId(receiver_id(host).0));
                self.admitted += 1;
                let config = self.receiver_config(host);
                self.hosts[host].start(now, config, &self.image, &mut self.acts);
                self.rearm(host);
                self.drive_server(now);
            }
        }
    }

    fn drive_server(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.server.poll_event() {
                if let ServerEvent::Load(object) = event {
                    self.queue.push(now + LOAD, Event::Loaded(object));
                }
            }
            let Some(transmit) = self.server.poll_transmit(now) else { break };
            self.multicast(now, transmit);
        }
        if let Some(at) =
            self.server.poll_timeout().filter(|&at| self.server_timer.is_none_or(|timer| at < timer))
        {
            self.server_timer = Some(at.max(now));
            self.queue.push(at, Event::ServerTimer);
        }
    }

    /// Sends the server's current packets to all receivers.
    fn multicast(&mut self, now: Instant, transmit: Transmit) {
        let burst = Rc::new(self.burst(transmit));
        self.note(&burst);
        self.outcome.data_bytes += burst.wire_bytes.iter().map(|&bytes| bytes as u64).sum::<u64>();
        for class in 0..self.classes.len() {
            let at = self.classes[class].arrivals(now, &burst);
            let first = at.iter().copied().flatten().next().unwrap_or(now);
            self.queue.push(first, Event::Arrive(Flight { class, burst: Rc::clone(&burst), at }));
        }
    }

    fn note(&mut self, burst: &Burst) {
        for packet in &burst.packets {
            if let Downstream::Block(header, _) = packet
                && let Some(sent) = self.sent_once[header.object as usize].get_mut(usize::from(header.block))
            {
                self.outcome.blocks_first += u64::from(!std::mem::replace(sent, true));
            }
        }
    }

    fn burst(&self, transmit: Transmit) -> Burst {
        let headers = BLOCK_HEADER_BYTES + TAG_BYTES + usize::from(OVERHEAD_BYTES);
        let (packets, wire_bytes) = match transmit {
            Transmit::Blocks(run) => (0..run.count)
                .map(|index| {
                    let header = run.header(index);
                    let (_, len) = self.shape.place(header.object_bytes, header.block);
                    let payload = if header.symbol(&self.shape).is_some() { BLOCK_BYTES } else { len };
                    (Downstream::Block(header, &[][..]), headers + usize::from(payload))
                })
                .unzip(),
            Transmit::Control(mut bytes) => {
                let key = group_key(self.shape.epoch);
                seal(&key, &mut bytes);
                let packet = match open_downstream(&key, &self.shape, &bytes) {
                    Ok(Downstream::Status(status)) => Downstream::Status(status),
                    Ok(Downstream::Bye) => Downstream::Bye,
                    other => panic!("control packets of the server can be opened: {other:?}"),
                };
                (vec![packet], vec![bytes.len() + usize::from(OVERHEAD_BYTES)])
            }
        };
        Burst { packets, wire_bytes, used: Cell::new(0) }
    }

    /// A burst reaches a class. Each host handles all of it at once: until the last of its packets has arrived, only
    /// the host's own timer can fire, which the host handles itself.
    fn arrive(&mut self, flight: Flight) {
        let Flight { class, burst, at } = flight;
        let mut used = 0;
        for host in self.classes[class].hosts.clone() {
            if self.hosts[host].listens() {
                used |= self.hosts[host].receive(&burst.packets, &at, &self.image, &mut self.acts);
                self.rearm(host);
            }
        }
        burst.used.set(burst.used.get() | used);
        if let Some(burst) = Rc::into_inner(burst) {
            let blocks =
                burst.packets.iter().filter(|packet| matches!(packet, Downstream::Block(..))).count();
            self.outcome.blocks_useless += blocks as u64 - u64::from(burst.used.get().count_ones());
        }
    }

    /// Sends the reports of a host, sets its timer, and notices when it has left.
    fn rearm(&mut self, host: usize) {
        let World { hosts, queue, room, acts, .. } = self;
        let state = &mut hosts[host];
        for (at, mut report) in acts.reports.drain(..) {
            if !state.loses_report() {
                seal(&receiver_key(receiver_id(host)), &mut report);
                queue.push(at + room.round_trip / 2, Event::ToServer(report));
            }
        }
        if let Some(at) = state.due().filter(|&at| state.timer.is_none_or(|timer| at < timer)) {
            state.timer = Some(at.max(queue.now()));
            queue.push(at, Event::HostTimer(host));
        }
        self.here -= usize::from(state.machine.is_none());
    }

    fn receiver_config(&mut self, host: usize) -> ReceiverConfig {
        let objects = self.image.object_bytes.len() as u64;
        ReceiverConfig {
            stays: false,
            shape: self.shape,
            receiver: receiver_id(host),
            buffer_bytes: self.room.buffer_bytes,
            object_bytes_mean: (self.room.image_bytes / objects) as u32,
            silent_after: SILENT_AFTER,
            stalled_after: SILENT_AFTER * 2,
            receivers: self.admitted,
            chance: self.chance.fork(),
        }
    }

    fn end(mut self) -> RoomOutcome {
        let now = self.queue.now();
        let took = |host: &Host| host.done_at.map(|done| done.since(host.started_at));
        self.outcome.took = self.hosts.iter().map(took).collect();
        (self.outcome.deliveries, self.outcome.losses) = (self.acts.deliveries, self.acts.losses);
        self.outcome.unicast_bytes = self.acts.unicast_bytes;
        self.outcome.statistics = self.server.statistics(now);
        let breach = |(rule, what)| Violation { rule, what };
        let breaches = self.acts.breaches.drain(..).take(BREACHES_MAX).chain(rules::breaches(&self.outcome));
        self.outcome.violations = breaches.map(breach).collect();
        self.outcome
    }
}

fn server_config(room: &Room, shape: Shape, object_bytes: &Arc<[u32]>) -> ServerConfig {
    ServerConfig {
        shape,
        object_bytes: Arc::clone(object_bytes),
        rate: RateConfig {
            initial: room.initial_bits_per_second,
            floor: room.bits_per_second / 100,
            ceiling: room.bits_per_second,
        },
        overhead_bytes: OVERHEAD_BYTES,
        signature_bytes: 0,
        run_blocks_max: 16,
        cache_bytes: 64 << 20,
        gathering: GATHERING,
        receiver_timeout: RECEIVER_TIMEOUT,
    }
}

fn hosts(classes: &[Class], objects: usize, chance: &mut Chance) -> Vec<Host> {
    let links = classes.iter().flat_map(|class| class.hosts.clone().map(|_| &class.link));
    links.map(|link| Host::new(objects, link, chance.fork())).collect()
}

/// The class of receivers with a fast port, and the class with a slow one.
fn classes(room: &Room) -> Vec<Class> {
    let fast = room.receivers - room.slow;
    let class = |hosts, rate| {
        let mut link = Link::new(room.round_trip / 2, rate, QUEUE_BYTES);
        link.loss_per_million = room.loss_per_million;
        Class { hosts, link }
    };
    vec![class(0..fast, room.bits_per_second), class(fast..room.receivers, room.bits_per_second / 10)]
}

fn receiver_id(host: usize) -> ReceiverId {
    ReceiverId(host as u32)
}
