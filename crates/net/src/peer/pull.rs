//! Gets objects from other members, and from the server what nobody has: sockets and threads around the seeker.
//!
//! One thread for each member that sends, which connects, asks, and passes what arrives to the taker; few for the
//! server. The calling thread runs the machine.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Scope;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use crossbeam_channel::{Receiver, Sender, never, select, unbounded};
use proto::peer::{Action, MemberId, Offered, Part, Seeker, SeekerConfig, SeekerCounters, Source};

use super::node::{Answer, Node};
use super::pace::Pace;
use super::transfer::{Pulse, Transfer};
use super::want::{Demand, Event, News, Want};
use crate::clock::Clock;

/// Bytes of objects under way, and of one request, as far as the mean length of objects tells.
const WINDOW_BYTES: u32 = 6 << 20;
const REQUEST_BYTES: u32 = 1 << 20;
/// Bounds of the number of objects under way.
const WINDOW_OBJECTS: std::ops::RangeInclusive<u32> = 8..=160;
/// Most members that send at the same time.
const FAN_IN: usize = 4;
/// Most objects that are fetched from the server at the same time while others lack them, too: the fewer come at a
/// time, the sooner each is whole and can be served.
const CROWDED_AT_ONCE: usize = 2;
/// Longest wait, so that a stop is noticed.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Most answers whose times are kept.
const TIMES_MAX: usize = 1 << 12;
/// The same while nothing is wanted: a demand or the end of demands ends that wait.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// What became of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pulled {
    /// Objects that are still missing.
    pub missing: u32,
    /// Bytes of objects that members sent.
    pub peer_bytes: u64,
    /// What the machine counted.
    pub counters: SeekerCounters,
    /// Times from requests to their answers, of the first some thousand.
    pub answer_times: Vec<base::Duration>,
}

impl Node {
    /// Gets objects from other members, and from the server what nobody has, until all have arrived and there are no
    /// more demands.
    ///
    /// # Errors
    /// Those of the taker and of the server; `Stopped`.
    pub fn pull(&self, want: &Want<'_>) -> Result<Pulled> {
        let clock = Clock::start();
        let grant = self.grant();
        let config = SeekerConfig {
            objects: grant.objects,
            rank: grant.rank,
            window_objects: (WINDOW_BYTES / want.object_bytes.max(1))
                .clamp(*WINDOW_OBJECTS.start(), *WINDOW_OBJECTS.end()),
            request_objects: (REQUEST_BYTES / want.object_bytes.max(1)).max(2),
            fan_in: FAN_IN,
        };
        let mut seeker = Seeker::new(config).with_hearing(clock.now(), *self.hearing().lock());
        want.objects.iter().cloned().flatten().for_each(|object| seeker.want(object));
        // Answers to an earlier pull.
        while self.answers().try_recv().is_ok() {}
        let peer_bytes = AtomicU64::new(0);
        let outcome = std::thread::scope(|scope| {
            let ((events, happened), (to_servers, at_servers)) = (unbounded(), unbounded());
            let mut puller = Puller {
                node: self,
                want,
                scope,
                peer_bytes: &peer_bytes,
                connections: HashMap::new(),
                connected: 0,
                asked: HashMap::new(),
                answer_times: Vec::new(),
                orders: VecDeque::new(),
                ordering: 0,
                clock: &clock,
                pace: Pace::default(),
                is_crowded: false,
                to_servers: Some(to_servers),
                at_servers,
                servers: 0,
                events,
                demands: want.demands.clone(),
                heard: SeekerCounters::default(),
            };
            let outcome = puller.run(&clock, &mut seeker, &happened);
            puller.end();
            outcome.map(|()| puller.answer_times)
        });
        *self.hearing().lock() = seeker.hearing();
        let answer_times = outcome?;
        let (missing, counters) = (seeker.missing(), seeker.counters());
        Ok(Pulled { missing, peer_bytes: peer_bytes.into_inner(), counters, answer_times })
    }
}

/// A connection to a member.
struct Connection {
    number: u64,
    orders: Sender<Part>,
    pulse: Arc<Pulse>,
    /// The received bytes when they were last looked at.
    seen_bytes: u64,
}

