//! The server's driver: one thread drives the machine and its socket, others read objects ahead.
//!
//! The driving thread never waits for a disk: the machine asks for objects before their turn, readers get and verify
//! them, and blocks leave from memory, a run of them in one call. When the link pushes back, the thread waits for room
//! in the socket and goes on serving reports meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Instant, limits};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use image::{ObjectRef, ObjectSource};
use proto::multicast::{
    Gathering, RateConfig, ReceiverId, Reject, Server, ServerConfig, ServerEvent, Shape, TAG_BYTES, Transmit,
    Upstream, block_bytes_for, open_upstream, peek_receiver,
};
use ring::rand::{SecureRandom, SystemRandom};

use super::budget::{Budget, CLAIM_INTERVAL, Share};
use super::bundle::{BUNDLE_BLOCKS, Packing};
use super::outgoing::Outgoing;
use super::readahead::{ReadAhead, ReadCounters};
use super::{overhead_bytes, receiver_key};
use crate::api::{Key, ReceiverStatistics, SessionGrant, SessionId, SessionRequest, SessionStatistics};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::udp::{self, Arrivals, GroupSender, SendOptions, Sent};
use crate::waker::Waker;

/// Longest name of a receiver that is kept, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Longest wait of the driving thread, so that it notices what nobody tells it.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Longest wait for room in the socket.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(10);
/// Pause after the device's queue has dropped a run, or the system refused it.
const DROPPED_PAUSE: Duration = Duration::from_micros(500);
/// See [`DROPPED_PAUSE`].
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// How long an answer of the driving thread may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Machines that are switched on together ask for an image within some milliseconds of each other.
const GATHERING: Gathering = Gathering {
    quiet_heads: Duration::from_millis(4),
    quiet: Duration::from_millis(12),
    most: Duration::from_millis(200),
};
/// How many runs go out between two looks at the reports.
const RUNS_PER_TURN: usize = 8;
/// Where the search for the rate begins, and what it never reaches, in bits per second.
const RATE_INITIAL: u64 = 250_000_000;
/// See [`RATE_INITIAL`].
const RATE_MAX: u64 = 1_000_000_000_000;
/// The rate is not lower than this unless the budget says otherwise, in bits per second.
pub const RATE_FLOOR: u64 = 1_000_000;
/// A session that sent next to nothing for so long has nothing to send.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// How long BYE is repeated at most when a session is stopped.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a session is made of.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// `image@version`.
    pub reference: String,
    /// Number of this start of the server; never the same twice.
    pub epoch: u32,
    /// Group and port that blocks go to.
    pub group: SocketAddr,
    /// How they go there.
    pub send: SendOptions,
    /// Address that receivers report to, where it differs from the one that packets come from.
    pub report_address: Option<IpAddr>,
    /// Payload of a block; by default what fits the interface's MTU.
    pub block_bytes: Option<u16>,
    /// In a session for attached disks: runs of chunks of the disk that go first, as the objects are ordered.
    pub order: Option<Vec<(u64, u32)>>,
    /// Stored objects are packed while an object of the session has at most so many blocks.
    pub bundle_blocks: u16,
    /// What it shares with the server's other sessions.
    pub budget: Arc<Budget>,
    /// Memory for objects, in bytes.
    pub cache_bytes: u64,
    /// Threads that read objects ahead.
    pub readers: usize,
    /// A receiver that was not heard for so long has gone.
    pub receiver_timeout: Duration,
    /// The session ends itself after so long without a receiver.
    pub deserted_after: Duration,
}

impl SessionConfig {
    /// A session for `group` with the defaults of everything else.
    #[must_use]
    pub fn new(reference: impl Into<String>, epoch: u32, group: SocketAddr, send: SendOptions) -> Self {
        Self {
            reference: reference.into(),
            epoch,
            group,
            send,
            report_address: None,
            block_bytes: None,
            order: None,
            bundle_blocks: BUNDLE_BLOCKS,
            budget: Budget::new(None, RATE_FLOOR),
            cache_bytes: limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            readers: 2,
            receiver_timeout: Duration::from_secs(20),
            deserted_after: Duration::from_secs(10),
        }
    }
}

/// A running session. Dropping it ends it.
pub struct SessionServer {
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
}

