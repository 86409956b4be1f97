//! The clock, the packets, and what happens to members.

use base::{Chance, Duration, Instant};
use proto::peer::{
    Chosen, Contact, MemberId, Offer, Offered, Packet, Part, Redirector, RedirectorConfig, open, peek,
};

use super::checker::Checker;
use super::hostile;
use super::member::{Member, OFFER_KEY, SWARM, address, key, name, sealed};
use super::scenario::{Fate, Nature, SwarmScenario};
use crate::checkers::Violation;
use crate::queue::Queue;
use crate::trace::Trace;

/// A run ends then: everybody must have everything.
const END: Duration = Duration::from_secs(400);
/// The number by which the server has an address.
const SERVER: usize = 200;
const REPORT: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(500);

/// Who is to get a packet.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    Server,
    Member(usize),
}

#[derive(Debug)]
pub(super) enum Event {
    Start(usize),
    Timer(usize),
    Report(usize),
    Packet {
        to: To,
        from: usize,
        hops: u8,
        bytes: Vec<u8>,
    },
    /// An object arrives from a member over its connection of this number.
    Object {
        who: usize,
        holder: usize,
        connection: u64,
        object: u64,
        right: bool,
    },
    Lacks {
        who: usize,
        holder: usize,
        connection: u64,
        part: Part,
    },
    /// The connection to a member has ended.
    Ended {
        who: usize,
        holder: MemberId,
        connection: u64,
    },
    FromServer {
        who: usize,
        object: u64,
    },
    Fate(usize, Fate),
    Restart,
    Look,
}

/// The result of a run.
#[derive(Debug)]
pub struct SwarmOutcome {
    /// A hash of everything that happened.
    pub trace: u64,
    /// Number of events.
    pub steps: u64,
    /// Objects that the server sent.
    pub server_objects: u64,
    /// Objects that members sent.
    pub peer_objects: u64,
    /// The rules that were broken.
    pub violations: Vec<Violation>,
}

/// The state of a run.
pub(super) struct World {
    pub(super) scenario: SwarmScenario,
    pub(super) queue: Queue<Event>,
    pub(super) members: Vec<Member>,
    pub(super) checker: Checker,
    pub(super) chance: Chance,
    pub(super) server_free_at: Instant,
    server: Redirector,
    agent: Redirector,
}

/// Runs a scenario.
#[must_use]
pub fn run(scenario: &SwarmScenario) -> SwarmOutcome {
    let (server, agent) = redirectors(scenario);
    let mut world = World {
        queue: Queue::default(),
        members: (0..scenario.members.len()).map(|index| Member::new(scenario, index)).collect(),
        checker: Checker::new(scenario),
        chance: Chance::from_seed(scenario.seed).fork(),
        server_free_at: Instant::ZERO,
        server,
        agent,
        scenario: scenario.clone(),
    };
    for (index, someone) in scenario.members.iter().enumerate() {
        world.queue.push(someone.starts, Event::Start(index));
        if let Some((at, fate)) = someone.fate {
            world.queue.push(at, Event::Fate(index, fate));
        }
    }
    scenario.restarts.iter().for_each(|&at| world.queue.push(at, Event::Restart));
    world.queue.push(Instant::ZERO + LOOK, Event::Look);
    let (mut trace, mut steps) = (Trace::new(), 0);
    while let Some(event) = world.queue.pop() {
        let now = world.queue.now();
        steps += 1;
        trace.note(&[now.0, world.checker.server_objects, world.checker.peer_objects]);
        if now > Instant::ZERO + END || matches!(event, Event::Look) && world.is_over() {
            break;
        }
        world.happen(now, event);
    }
    world.end(trace.value(), steps)
}

fn redirectors(scenario: &SwarmScenario) -> (Redirector, Redirector) {
    let config = RedirectorConfig { members_max: scenario.members_max, ..RedirectorConfig::default() };
    (Redirector::new(config), Redirector::new(RedirectorConfig { authentic: false, ..config }))
}