impl Connection {
    fn close(&self) {
        if let Some(stream) = &*self.pulse.stream.lock() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

struct Puller<'scope, 'env> {
    node: &'env Node,
    want: &'env Want<'env>,
    scope: &'scope Scope<'scope, 'env>,
    peer_bytes: &'env AtomicU64,
    connections: HashMap<MemberId, Connection>,
    connected: u64,
    /// When the requests without an answer were first sent, by their numbers.
    asked: HashMap<u32, Instant>,
    answer_times: Vec<base::Duration>,
    /// Objects that the server is still to be asked for.
    orders: VecDeque<u64>,
    /// How many it is being asked for.
    ordering: usize,
    clock: &'env Clock,
    /// How many it may be asked for while nobody else is there.
    pace: Pace,
    /// Others lacked what nobody held, too, when the redirector last said so.
    is_crowded: bool,
    /// Objects for the threads that ask the server; `None` after the end.
    to_servers: Option<Sender<u64>>,
    at_servers: Receiver<u64>,
    /// How many such threads there are.
    servers: usize,
    events: Sender<Event>,
    /// `None` if all senders are gone.
    demands: Option<Receiver<Demand>>,
    /// The counters of which the taker has heard.
    heard: SeekerCounters,
}

impl<'scope, 'env> Puller<'scope, 'env> {
    fn run(&mut self, clock: &Clock, seeker: &mut Seeker, happened: &Receiver<Event>) -> Result<()> {
        while seeker.missing() > 0 || self.demands.is_some() {
            if self.want.stop.is_stopped() {
                return Err(Error::new(ErrorKind::Stopped, "get objects from other machines"));
            }
            let found_others = self.want.alone && seeker.counters().crowded + seeker.counters().waits > 0;
            if found_others || self.want.limit.is_some_and(|limit| clock.elapsed() >= limit) {
                return Ok(());
            }
            let now = clock.now();
            self.feel_pulses(now, seeker);
            if seeker.poll_timeout(now).is_some_and(|due| due <= now) {
                seeker.handle_timeout(now);
                self.tell(seeker.counters());
            }
            while let Some((number, request)) = seeker.poll_request(now) {
                if self.asked.len() < TIMES_MAX {
                    self.asked.entry(number).or_insert(now);
                }
                self.node.ask(number, request);
            }
            while let Some(action) = seeker.poll_action() {
                self.obey(action);
            }
            let most = if seeker.missing() > 0 { WAIT_MAX } else { IDLE_MAX };
            let wait = seeker.poll_timeout(now).map_or(most, |due| due.since(now)).min(most);
            let demands = self.demands.clone().unwrap_or_else(never);
            select! {
                recv(happened) -> event => self.note(clock, seeker, event.ok())?,
                recv(self.node.answers()) -> answer => if let Ok(answer) = answer {
                    self.hear(clock, seeker, answer);
                },
                recv(demands) -> demand => self.heed(clock, seeker, demand.ok()),
                default(wait.max(Duration::from_millis(1))) => {}
            }
            while let Ok(event) = happened.try_recv() {
                self.note(clock, seeker, Some(event))?;
            }
            while let Ok(answer) = self.node.answers().try_recv() {
                self.hear(clock, seeker, answer);
            }
            while let Ok(demand) = demands.try_recv() {
                self.heed(clock, seeker, Some(demand));
            }
        }
        Ok(())
    }

    /// Takes a demand; `None` after the last one.
    fn heed(&mut self, clock: &Clock, seeker: &mut Seeker, demand: Option<Demand>) {
        match demand {
            Some(Demand::Want(object)) => seeker.want_now(clock.now(), object),
            Some(Demand::Have(object)) => seeker.have(object),
            None => self.demands = None,
        }
    }

    /// Takes an answer of the redirector, or of a member to whom a switch passed the request.
    fn hear(&mut self, clock: &Clock, seeker: &mut Seeker, (number, from, offer): Answer) {
        let now = clock.now();
        if let Some(at) = self.asked.remove(&number)
            && self.answer_times.len() < TIMES_MAX
        {
            self.answer_times.push(now.since(at));
        }
        if let Offered::Nobody { others } = offer.offered {
            self.is_crowded = others;
        }
        self.want.taker.hear(match offer.offered {
            Offered::Nobody { others: false } => News::Alone,
            _ => News::Others,
        });
        seeker.handle_offer(now, number, from, &offer);
    }

    /// Tells the taker what the seeker counted since the last time.
    fn tell(&mut self, counters: SeekerCounters) {
        let heard = std::mem::replace(&mut self.heard, counters);
        if counters.unanswered > heard.unanswered {
            self.want.taker.hear(News::Deaf);
        }
        (heard.overdue..counters.overdue).for_each(|_| self.want.taker.hear(News::Overdue));
    }

    /// Members that send parts of a large object, or wait for this machine, do not stall.
    fn feel_pulses(&mut self, now: Instant, seeker: &mut Seeker) {
        for (&member, connection) in &mut self.connections {
            let received = connection.pulse.received_bytes.load(Ordering::Relaxed);
            let is_taking = connection.pulse.is_taking.load(Ordering::Relaxed);
            if is_taking || std::mem::replace(&mut connection.seen_bytes, received) != received {
                seeker.moved(now, Source::Member(member));
            }
        }
    }

    fn note(&mut self, clock: &Clock, seeker: &mut Seeker, event: Option<Event>) -> Result<()> {
        let now = clock.now();
        match event {
            None => {}
            Some(Event::Arrived(source, object, right)) => {
                match source {
                    Source::Server => self.ordered(),
                    Source::Member(_) if right => self.want.taker.hear(News::Came),
                    Source::Member(_) => {}
                }
                seeker.arrived(now, source, object, right);
            }
            Some(Event::Failed(object)) => {
                self.ordered();
                seeker.have(object);
            }
            Some(Event::Lacks(member, part)) => seeker.lacks(now, Source::Member(member), part),
            Some(Event::Ended(member, number)) if self.is_current(member, number) => {
                self.connections.remove(&member);
                seeker.failed(now, member);
            }
            Some(Event::Busy(member, number)) if self.is_current(member, number) => {
                self.connections.remove(&member);
                seeker.busy(now, member);
            }
            Some(Event::Ended(..) | Event::Busy(..)) => {}
            Some(Event::Fatal(error)) => return Err(error),
        }
        Ok(())
    }

    /// Whether the connection of this number is the one to `member` now.
    fn is_current(&self, member: MemberId, number: u64) -> bool {
        self.connections.get(&member).is_some_and(|connection| connection.number == number)
    }

    fn obey(&mut self, action: Action) {
        match action {
            Action::Pull { member, address, part } => self.ask_member(member, address, part),
            Action::Server(part) => self.ask_server(part),
            Action::Drop(member) => {
                if let Some(connection) = self.connections.remove(&member) {
                    connection.close();
                }
            }
        }
    }

    fn ask_member(&mut self, member: MemberId, address: SocketAddr, part: Part) {
        let connection = self.connections.entry(member).or_insert_with(|| {
            self.connected += 1;
            let (orders, ordered) = unbounded();
            let pulse = Arc::<Pulse>::default();
            let transfer = Transfer {
                node: self.node,
                want: self.want,
                peer_bytes: self.peer_bytes,
                member,
                ordered,
                pulse: Arc::clone(&pulse),
                events: self.events.clone(),
            };
            let number = self.connected;
            self.scope.spawn(move || transfer.run(address, number));
            Connection { number, orders, pulse, seen_bytes: 0 }
        });
        // If its thread has just ended, its last event says so.
        let _ = connection.orders.send(part);
    }

    fn ask_server(&mut self, part: Part) {
        self.orders.extend(part.objects());
        self.order();
    }

    /// Asks the server for as many objects as it may be asked for at a time.
    fn order(&mut self) {
        // What somebody waits for does not wait behind other objects.
        let few = self.is_crowded && self.demands.is_none();
        let most = match (few, self.want.alone) {
            (true, _) => CROWDED_AT_ONCE.min(self.want.at_once),
            (false, true) => self.pace.most(self.clock.now(), self.want.at_once),
            (false, false) => self.want.at_once,
        };
        while self.ordering < most
            && let (Some(threads), Some(object)) = (&self.to_servers, self.orders.pop_front())
        {
            // A thread is there as long as the pull runs.
            let _ = threads.send(object);
            self.ordering += 1;
            if self.servers < self.ordering {
                self.servers += 1;
                let (orders, want, events) = (self.at_servers.clone(), self.want, self.events.clone());
                self.scope.spawn(move || from_server(want, &orders, &events));
            }
        }
    }

    /// The server was asked for an object, and what came of that is known.
    fn ordered(&mut self) {
        self.ordering -= 1;
        self.pace.arrived();
        self.order();
    }

    /// Makes all threads end.
    fn end(&mut self) {
        self.to_servers = None;
        while self.at_servers.try_recv().is_ok() {}
        for (_, connection) in self.connections.drain() {
            connection.close();
        }
    }
}

/// Fetches objects from the server until there are no more orders.
fn from_server(want: &Want<'_>, orders: &Receiver<u64>, events: &Sender<Event>) {
    while let Ok(object) = orders.recv() {
        let name = want.taker.object(object);
        let unnamed = || Error::new(ErrorKind::NotFound, format!("object {object} has no name yet"));
        let wrong = || Error::new(ErrorKind::Corrupt, format!("the server sent a wrong object {object}"));
        let taken = name
            .ok_or_else(unnamed)
            .and_then(|name| want.taker.take(object, want.server.fetch(&name)?))
            .and_then(|right| if right { Ok(()) } else { Err(wrong()) });
        let event = match taken.map_err(|error| want.taker.failed(object, error)) {
            Ok(()) => Event::Arrived(Source::Server, object, true),
            Err(None) => Event::Failed(object),
            Err(Some(error)) => Event::Fatal(error),
        };
        if events.send(event).is_err() {
            return;
        }
    }
}
