//! The server's state machine for one session: takes reports, and decides which blocks to send next and which objects
//! to load in advance.
//! Source: `formats/multicast.md`, section 6.

mod cache;
mod event;
mod gather;
mod link;
mod machines;
mod members;
mod needs;
mod outliers;
mod proactive;
mod schedule;
mod sending;

use std::collections::VecDeque;

use base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, OBJECT_BYTES_MAX, SESSION_OBJECTS_MAX};
use base::{Duration, Instant};

use crate::multicast::bits::index;
use crate::multicast::clock::micros;
use crate::multicast::rate::{Feedback, Rate};
use crate::multicast::repair::Repairs;
use crate::multicast::server::cache::{Cache, Place};
pub use crate::multicast::server::event::{Run, ServerConfig, ServerEvent, Transmit};
use crate::multicast::server::gather::Gather;
pub use crate::multicast::server::gather::Gathering;
pub use crate::multicast::server::machines::MachineId;
use crate::multicast::server::machines::Vote;
use crate::multicast::server::members::Members;
use crate::multicast::server::outliers::Outliers;
use crate::multicast::server::proactive::ProactiveRepair;
use crate::multicast::server::schedule::Schedule;
use crate::multicast::stats::{ReceiverStatistics, SessionStatistics};
use crate::multicast::wire::TAG_BYTES;
use crate::multicast::wire::header::{BLOCK_HEADER_BYTES, ReceiverId, Reject};
use crate::multicast::wire::report::{Cause, Upstream};
use crate::multicast::wire::status::{Echo, STATUS_REPAIRS_MAX, Status, encode_bye, queue_steps};

/// Shortest time between STATUS packets while the server sends blocks.
const STATUS_BUSY: Duration = Duration::from_millis(10);
/// Share of the rate that STATUS packets may use while the server sends blocks, in parts per million.
const STATUS_SHARE: u64 = 2_000;
/// The same while the report interval falls since fewer receivers report than were admitted: until it has fallen, the
/// search for the rate hears nearly nothing.
const STATUS_SHARE_FALLING: u64 = 20_000;
/// Time between STATUS packets while nothing is left to send: the first interval, which doubles up to the second.
const STATUS_IDLE_MIN: Duration = Duration::from_millis(2);
const STATUS_IDLE_MAX: Duration = Duration::from_millis(200);
/// A report that changes what is pending is answered by a STATUS, but STATUS packets are at least this far apart.
const STATUS_SPACING: Duration = Duration::from_millis(1);
/// Bytes of an empty NEED on the wire.
const REPORT_BYTES: u64 = 150;
/// Shortest report interval; and while the server searches for the rate.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(10);
const REPORT_INTERVAL_SEEKING: Duration = Duration::from_millis(4);
/// Longest report interval: `REPORT_INTERVAL_MAX`, or `REPORT_INTERVAL_EACH` per receiver if that is longer.
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(2);
const REPORT_INTERVAL_EACH: Duration = Duration::from_millis(6);
/// A receiver that is silent for this many report intervals no longer counts as a member.
const REPORTS_MISSED_MAX: u32 = 4;
/// Time after a pass within which all reports of its losses have arrived.
const LOSSES_TOLD: Duration = Duration::from_millis(120);
/// The server loads up to this many wanted heads in advance, even if other objects fill the read-ahead part of the
/// cache.
const HEADS_AHEAD_MAX: usize = 32;
/// After this many repairs the server sends an object even if more repairs are requested, so that no member can stall
/// the others with its requests.
const REPAIRS_IN_ROW_MAX: u32 = 2048;
/// So many blocks go out while none is reported to have arrived anywhere; then the server sends STATUS only.
const UNHEARD_BLOCKS: u64 = 4096;
/// It also does when no report has come for so long, and for `REPORTS_MISSED_MAX` report intervals.
const UNANSWERED: Duration = Duration::from_secs(1);
/// The number of BYE packets, and the time between them.
const BYES: u8 = 3;
const BYE_SPACING: Duration = Duration::from_millis(20);

/// The object that is being sent in full, block by block.
#[derive(Debug, Clone, Copy)]
struct Pass {
    object: u64,
    next_block: u32,
    /// If the object was sent before: why it is sent again.
    again: Option<Cause>,
    /// Number of proactive symbols that follow the blocks.
    ahead: u8,
    /// How many of these symbols have not been sent yet.
    ahead_left: u8,
}