/// What the threads of a session and its owner share.
struct Shared {
    config: SessionConfig,
    session: SessionId,
    shape: Shape,
    packing: Arc<Packing>,
    group_key: Key,
    secret: [u8; 32],
    source: SocketAddr,
    /// Names of the receivers admitted; a receiver's number is its index.
    names: Mutex<Vec<String>>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    over: AtomicBool,
    last: Mutex<Option<SessionStatistics>>,
    read: Arc<ReadCounters>,
}

enum Command {
    Admit(ReceiverId),
    Statistics(Sender<SessionStatistics>),
    Stop,
}

impl SessionServer {
    /// Starts a session over `objects`, the first `heads` of which go first, and whose bytes come from `source`.
    ///
    /// # Errors
    /// `Invalid` for no object, too many of them, or blocks that do not fit; `Io` where sockets or threads fail.
    pub fn start(
        config: SessionConfig,
        objects: Vec<ObjectRef>,
        heads: u64,
        source: Arc<dyn ObjectSource>,
    ) -> Result<Self> {
        let clock = Clock::start();
        let socket = GroupSender::open(config.group, &config.send)?;
        let (session, group_key, secret) = draw_secrets()?;
        let lengths: Vec<u32> = objects.iter().map(|object| object.len).collect();
        let (shape, packing) = shape_of(&config, session, lengths, heads)?;
        let object_bytes: Arc<[u32]> = (0..shape.objects).map(|object| packing.bytes(object)).collect();
        let packet_bytes = usize::from(shape.block_bytes) + proto::multicast::BLOCK_HEADER_BYTES + TAG_BYTES;
        let machine = Server::new(
            clock.now(),
            ServerConfig {
                shape,
                object_bytes,
                rate: rate_of(&config),
                overhead_bytes: overhead_bytes(config.group.is_ipv4()),
                run_blocks_max: u16::try_from(socket.run_max(packet_bytes)).unwrap_or(1),
                cache_bytes: config.cache_bytes,
                gathering: GATHERING,
                receiver_timeout: config.receiver_timeout,
                mutant: proto::multicast::Mutant::default(),
            },
        );
        let (commands, orders) = unbounded();
        let waker = Waker::new().map_err(|error| Error::from_source(ErrorKind::Io, "make a waker", error))?;
        let shared = Arc::new(Shared {
            source: socket.local()?,
            config,
            session,
            shape,
            packing: Arc::clone(&packing),
            group_key,
            secret,
            names: Mutex::default(),
            commands,
            waker: Arc::new(waker),
            over: AtomicBool::new(false),
            last: Mutex::default(),
            read: Arc::default(),
        });
        let (read, waker) = (Arc::clone(&shared.read), Arc::clone(&shared.waker));
        let readers = ReadAhead::start(shared.config.readers, packing, objects, source, read, waker)?;
        let driver = Driver::new(Arc::clone(&shared), clock, machine, socket, readers);
        let run = move || driver.run(&orders);
        let spawned = std::thread::Builder::new().name("multicast-server".into()).spawn(run);
        let driver =
            spawned.map_err(|error| Error::from_source(ErrorKind::Io, "start a session's thread", error))?;
        Ok(Self { shared, driver: Some(driver) })
    }

