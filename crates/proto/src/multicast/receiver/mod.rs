//! The receiver's state machine: places arriving blocks, finds what is missing, and reports it without flooding the
//! server.
//! Source: `formats/multicast.md`, section 7.

mod behind;
mod congestion;
pub(in crate::multicast) mod delay;
mod event;
mod half;
mod reports;
mod slot;
mod slots;
mod stream;
mod window;

use std::collections::VecDeque;

use base::limits::SESSION_OBJECTS_MAX;
use base::{Duration, Instant};

use crate::multicast::bits::ObjectSet;
use crate::multicast::receiver::behind::Behind;
use crate::multicast::receiver::congestion::Congestion;
pub use crate::multicast::receiver::congestion::Strain;
use crate::multicast::receiver::delay::DelayMeter;
pub use crate::multicast::receiver::event::{ReceiverConfig, ReceiverEvent};
pub use crate::multicast::receiver::half::Half;
use crate::multicast::receiver::half::Halves;
pub use crate::multicast::receiver::slot::{Disposition, Slot};
use crate::multicast::receiver::slots::{Slots, View};
use crate::multicast::receiver::stream::Stream;
use crate::multicast::repair::repairs_max;
use crate::multicast::wire::header::{BlockHeader, ObjectRange, Reject};
use crate::multicast::wire::report::ReceiverCounters;
use crate::multicast::wire::status::Downstream;

/// The server sends at least this often. A receiver that hears nothing for longer sends JOINs at growing intervals.
const SILENCE: Duration = Duration::from_millis(450);
/// Shortest and longest time between two attempts to reach a silent server.
const PROBE_MIN: Duration = Duration::from_millis(20);
const PROBE_MAX: Duration = Duration::from_secs(5);
/// Report interval until the server announces one, and the shortest interval that it may announce.
const REPORT_INTERVAL_FIRST: Duration = Duration::from_millis(10);
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(4);
/// Attempts to reach a silent server are at least this far apart, times the number of receivers.
const PROBE_EACH: Duration = Duration::from_micros(50);
/// Receivers that were admitted together spread their first packets over this time.
const FIRST_SPREAD: Duration = Duration::from_millis(25);
/// Time from the arrival of a report at the server until the server's answer is visible, without the round-trip time.
const ANSWER: Duration = Duration::from_millis(4);
/// Receivers that miss the same object spread their reports over the time in which a report takes effect (see
/// `Receiver::effect`), times the logarithm of their number, but at most times this (NORM, RFC 5740, section 5.5.1: 4
/// to 6).
const SPREAD_MAX: f64 = 4.0;
/// The same time is at most this, times the number of receivers.
const SPREAD_EACH: Duration = Duration::from_millis(1);
/// If nothing at all arrives for so long, no way works for a time. What was sent meanwhile tells nothing of multicast.
const OUTAGE: Duration = Duration::from_millis(600);
/// Shortest and longest time between two checks of what is missing.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(20);
/// An urgent object is not requested if, according to STATUS, at most this many others are sent before it.
const SOON: u64 = 3;
/// Most urgent objects at once; further ones are requested in their normal order.
const URGENT_MAX: usize = 64;
/// Number of LEAVE packets that a receiver sends.
const LEAVES: u8 = 2;
/// About this many receivers send LEAVE; the server removes the others after its timeout.
const LEAVERS_MAX: u64 = 256;
/// Time between them.
const LEAVE_SPACING: Duration = Duration::from_millis(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The receiver takes part in the session.
    Open,
    /// The receiver leaves: this many LEAVEs remain to be sent.
    Leaving(u8),
    /// The server ended the session.
    Ended,
}