/// Blocks or symbols that are sent as one [`Run`].
struct Piece {
    object: u64,
    first: u32,
    count: u32,
    /// If they were sent before: why they are sent again.
    again: Option<Cause>,
    repair: bool,
    /// How many symbols of the object follow (field *coming* of BLOCK).
    coming: u32,
}

/// How far the end of the session is.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Open,
    Byes { left: u8, at: Instant },
}

/// The server's state machine for one session. See the module.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    schedule: Schedule,
    repairs: Repairs,
    cache: Cache,
    rate: Rate,
    proactive: ProactiveRepair,
    outliers: Outliers,
    gather: Gather,
    members: Members,
    pass: Option<Pass>,
    /// Number of repairs sent since the last pass.
    repairs_in_row: u32,
    /// Sequence of the next BLOCK.
    sequence: u64,
    /// The sequence when a receiver was last known to hear the session, or new; and whether blocks are held back.
    heard_sequence: u64,
    muted: bool,
    status_at: Instant,
    status_last: Instant,
    status_idle: Duration,
    /// Length of the last STATUS.
    status_bytes: u64,
    /// The report interval in the last STATUS.
    report_interval: Duration,
    /// Number of receivers that it was for; and whether it still falls since these became fewer.
    reporting: u32,
    interval_falls: bool,
    idle: bool,
    /// The last report, for the echo: its receiver, its timestamp, and when it arrived.
    last_report: Option<(ReceiverId, u32, Instant)>,
    ending: Ending,
    events: VecDeque<ServerEvent>,
    statistics: SessionStatistics,
}