    /// Lets one more receiver take part.
    ///
    /// # Errors
    /// `Refused` if the session is over, full, or its packets do not fit the receiver's MTU.
    pub fn admit(&self, request: &SessionRequest) -> Result<SessionGrant> {
        let shared = &self.shared;
        let refused = |why: String| Err(Error::new(ErrorKind::Refused, why));
        if self.is_over() {
            return refused(format!("session {} is over", shared.session));
        }
        let block_bytes_max = block_bytes_for(request.mtu, shared.config.group.is_ipv6()).unwrap_or(0);
        if block_bytes_max < shared.shape.block_bytes {
            return refused(format!("the session's packets do not fit an MTU of {} bytes", request.mtu));
        }
        let mut names = lock(&shared.names);
        if names.len() >= limits::SESSION_RECEIVERS_MAX {
            return refused(format!("session {} has had {} receivers", shared.session, names.len()));
        }
        let receiver = u32::try_from(names.len()).expect("below SESSION_RECEIVERS_MAX");
        names.push(request.receiver.chars().take(NAME_BYTES_MAX / 4).collect());
        let receivers = receiver + 1;
        drop(names);
        // The session lives while somebody is about to join.
        let _ = shared.commands.send(Command::Admit(ReceiverId(receiver)));
        shared.waker.wake();
        let source = shared.source.ip();
        let report = SocketAddr::new(shared.config.report_address.unwrap_or(source), shared.source.port());
        Ok(SessionGrant {
            session: shared.session,
            epoch: shared.shape.epoch,
            group: unscoped(shared.config.group),
            source,
            report,
            receiver,
            group_key: shared.group_key,
            receiver_key: receiver_key(&shared.secret, receiver),
            block_bytes: shared.shape.block_bytes,
            objects: shared.shape.objects,
            heads: shared.shape.heads,
            stored_objects: shared.packing.stored_objects(),
            bundle_blocks: shared.config.bundle_blocks,
            receivers,
            order: shared.config.order.clone(),
        })
    }

    /// The session's name.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.shared.session
    }

    /// What it did so far.
    #[must_use]
    pub fn statistics(&self) -> SessionStatistics {
        let (reply, answer) = bounded(1);
        if self.shared.commands.send(Command::Statistics(reply)).is_ok() {
            self.shared.waker.wake();
            if let Ok(statistics) = answer.recv_timeout(ANSWER_PATIENCE) {
                return statistics;
            }
        }
        lock(&self.shared.last).clone().unwrap_or_else(|| self.shared.empty_statistics())
    }

    /// Whether it has ended: nobody can join any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire) || self.driver.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it with a farewell to its receivers, and returns its last statistics.
    pub fn stop(mut self) -> SessionStatistics {
        self.end();
        self.statistics()
    }

    fn end(&mut self) {
        let _ = self.shared.commands.send(Command::Stop);
        self.shared.waker.wake();
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rate_of(config: &SessionConfig) -> RateConfig {
    let ceiling = config.budget.ceiling().unwrap_or(RATE_MAX);
    let floor = config.budget.floor().min(ceiling);
    RateConfig { initial: RATE_INITIAL.clamp(floor, ceiling), floor, ceiling }
}

fn draw_secrets() -> Result<(SessionId, Key, [u8; 32])> {
    let (mut id, mut key, mut secret) = ([0; 16], [0; 16], [0; 32]);
    let random = SystemRandom::new();
    let drawn = random.fill(&mut id).and(random.fill(&mut key)).and(random.fill(&mut secret));
    drawn.map_err(|_| Error::new(ErrorKind::Io, "draw random keys from the system"))?;
    Ok((SessionId(u128::from_be_bytes(id)), Key(key), secret))
}

fn shape_of(
    config: &SessionConfig,
    session: SessionId,
    lengths: Vec<u32>,
    heads: u64,
) -> Result<(Shape, Arc<Packing>)> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let mtu = config.send.interface.mtu();
    let fits = block_bytes_for(mtu, config.group.is_ipv6()).unwrap_or(0);
    let block_bytes = config.block_bytes.unwrap_or(fits);
    if !block_bytes.is_multiple_of(2) || block_bytes < limits::BLOCK_BYTES_MIN || block_bytes > fits {
        let name = &config.send.interface.name;
        return invalid(format!(
            "blocks of {block_bytes} bytes do not fit interface `{name}` with an MTU of {mtu}"
        ));
    }
    let objects = lengths.len() as u64;
    if objects == 0 || objects > limits::SESSION_OBJECTS_MAX || heads > objects {
        return invalid(format!("a session of {objects} objects with {heads} heads"));
    }
    let low = u64::try_from(session.0 & u128::from(u64::MAX)).expect("64 bits");
    let packing = Packing::new(lengths, heads, block_bytes, config.bundle_blocks);
    let shape = Shape { session: low, epoch: config.epoch, objects: packing.objects(), heads, block_bytes };
    Ok((shape, Arc::new(packing)))
}

/// The address without the interface that this machine calls it by.
fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

