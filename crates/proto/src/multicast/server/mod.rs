//! The server's machine: takes reports in, says which blocks go out next, and which objects to read ahead.
//! Source: `formats/multicast.md`, section 6.

mod cache;
mod event;
mod gather;
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
use crate::multicast::server::members::Members;
use crate::multicast::server::outliers::Outliers;
use crate::multicast::server::proactive::ProactiveRepair;
use crate::multicast::server::schedule::Schedule;
use crate::multicast::stats::{ReceiverStatistics, SessionStatistics};
use crate::multicast::wire::TAG_BYTES;
use crate::multicast::wire::header::{BLOCK_HEADER_BYTES, ReceiverId, Reject};
use crate::multicast::wire::report::{Cause, Upstream};
use crate::multicast::wire::status::{Echo, STATUS_REPAIRS_MAX, Status, encode_bye};

/// Time between STATUS packets while blocks are sent, and which part of the rate they may take (of a million).
const STATUS_BUSY: Duration = Duration::from_millis(10);
const STATUS_SHARE: u64 = 2_000;
/// The same when nothing is left to send: at first, doubling, and at most.
const STATUS_IDLE_MIN: Duration = Duration::from_millis(2);
const STATUS_IDLE_MAX: Duration = Duration::from_millis(200);
/// Reports that change what is pending are echoed, but not more often than this.
const STATUS_SPACING: Duration = Duration::from_millis(1);
/// Which part of the rate all receivers together take for reports that ask for nothing (of a million),
const REPORT_SHARE: u64 = 4_000;
/// where each takes so many bytes on the wire; each reports within these bounds, the last for each receiver.
const REPORT_BYTES: u64 = 150;
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// The same two while the rate is being searched for, each step of which waits for reports.
const REPORT_SHARE_SEEKING: u64 = 6_000;
const REPORT_INTERVAL_SEEKING: Duration = Duration::from_millis(4);
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(2);
const REPORT_INTERVAL_EACH: Duration = Duration::from_millis(6);
/// Who was not heard for so many report intervals has gone.
const REPORTS_MISSED_MAX: u32 = 4;
/// After so long all that was lost of a pass is told.
const LOSSES_TOLD: Duration = Duration::from_millis(120);
/// So many wanted heads are read ahead even if the plan for the others fills its room.
const HEADS_AHEAD_MAX: usize = 32;
/// After so many repairs an object goes out even though more are wished for: no member can stop the others by wishes.
const REPAIRS_IN_ROW_MAX: u32 = 2048;
/// How often the last BYE is said, and how far apart.
const BYES: u8 = 3;
const BYE_SPACING: Duration = Duration::from_millis(20);

/// The object that is being sent whole, block by block.
#[derive(Debug, Clone, Copy)]
struct Pass {
    object: u64,
    next_block: u32,
    again: Option<Cause>,
    /// Symbols that follow the blocks at once.
    ahead: u8,
    ahead_left: u8,
}

