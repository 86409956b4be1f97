//! The receiver's machine: places what comes, finds what is missing, and reports it without being loud.
//! Source: `formats/multicast.md`, section 7.

use std::collections::VecDeque;

use base::limits::SESSION_OBJECTS_MAX;
use base::{Chance, Duration, Instant};

use super::bits::ObjectSet;
use super::congestion::Congestion;
use super::delay::DelayMeter;
use super::mutant::Mutant;
use super::packet::{BLOCK_HEADER_BYTES, BlockHeader, Reject, Shape};
use super::repair::repairs_max;
use super::report::{
    Cause, Lacking, NEED_RANGE_BYTES, NeedRange, ReceiverCounters, ReceiverId, Report, Upstream,
};
use super::server::micros;
use super::slots::{Slots, View, back_off};
use super::status::{Downstream, ObjectRange, Status};
use super::stream::Stream;
use super::window::Window;
use crate::code::Held;

/// What a receiver is made of.
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    /// What both ends know.
    pub shape: Shape,
    /// Its number at the server.
    pub receiver: ReceiverId,
    /// Memory for objects between their first block and [`Receiver::release`], in bytes; at least the largest object.
    pub buffer_bytes: u64,
    /// What an object has on average, in bytes: to guess how many fit, until their lengths are known.
    pub object_bytes_mean: u32,
    /// After so long without a packet from the server, [`ReceiverEvent::Silent`].
    pub silent_after: Duration,
    /// After so long without a new block, though the server speaks, [`ReceiverEvent::Stalled`].
    pub stalled_after: Duration,
    /// Receivers that had been admitted to the session when this one was, itself among them: they share the first reports.
    pub receivers: u32,
    /// For back-off.
    pub chance: Chance,
    /// A seeded bug, for the simulator.
    pub mutant: Mutant,
}

/// A place for one object in the driver's memory. Small numbers, used again: an index into a table of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What to do with the payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Copy it into the buffer of `slot` at `offset` (its length fits).
    Place {
        /// Where.
        slot: Slot,
        /// Offset in bytes inside the object.
        offset: u32,
        /// If this is the first block of the object: make a buffer of so many bytes first. It holds whole blocks, so it
        /// may be longer than the object.
        begins: Option<u32>,
    },
    /// A control packet: nothing to place.
    Control,
    /// Already there.
    Duplicate,
    /// Of an object that is not wanted, or not wanted in this way.
    Unwanted,
    /// No room: it will be asked for again.
    BufferFull,
}