impl Shared {
    /// A report as its sender's key confirms it.
    fn open(&self, packet: &[u8]) -> std::result::Result<Upstream, Reject> {
        let receiver = peek_receiver(packet).ok_or(Reject::Length)?;
        if receiver.0 as usize >= lock(&self.names).len() {
            return Err(Reject::Tag);
        }
        open_upstream(&receiver_key(&self.secret, receiver.0).into(), &self.shape, packet)
    }

    fn empty_statistics(&self) -> SessionStatistics {
        SessionStatistics {
            session: self.session,
            epoch: self.shape.epoch,
            reference: self.config.reference.clone(),
            group: unscoped(self.config.group),
            running: !self.over.load(Ordering::Acquire),
            runtime_ms: 0,
            read_ms: milliseconds(self.read.time()),
            read_bytes: self.read.bytes(),
            reread_bytes: self.read.bytes_again(),
            read_failures: self.read.failures(),
            objects: self.shape.objects,
            stored_objects: self.packing.stored_objects(),
            image_bytes: 0,
            blocks_in_image: 0,
            blocks_sent: 0,
            resent_late: 0,
            resent_buffer_full: 0,
            resent_lost: 0,
            symbols_sent: 0,
            symbols_ahead: 0,
            rate_bits_per_second: 0,
            unicast_bytes: 0,
            payload_bytes: 0,
            packet_bytes: 0,
            control_packets: 0,
            reports: 0,
            rejected: 0,
            trouble: None,
            receivers: Vec::new(),
        }
    }
}

/// Why the driver waits.
#[derive(Clone, Copy, PartialEq)]
enum Waiting {
    /// There is more to send at once.
    No,
    /// Nothing is to be sent until something happens.
    ForWork,
    /// The socket is full.
    ForRoom,
    /// The device dropped a run, or the system refused it.
    For(Duration),
}

/// When a session last said what it sends, its ceiling since then, and what it had sent by then.
struct Claimed {
    at: Instant,
    ceiling: u64,
    sent_bytes: u64,
}

struct Driver {
    shared: Arc<Shared>,
    clock: Clock,
    machine: Server,
    socket: GroupSender,
    readers: ReadAhead,
    cache: HashMap<u64, Bytes>,
    outgoing: Outgoing,
    share: Share,
    claimed: Claimed,
    arrivals: Arrivals,
    gone: BTreeMap<u32, ReceiverStatistics>,
    packet_bytes_sent: u64,
    /// Since when nobody takes part, and how many had been admitted then.
    deserted: Option<(Instant, usize)>,
    /// The rate that the send buffer fits.
    buffer_rate: u64,
    ending: Option<Instant>,
    trouble: Option<String>,
}

impl Driver {
    fn new(
        shared: Arc<Shared>,
        clock: Clock,
        machine: Server,
        socket: GroupSender,
        readers: ReadAhead,
    ) -> Self {
        let share = shared.config.budget.register(shared.config.send.interface.index);
        Self {
            shared,
            deserted: Some((clock.now(), 0)),
            buffer_rate: 0,
            clock,
            machine,
            socket,
            readers,
            cache: HashMap::new(),
            outgoing: Outgoing::default(),
            share,
            claimed: Claimed { at: Instant::ZERO, ceiling: u64::MAX, sent_bytes: 0 },
            arrivals: Arrivals::default(),
            gone: BTreeMap::new(),
            packet_bytes_sent: 0,
            ending: None,
            trouble: None,
        }
    }

    fn run(mut self, commands: &Receiver<Command>) {
        while !self.is_done() {
            self.shared.waker.clear();
            self.obey(commands);
            self.take_loaded();
            self.take_reports();
            let now = self.clock.now();
            if self.machine.poll_timeout().is_some_and(|due| due <= now) {
                self.machine.handle_timeout(now);
            }
            self.heed_events();
            self.claim(now);
            self.end_if_deserted();
            match self.send_some() {
                Waiting::No => {}
                waiting => self.wait(waiting),
            }
        }
        self.shared.over.store(true, Ordering::Release);
        *lock(&self.shared.last) = Some(self.statistics());
    }

    fn is_done(&self) -> bool {
        let said = self.machine.is_ended() && self.outgoing.is_done();
        self.ending.is_some_and(|since| said || self.clock.now().since(since) > FAREWELL)
    }