/// What goes out as one run.
struct Piece {
    object: u64,
    first: u32,
    count: u32,
    /// Why, if it goes out again.
    again: Option<Cause>,
    repair: bool,
    coming: u32,
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
    rate: Rate,
    proactive: ProactiveRepair,
    outliers: Outliers,
    gather: Gather,
    members: Members,
    pass: Option<Pass>,
    /// Repairs that went out since the last pass.
    repairs_in_row: u32,
    /// Sequence of the next BLOCK.
    sequence: u64,
    status_at: Instant,
    status_last: Instant,
    status_idle: Duration,
    /// Length of the last STATUS.
    status_bytes: u64,
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
            schedule: Schedule::new(&shape),
            repairs: Repairs::new(shape.objects),
            cache: Cache::new(config.cache_bytes),
            rate: Rate::new(now, config.rate).with_packet(packet_wire_bytes(&config)),
            proactive: ProactiveRepair::default(),
            outliers: Outliers::default(),
            gather: Gather::new(config.gathering),
            members: Members::new(config.receiver_timeout),
            pass: None,
            repairs_in_row: 0,
            sequence: 0,
            status_at: now + STATUS_IDLE_MAX,
            status_last: now,
            status_idle: STATUS_IDLE_MAX,
            status_bytes: 100,
            idle: true,
            last_report: None,
            ending: Ending::Open,
            events: VecDeque::new(),
            statistics,
            config,
        }
    }

    /// The control connection gave a place to this receiver, which may stay silent for as long as all that it lacks
    /// is coming.
    pub fn admit(&mut self, now: Instant, receiver: ReceiverId) {
        if matches!(self.ending, Ending::Open) && self.members.admit(now, receiver) {
            self.joined(now, receiver);
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
            self.joined(now, report.receiver);
        }
        let (arrived, lost) = (report.counters.blocks_arrived, report.counters.blocks_lost);
        let feedback =
            Feedback { receiver: report.receiver, queue_us: report.counters.queue_us, arrived, lost };
        self.rate.feedback(now, &feedback, self.members.count());
        self.proactive.learn(now, LOSSES_TOLD);
        let news = match packet {
            Upstream::Need(report, lacking) => self.take_needs(report, lacking),
            Upstream::Join(_) | Upstream::Leave(_) => true,
        };
        if news {
            self.status_soon(now);
        }
        self.plan();
    }

    fn joined(&mut self, now: Instant, receiver: ReceiverId) {
        self.events.push_back(ServerEvent::Joined(receiver));
        self.gather.joined(now);
    }

    /// Sends no faster than this, whatever the network would carry: the session's share of what its server may send, in
    /// bits per second on the wire.
    pub fn set_ceiling(&mut self, bits_per_second: u64) {
        self.rate.set_ceiling(bits_per_second);
    }

    /// What it would send now if there was enough to send, in bits per second on the wire.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate.bits_per_second()
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
                let blocks = self.can_send_from().map(|from| from.max(self.rate.ready_at()));
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
        if now < self.rate.ready_at() {
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

    fn is_coded(&self, object: u64) -> bool {
        self.config.shape.is_coded(self.config.object_bytes[index(object)])
    }

    fn status(&mut self, now: Instant) -> Transmit {
        let busy = self.time_of(self.status_bytes * 1_000_000 / STATUS_SHARE).max(STATUS_BUSY);
        let gap = if self.idle { self.status_idle } else { busy };
        self.status_idle = (gap * 2).min(STATUS_IDLE_MAX);
        (self.status_at, self.status_last) = (now + gap, now);
        let echo = self.last_report.map(|(receiver, timestamp_us, at)| Echo {
            receiver,
            timestamp_us,
            age_us: u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX),
        });
        // Receivers may be silent for some report intervals, whose length changes with their number and with the rate.
        let report_interval = self.report_interval(now);
        self.members.set_timeout(self.config.receiver_timeout.max(report_interval * REPORTS_MISSED_MAX));
        let receivers = self.members.count();
        let status = Status {
            sequence: self.sequence,
            timestamp_us: micros(now),
            cursor: self.schedule.cursor(),
            idle: self.is_empty(),
            receivers,
            report_interval,
            echo,
            pending: self.schedule.pending(),
            repairs: self.repairs.coming(STATUS_REPAIRS_MAX),
        };
        let packet = status.encode(&self.config.shape);
        self.status_bytes = packet.len() as u64;
        self.control(now, packet)
    }

    /// How long each receiver may be silent: all of them together stay below their share of the rate.
    fn report_interval(&self, now: Instant) -> Duration {
        let receivers = self.members.count().max(1);
        let most = REPORT_INTERVAL_MAX.max(REPORT_INTERVAL_EACH * receivers);
        let (share, least) = match self.rate.is_seeking(now) {
            true => (REPORT_SHARE_SEEKING, REPORT_INTERVAL_SEEKING),
            false => (REPORT_SHARE, REPORT_INTERVAL_MIN),
        };
        self.time_of(REPORT_BYTES * u64::from(receivers) * 1_000_000 / share).clamp(least, most)
    }

    /// How long so many bytes take at the present rate.
    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.rate.bits_per_second().max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn control(&mut self, now: Instant, packet: Vec<u8>) -> Transmit {
        let bytes = (packet.len() + TAG_BYTES) as u64;
        self.rate.sent(now, bytes + u64::from(self.config.overhead_bytes));
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
        self.rate.forget(left.receiver);
        self.events.push_back(ServerEvent::Left(left));
        if self.members.count() == 0 {
            self.schedule.forget();
            self.repairs.forget();
            self.events.push_back(ServerEvent::Deserted);
        }
    }

    /// From when on a run can go out if the rate allows, unless none can.
    fn can_send_from(&self) -> Option<Instant> {
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

/// Length of a full packet on the wire.
fn packet_wire_bytes(config: &ServerConfig) -> u64 {
    header_wire_bytes(config) + u64::from(config.shape.block_bytes)
}

/// What a BLOCK has on the wire besides its payload.
fn header_wire_bytes(config: &ServerConfig) -> u64 {
    (BLOCK_HEADER_BYTES + TAG_BYTES) as u64 + u64::from(config.overhead_bytes)
}
