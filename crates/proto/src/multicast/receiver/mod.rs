//! The receiver's machine: places what comes, finds what is missing, and reports it without being loud.
//! Source: `formats/multicast.md`, section 7.

mod congestion;
pub(in crate::multicast) mod delay;
mod event;
mod reports;
mod slot;
mod slots;
mod stream;
mod window;

use std::collections::VecDeque;

use base::limits::SESSION_OBJECTS_MAX;
use base::{Duration, Instant};

use crate::multicast::bits::ObjectSet;
use crate::multicast::receiver::congestion::Congestion;
use crate::multicast::receiver::delay::DelayMeter;
pub use crate::multicast::receiver::event::{ReceiverConfig, ReceiverEvent};
pub use crate::multicast::receiver::slot::{Disposition, Slot};
use crate::multicast::receiver::slots::{Slots, View};
use crate::multicast::receiver::stream::Stream;
use crate::multicast::repair::repairs_max;
use crate::multicast::wire::header::{BlockHeader, ObjectRange, Reject};
use crate::multicast::wire::report::ReceiverCounters;
use crate::multicast::wire::status::Downstream;

/// The server speaks at least this often; who hears less asks with growing back-off.
const SILENCE: Duration = Duration::from_millis(450);
/// First and longest time between attempts to reach a silent server.
const PROBE_MIN: Duration = Duration::from_millis(20);
const PROBE_MAX: Duration = Duration::from_secs(5);
/// Report interval until the server names one, and the least that it may name.
const REPORT_INTERVAL_FIRST: Duration = Duration::from_millis(10);
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(4);
/// Each silent receiver lets the others have so much time before it asks.
const PROBE_EACH: Duration = Duration::from_micros(50);
/// Receivers that were admitted together spread their first packets over this time.
const FIRST_SPREAD: Duration = Duration::from_millis(25);
/// Time from a report to its effect, besides the round trip.
const ANSWER: Duration = Duration::from_millis(4);
/// Reports of what many lack are spread over at most so many times the time in which one of them shows its effect
/// (NORM, RFC 5740, section 5.5.1: 4 to 6); over the logarithm of their number where that is less.
const SPREAD_MAX: f64 = 4.0;
/// Nor over more than this for each of them.
const SPREAD_EACH: Duration = Duration::from_millis(1);
/// How often a receiver looks at what it lacks.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(20);
/// What comes after so many others, as STATUS says, is not asked for out of its turn.
const SOON: u64 = 3;
/// Most objects that somebody waits for at once; more are asked for in their turn.
const URGENT_MAX: usize = 64;
const LEAVES: u8 = 2;
/// So many of the receivers say goodbye; the others are missed in time.
const LEAVERS_MAX: u64 = 256;
const LEAVE_SPACING: Duration = Duration::from_millis(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Takes part.
    Open,
    /// Says goodbye: so many LEAVEs are left.
    Leaving(u8),
    /// The server ended the session.
    Ended,
}

/// The receiver's machine for one session. See the module.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    phase: Phase,
    /// Wanted and not verified.
    lacking: ObjectSet,
    /// Those of `lacking` that multicast should bring and of which nothing is here.
    open: ObjectSet,
    /// Those dropped for want of room since they were last begun.
    refused: ObjectSet,
    /// Those of `open` that somebody waits for, longest first.
    urgent: VecDeque<u64>,
    /// They are not asked for again before this, and how often they were since one of them began.
    urgent_at: Instant,
    urgent_asks: u8,
    /// The pass that was refused last: its object and the sequence of its block 0.
    refused_pass: (u64, u64),
    /// The object whose begin went by before it was heard.
    missed: Option<u64>,
    slots: Slots,
    stream: Stream,
    interval: Duration,
    rtt: Duration,
    /// What the server will send whole, as it said last.
    pending: Vec<ObjectRange>,
    /// Of which objects it will send symbols, and how many.
    repairs: Vec<(u64, u8)>,
    /// How many share the session.
    receivers: u32,
    delay: DelayMeter,
    congestion: Congestion,
    heard_at: Instant,
    progress_at: Instant,
    silent: bool,
    stalled: bool,
    epoch_seen: u32,
    tick_at: Instant,
    /// Back-off while the server is silent.
    probe: Duration,
    /// When to report next, whether something is lacked or not; `None` until the server has said how often.
    report_at: Option<Instant>,
    /// When to ask for what is lacked.
    need_at: Option<Instant>,
    /// Whole objects are not asked for again before this, so that an answer can come.
    window_at: Instant,
    /// How often they were asked for since one of them began.
    window_asks: u8,
    outgoing: VecDeque<Vec<u8>>,
    events: VecDeque<ReceiverEvent>,
    counters: ReceiverCounters,
}