    fn obey(&mut self, commands: &Receiver<Command>) {
        for command in commands.try_iter() {
            match command {
                Command::Admit(receiver) => self.machine.admit(self.clock.now(), receiver),
                Command::Statistics(reply) => drop(reply.send(self.statistics())),
                Command::Stop => self.end(),
            }
        }
    }

    fn end(&mut self) {
        let now = self.clock.now();
        if self.ending.is_none() {
            self.shared.over.store(true, Ordering::Release);
            self.ending = Some(now);
            self.machine.end(now);
        }
    }

    /// Says now and then what it sends of the server's budget, and heeds its ceiling.
    fn claim(&mut self, now: Instant) {
        let passed = now.since(self.claimed.at);
        let sent_bytes = self.packet_bytes_sent - self.claimed.sent_bytes;
        // Little in a short time is not yet nothing.
        let patience = if self.is_little(sent_bytes) { IDLE_AFTER } else { CLAIM_INTERVAL };
        if passed < patience {
            return;
        }
        let ceiling = self.share.claim(self.rate_of(sent_bytes, passed));
        if ceiling != self.claimed.ceiling {
            self.machine.set_ceiling(ceiling.min(RATE_MAX));
        }
        self.claimed = Claimed { at: now, ceiling, sent_bytes: self.packet_bytes_sent };
    }

    fn is_little(&self, sent_bytes: u64) -> bool {
        sent_bytes < 4 * u64::from(self.shared.shape.block_bytes)
    }

    /// What it sends: the machine's rate, or less if there is not so much to send. 0 if no more than some STATUS went out.
    fn rate_of(&self, sent_bytes: u64, passed: Duration) -> u64 {
        let rate = self.machine.rate();
        if self.is_little(sent_bytes) {
            return 0;
        }
        let sent = u128::from(sent_bytes) * 8_000_000_000 / passed.as_nanos().max(1);
        // After a pause it is not known what it will be; and runs make what went out in so short a time uneven.
        let is_known = passed <= IDLE_AFTER;
        if is_known { rate.min(u64::try_from(sent + sent / 4).unwrap_or(u64::MAX)) } else { rate }
    }

    fn end_if_deserted(&mut self) {
        let Some((since, admitted)) = self.deserted else { return };
        let admitted_now = lock(&self.shared.names).len();
        if admitted_now > admitted {
            self.deserted = Some((self.clock.now(), admitted_now));
        } else if self.clock.now().since(since) > self.shared.config.deserted_after {
            self.end();
        }
    }

    fn take_loaded(&mut self) {
        for (object, bytes) in self.readers.loaded() {
            self.machine.loaded(object, bytes.is_some());
            if let Some(bytes) = bytes {
                self.cache.insert(object, bytes);
            }
        }
    }

    fn take_reports(&mut self) {
        // Whoever floods this port with reports does not keep blocks from being sent: one batch a turn.
        if !self.socket.receive(&mut self.arrivals).unwrap_or(false) {
            return;
        }
        let now = self.clock.now();
        for (_, packet) in self.arrivals.packets() {
            match self.shared.open(packet) {
                Ok(report) => self.machine.handle_input(now, &report),
                Err(why) => self.machine.handle_reject(why),
            }
        }
    }

