//! The server's machine: takes reports in, says which blocks go out next, and which objects to read ahead.
//! Source: `formats/multicast.md`, section 7.

use std::collections::VecDeque;
use std::sync::Arc;

use base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, OBJECT_BYTES_MAX, SESSION_OBJECTS_MAX};
use base::{Duration, Instant};

use super::bits::index;
use super::cache::{Cache, Place};
use super::gather::{Gather, Gathering};
use super::members::Members;
use super::mutant::Mutant;
use super::packet::{BLOCK_HEADER_BYTES, BlockHeader, Reject, Shape, TAG_BYTES};
use super::rate::Pacer;
use super::repair::Repairs;
use super::report::{Cause, Lacking, NeedBlocks, ReceiverId, Upstream};
use super::schedule::Schedule;
use super::stats::{ReceiverStatistics, SessionStatistics};
use super::status::{Echo, Status, encode_bye};

/// What a session of a server is made of.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// What both ends know.
    pub shape: Shape,
    /// Length of each object in bytes; as many as `shape.objects`.
    pub object_bytes: Arc<[u32]>,
    /// Cap of the rate in bits per second on the wire; `None` sends as fast as the driver polls.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes that the network adds to each packet (Ethernet, IP and UDP headers), for the rate cap.
    pub overhead_bytes: u16,
    /// Most blocks in one [`Run`], `1..=64`: as many as the driver sends with one system call.
    pub run_blocks_max: u16,
    /// The driver's memory for objects in bytes: a quarter of it is read ahead, the rest keeps what may be repaired.
    /// Up to 32 heads and the front of each plan are loaded even beyond it.
    pub cache_bytes: u64,
    /// How long the first block waits for receivers that start together.
    pub gathering: Gathering,
    /// A receiver that was not heard for so long has gone.
    pub receiver_timeout: Duration,
    /// A seeded bug, for the simulator.
    pub mutant: Mutant,
}

/// Consecutive blocks of one object, to be sent in order with consecutive sequences. All have `block_bytes` payload,
/// but the last of an object, which may be shorter: so a run goes out as one segmented send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block's header.
    pub first: BlockHeader,
    /// Number of blocks, at least 1.
    pub count: u16,
}

impl Run {
    /// Header of the `index`-th block of the run.
    #[must_use]
    pub fn header(&self, index: u16) -> BlockHeader {
        debug_assert!(index < self.count);
        BlockHeader {
            sequence: self.first.sequence + u64::from(index),
            block: self.first.block + index,
            ..self.first
        }
    }
}

/// What the driver sends to the group next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    /// Blocks of an object that the driver has loaded: for each the header, the payload and the tag.
    Blocks(Run),
    /// A whole packet that lacks only its tag (see [`super::seal`]).
    Control(Vec<u8>),
}

/// What the driver should do or may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// Get this object into memory and say [`Server::loaded`]. Asked in the order of sending.
    Load(u64),
    /// Drop this object from memory.
    Evict(u64),
    /// A receiver takes part from now on.
    Joined(ReceiverId),
    /// A receiver left, or was not heard for too long.
    Left(ReceiverStatistics),
    /// The last receiver left: the session may end.
    Deserted,
}

/// Time between STATUS packets while blocks are sent.
const STATUS_BUSY: Duration = Duration::from_millis(10);
/// The same when nothing is left to send: at first, doubling, and at most.
const STATUS_IDLE_MIN: Duration = Duration::from_millis(2);
const STATUS_IDLE_MAX: Duration = Duration::from_millis(200);
/// Reports that change what is pending are echoed, but not more often than this.
const STATUS_SPACING: Duration = Duration::from_millis(1);
/// Receivers spread their reports over this time for each of them, within bounds.
const REPORT_INTERVAL_EACH: Duration = Duration::from_micros(500);
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(5);
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// So many wanted heads are read ahead even if the plan for the others fills its room.
const HEADS_AHEAD_MAX: usize = 32;
/// How often the last BYE is said, and how far apart.
const BYES: u8 = 3;
const BYE_SPACING: Duration = Duration::from_millis(20);

/// The object that is being sent whole, block by block.
#[derive(Debug, Clone, Copy)]
struct Pass {
    object: u64,
    next_block: u32,
    again: Option<Cause>,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Open,
    Byes { left: u8, at: Instant },
}