/// What happened, for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// Enough is there: if `held` is not empty put the object right by [`crate::code::recover`], then verify the digest and
    /// say [`Receiver::verified`].
    Complete {
        /// Which object.
        object: u64,
        /// Where it lies.
        slot: Slot,
        /// Its length.
        bytes: u32,
        /// Symbols that lie in the places of missing blocks.
        held: Box<[Held]>,
    },
    /// It came with a wrong digest, or its packets contradict each other: get it by unicast, then say
    /// [`Receiver::satisfied`]. It is not asked for any more.
    FetchByUnicast {
        /// Which object.
        object: u64,
    },
    /// Nothing was heard from the server since then. Said once per silence.
    Silent {
        /// When the last packet came (or when the machine began).
        since: Instant,
    },
    /// The server speaks, but nothing new came since then though something is wanted. Said once per stall.
    Stalled {
        /// When the last new block came (or when the machine began).
        since: Instant,
    },
    /// The server speaks again after [`Self::Silent`], or blocks come again after [`Self::Stalled`].
    Resumed,
    /// For a second the network has brought much less than what was sent, while others keep up: leave, and get the rest
    /// by unicast. Said once.
    TooSlow,
    /// Packets of this session under another epoch: the server started anew. Ask it for a new grant. Said once per epoch.
    NewEpoch {
        /// Which.
        epoch: u32,
    },
    /// The server ended the session.
    Ended,
}

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
/// Reports of what many lack are spread over at most so many times the time in which one of them shows its effect (NORM,
/// RFC 5740, section 5.5.1: 4 to 6); over the logarithm of their number where that is less.
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
    asked: Option<ObjectSet>,
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
            slots: Slots::new(config.buffer_bytes, config.object_bytes_mean, config.mutant),
            stream: Stream::new(config.shape.heads, config.mutant),
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
            asked: config.mutant.is(Mutant::AsksOnce).then(|| ObjectSet::new(objects)),
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

    /// Somebody waits for this object, which is wanted: unless it comes soon the server is asked to send it before others.
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
    /// driver drops the buffer. If it was complete, its slot stays in use until [`Self::verified`] or [`Self::release`].
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
        if ok || self.config.mutant.is(Mutant::AcceptsWrongDigest) {
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
        self.stream.settle(now);
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
            let held = if self.config.mutant.is(Mutant::ForgetsSymbolsHeld) { Box::default() } else { held };
            self.events.push_back(ReceiverEvent::Complete { object, slot, bytes, held });
        }
    }

    fn take_status(&mut self, now: Instant, status: &Status) {
        self.stream.status(now, status);
        self.delay.packet(now, status.timestamp_us);
        self.interval = status.report_interval.max(REPORT_INTERVAL_MIN);
        self.receivers = status.receivers.max(1);
        let latest = now + self.interval + self.interval / 2;
        self.report_at = Some(match self.report_at {
            None => now + Duration::from_nanos(self.config.chance.below(nanos(self.interval))),
            Some(at) => at.min(latest),
        });
        if !self.config.mutant.is(Mutant::IgnoresEcho) {
            self.pending.clone_from(&status.pending);
            self.repairs.clone_from(&status.repairs);
        }
        if let Some(echo) = status.echo.filter(|echo| echo.receiver == self.config.receiver) {
            let taken = micros(now).wrapping_sub(echo.timestamp_us).saturating_sub(echo.age_us);
            let sample = Duration::from_micros(taken.into()).min(Duration::from_secs(1));
            self.rtt = (self.rtt * 7 + sample) / 8;
        }
        if status.idle && !self.lacking.is_empty() {
            self.hurry(now);
        }
    }

    /// Looks soon at what is lacked, unless the first packet is not even due.
    fn hurry(&mut self, now: Instant) {
        if !self.stream.is_unheard() {
            self.tick_at = self.tick_at.min(now + LOOK_MIN);
        }
    }

    /// Tells the driver of silence, of stalls, and of a network that does not keep up.
    fn watch(&mut self, now: Instant) {
        if !self.silent && now.since(self.heard_at) >= self.config.silent_after {
            self.silent = true;
            self.events.push_back(ReceiverEvent::Silent { since: self.heard_at });
        }
        let wants = !self.open.is_empty() || self.slots.are_filling();
        let since = now.since(self.progress_at);
        if !self.silent && !self.stalled && wants && since >= self.config.stalled_after {
            self.stalled = true;
            self.events.push_back(ReceiverEvent::Stalled { since: self.progress_at });
        }
        // Alone it sets the pace, and what it does not want it may miss.
        if wants
            && self.receivers > 1
            && self.congestion.is_too_slow(now, self.stream.arrived(), self.stream.lost())
        {
            self.events.push_back(ReceiverEvent::TooSlow);
        }
    }

    /// Asks for what is lacked, if that is news for the server, but lets the others speak first; and reports now and
    /// then what it sees of the network.
    fn look(&mut self, now: Instant) {
        let hasty = self.config.mutant.is(Mutant::ForgetsBackOff);
        let window = (now >= self.window_at || hasty).then(|| self.window());
        let window = window.filter(|window| hasty || window.is_news(&self.pending));
        let view = view(&self.stream, &self.refused, &self.pending, &self.repairs);
        let lacks = !self.config.mutant.is(Mutant::DropsBlockNeeds) && self.slots.lacks(now, &view);
        let urgent = self.next_urgent(now);
        if !lacks && window.is_none() && urgent.is_empty() {
            self.need_at = None;
        } else if self.need_at.is_none() {
            let spread = if hasty { Duration::ZERO } else { self.spread_over(self.spread()) };
            self.need_at = Some(now + spread);
        }
        if self.need_at.is_some_and(|at| at <= now) {
            self.ask(now, window.as_ref(), &urgent);
        } else if self.report_at.is_some_and(|at| at <= now) {
            self.say_need(now, Lacking::default());
        }
    }

    /// Asks for all that is lacked.
    fn ask(&mut self, now: Instant, window: Option<&Window>, urgent: &[u64]) {
        let room = usize::from(self.config.shape.block_bytes) + BLOCK_HEADER_BYTES;
        let mut lacking = Lacking::default();
        let retry = self.effect();
        for &object in urgent {
            let (objects, cause) = (ObjectRange { first: object, count: 1 }, self.cause(object));
            lacking.whole.push(NeedRange { objects, cause, urgent: true });
        }
        if !urgent.is_empty() {
            self.urgent_asks = self.urgent_asks.saturating_add(1);
            self.urgent_at = now + back_off(retry, self.urgent_asks);
        }
        if !self.config.mutant.is(Mutant::DropsBlockNeeds) {
            let view = view(&self.stream, &self.refused, &self.pending, &self.repairs);
            let spoilt = self.slots.write_lacking(now, retry, &view, room, &mut lacking);
            for object in spoilt {
                self.events.push_back(ReceiverEvent::FetchByUnicast { object });
            }
        }
        if let Some(window) = window {
            window.write(room, &mut lacking);
            self.window_asks = self.window_asks.saturating_add(1);
            self.window_at = now + back_off(retry, self.window_asks);
        }
        if let Some(asked) = &mut self.asked {
            lacking
                .whole
                .retain(|need| (need.objects.first..need.objects.end()).any(|object| asked.insert(object)));
        }
        self.need_at = None;
        if !lacking.is_empty() {
            self.say_need(now, lacking);
        }
    }

    /// What somebody waits for and is neither begun nor coming soon, as many as fit a third of a packet.
    fn next_urgent(&mut self, now: Instant) -> Vec<u64> {
        self.urgent.retain(|&object| self.open.contains(object));
        if now < self.urgent_at {
            return Vec::new();
        }
        let most = usize::from(self.config.shape.block_bytes) / 3 / NEED_RANGE_BYTES;
        let late = self.urgent.iter().copied().filter(|&object| !self.comes_soon(object));
        late.take(most).collect()
    }

    /// Whether at most [`SOON`] others go before `object`, as the server said last.
    fn comes_soon(&self, object: u64) -> bool {
        let mut before = 0;
        for range in &self.pending {
            if range.first <= object && object < range.end() {
                return before + (object - range.first) <= SOON;
            }
            before += u64::from(range.count);
        }
        false
    }

    fn say_need(&mut self, now: Instant, lacking: Lacking) {
        let spread = self.config.chance.below(nanos(self.interval).max(1));
        self.report_at = Some(now + self.interval / 2 + Duration::from_nanos(spread));
        self.counters.queue_us = self.delay.take(now);
        let report = self.header(now);
        self.send(&Upstream::Need(report, lacking));
    }

    /// How long it takes until a report shows its effect.
    fn effect(&self) -> Duration {
        self.rtt + ANSWER
    }

    /// Over what time receivers that lack the same spread their reports.
    fn spread(&self) -> Duration {
        let times = f64::from(self.receivers).ln().min(SPREAD_MAX);
        self.effect().mul_f64(times).min(SPREAD_EACH * self.receivers)
    }

    /// A part of `most`, by chance: of many receivers few draw little, so that they speak for the others, who hear the
    /// answer and stay silent. (Nonnenmacher and Biersack's truncated exponential, as in RFC 5740, section 5.5.1.)
    #[expect(clippy::cast_precision_loss, reason = "chance needs no more than 53 bits")]
    fn spread_over(&mut self, most: Duration) -> Duration {
        if self.receivers < 2 {
            return Duration::ZERO;
        }
        let uniform = (self.config.chance.below(1 << 32) + 1) as f64 / (1u64 << 32) as f64;
        most.mul_f64((1.0 + uniform.ln() / f64::from(self.receivers).ln()).max(0.0))
    }

    /// What to ask for next: as many objects as there is room for, in the order in which the server would send them.
    fn window(&self) -> Window {
        let shape = &self.config.shape;
        let mut window = Window::new(self.slots.room_for(self.open.len()), self.open.len());
        let cursor = self.stream.cursor().max(shape.heads);
        for (start, end) in [(0, shape.heads), (cursor, shape.objects), (shape.heads, cursor)] {
            window.collect(&self.open, start, end, |object| self.cause(object));
        }
        window
    }

    /// Why `object` is lacked, of which nothing is here.
    fn cause(&self, object: u64) -> Cause {
        if self.refused.contains(object) {
            Cause::BufferFull
        } else if self.stream.went_by(object) && self.missed != Some(object) {
            Cause::Lost
        } else {
            Cause::Late
        }
    }

    /// Tries to be heard. Who never heard the server asks for heads at once, which go before all others wherever the
    /// stream is.
    fn say_join(&mut self, now: Instant) {
        let report = self.header(now);
        let mut lacking = Lacking::default();
        if self.stream.is_unheard() {
            let mut heads = Window::new(self.slots.room_for(self.open.len()), self.open.len());
            heads.collect(&self.open, 0, self.config.shape.heads, |_| Cause::Late);
            heads.write(usize::from(self.config.shape.block_bytes), &mut lacking);
        }
        let empty = lacking.is_empty();
        self.send(&if empty { Upstream::Join(report) } else { Upstream::Need(report, lacking) });
        let least = PROBE_MIN.max(PROBE_EACH * self.receivers).min(PROBE_MAX);
        self.probe = (self.probe * 2).clamp(least, PROBE_MAX);
        let spread = self.config.chance.below(nanos(self.probe) / 2);
        self.tick_at = now + self.probe + Duration::from_nanos(spread);
    }

    fn say_leave(&mut self, now: Instant, left: u8) {
        let report = self.header(now);
        self.send(&Upstream::Leave(report));
        self.phase = Phase::Leaving(left - 1);
        self.tick_at = now + LEAVE_SPACING;
    }

    fn header(&self, now: Instant) -> Report {
        Report {
            receiver: self.config.receiver,
            timestamp_us: micros(now),
            seen: self.stream.settled(),
            counters: self.counters(),
        }
    }

    fn send(&mut self, packet: &Upstream) {
        // A driver that does not drain them loses the oldest.
        if self.outgoing.len() == 4 {
            self.outgoing.pop_front();
        }
        self.outgoing.push_back(packet.encode(&self.config.shape));
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