impl World {
    fn stays(&self, index: usize) -> bool {
        !matches!(self.scenario.members[index].nature, Nature::Hostile(_)) && !self.members[index].gone
    }

    fn is_over(&self) -> bool {
        (0..self.members.len()).all(|index| !self.stays(index) || self.members[index].done)
    }

    fn end(mut self, trace: u64, steps: u64) -> SwarmOutcome {
        let stays: Vec<bool> = (0..self.members.len()).map(|index| self.stays(index)).collect();
        self.checker.end(self.queue.now(), |index| stays[index]);
        let (server_objects, peer_objects) = (self.checker.server_objects, self.checker.peer_objects);
        SwarmOutcome {
            trace,
            steps,
            server_objects,
            peer_objects,
            violations: self.checker.into_violations(),
        }
    }

    fn happen(&mut self, now: Instant, event: Event) {
        match event {
            Event::Start(who) => self.start(now, who),
            Event::Timer(who) => {
                if self.members[who].wakes.is_some_and(|wakes| wakes <= now) {
                    self.members[who].wakes = None;
                    self.drive(now, who);
                }
            }
            Event::Report(who) => self.report(now, who),
            Event::Packet { to: To::Server, from, hops, bytes } => self.redirect(now, from, hops, &bytes),
            Event::Packet { to: To::Member(who), from, bytes, .. } => self.take(now, who, from, &bytes),
            Event::Object { who, holder, connection, object, right } => {
                self.object(now, who, (holder, connection), object, right);
            }
            Event::Lacks { who, holder, connection, part } => {
                self.lacks(now, who, (holder, connection), part)
            }
            Event::Ended { who, holder, connection } => self.ended(now, who, holder, connection),
            Event::FromServer { who, object } => self.server_sent(now, who, object),
            Event::Fate(who, fate) => self.meets(now, who, fate),
            Event::Restart => (self.server, self.agent) = redirectors(&self.scenario),
            Event::Look => {
                self.server.handle_timeout(now);
                self.agent.handle_timeout(now);
                let members = self.server.members().max(self.agent.members());
                self.checker.look(now, members);
                self.queue.push(now + LOOK, Event::Look);
            }
        }
    }

    fn start(&mut self, now: Instant, who: usize) {
        if self.members[who].gone {
            return;
        }
        self.members[who].started = true;
        // The member joins at the server, which says how many objects there are.
        self.server.expect(now, SWARM, self.scenario.objects);
        self.report(now, who);
        if !matches!(self.scenario.members[who].nature, Nature::Hostile(_)) {
            self.checker.began(now, who);
            self.drive(now, who);
        }
    }

    fn meets(&mut self, now: Instant, who: usize, fate: Fate) {
        match fate {
            Fate::Stalls(time) => self.members[who].stalled_until = now + time,
            Fate::Dies => self.is_gone(who),
            Fate::Leaves => {
                let leave = sealed(name(who), 0, &Packet::Leave);
                self.send(now, To::Server, who, 0, leave);
                self.is_gone(who);
                for other in 0..self.members.len() {
                    if let Some(&connection) = self.members[other].connections.get(&name(who)) {
                        let ended = Event::Ended { who: other, holder: name(who), connection };
                        self.queue.push(now + self.scenario.round_trip, ended);
                    }
                }
            }
        }
    }

    fn is_gone(&mut self, who: usize) {
        self.members[who].gone = true;
        self.checker.gone(who);
    }

    fn report(&mut self, now: Instant, who: usize) {
        if self.members[who].gone {
            return;
        }
        if let Nature::Hostile(malice) = self.scenario.members[who].nature {
            for (to, _, bytes) in hostile::packets(&self.scenario, who, malice, &mut self.chance) {
                self.send(now, to.map_or(To::Server, To::Member), who, 0, bytes);
            }
        } else {
            let member = &mut self.members[who];
            member.number += 1;
            let bytes = sealed(name(who), member.number, &member.report());
            self.send(now, To::Server, who, 0, bytes);
        }
        self.queue.push(now + REPORT, Event::Report(who));
    }