/// The server's machine for one session. See the module.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    schedule: Schedule,
    repairs: Repairs,
    cache: Cache,
    pacer: Pacer,
    gather: Gather,
    members: Members,
    pass: Option<Pass>,
    /// Sequence of the next BLOCK.
    sequence: u64,
    status_at: Instant,
    status_last: Instant,
    status_idle: Duration,
    idle: bool,
    /// The last report, to be echoed: receiver, its timestamp, when it came.
    last_report: Option<(ReceiverId, u32, Instant)>,
    ending: Ending,
    events: VecDeque<ServerEvent>,
    statistics: SessionStatistics,
}

impl Server {
    /// A session that begins at `now`, with nobody in it.
    ///
    /// # Panics
    /// If `config` breaks the bounds given at its fields.
    #[must_use]
    pub fn new(now: Instant, config: ServerConfig) -> Self {
        let shape = config.shape;
        assert!((1..=SESSION_OBJECTS_MAX).contains(&shape.objects) && shape.heads <= shape.objects);
        assert!(config.object_bytes.len() as u64 == shape.objects);
        assert!((BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&shape.block_bytes));
        assert!(config.object_bytes.iter().all(|&bytes| bytes <= OBJECT_BYTES_MAX));
        assert!((1..=64).contains(&config.run_blocks_max));
        let statistics = SessionStatistics {
            image_objects: shape.objects,
            image_blocks: config.object_bytes.iter().map(|&bytes| u64::from(shape.blocks(bytes))).sum(),
            image_bytes: config.object_bytes.iter().map(|&bytes| u64::from(bytes)).sum(),
            ..SessionStatistics::default()
        };
        Self {
            schedule: Schedule::new(&shape, config.mutant),
            repairs: Repairs::new(config.mutant),
            cache: Cache::new(config.cache_bytes),
            pacer: Pacer::new(config.rate_bits_per_second),
            gather: Gather::new(config.gathering),
            members: Members::new(config.receiver_timeout, config.mutant),
            pass: None,
            sequence: 0,
            status_at: now + STATUS_IDLE_MAX,
            status_last: now,
            status_idle: STATUS_IDLE_MAX,
            idle: true,
            last_report: None,
            ending: Ending::Open,
            events: VecDeque::new(),
            statistics,
            config,
        }
    }

    /// Takes in a report.
    pub fn handle_input(&mut self, now: Instant, packet: &Upstream) {
        if matches!(self.ending, Ending::Byes { .. }) {
            return;
        }
        let report = packet.report();
        self.statistics.reports += 1;
        if let Upstream::Leave(_) = packet {
            let left = self.members.leave(now, report);
            self.part(left);
            return;
        }
        self.last_report = Some((report.receiver, report.timestamp_us, now));
        if self.members.hear(now, report) {
            self.events.push_back(ServerEvent::Joined(report.receiver));
            if self.sequence == 0 {
                self.gather.joined(now);
            }
        }
        let news = match packet {
            Upstream::Need(report, lacking) => self.take_needs(report.seen.min(self.sequence), lacking),
            Upstream::Join(_) | Upstream::Leave(_) => true,
        };
        if news {
            self.status_soon(now);
        }
        self.plan();
    }

    /// Counts a datagram that could not be opened.
    pub fn handle_reject(&mut self, _why: Reject) {
        self.statistics.rejected += 1;
    }

    /// The driver has the object of [`ServerEvent::Load`] in memory (`ok`), or can't get it: then nobody gets it
    /// from this session until it is asked for again.
    pub fn loaded(&mut self, object: u64, ok: bool) {
        self.cache.loaded(object, ok);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(left) = self.members.expire(now) {
            self.part(Some(left));
        }
    }

