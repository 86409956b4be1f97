//! The simulated world of one multicast run: takes events from the queue, lets the hosts act, and shows everything to
//! the checkers.

use std::sync::Arc;

use base::{Chance, Duration, Instant};
use proto::multicast::{BlockHeader, Disposition, SessionStatistics, Shape, Transmit, seal};

use crate::beside;
use crate::checkers::{Checkers, Violation};
use crate::network::{Arrival, Link};
use crate::queue::{Event, Queue};
use crate::receiver_host::{ReceiverHost, Wish};
use crate::scenario::{Ailment, Fault, Scenario};
use crate::server_host::{Packet, RECEIVER_TIMEOUT, Sent, ServerHost, group_key, receiver_key};
use crate::trace::Trace;
use crate::truth::Truth;

/// Time of a request over the control connection.
const CONTROL: Duration = Duration::from_millis(2);
/// Time after which a receiver that cannot reach the server retries.
const CONTROL_RETRY: Duration = Duration::from_millis(100);

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Hash of everything that happened.
    pub trace: u64,
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// When each receiver was done.
    pub done_at: Vec<Option<Instant>>,
    /// When each receiver had all heads.
    pub heads_at: Vec<Option<Instant>>,
    /// Reports of each receiver, and their bytes with tags.
    pub reports: Vec<(u64, u64)>,
    /// BLOCK packets sent over all epochs.
    pub blocks_sent: u64,
    /// BLOCK packets that no receiver lacked.
    pub blocks_useless: u64,
    /// Statistics of the last server.
    pub statistics: Option<SessionStatistics>,
    /// Events handled.
    pub steps: u64,
}

/// Runs a scenario to its end. If hosts in it ail, it also runs without them, to see whether they slow the others.
#[must_use]
pub fn run(scenario: &Scenario) -> Outcome {
    let mut outcome = World::new(scenario).run();
    let slowed = beside::slowed(scenario, &outcome.done_at, |other| World::new(other).run().done_at);
    outcome.violations.extend(slowed);
    outcome
}