impl Receiver {
    /// A receiver that wants nothing yet, and joins at once.
    ///
    /// # Panics
    /// If `config` breaks the bounds given at its fields.
    #[must_use]
    pub fn new(now: Instant, config: ReceiverConfig) -> Self {
        let objects = config.shape.objects;
        assert!((1..=SESSION_OBJECTS_MAX).contains(&objects) && config.shape.heads <= objects);
        Self {
            phase: Phase::Open,
            lacking: ObjectSet::new(objects),
            open: ObjectSet::new(objects),
            refused: ObjectSet::new(objects),
            urgent: VecDeque::new(),
            urgent_at: now,
            urgent_asks: 0,
            refused_pass: (u64::MAX, 0),
            missed: None,
            slots: Slots::new(config.buffer_bytes, config.object_bytes_mean),
            stream: Stream::new(config.shape.heads),
            interval: REPORT_INTERVAL_FIRST,
            rtt: Duration::from_millis(10),
            pending: Vec::new(),
            repairs: Vec::new(),
            receivers: config.receivers.max(1),
            delay: DelayMeter::default(),
            congestion: Congestion::default(),
            heard_at: now,
            progress_at: now,
            silent: false,
            stalled: false,
            epoch_seen: config.shape.epoch,
            tick_at: now,
            probe: Duration::ZERO,
            report_at: None,
            need_at: None,
            window_at: now,
            window_asks: 0,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: ReceiverCounters::default(),
            config,
        }
        .spread_first(now)
    }

    /// Lets the first packets of many receivers be few.
    fn spread_first(mut self, now: Instant) -> Self {
        self.tick_at = now + self.spread_over(FIRST_SPREAD);
        self
    }

    /// Wants these objects from now on.
    pub fn want(&mut self, now: Instant, objects: ObjectRange) {
        for object in objects.first..objects.end() {
            if self.lacking.insert(object) {
                self.open.insert(object);
            }
        }
        self.progress_at = now;
        self.hurry(now);
    }

    /// Somebody waits for this object, which is wanted: unless it comes soon the server is asked to send it before
    /// others.
    pub fn urge(&mut self, now: Instant, object: u64) {
        if self.open.contains(object) && !self.urgent.contains(&object) && self.urgent.len() < URGENT_MAX {
            self.urgent.push_back(object);
            self.urgent_at = now;
            self.hurry(now);
        }
    }

    /// How many receivers share the session, this one included, as the server said last.
    #[must_use]
    pub const fn receivers(&self) -> u32 {
        self.receivers
    }

    /// The object was got otherwise, or is not needed. If a part of it was here, its slot is free now and returned: the
    /// driver drops the buffer. If it was complete, its slot stays in use until [`Self::verified`] or
    /// [`Self::release`].
    pub fn satisfied(&mut self, object: u64) -> Option<Slot> {
        self.lacking.remove(object);
        self.open.remove(object);
        let slot = self.slots.find(object).filter(|&slot| self.slots.is_partial(slot))?;
        self.slots.free(slot);
        Some(slot)
    }

    /// Number of objects wanted and not verified yet, those to fetch by unicast included.
    #[must_use]
    pub const fn lacking(&self) -> u64 {
        self.lacking.len()
    }

    /// The first object at or behind `from` that is wanted and not verified yet.
    #[must_use]
    pub fn next_lacking(&self, from: u64) -> Option<u64> {
        self.lacking.next_from(from)
    }

    /// Takes in a packet and says where its payload goes.
    pub fn handle_input(&mut self, now: Instant, packet: &Downstream<'_>) -> Disposition {
        self.heard_at = now;
        if std::mem::take(&mut self.probe) > Duration::ZERO && self.phase == Phase::Open {
            self.hurry(now);
        }
        if std::mem::replace(&mut self.silent, false) {
            self.events.push_back(ReceiverEvent::Resumed);
            self.hurry(now);
        }
        match packet {
            Downstream::Block(header, _) => return self.take_block(now, header),
            Downstream::Status(status) => self.take_status(now, status),
            Downstream::Bye => {
                if std::mem::replace(&mut self.phase, Phase::Ended) != Phase::Ended {
                    self.events.push_back(ReceiverEvent::Ended);
                }
            }
        }
        Disposition::Control
    }

    /// Counts a datagram that could not be opened.
    pub fn handle_reject(&mut self, why: Reject) {
        if let Reject::Epoch(epoch) = why
            && std::mem::replace(&mut self.epoch_seen, epoch) != epoch
        {
            self.events.push_back(ReceiverEvent::NewEpoch { epoch });
        }
    }

    /// The digest of what lies in `slot` was right or not. If not, the slot is free: the driver drops the buffer.
    pub fn verified(&mut self, now: Instant, slot: Slot, ok: bool) {
        let Some(object) = self.slots.object_of(slot) else { return };
        if ok {
            self.lacking.remove(object);
            self.counters.objects_verified += 1;
        } else {
            self.slots.free(slot);
            self.events.push_back(ReceiverEvent::FetchByUnicast { object });
        }
        self.progress_at = now;
    }