    /// When to call [`Self::handle_timeout`] and to look at [`Self::poll_transmit`] again, at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.ending {
            Ending::Byes { left: 0, .. } => None,
            Ending::Byes { at, .. } => Some(at),
            Ending::Open => {
                let timers = self.members.expires_at().map_or(self.status_at, |at| at.min(self.status_at));
                let blocks = self.can_send().then(|| self.pacer.ready_at().max(self.gather.until()));
                Some(blocks.map_or(timers, |at| at.min(timers)))
            }
        }
    }

    /// What to send now, if anything. What it returns counts as sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Ending::Byes { left, at } = &mut self.ending {
            if *left == 0 || now < *at {
                return None;
            }
            (*left, *at) = (*left - 1, now + BYE_SPACING);
            return Some(self.control(now, encode_bye(&self.config.shape, self.sequence, micros(now))));
        }
        if now >= self.status_at {
            return Some(self.status(now));
        }
        if now < self.pacer.ready_at().max(self.gather.until()) {
            return None;
        }
        if let Some(run) = self.next_run(now) {
            if std::mem::replace(&mut self.idle, false) {
                self.status_soon(now);
            }
            return Some(Transmit::Blocks(run));
        }
        if !self.idle && self.is_empty() {
            self.idle = true;
            self.status_idle = STATUS_IDLE_MIN;
            return Some(self.status(now));
        }
        None
    }

    /// The next thing to do or to know.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Ends the session: what is left to transmit is BYE, a few times.
    pub fn end(&mut self, now: Instant) {
        if let Ending::Open = self.ending {
            self.ending = Ending::Byes { left: BYES, at: now };
        }
    }

    /// Whether the last BYE was handed out.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        matches!(self.ending, Ending::Byes { left: 0, .. })
    }

    /// What was counted until `now`.
    #[must_use]
    pub fn statistics(&self, now: Instant) -> SessionStatistics {
        let mut statistics = self.statistics.clone();
        statistics.receivers = self.members.statistics(now);
        statistics.receivers_total = self.members.total();
        statistics
    }

    /// Merges what a receiver lacks into what is pending; true if that changed anything.
    fn take_needs(&mut self, seen: u64, lacking: &Lacking) -> bool {
        let mut news = false;
        for need in &lacking.whole {
            for object in need.objects.first..need.objects.end() {
                let fresh = self.schedule.ask(object, self.blocks(object), seen, need.cause);
                self.statistics.merged += u64::from(!fresh);
                news |= fresh;
            }
        }
        for need in &lacking.blocks {
            news |= self.take_block_needs(seen, need);
        }
        news
    }

    fn take_block_needs(&mut self, seen: u64, need: &NeedBlocks) -> bool {
        let (object, blocks) = (need.object, self.blocks(need.object));
        // Whoever has a part of what never went out, or lacks what does not exist, was lied to by another member.
        let misled = !self.schedule.ever_went_out(object) || need.blocks().any(|block| block >= blocks);
        let mut news = misled && self.schedule.ask(object, blocks, seen, need.cause);
        if self.schedule.is_pending(object) {
            self.statistics.merged += u64::from(!news);
            return news;
        }
        for block in need.blocks() {
            news |= self.schedule.has_passed(object, block, seen)
                && self.repairs.ask(object, blocks, block, seen, need.cause);
        }
        self.statistics.merged += u64::from(!news);
        news
    }

    /// Reads ahead what will be sent next.
    fn plan(&mut self) {
        while self.cache.has_room_ahead()
            || self.schedule.hurries_heads(HEADS_AHEAD_MAX)
            || self.schedule.fronts() == (None, None)
        {
            let Some(object) = self.schedule.plan() else { break };
            self.cache.pin(object, self.config.object_bytes[index(object)].into(), &mut self.events);
        }
        while self.cache.has_room_ahead() || self.repairs.front().is_none() {
            let Some(object) = self.repairs.plan() else { break };
            self.cache.pin(object, self.config.object_bytes[index(object)].into(), &mut self.events);
        }
    }

    /// Heads, repairs, then the others, whichever is in memory; but a pass that began goes on to its end, so that
    /// its blocks have consecutive sequences.
    fn next_run(&mut self, now: Instant) -> Option<Run> {
        loop {
            if self.pass.is_some() {
                return Some(self.run_of_pass(now));
            }
            let (head, data) = self.schedule.fronts();
            let repair = self.repairs.front();
            let ready =
                |object: Option<u64>| object.filter(|&object| self.cache.place(object) != Place::Loading);
            if let Some(object) = ready(head) {
                self.begin_pass(object);
            } else if let Some(object) = ready(repair) {
                if let Some(run) = self.run_of_repair(now, object) {
                    return Some(run);
                }
            } else {
                self.begin_pass(ready(data)?);
            }
        }
    }

    /// Takes an object off the plan, and begins a pass over it if the driver could load it.
    fn begin_pass(&mut self, object: u64) {
        self.schedule.take(object);
        if self.cache.place(object) == Place::Ready {
            self.repairs.supersede(object);
            let again = self.schedule.begin_pass(object, self.sequence);
            self.pass = Some(Pass { object, next_block: 0, again });
        }
        self.plan();
    }

    fn run_of_pass(&mut self, now: Instant) -> Run {
        let mut pass = self.pass.take().expect("called within a pass");
        let blocks = self.blocks(pass.object);
        let count = (blocks - pass.next_block).min(self.config.run_blocks_max.into());
        let run = self.run(now, pass.object, pass.next_block, count, pass.again, false);
        pass.next_block += count;
        if pass.next_block == blocks {
            self.cache.unpin(pass.object);
            self.plan();
        } else {
            self.pass = Some(pass);
        }
        run
    }

    fn run_of_repair(&mut self, now: Instant, object: u64) -> Option<Run> {
        let absent = self.cache.place(object) == Place::Absent;
        let taken =
            if absent { None } else { self.repairs.take_run(self.config.run_blocks_max, self.sequence) };
        if taken.is_none() {
            self.repairs.drop_front();
        }
        if taken.is_none_or(|(_, _, _, done)| done) {
            self.cache.unpin(object);
            self.plan();
        }
        let (first, count, cause, _) = taken?;
        Some(self.run(now, object, first, count.into(), Some(cause), true))
    }

    /// Books `count` blocks of `object` as sent from now on.
    fn run(
        &mut self,
        now: Instant,
        object: u64,
        first: u32,
        count: u32,
        again: Option<Cause>,
        repair: bool,
    ) -> Run {
        let shape = self.config.shape;
        let object_bytes = self.config.object_bytes[index(object)];
        let block = u16::try_from(first).expect("OBJECT_BLOCKS_MAX");
        let first_header = BlockHeader {
            sequence: self.sequence,
            timestamp_us: micros(now),
            object,
            block,
            object_bytes,
            repair,
        };
        let end = (first + count) * u32::from(shape.block_bytes);
        let payload =
            u64::from(end.min(object_bytes) - (first * u32::from(shape.block_bytes)).min(object_bytes));
        let headers = (BLOCK_HEADER_BYTES + TAG_BYTES) as u64 + u64::from(self.config.overhead_bytes);
        self.pacer.sent(now, payload + headers * u64::from(count));
        self.sequence += u64::from(count);
        self.statistics.blocks_sent += u64::from(count);
        self.statistics.bytes_sent += payload;
        if let Some(cause) = again.filter(|_| !self.config.mutant.is(Mutant::BooksNothing)) {
            self.statistics.resent.book(cause, count.into());
        }
        Run { first: first_header, count: u16::try_from(count).expect("at most run_blocks_max") }
    }

    fn status(&mut self, now: Instant) -> Transmit {
        let gap = if self.idle { self.status_idle } else { STATUS_BUSY };
        self.status_idle = (gap * 2).min(STATUS_IDLE_MAX);
        (self.status_at, self.status_last) = (now + gap, now);
        let echo = self.last_report.map(|(receiver, timestamp_us, at)| Echo {
            receiver,
            timestamp_us,
            age_us: u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX),
        });
        let receivers = self.members.count();
        let status = Status {
            sequence: self.sequence,
            timestamp_us: micros(now),
            cursor: self.schedule.cursor(),
            idle: self.is_empty(),
            receivers,
            report_interval: (REPORT_INTERVAL_EACH * receivers)
                .clamp(REPORT_INTERVAL_MIN, REPORT_INTERVAL_MAX),
            echo,
            pending: self.schedule.pending(),
        };
        self.control(now, status.encode(&self.config.shape))
    }

    fn control(&mut self, now: Instant, packet: Vec<u8>) -> Transmit {
        let bytes = (packet.len() + TAG_BYTES) as u64;
        self.pacer.sent(now, bytes + u64::from(self.config.overhead_bytes));
        self.statistics.control_sent += 1;
        self.statistics.control_bytes_sent += bytes;
        Transmit::Control(packet)
    }

    /// A STATUS is due, as soon as one may follow the last.
    fn status_soon(&mut self, now: Instant) {
        self.status_at = self.status_at.min(now.max(self.status_last + STATUS_SPACING));
    }

    fn part(&mut self, left: Option<ReceiverStatistics>) {
        let Some(left) = left else { return };
        self.events.push_back(ServerEvent::Left(left));
        if self.members.count() == 0 {
            self.schedule.forget();
            self.repairs.forget();
            self.events.push_back(ServerEvent::Deserted);
        }
    }

    /// Whether a run could go out if the rate allows.
    fn can_send(&self) -> bool {
        let (head, data) = self.schedule.fronts();
        let fronts = [head, self.repairs.front(), data];
        self.pass.is_some()
            || fronts.into_iter().flatten().any(|object| self.cache.place(object) != Place::Loading)
    }

    /// Whether nothing is left to send.
    fn is_empty(&self) -> bool {
        self.pass.is_none() && self.schedule.is_empty() && self.repairs.is_empty()
    }

    fn blocks(&self, object: u64) -> u32 {
        self.config.shape.blocks(self.config.object_bytes[index(object)])
    }
}

/// A clock in microseconds, modulo 2^32.
pub(super) fn micros(now: Instant) -> u32 {
    u32::try_from((now.0 / 1000) & u64::from(u32::MAX)).expect("masked")
}