struct World<'a> {
    scenario: &'a Scenario,
    truth: Truth,
    queue: Queue<Event>,
    chance: Chance,
    server: ServerHost,
    hosts: Vec<ReceiverHost>,
    links: Vec<Link>,
    checkers: Checkers,
    trace: Trace,
    reaches: Vec<bool>,
    last_sequence: u64,
    steps: u64,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut chance = Chance::from_seed(!scenario.seed);
        let objects = scenario.object_bytes.len() as u64;
        let (session, heads, block_bytes) = (chance.u64(), scenario.heads, scenario.block_bytes);
        let shape = Shape { session, epoch: 0, objects, heads, block_bytes };
        let truth = Truth::new(shape, &scenario.object_bytes, &mut chance);
        let mut queue = Queue::default();
        for (host, spec) in scenario.hosts.iter().enumerate() {
            queue.push(spec.starts, Event::Start { host });
            if let Some(Ailment::Dead { after }) = spec.ailment {
                queue.push(spec.starts + after, Event::Begin(Fault::Crash { host }));
            }
        }
        for event in &scenario.events {
            queue.push(event.at, Event::Begin(event.fault));
            queue.push(event.at + event.lasts, Event::End(event.fault));
        }
        queue.push(Instant::ZERO, Event::ServerTimer);
        let hosts = scenario.hosts.iter().enumerate();
        Self {
            server: ServerHost::new(scenario, &truth),
            hosts: hosts.map(|(number, host)| ReceiverHost::new(number, host, &truth)).collect(),
            links: scenario.hosts.iter().map(|host| host.link.clone()).collect(),
            checkers: Checkers::new(&truth, scenario.hosts.len()),
            trace: Trace::new(),
            reaches: vec![false; scenario.hosts.len()],
            last_sequence: 0,
            steps: 0,
            scenario,
            truth,
            queue,
            chance,
        }
    }

    fn run(mut self) -> Outcome {
        let mut done = None;
        while let Some(event) = self.queue.pop() {
            let now = self.queue.now();
            self.steps += 1;
            self.trace.note(&[now.0, self.steps]);
            self.handle(now, event);
            // The run continues for some time, so that the server notices receivers that left silently.
            if done.is_none() && self.is_quiet() {
                done = Some(now + RECEIVER_TIMEOUT * 2);
            }
            if now > done.unwrap_or(self.scenario.deadline) {
                break;
            }
        }
        let now = self.queue.now();
        let statistics = self.server.statistics(now);
        self.checkers.server_gone(now, statistics.as_ref());
        self.checkers.end(now, self.scenario, &self.hosts, self.server.deserted || done.is_none());
        Outcome {
            trace: self.trace.value(),
            done_at: self.hosts.iter().map(|host| host.done_at).collect(),
            heads_at: self.hosts.iter().map(|host| host.heads_at).collect(),
            reports: self.hosts.iter().map(|host| (host.reports, host.report_bytes)).collect(),
            blocks_sent: self.checkers.sent,
            blocks_useless: self.checkers.useless,
            violations: self.checkers.into_violations(),
            statistics,
            steps: self.steps,
        }
    }

    /// Whether all receivers are done and all faults are over.
    fn is_quiet(&self) -> bool {
        let last = self.scenario.events.iter().map(|event| event.at + event.lasts).max();
        self.server.machine.is_some()
            && last.is_none_or(|last| self.queue.now() > last)
            && self.hosts.iter().all(|host| host.is_over())
    }

    fn handle(&mut self, now: Instant, event: Event) {
        match event {
            Event::ServerTimer => {
                if self.server.timer.is_some_and(|at| at <= now) {
                    self.server.timer = None;
                }
                if let Some(machine) = &mut self.server.machine {
                    machine.handle_timeout(now);
                }
                self.drive_server(now);
            }
            Event::Loaded { epoch, object } => self.loaded(now, epoch, object),
            Event::ToServer(datagram) => {
                self.server.receive(now, &datagram);
                self.drive_server(now);
            }
            Event::ToReceiver { host, sent, damaged } => self.arrive(now, host, &sent, damaged.as_deref()),
            Event::ReceiverTimer { host, life } => self.receiver_timer(now, host, life),
            Event::Written { host, life } => self.written(now, host, life),
            Event::Start { host } => self.regrant(now, host),
            Event::Regrant { host, life } => {
                if self.hosts[host].life == life {
                    self.regrant(now, host);
                }
            }
            Event::Unicast { host, life, object } => self.unicast(now, host, life, object),
            Event::Begin(fault) => self.begin(now, fault),
            Event::End(fault) => self.end(now, fault),
        }
    }

    fn drive_server(&mut self, now: Instant) {
        loop {
            for object in self.server.events() {
                let takes = self.chance.below(self.scenario.load_time_max.as_nanos() as u64 + 1);
                let epoch = self.server.shape.epoch;
                self.queue.push(now + Duration::from_nanos(takes), Event::Loaded { epoch, object });
            }
            let Some(transmit) = self.server.machine.as_mut().and_then(|machine| machine.poll_transmit(now))
            else {
                break;
            };
            self.check_loaded(now, &transmit);
            for sent in self.server.packets(transmit, &self.truth) {
                self.multicast(now, Arc::new(sent));
            }
        }
        let due = self.server.machine.as_ref().and_then(|machine| machine.poll_timeout());
        if let Some(at) = due.filter(|&at| self.server.timer.is_none_or(|timer| at < timer)) {
            self.server.timer = Some(at.max(now));
            self.queue.push(at, Event::ServerTimer);
        }
    }

    fn check_loaded(&mut self, now: Instant, transmit: &Transmit) {
        if let Transmit::Blocks(run) = transmit
            && !self.server.in_memory.contains(&run.first.object)
        {
            self.checkers
                .breach("only loaded objects are sent", format!("{now:?}: object {}", run.first.object));
        }
    }

    fn loaded(&mut self, now: Instant, epoch: u32, object: u64) {
        if epoch == self.server.shape.epoch
            && let Some(machine) = &mut self.server.machine
        {
            self.server.in_memory.insert(object);
            machine.loaded(object, true);
            let bytes = |&object: &u64| u64::from(self.truth.object_bytes[object as usize]);
            let held: u64 = self.server.in_memory.iter().map(bytes).sum();
            let largest = u64::from(self.truth.object_bytes.iter().copied().max().unwrap_or(0));
            let most = self.scenario.cache_bytes + largest * (self.scenario.heads.min(32) + 3);
            self.checkers.server_memory(now, held, most);
            self.drive_server(now);
        }
    }

    /// Sends a packet to all receivers.
    fn multicast(&mut self, now: Instant, sent: Arc<Sent>) {
        if let Packet::Block(header) = &sent.packet {
            self.last_sequence = header.sequence;
            self.trace.note(&[header.sequence, header.object, header.block.into()]);
        }
        let bytes = sent.bytes.len() + usize::from(crate::scenario::OVERHEAD_BYTES);
        for host in 0..self.hosts.len() {
            self.reaches[host] = false;
            if !self.hosts[host].listens() {
                continue;
            }
            if self.scenario.hosts[host].ailment == Some(Ailment::Deaf) {
                continue;
            }
            for arrival in self.links[host].down(now, bytes, &mut self.chance).into_iter().flatten() {
                self.reaches[host] |= !arrival.damaged;
                self.deliver(host, &sent, arrival);
            }
        }
        if let Packet::Block(header) = &sent.packet {
            self.checkers.block_sent(now, &self.truth, header, &self.hosts, &self.reaches);
        }
    }

    fn deliver(&mut self, host: usize, sent: &Arc<Sent>, arrival: Arrival) {
        let damaged = arrival.damaged.then(|| damage(&sent.bytes, &mut self.chance));
        self.queue.push(arrival.at, Event::ToReceiver { host, sent: Arc::clone(sent), damaged });
    }

    fn arrive(&mut self, now: Instant, host: usize, sent: &Sent, damaged: Option<&[u8]>) {
        let did = self.hosts[host].receive(now, sent, damaged);
        if let (Packet::Block(header), None) = (&sent.packet, damaged) {
            self.checkers.block_came(&self.truth, host, header, did);
        }
        if did.is_some_and(|did| matches!(did, Disposition::Place { begins: Some(_), .. })) {
            self.checkers.memory(now, host, &self.hosts[host]);
        }
        self.drive_receiver(now, host);
    }

    fn drive_receiver(&mut self, now: Instant, host: usize) {
        for wish in self.hosts[host].drain(now, &self.truth) {
            self.grant(now, host, wish);
        }
        let ReceiverHost { machine, timer, life, .. } = &mut self.hosts[host];
        let due = machine.as_ref().and_then(|machine| machine.poll_timeout());
        if let Some(at) = due.filter(|&at| timer.is_none_or(|timer| at < timer)) {
            *timer = Some(at.max(now));
            self.queue.push(at, Event::ReceiverTimer { host, life: *life });
        }
    }

    fn grant(&mut self, now: Instant, host: usize, wish: Wish) {
        let life = self.hosts[host].life;
        match wish {
            Wish::Send(mut packet) => {
                let key = proto::multicast::peek_receiver(&packet).map(receiver_key).expect("a whole packet");
                seal(&key, &mut packet);
                self.trace.note(&[host as u64, packet.len() as u64]);
                if let Some(arrival) = self.links[host].up(now, &mut self.chance) {
                    let datagram =
                        if arrival.damaged { damage(&packet, &mut self.chance) } else { packet.into() };
                    self.queue.push(arrival.at, Event::ToServer(datagram));
                }
            }
            Wish::Written(at) => self.queue.push(at, Event::Written { host, life }),
            Wish::Unicast(object) => self.queue.push(now + CONTROL, Event::Unicast { host, life, object }),
            Wish::UnicastRest => self.unicast_rest(now, host),
            Wish::Regrant => {
                if !std::mem::replace(&mut self.hosts[host].regrant_pending, true) {
                    self.queue.push(now + CONTROL, Event::Regrant { host, life });
                }
            }
            Wish::Judged { object, ok } => self.checkers.judged(now, host, object, ok),
            Wish::Done => self.checkers.done(now, host, &self.hosts[host]),
        }
    }

    fn receiver_timer(&mut self, now: Instant, host: usize, life: u32) {
        if self.hosts[host].life != life {
            return;
        }
        if self.hosts[host].timer.is_some_and(|at| at <= now) {
            self.hosts[host].timer = None;
        }
        if let Some(machine) = &mut self.hosts[host].machine {
            machine.handle_timeout(now);
        }
        self.drive_receiver(now, host);
    }

    fn written(&mut self, now: Instant, host: usize, life: u32) {
        if self.hosts[host].life == life {
            let (object, content) = self.hosts[host].written();
            self.checkers.written(now, &self.truth, host, object, &content);
            self.drive_receiver(now, host);
        }
    }

    /// A host requests a grant, and joins if it is for a new session.
    fn regrant(&mut self, now: Instant, host: usize) {
        if let Some(Ailment::Silent { admissions }) = self.scenario.hosts[host].ailment {
            if self.server.machine.is_none() {
                let life = self.hosts[host].life;
                return self.queue.push(now + CONTROL_RETRY, Event::Regrant { host, life });
            }
            for _ in 0..admissions {
                self.server.admit(now, self.hosts[host].next_receiver());
            }
            return;
        }
        let shape = self.server.shape;
        let reachable = self.server.machine.is_some() && !self.links[host].cut;
        let known = self.hosts[host].machine.is_some() && self.hosts[host].shape == shape;
        self.hosts[host].regrant_pending = false;
        if self.hosts[host].done_at.is_some() || self.hosts[host].left_at.is_some() {
            return;
        }
        if !reachable || (!known && !self.hosts[host].is_disk_idle()) || (known && self.hosts[host].silent) {
            let life = self.hosts[host].life;
            self.hosts[host].regrant_pending = true;
            self.queue.push(now + CONTROL_RETRY, Event::Regrant { host, life });
        } else if !known {
            self.checkers.host_forgot(host);
            let grant = self.server.admit(now, self.hosts[host].next_receiver());
            self.hosts[host].join(now, grant, &self.truth, &mut self.chance);
            self.drive_receiver(now, host);
            self.drive_server(now);
        }
    }

    fn unicast(&mut self, now: Instant, host: usize, life: u32, object: u64) {
        if self.hosts[host].life != life {
            return;
        }
        if self.server.machine.is_none() || self.links[host].cut {
            self.queue.push(now + CONTROL_RETRY, Event::Unicast { host, life, object });
            return;
        }
        self.hosts[host].satisfied(object);
        self.drive_receiver(now, host);
    }

    /// Fetches one object after the other by unicast, as fast as the port allows.
    fn unicast_rest(&mut self, now: Instant, host: usize) {
        let life = self.hosts[host].life;
        let mut at = now + CONTROL;
        for (object, &bytes) in (0..).zip(&*self.truth.object_bytes) {
            if !self.hosts[host].installed[object as usize] {
                at = at
                    + Duration::from_nanos(
                        u64::from(bytes) * 8_000_000_000 / self.links[host].bits_per_second,
                    );
                self.queue.push(at, Event::Unicast { host, life, object });
            }
        }
    }

    fn begin(&mut self, now: Instant, fault: Fault) {
        self.checkers.fault(fault);
        match fault {
            Fault::LossBurst { host, per_million } => self.links[host].loss_per_million = per_million,
            Fault::Partition { host } => self.links[host].cut = true,
            Fault::Crash { host } => {
                self.hosts[host].crash();
                self.checkers.host_forgot(host);
            }
            Fault::ServerCrash => {
                let last = self.server.statistics(now);
                self.checkers.server_gone(now, last.as_ref());
                self.server.machine = None;
            }
            Fault::SlowDisk { host, bytes_per_second } => {
                self.hosts[host].disk_bytes_per_second = bytes_per_second
            }
            Fault::Disorder { host } => {
                self.links[host].jitter = Duration::from_millis(8);
                self.links[host].duplicate_per_million = 50_000;
                self.links[host].damage_per_million = 20_000;
            }
            Fault::Lie { object } => self.lie(now, object),
            Fault::Noise => self.noise(now),
        }
    }

    fn end(&mut self, now: Instant, fault: Fault) {
        match fault {
            Fault::LossBurst { host, .. } | Fault::Partition { host } | Fault::Disorder { host } => {
                let healed = self.scenario.hosts[host].link.clone();
                self.links[host].loss_per_million = healed.loss_per_million;
                self.links[host].cut = false;
                self.links[host].jitter = healed.jitter;
                self.links[host].duplicate_per_million = 0;
                self.links[host].damage_per_million = 0;
            }
            Fault::Crash { host } => {
                if self.hosts[host].machine.is_none() && now >= self.scenario.hosts[host].starts {
                    self.regrant(now, host);
                }
            }
            Fault::ServerCrash => {
                if self.server.machine.is_none() {
                    self.server.start(now, &self.truth);
                    self.drive_server(now);
                }
            }
            Fault::SlowDisk { host, .. } => {
                self.hosts[host].disk_bytes_per_second = self.scenario.hosts[host].disk_bytes_per_second;
            }
            Fault::Lie { .. } | Fault::Noise => {}
        }
    }

    /// A member of the group sends a forged block with a valid tag.
    fn lie(&mut self, now: Instant, object: u64) {
        let shape = self.server.shape;
        let mut object_bytes = self.truth.object_bytes[object as usize];
        if self.chance.hits(300_000) {
            object_bytes = 1 + self.chance.below(8192) as u32;
        }
        let far = if self.chance.hits(300_000) { self.chance.below(1 << 40) } else { 0 };
        let sequence = self.last_sequence + far;
        let header = BlockHeader {
            sequence,
            timestamp_us: 0,
            object,
            block: 0,
            object_bytes,
            repair: false,
            coming: 0,
        };
        let mut bytes = header.encode(&shape).to_vec();
        bytes.resize(bytes.len() + usize::from(shape.place(object_bytes, 0).1), 0xee);
        self.inject(now, &shape, bytes);
    }

    fn inject(&mut self, now: Instant, shape: &Shape, mut bytes: Vec<u8>) {
        let key = group_key(shape.epoch);
        seal(&key, &mut bytes);
        let sent = Arc::new(Sent::new(&key, shape, bytes));
        for host in 0..self.hosts.len() {
            self.queue.push(now, Event::ToReceiver { host, sent: Arc::clone(&sent), damaged: None });
        }
    }

    /// An attacker sends random packets.
    fn noise(&mut self, now: Instant) {
        for _ in 0..50 {
            let mut rubbish = vec![0; self.chance.below(600) as usize];
            self.chance.fill(&mut rubbish);
            // Half of the packets have a valid header of the session.
            if rubbish.len() > 16 && self.chance.hits(500_000) {
                rubbish[0] = 1;
                rubbish[4..8].copy_from_slice(&self.server.shape.epoch.to_le_bytes());
                rubbish[8..16].copy_from_slice(&self.server.shape.session.to_le_bytes());
            }
            let rubbish: Arc<[u8]> = rubbish.into();
            self.queue.push(now, Event::ToServer(Arc::clone(&rubbish)));
            for host in 0..self.hosts.len() {
                self.hosts[host].receive_rubbish(&rubbish);
            }
        }
    }
}

/// The packet with one bit flipped.
fn damage(bytes: &[u8], chance: &mut Chance) -> Arc<[u8]> {
    let mut bytes: Vec<u8> = bytes.into();
    let bit = chance.below(bytes.len() as u64 * 8) as usize;
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes.into()
}