    /// The driver is done with the buffer of a verified object.
    pub fn release(&mut self, slot: Slot) {
        self.slots.free(slot);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.tick_at || self.phase == Phase::Ended {
            return;
        }
        if let Phase::Leaving(left) = self.phase {
            if left > 0 {
                self.say_leave(now, left);
            }
            return;
        }
        self.stream.decide(now);
        self.watch(now);
        if self.probe > Duration::ZERO || now.since(self.heard_at) >= SILENCE || self.stream.is_unheard() {
            self.say_join(now);
        } else {
            self.look(now);
            self.tick_at = now + (self.effect() / 4).clamp(LOOK_MIN, LOOK_MAX);
        }
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open | Phase::Leaving(1..) => Some(self.tick_at),
            Phase::Leaving(0) | Phase::Ended => None,
        }
    }

    /// The next packet to send to the server, if any. It lacks only its tag (see [`super::seal`]).
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// Leaves: what is left to transmit is LEAVE, twice.
    pub fn leave(&mut self, now: Instant) {
        if self.phase == Phase::Open {
            let says = self.config.chance.below(self.receivers.into()) < LEAVERS_MAX;
            self.phase = Phase::Leaving(if says { LEAVES } else { 0 });
            self.tick_at = now;
        }
    }

    /// Whether the last LEAVE was handed out, or none is needed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Leaving(0) | Phase::Ended) && self.outgoing.is_empty()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> ReceiverCounters {
        let (blocks_arrived, blocks_lost) = (self.stream.arrived(), self.stream.lost());
        ReceiverCounters { blocks_arrived, blocks_lost, ..self.counters }
    }

    fn take_block(&mut self, now: Instant, header: &BlockHeader) -> Disposition {
        self.stream.block(now, header);
        self.delay.packet(now, header.timestamp_us);
        let object = header.object;
        if !self.lacking.contains(object) {
            return Disposition::Unwanted;
        }
        let disposition = match self.slots.find(object) {
            Some(slot) if self.slots.contradicts(slot, header) => {
                // One of two members lied. Verification can't tell whom to ask again.
                self.slots.give_up(slot);
                self.events.push_back(ReceiverEvent::FetchByUnicast { object });
                Disposition::Unwanted
            }
            Some(slot) => self.slots.place(slot, header, &self.config.shape),
            None => self.begin(header),
        };
        match disposition {
            Disposition::Place { .. } => self.progress(now, object),
            Disposition::Duplicate => self.counters.blocks_duplicate += 1,
            Disposition::BufferFull => {
                self.counters.blocks_refused += 1;
                self.refused.insert(object);
            }
            Disposition::Unwanted | Disposition::Control => {}
        }
        disposition
    }

    /// Takes the first block of an object of which nothing is here. Single resent blocks are for others: the object
    /// will come whole.
    fn begin(&mut self, header: &BlockHeader) -> Disposition {
        if !self.open.contains(header.object) || header.repair {
            return Disposition::Unwanted;
        }
        if self.missed_begin(header) {
            self.missed = Some(header.object);
            return Disposition::Unwanted;
        }
        // Of a pass that began without room nothing is taken: the rest would have to be repaired, which goes before
        // what others wait for.
        let pass = (header.object, header.sequence - u64::from(header.block));
        if self.refused_pass == pass {
            return Disposition::BufferFull;
        }
        let Some(slot) = self.slots.begin(header, &self.config.shape) else {
            self.refused_pass = pass;
            return Disposition::BufferFull;
        };
        self.open.remove(header.object);
        self.window_asks = 0;
        self.urgent_asks = 0;
        match self.slots.place(slot, header, &self.config.shape) {
            Disposition::Place { slot, offset, .. } => {
                let begins = Some(self.config.shape.padded_bytes(header.object_bytes));
                Disposition::Place { slot, offset, begins }
            }
            other => other,
        }
    }

    /// Whether so much of this pass went by that the server would not repair what is lacking for one receiver (see
    /// [`repairs_max`]): the object is lacked whole, which others who came as late lack, too.
    fn missed_begin(&self, header: &BlockHeader) -> bool {
        let blocks = self.config.shape.blocks(header.object_bytes);
        u32::from(header.block) > repairs_max(blocks, 0)
    }

    /// A new block of `object` was placed.
    fn progress(&mut self, now: Instant, object: u64) {
        self.counters.blocks_received += 1;
        self.progress_at = now;
        if std::mem::replace(&mut self.stalled, false) {
            self.events.push_back(ReceiverEvent::Resumed);
        }
        if let Some((slot, bytes, held)) = self.slots.complete(object) {
            self.refused.remove(object);
            self.events.push_back(ReceiverEvent::Complete { object, slot, bytes, held });
        }
    }
}

/// What is known besides what is here.
fn view<'a>(
    stream: &'a Stream,
    refused: &'a ObjectSet,
    pending: &'a [ObjectRange],
    repairs: &'a [(u64, u8)],
) -> View<'a> {
    View { stream, refused, pending, repairs }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
