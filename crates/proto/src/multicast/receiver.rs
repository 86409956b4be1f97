//! The receiver's machine: places what comes, finds what is missing, and reports it without being loud.
//! Source: `formats/multicast.md`, section 8.

use std::collections::VecDeque;

use base::limits::SESSION_OBJECTS_MAX;
use base::{Chance, Duration, Instant};

use super::bits::ObjectSet;
use super::mutant::Mutant;
use super::packet::{BLOCK_HEADER_BYTES, BlockHeader, Reject, Shape};
use super::report::{Cause, Lacking, ReceiverCounters, ReceiverId, Report, Upstream};
use super::server::micros;
use super::slots::{Slots, View};
use super::status::{Downstream, ObjectRange, Status};
use super::stream::Stream;
use super::window::Window;

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
        /// If this is the first block of the object: make a buffer of so many bytes first.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// All blocks are there: verify the digest and say [`Receiver::verified`].
    Complete {
        /// Which object.
        object: u64,
        /// Where it lies.
        slot: Slot,
        /// Its length.
        bytes: u32,
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
/// Report interval until the server names one.
const REPORT_INTERVAL_FIRST: Duration = Duration::from_millis(5);
/// Receivers that have nothing to ask for say so at least this often.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Time from a report to its effect, besides the round trip.
const ANSWER: Duration = Duration::from_millis(2);
const LEAVES: u8 = 2;
const LEAVE_SPACING: Duration = Duration::from_millis(20);

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
    /// The pass that was refused last: its object and the sequence of its block 0.
    refused_pass: (u64, u64),
    slots: Slots,
    stream: Stream,
    interval: Duration,
    rtt: Duration,
    /// What the server will send whole, as it said last.
    pending: Vec<ObjectRange>,
    heard_at: Instant,
    progress_at: Instant,
    silent: bool,
    stalled: bool,
    epoch_seen: u32,
    tick_at: Instant,
    /// Back-off while the server is silent.
    probe: Duration,
    reported_at: Instant,
    /// Whole objects are not asked for again before this, so that an answer can come.
    window_at: Instant,
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
            refused_pass: (u64::MAX, 0),
            slots: Slots::new(config.buffer_bytes, config.object_bytes_mean, config.mutant),
            stream: Stream::new(config.shape.heads, config.mutant),
            interval: REPORT_INTERVAL_FIRST,
            rtt: Duration::from_millis(10),
            pending: Vec::new(),
            heard_at: now,
            progress_at: now,
            silent: false,
            stalled: false,
            epoch_seen: config.shape.epoch,
            tick_at: now,
            probe: Duration::ZERO,
            reported_at: now,
            window_at: now,
            asked: config.mutant.is(Mutant::AsksOnce).then(|| ObjectSet::new(objects)),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: ReceiverCounters::default(),
            config,
        }
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
        self.probe = Duration::ZERO;
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
            self.say_leave(now, left);
            return;
        }
        self.stream.settle(now);
        self.watch(now);
        if self.probe > Duration::ZERO || now.since(self.heard_at) >= SILENCE || self.stream.is_unheard() {
            self.say_join(now);
        } else {
            self.report(now);
            let spread = self.config.chance.below(nanos(self.interval).max(1));
            self.tick_at = now + self.interval / 2 + Duration::from_nanos(spread);
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
            self.phase = Phase::Leaving(LEAVES);
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
        let blocks_lost = self.stream.lost();
        ReceiverCounters { blocks_lost, free_bytes: self.slots.free_bytes(), ..self.counters }
    }

    fn take_block(&mut self, now: Instant, header: &BlockHeader) -> Disposition {
        self.stream.block(now, header);
        self.counters.newest_timestamp_us = header.timestamp_us;
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
        // Of a pass that began without room nothing is taken: the rest would have to be repaired, which goes before
        // what others wait for.
        let pass = (header.object, header.sequence - u64::from(header.block));
        if self.refused_pass == pass {
            return Disposition::BufferFull;
        }
        let blocks = self.config.shape.blocks(header.object_bytes);
        let Some(slot) = self.slots.begin(header, blocks) else {
            self.refused_pass = pass;
            return Disposition::BufferFull;
        };
        self.open.remove(header.object);
        match self.slots.place(slot, header, &self.config.shape) {
            Disposition::Place { slot, offset, .. } => {
                Disposition::Place { slot, offset, begins: Some(header.object_bytes) }
            }
            other => other,
        }
    }

    /// A new block of `object` was placed.
    fn progress(&mut self, now: Instant, object: u64) {
        self.counters.blocks_received += 1;
        self.progress_at = now;
        if std::mem::replace(&mut self.stalled, false) {
            self.events.push_back(ReceiverEvent::Resumed);
        }
        if let Some((slot, bytes)) = self.slots.complete(object) {
            self.refused.remove(object);
            self.events.push_back(ReceiverEvent::Complete { object, slot, bytes });
        }
    }

    fn take_status(&mut self, now: Instant, status: &Status) {
        self.stream.status(now, status);
        self.counters.newest_timestamp_us = status.timestamp_us;
        self.interval = status.report_interval.max(Duration::from_micros(100));
        self.pending.clone_from(&status.pending);
        if let Some(echo) = status.echo.filter(|echo| echo.receiver == self.config.receiver) {
            let taken = micros(now).wrapping_sub(echo.timestamp_us).saturating_sub(echo.age_us);
            let sample = Duration::from_micros(taken.into()).min(Duration::from_secs(1));
            self.rtt = (self.rtt * 7 + sample) / 8;
        }
        if status.idle && !self.lacking.is_empty() {
            self.hurry(now);
        }
    }

    /// Reports soon, but not all receivers at once.
    fn hurry(&mut self, now: Instant) {
        let spread = self.config.chance.below(nanos(self.interval).max(1));
        self.tick_at = self.tick_at.min(now + Duration::from_nanos(spread));
    }

    /// Tells the driver of silence and of stalls.
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
    }

    /// Reports what is lacking, if that is news for the server; or that this receiver is still here.
    fn report(&mut self, now: Instant) {
        let room = usize::from(self.config.shape.block_bytes) + BLOCK_HEADER_BYTES;
        let mut lacking = Lacking::default();
        let retry = self.rtt + self.interval + ANSWER;
        if !self.config.mutant.is(Mutant::DropsBlockNeeds) {
            let view = View { stream: &self.stream, refused: &self.refused, pending: &self.pending };
            self.slots.lacking_blocks(now, retry, &view, room, &mut lacking);
        }
        if now >= self.window_at || self.config.mutant.is(Mutant::ForgetsBackOff) {
            let window = self.window();
            if window.is_news(&self.pending) || self.config.mutant.is(Mutant::ForgetsBackOff) {
                window.write(room, &mut lacking);
                self.window_at = now + retry;
            }
        }
        if let Some(asked) = &mut self.asked {
            lacking
                .whole
                .retain(|need| (need.objects.first..need.objects.end()).any(|object| asked.insert(object)));
        }
        let keepalive = KEEPALIVE.max(self.interval * 4);
        if !lacking.is_empty() || now.since(self.reported_at) >= keepalive {
            self.reported_at = now;
            let report = self.header(now);
            self.send(&Upstream::Need(report, lacking));
        }
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
        } else if self.stream.went_by(object) {
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
        self.probe = (self.probe * 2).clamp(PROBE_MIN, PROBE_MAX);
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
        let newest_age_us = u32::try_from(now.since(self.heard_at).as_micros()).unwrap_or(u32::MAX);
        Report {
            receiver: self.config.receiver,
            timestamp_us: micros(now),
            seen: self.stream.settled(),
            counters: ReceiverCounters { newest_age_us, ..self.counters() },
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

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