    /// Sends a packet, which may be lost, doubled and late.
    pub(super) fn send(&mut self, now: Instant, to: To, from: usize, hops: u8, bytes: Vec<u8>) {
        let SwarmScenario { round_trip, jitter, lost_per_million, doubled_per_million, .. } = self.scenario;
        let copies = 1 + u32::from(self.chance.hits(doubled_per_million));
        for _ in 0..copies {
            if !self.chance.hits(lost_per_million) {
                let late = self.chance.below(jitter.as_micros() as u64 + 1);
                let at = now + round_trip / 2 + Duration::from_micros(late);
                self.queue.push(at, Event::Packet { to, from, hops, bytes: bytes.clone() });
            }
        }
    }

    /// A packet passes the agent on the switch, if there is one, and reaches the server.
    fn redirect(&mut self, now: Instant, from: usize, mut hops: u8, bytes: &[u8]) {
        let Ok(head) = peek(bytes) else { return };
        let contact = Contact { from: address(from), ingress: from as u32 };
        if self.scenario.agent && hops == 0 {
            match open(None, bytes) {
                Ok(Packet::Report(report)) => {
                    self.agent.handle_report(now, SWARM, head.member, contact, &report);
                }
                Ok(Packet::Leave) => self.agent.handle_leave(SWARM, head.member, contact),
                Ok(Packet::Request(request)) if !request.direct => {
                    let choice = self.agent.handle_request(now, SWARM, head.member, &request);
                    match choice.map(|choice| choice.chosen) {
                        Some(Chosen::Member { contact, .. }) => {
                            if let Some(holder) = super::member::at_address(contact.from) {
                                return self.send(now, To::Member(holder), from, 1, bytes.to_vec());
                            }
                        }
                        Some(Chosen::Wait { .. }) if request.blamed == 0 => hops = 1,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        match open(Some(&key(head.member)), bytes) {
            Ok(Packet::Report(report)) => {
                self.server.handle_report(now, SWARM, head.member, contact, &report)
            }
            Ok(Packet::Leave) => self.server.handle_leave(SWARM, head.member, contact),
            Ok(Packet::Request(request)) => {
                let choice = self.server.handle_passed_on(now, SWARM, head.member, &request, hops);
                if let Some(choice) = choice {
                    let offer = sealed(MemberId(0), head.number, &Packet::Offer(choice.offer()));
                    self.send(now, To::Member(from), SERVER, 0, offer);
                }
            }
            _ => {}
        }
    }

    /// A packet reaches a member.
    fn take(&mut self, now: Instant, who: usize, from: usize, bytes: &[u8]) {
        let member = &mut self.members[who];
        let (Ok(head), true) = (peek(bytes), member.started && !member.gone) else { return };
        if matches!(self.scenario.members[who].nature, Nature::Hostile(_)) {
            return;
        }
        match open(head.is_offer.then_some(&OFFER_KEY), bytes) {
            Ok(Packet::Offer(offer)) => {
                member.seeker.handle_offer(now, head.number, address(from).ip(), &offer);
                self.drive(now, who);
            }
            Ok(Packet::Request(request)) => {
                let part = request.part;
                let mask = part.mask & member.held.mask(part.batch);
                let own = Offered::Member { member: name(who), address: None, port: address(who).port() };
                let offer = match mask {
                    0 => Offer { part, offered: Offered::Nobody { others: false } },
                    _ => Offer { part: Part { mask, ..part }, offered: own },
                };
                let answer = sealed(name(who), head.number, &Packet::Offer(offer));
                self.send(now, To::Member(from), who, 0, answer);
            }
            _ => {}
        }
    }
}