    fn heed_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                ServerEvent::Load(object) => self.readers.ask(object),
                ServerEvent::Evict(object) => drop(self.cache.remove(&object)),
                ServerEvent::Joined(_) => self.deserted = None,
                ServerEvent::Left(statistics) => {
                    let gone = self.show_receiver(&statistics, true);
                    self.gone.insert(gone.receiver, gone);
                }
                ServerEvent::Deserted => {
                    self.deserted = Some((self.clock.now(), lock(&self.shared.names).len()));
                }
            }
        }
    }

    /// Sends a few runs, or as many as the socket takes.
    fn send_some(&mut self) -> Waiting {
        for _ in 0..RUNS_PER_TURN {
            if self.outgoing.is_done() && !self.next_outgoing() {
                return Waiting::ForWork;
            }
            self.fit_buffer();
            let (rest, packet_bytes) = self.outgoing.rest();
            match self.socket.send(rest, packet_bytes) {
                Ok(Sent::Bytes(bytes)) => {
                    self.outgoing.sent(bytes);
                    self.packet_bytes_sent += bytes as u64;
                    self.trouble = None;
                }
                Ok(Sent::Blocked) => return Waiting::ForRoom,
                Ok(Sent::Dropped) => return Waiting::For(DROPPED_PAUSE),
                Err(error) => {
                    self.trouble = Some(format!("send to {}: {error}", self.socket.group()));
                    return Waiting::For(REFUSED_PAUSE);
                }
            }
        }
        Waiting::No
    }

    /// Fits the send buffer to the rate, when that has changed by much.
    fn fit_buffer(&mut self) {
        let rate = self.machine.rate();
        if rate.abs_diff(self.buffer_rate) > self.buffer_rate / 4 {
            self.buffer_rate = rate;
            self.socket.fit_buffer(rate);
        }
    }

    /// Asks the machine what goes next and puts it into packets. False if nothing does.
    fn next_outgoing(&mut self) -> bool {
        let Some(transmit) = self.machine.poll_transmit(self.clock.now()) else { return false };
        let key = self.shared.group_key.into();
        match transmit {
            Transmit::Control(packet) => self.outgoing.set_control(&key, packet),
            Transmit::Blocks(run) => {
                let object = self.cache.get(&run.first.object).expect("the machine sends what is loaded");
                self.outgoing.set_run(&self.shared.shape, &key, object, &run);
            }
        }
        true
    }

    fn wait(&self, waiting: Waiting) {
        let waiter: &dyn std::os::fd::AsFd = &self.shared.waker;
        // While the socket is full nothing can go, whatever is due: without a wait this thread would take a whole core.
        let ready = match waiting {
            Waiting::For(pause) => udp::wait(&[waiter], None, pause),
            Waiting::ForRoom => udp::wait(&[waiter, &self.socket], Some(&self.socket), ROOM_WAIT_MAX),
            Waiting::No | Waiting::ForWork => {
                let due = self.machine.poll_timeout().map_or(WAIT_MAX, |due| due.since(self.clock.now()));
                udp::wait(&[waiter, &self.socket], None, due.min(WAIT_MAX))
            }
        };
        // An error that the network reported also ends the wait; left alone, it would end every wait.
        if ready.unwrap_or(true) {
            self.socket.drain_errors();
        }
    }

    fn show_receiver(&self, of: &proto::multicast::ReceiverStatistics, left: bool) -> ReceiverStatistics {
        let name = lock(&self.shared.names).get(of.receiver.0 as usize).cloned().unwrap_or_default();
        let runtime = of.runtime.as_secs_f64();
        ReceiverStatistics {
            receiver: of.receiver.0,
            name,
            joined_ms: milliseconds(of.joined.since(Instant::ZERO)),
            runtime_ms: milliseconds(of.runtime),
            left,
            concurrency: if runtime > 0.0 { (of.concurrent.as_secs_f64() / runtime).min(1.0) } else { 0.0 },
            blocks_received: of.counters.blocks_received,
            blocks_duplicate: of.counters.blocks_duplicate,
            blocks_lost: of.counters.blocks_lost,
            blocks_refused: of.counters.blocks_refused,
        }
    }

    fn statistics(&self) -> SessionStatistics {
        let of = self.machine.statistics(self.clock.now());
        let mut receivers = self.gone.clone();
        receivers.extend(of.receivers.iter().map(|one| (one.receiver.0, self.show_receiver(one, false))));
        SessionStatistics {
            runtime_ms: milliseconds(self.clock.elapsed()),
            image_bytes: of.image_bytes,
            blocks_in_image: of.image_blocks,
            blocks_sent: of.blocks_sent,
            resent_late: of.resent.late,
            resent_buffer_full: of.resent.buffer_full,
            resent_lost: of.resent.lost,
            symbols_sent: of.symbols_sent,
            symbols_ahead: of.symbols_ahead,
            rate_bits_per_second: self.machine.rate(),
            payload_bytes: of.bytes_sent,
            packet_bytes: self.packet_bytes_sent,
            control_packets: of.control_sent,
            reports: of.reports,
            rejected: of.rejected,
            trouble: self.trouble.clone(),
            receivers: receivers.into_values().collect(),
            ..self.shared.empty_statistics()
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