/// The receiver's state machine for one session. See the module.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    phase: Phase,
    /// Wanted objects that are not verified yet.
    lacking: ObjectSet,
    /// Those of `lacking` that should come by multicast and of which no block has arrived.
    open: ObjectSet,
    /// Those of `lacking` that were dropped because the buffer was full, until they are complete.
    refused: ObjectSet,
    /// Those of `open` that an application waits for, in the order of its requests.
    urgent: VecDeque<u64>,
    /// Urgent objects are not requested before this; below: how often since the last object began to arrive.
    urgent_at: Instant,
    urgent_asks: u8,
    /// The last pass that was dropped because the buffer was full: its object and the sequence of its block 0.
    refused_pass: (u64, u64),
    /// The last object whose pass this receiver joined too late to use it.
    missed: Option<u64>,
    slots: Slots,
    stream: Stream,
    interval: Duration,
    rtt: Duration,
    /// The objects that the server will send in full, as of the last STATUS.
    pending: Vec<ObjectRange>,
    /// The objects of which the server will send symbols, and how many, as of the last STATUS.
    repairs: Vec<(u64, u8)>,
    /// Number of receivers in the session, at least 1.
    receivers: u32,
    delay: DelayMeter,
    congestion: Congestion,
    halves: Halves,
    behind: Behind,
    /// How long packets to the typical receiver wait in queues, in microseconds, as of the last STATUS.
    typical_us: Option<u32>,
    heard_at: Instant,
    progress_at: Instant,
    silent: bool,
    stalled: bool,
    epoch_seen: u32,
    tick_at: Instant,
    /// Time until the next JOIN while the server is silent, doubled each time; zero if the server is not silent.
    probe: Duration,
    /// When to send the next report, even an empty one; `None` before the first STATUS.
    report_at: Option<Instant>,
    /// When to request what is missing; `None` if there is nothing to request.
    need_at: Option<Instant>,
    /// Objects in full are not requested before this, so that an answer to the last request can arrive.
    window_at: Instant,
    /// How often they were requested since an object last began to arrive.
    window_asks: u8,
    outgoing: VecDeque<Vec<u8>>,
    events: VecDeque<ReceiverEvent>,
    counters: ReceiverCounters,
}

impl Receiver {
    /// A receiver that wants no objects yet, and joins after a short random wait.
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
            congestion: if config.stays { Congestion::crowded() } else { Congestion::default() },
            halves: Halves::default(),
            behind: Behind::default(),
            typical_us: None,
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

    /// Spreads the first packets of receivers that were admitted together.
    fn spread_first(mut self, now: Instant) -> Self {
        self.tick_at = now + self.spread_over(FIRST_SPREAD);
        self
    }

    /// Adds these objects to what the receiver wants.
    pub fn want(&mut self, now: Instant, objects: ObjectRange) {
        for object in objects.first..objects.end() {
            if self.lacking.insert(object) {
                self.open.insert(object);
            }
        }
        self.progress_at = now;
        self.hurry(now);
    }

    /// An application waits for this object, which must be wanted. Unless the object comes soon, the receiver
    /// requests it as urgent, so that the server sends it before others. Ignored while `URGENT_MAX` objects are
    /// urgent.
    pub fn urge(&mut self, now: Instant, object: u64) {
        if self.open.contains(object) && !self.urgent.contains(&object) && self.urgent.len() < URGENT_MAX {
            self.urgent.push_back(object);
            self.urgent_at = now;
            self.hurry(now);
        }
    }

    /// Number of receivers in the session, this one included, as of the last STATUS.
    #[must_use]
    pub const fn receivers(&self) -> u32 {
        self.receivers
    }

    /// The driver got the object in another way, or does not need it. If a part of it had arrived, its slot becomes
    /// free and is returned: the driver drops the buffer. If it was complete, its slot stays in use until
    /// [`Self::verified`] or [`Self::release`].
    pub fn satisfied(&mut self, object: u64) -> Option<Slot> {
        self.lacking.remove(object);
        self.open.remove(object);
        let slot = self.slots.find(object).filter(|&slot| self.slots.is_partial(slot))?;
        self.slots.free(slot);
        Some(slot)
    }

    /// Number of wanted objects that are not verified yet, including those to be fetched by unicast.
    #[must_use]
    pub const fn lacking(&self) -> u64 {
        self.lacking.len()
    }

    /// The first object at or after `from` that is wanted and not verified yet.
    #[must_use]
    pub fn next_lacking(&self, from: u64) -> Option<u64> {
        self.lacking.next_from(from)
    }