impl Server {
    /// A session that begins at `now`, without receivers.
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
            schedule: Schedule::new(&shape),
            repairs: Repairs::new(shape.objects),
            cache: Cache::new(config.cache_bytes),
            rate: Rate::new(now, config.rate).with_packet(packet_wire_bytes(&config)),
            proactive: ProactiveRepair::default(),
            outliers: Outliers::default(),
            gather: Gather::new(config.gathering),
            members: Members::new(config.receiver_timeout, heads_blocks(&config)),
            pass: None,
            repairs_in_row: 0,
            sequence: 0,
            heard_sequence: 0,
            muted: false,
            status_at: now + STATUS_IDLE_MAX,
            status_last: now,
            status_idle: STATUS_IDLE_MAX,
            status_bytes: 100,
            report_interval: Duration::ZERO,
            reporting: 0,
            interval_falls: false,
            idle: true,
            last_report: None,
            ending: Ending::Open,
            events: VecDeque::new(),
            statistics,
            config,
        }
    }

    /// The control connection admitted this receiver. It counts as a member from now on, although it may stay silent
    /// for as long as everything that it needs is announced. `machine` is where it runs.
    pub fn admit(&mut self, now: Instant, receiver: ReceiverId, machine: MachineId) {
        if matches!(self.ending, Ending::Open) && self.members.admit(now, receiver, machine, self.sequence) {
            self.joined(now, receiver);
        }
    }

    /// Processes a report.
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
            self.joined(now, report.receiver);
        }
        let (arrived, lost) = (report.counters.blocks_arrived, report.counters.blocks_lost);
        let (receiver, queue_us, crowded) = (report.receiver, report.counters.queue_us, report.crowded);
        let feedback = Feedback { receiver, queue_us, arrived, lost, crowded };
        let vote = self.members.vote(now, report.receiver);
        if let Vote::Replaces(other) = vote {
            self.rate.forget(other);
        }
        if vote != Vote::No {
            self.rate.feedback(now, &feedback, self.members.hearing(now));
        }
        self.proactive.learn(now, LOSSES_TOLD);
        let news = match packet {
            Upstream::Need(report, lacking) => self.take_needs(now, report, lacking),
            Upstream::Join(_) | Upstream::Leave(_) => true,
        };
        if news {
            self.status_soon(now);
        }
        self.plan();
    }

    fn joined(&mut self, now: Instant, receiver: ReceiverId) {
        (self.heard_sequence, self.muted) = (self.sequence, false);
        self.events.push_back(ServerEvent::Joined(receiver));
        self.gather.joined(now);
    }

    /// Whether an object will be sent in full because somebody waits for it.
    #[must_use]
    pub fn is_pending(&self, object: u64) -> bool {
        self.schedule.is_pending(object)
    }

    /// Tells which objects were sent in full, or are being sent, since the first of the present members was admitted:
    /// those that have left took what they got with them.
    pub fn went_out_to_members(&self) -> impl Fn(u64) -> bool {
        // Looked for once: there are many objects, and many members.
        let oldest = self.members.oldest_sequence();
        move |object| self.schedule.last_pass(object).zip(oldest).is_some_and(|(last, oldest)| last >= oldest)
    }

    /// Counts a datagram that could not be opened.
    pub fn handle_reject(&mut self, _why: Reject) {
        self.statistics.rejected += 1;
    }

    /// The driver has loaded the object of [`ServerEvent::Load`] (`ok`), or could not. If it could not, this session
    /// does not send the object until it is requested again.
    pub fn loaded(&mut self, object: u64, ok: bool) {
        self.cache.loaded(object, ok);
    }

    /// Does what is due at `now`: removes members that were silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(left) = self.members.expire(now) {
            self.part(Some(left));
        }
    }

    /// The latest time to call [`Self::handle_timeout`] and [`Self::poll_transmit`] again; `None` after the last BYE.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.ending {
            Ending::Byes { left: 0, .. } => None,
            Ending::Byes { at, .. } => Some(at),
            Ending::Open => {
                let timers = self.members.expires_at().map_or(self.status_at, |at| at.min(self.status_at));
                let blocks = self.can_send_from().map(|from| from.max(self.rate.ready_at()));
                Some(blocks.map_or(timers, |at| at.min(timers)))
            }
        }
    }

    /// The next packets to send, if any are due at `now`. The machine counts them as sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Ending::Byes { left, at } = &mut self.ending {
            if *left == 0 || now < *at {
                return None;
            }
            (*left, *at) = (*left - 1, now + BYE_SPACING);
            return Some(self.control(now, encode_bye(&self.config.shape, self.sequence, micros(now))));
        }
        // STATUS does not wait for the pacer: it must be on time, and uses only 0.2 % of the rate.
        if now >= self.status_at {
            return Some(self.status(now));
        }
        if now < self.rate.ready_at() {
            return None;
        }
        if self.is_muted(now) {
            self.rate.excuse();
            return None;
        }
        if let Some(run) = self.next_run(now) {
            if std::mem::replace(&mut self.idle, false) {
                self.status_soon(now);
            }
            if self.can_send_from().is_none_or(|from| from > now) {
                self.rate.excuse();
            }
            return Some(Transmit::Blocks(run));
        }
        self.rate.excuse();
        if !self.idle && self.is_empty() {
            self.idle = true;
            self.status_idle = STATUS_IDLE_MIN;
            return Some(self.status(now));
        }
        None
    }

    /// The next event for the driver, if any.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Ends the session: from now on [`Self::poll_transmit`] returns only the BYE packets.
    pub fn end(&mut self, now: Instant) {
        if let Ending::Open = self.ending {
            self.ending = Ending::Byes { left: BYES, at: now };
        }
    }

    /// Whether [`Self::poll_transmit`] has returned the last BYE.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        matches!(self.ending, Ending::Byes { left: 0, .. })
    }

    /// The session's counters at `now`.
    #[must_use]
    pub fn statistics(&self, now: Instant) -> SessionStatistics {
        let mut statistics = self.statistics.clone();
        statistics.receivers = self.members.statistics(now);
        statistics.receivers_total = self.members.total();
        statistics
    }

    fn is_coded(&self, object: u64) -> bool {
        self.config.shape.is_coded(self.config.object_bytes[index(object)])
    }

    fn status(&mut self, now: Instant) -> Transmit {
        // Receivers may be silent for some report intervals. The interval depends on the rate and the number of
        // receivers.
        let report_interval = self.report_interval(now);
        let share = if self.interval_falls { STATUS_SHARE_FALLING } else { STATUS_SHARE };
        let busy = self.time_of(self.status_bytes * 1_000_000 / share).max(STATUS_BUSY);
        let gap = if self.idle || self.muted { self.status_idle } else { busy };
        self.status_idle = (gap * 2).min(STATUS_IDLE_MAX);
        let gap = if self.interval_falls { gap.min(busy) } else { gap };
        (self.status_at, self.status_last) = (now + gap, now);
        let echo = self.last_report.map(|(receiver, timestamp_us, at)| Echo {
            receiver,
            timestamp_us,
            age_us: u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX),
        });
        self.members.set_timeout(self.config.receiver_timeout.max(report_interval * REPORTS_MISSED_MAX));
        let receivers = self.members.reporting(now);
        let status = Status {
            sequence: self.sequence,
            timestamp_us: micros(now),
            cursor: self.schedule.cursor(),
            idle: self.is_empty(),
            queue: self.rate.typical_queue(now).and_then(queue_steps),
            receivers,
            report_interval,
            echo,
            pending: self.schedule.pending(),
            repairs: self.repairs.coming(STATUS_REPAIRS_MAX),
        };
        let packet = status.encode(&self.config.shape);
        self.status_bytes = packet.len() as u64 + u64::from(self.config.signature_bytes);
        self.control(now, packet)
    }

    /// How long each receiver may be silent, such that all receivers together report no more than they may.
    fn report_interval(&mut self, now: Instant) -> Duration {
        let receivers = self.members.reporting(now).max(1);
        let most = REPORT_INTERVAL_MAX.max(REPORT_INTERVAL_EACH * receivers);
        let is_seeking = self.rate.is_seeking(now);
        let least = if is_seeking { REPORT_INTERVAL_SEEKING } else { REPORT_INTERVAL_MIN };
        let bits = REPORT_BYTES * 8 * u64::from(receivers);
        let interval = Duration::from_secs(bits) / self.rate.reports_bits_per_second(now);
        let interval = interval.clamp(least, most);
        // When many newcomers turn out to be silent the interval becomes much shorter. If they only had no time to
        // report, all of them would report at once; in small steps some are heard first, and count again.
        let step = self.report_interval * 3 / 4;
        let fewer = receivers < std::mem::replace(&mut self.reporting, receivers);
        self.interval_falls = interval < step && (fewer || self.interval_falls);
        self.report_interval = interval.max(step);
        self.report_interval
    }

    /// How long it takes to send `bytes` at the present rate.
    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.rate.bits_per_second().max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn control(&mut self, now: Instant, packet: Vec<u8>) -> Transmit {
        let bytes = (packet.len() + usize::from(self.config.signature_bytes) + TAG_BYTES) as u64;
        self.rate.sent(now, bytes + u64::from(self.config.overhead_bytes));
        self.statistics.control_sent += 1;
        self.statistics.control_bytes_sent += bytes;
        Transmit::Control(packet)
    }

    /// Sends a STATUS as soon as `STATUS_SPACING` after the last one permits.
    fn status_soon(&mut self, now: Instant) {
        self.status_at = self.status_at.min(now.max(self.status_last + STATUS_SPACING));
    }

    fn part(&mut self, left: Option<ReceiverStatistics>) {
        let Some(left) = left else { return };
        self.rate.forget(left.receiver);
        self.events.push_back(ServerEvent::Left(left));
        // A later receiver requests what it needs itself, so requests of receivers that left need not be kept.
        if self.members.count() == 0 {
            self.schedule.forget();
            self.repairs.forget();
            self.events.push_back(ServerEvent::Deserted);
        }
    }

    /// The earliest time when a run can be sent if the rate permits; `None` if there is none to send.
    fn can_send_from(&self) -> Option<Instant> {
        if self.muted {
            return None;
        }
        let ready =
            |object: Option<u64>| object.is_some_and(|object| self.cache.place(object) != Place::Loading);
        if self.pass.is_some() || ready(self.repairs.front()) {
            return Some(Instant::ZERO);
        }
        let (head, data) = self.schedule.fronts();
        let head = ready(head).then(|| self.gather.heads_from());
        let data = ready(data).then(|| self.gather.others_from());
        head.into_iter().chain(data).min()
    }

    /// Whether nothing is left to send.
    fn is_empty(&self) -> bool {
        self.pass.is_none() && self.schedule.is_empty() && self.repairs.is_empty()
    }

    fn blocks(&self, object: u64) -> u32 {
        self.config.shape.blocks(self.config.object_bytes[index(object)])
    }
}

/// Number of blocks of all heads.
fn heads_blocks(config: &ServerConfig) -> u64 {
    let heads = config.object_bytes.iter().take(index(config.shape.heads));
    heads.map(|&bytes| u64::from(config.shape.blocks(bytes))).sum()
}

/// Length of a full packet on the wire.
fn packet_wire_bytes(config: &ServerConfig) -> u64 {
    header_wire_bytes(config) + u64::from(config.shape.block_bytes)
}

/// Bytes of a BLOCK on the wire besides its payload.
fn header_wire_bytes(config: &ServerConfig) -> u64 {
    (BLOCK_HEADER_BYTES + TAG_BYTES) as u64 + u64::from(config.overhead_bytes)
}