    /// Processes a packet, and returns where the driver puts its payload.
    pub fn handle_input(&mut self, now: Instant, packet: &Downstream<'_>) -> Disposition {
        self.handle_late_input(now, now, packet)
    }

    /// The same for a packet that arrived at this machine at `arrived`, and was read later, at `now`: how long packets
    /// wait in the network is measured until they arrive, and how long in the socket from then on.
    pub fn handle_late_input(
        &mut self,
        now: Instant,
        arrived: Instant,
        packet: &Downstream<'_>,
    ) -> Disposition {
        if now.since(std::mem::replace(&mut self.heard_at, now)) >= OUTAGE {
            self.halves.begin_again();
            self.behind.forget();
        }
        self.delay.kept(now.since(arrived));
        match packet {
            Downstream::Block(header, _) => self.delay.packet(arrived, header.timestamp_us, false),
            Downstream::Status(status) => self.delay.packet(arrived, status.timestamp_us, true),
            Downstream::Bye => {}
        }
        // The server answers after the receiver had to send JOINs: request what is missing at once.
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

    /// The driver has verified the digest of the object in `slot`. If it was wrong (`ok` is false), the slot is free:
    /// the driver drops the buffer.
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

    /// The driver no longer needs the buffer of a verified object.
    pub fn release(&mut self, slot: Slot) {
        self.slots.free(slot);
    }

    /// Does what is due at `now`: checks what is missing, and queues reports for [`Self::poll_transmit`].
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

    /// The latest time to call [`Self::handle_timeout`]; `None` after the end.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open | Phase::Leaving(1..) => Some(self.tick_at),
            Phase::Leaving(0) | Phase::Ended => None,
        }
    }

    /// The next packet to send to the server, if any. It is complete except for its tag (see [`super::seal`]).
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// The next event for the driver, if any.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// Leaves the session. The receiver sends two LEAVEs, or none if there are many receivers (`LEAVERS_MAX`).
    pub fn leave(&mut self, now: Instant) {
        if self.phase == Phase::Open {
            let says = self.config.chance.below(self.receivers.into()) < LEAVERS_MAX;
            self.phase = Phase::Leaving(if says { LEAVES } else { 0 });
            self.tick_at = now;
        }
    }

    /// Whether the receiver has left and nothing remains to be sent, or the server has ended the session.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Leaving(0) | Phase::Ended) && self.outgoing.is_empty()
    }

    /// The receiver's counters.
    #[must_use]
    pub fn counters(&self) -> ReceiverCounters {
        let (blocks_arrived, blocks_lost) = (self.stream.arrived(), self.stream.lost());
        ReceiverCounters { blocks_arrived, blocks_lost, ..self.counters }
    }

    fn take_block(&mut self, now: Instant, header: &BlockHeader) -> Disposition {
        self.stream.block(now, header);
        self.halves.block(u32::from(header.block) + 1 < self.config.shape.blocks(header.object_bytes));
        let object = header.object;
        if !self.lacking.contains(object) {
            return Disposition::Unwanted;
        }
        let disposition = match self.slots.find(object) {
            Some(slot) if self.slots.contradicts(slot, header) => {
                // One of the two packets is forged. Verification cannot tell which, so multicast cannot complete this
                // object.
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

    /// Takes the first block of an object of which no block has arrived. A repair is for other receivers: this one
    /// will get the whole object by a pass.
    fn begin(&mut self, header: &BlockHeader) -> Disposition {
        if !self.open.contains(header.object) || header.repair {
            return Disposition::Unwanted;
        }
        if self.missed_begin(header) {
            self.missed = Some(header.object);
            return Disposition::Unwanted;
        }
        // A pass whose first block found no room is dropped as a whole. Otherwise its rest would need repairs, and
        // the server sends repairs before objects that others wait for.
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

    /// Whether the receiver missed so much of this pass that the server would not repair it for one receiver (see
    /// [`repairs_max`]). Then it requests the object in full, like the other receivers that joined as late.
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

/// What the receiver knows of the stream and of the server's plans.
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
