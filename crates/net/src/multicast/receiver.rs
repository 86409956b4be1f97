//! The receiver's driver: one thread reads packets, and passes complete objects to a [`Consumer`].
//!
//! Each block is copied once, from the kernel's buffer into the buffer of its object, and decrypted there. If the
//! consumer (the installer) is busy, complete objects stay in their buffers. So the state machine runs out of buffers
//! and requests less, and this process does not run out of memory.
//!
//! The state machine knows only objects of the session, which are bundles of stored objects (see [`super::bundle`]).
//! The consumer knows only stored objects. The driver converts between them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use bytes::Bytes;
use proto::code::{self, Held};
use proto::multicast::{
    Disposition, Downstream, ObjectRange, PayloadCipher, Receiver, ReceiverConfig, ReceiverEvent, ReceiverId,
    Shape, Slot, Strain, open_train, seal,
};

use super::authentic::Authentic;
pub use super::authentic::Forged;
use super::buffers::Buffers;
use super::bundle::Lacked;
pub use super::consumer::{Accept, Consumer, End, ReceiveOptions, Received, SessionView, Wish};
use super::foreign::Foreign;
use super::outage::Outage;
pub use super::outage::Reach;
use super::terms::{Terms, bundle_bytes_max, bundle_bytes_mean, shape_of};
use super::trial::{HEAD_BYTES_MIN, Trial};
use crate::api::SessionGrant;
use crate::clock::{self, Clock};
use crate::udp::{self, Arrivals, GroupReceiver, ReportSocket};
use crate::waker::Waker;

/// Longest wait of the driver, so that it notices changes that do not wake it.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Wait while the consumer has no room for an object.
const RETRY: Duration = Duration::from_millis(2);
/// How long the server must be silent before a packet with another epoch is believed.
const EPOCH_DOUBT: Duration = Duration::from_millis(500);
/// Longest time for leaving the session.
const FAREWELL: Duration = Duration::from_millis(100);
/// Batches of packets that are read before the driver does its other work.
const BATCHES_PER_TURN: usize = 16;

/// Takes part in the session of `grant` until everything that `consumer` wants has arrived, or the session fails.
///
/// # Errors
/// Those of `consumer`; `Invalid` for a grant that is out of bounds; `Io` if the group cannot be joined.
pub fn receive(
    grant: &SessionGrant,
    options: &ReceiveOptions,
    consumer: &mut dyn Consumer,
) -> Result<Received> {
    let source = options.source_specific.then_some(grant.source).filter(IpAddr::is_ipv4);
    let group = GroupReceiver::join(grant.group, &options.interface, source)?;
    let report = ReportSocket::open(grant.report, &options.interface)?;
    let clock = Clock::start();
    let shape = shape_of(grant)?;
    let machine = Receiver::new(
        clock.now(),
        ReceiverConfig {
            stays: options.stays,
            shape,
            receiver: ReceiverId(grant.receiver),
            // Room for at least two bundles: one that arrives, and one that the consumer takes.
            buffer_bytes: options.buffer_bytes.max(2 * bundle_bytes_max(grant)),
            object_bytes_mean: bundle_bytes_mean(grant, options.object_bytes_mean),
            silent_after: options.silent_after,
            stalled_after: options.stalled_after,
            receivers: grant.receivers,
            chance: clock::jitter(),
        },
    );
    let driver = Driver {
        clock,
        shape,
        machine,
        group,
        report,
        group_key: grant.group_key.into(),
        authentic: Authentic::new(grant),
        cipher: grant.payload_key.map(|key| PayloadCipher::new(&key.into())),
        receiver_key: grant.receiver_key.into(),
        options,
        consumer,
        packing: grant.into(),
        lacked: Lacked::new(grant.heads, grant.stored_objects),
        scattered_bytes: options.scattered_bytes_max,
        buffers: Buffers::default(),
        waiting: VecDeque::new(),
        heard: false,
        heard_at: clock.now(),
        end: None,
        outage: None,
        foreign: Foreign::new(clock.now()),
        trial: None,
        finishing: false,
        moved_at: clock.now(),
        counted: Counted::default(),
    };
    driver.run()
}

/// The driver's counters.
#[derive(Default)]
struct Counted {
    objects: u64,
    bytes: u64,
    spoilt: u64,
    scattered: u64,
    unanswered: u64,
}

/// A complete object, and those of its stored objects that were not taken yet, the next one last.
struct Whole {
    slot: Slot,
    bytes: Bytes,
    parts: Vec<(u64, Range<usize>)>,
}

struct Driver<'a> {
    clock: Clock,
    shape: Shape,
    machine: Receiver,
    group: GroupReceiver,
    report: ReportSocket,
    group_key: proto::multicast::Key,
    authentic: Authentic,
    cipher: Option<PayloadCipher>,
    receiver_key: proto::multicast::Key,
    options: &'a ReceiveOptions,
    consumer: &'a mut dyn Consumer,
    packing: Terms,
    lacked: Lacked,
    scattered_bytes: u64,
    buffers: Buffers,
    waiting: VecDeque<Whole>,
    heard: bool,
    heard_at: Instant,
    /// Why the session has ended, according to the state machine.
    end: Option<End>,
    /// The session had worked, and is silent now.
    outage: Option<Outage>,
    foreign: Foreign,
    trial: Option<Trial>,
    /// The consumer will want nothing more.
    finishing: bool,
    /// When the consumer last took an object, or had no room for one.
    moved_at: Instant,
    counted: Counted,
}

impl Driver<'_> {
    fn run(mut self) -> Result<Received> {
        let mut arrivals = Arrivals::default();
        let outcome = self.until_end(&mut arrivals);
        // Leave in any case, so that the server does not count this receiver until its timeout.
        let farewell = Clock::start();
        self.leave();
        Ok(Received {
            end: outcome?,
            objects: self.counted.objects,
            bytes: self.counted.bytes,
            spoilt: self.counted.spoilt,
            scattered: self.counted.scattered,
            unanswered: self.counted.unanswered,
            forged: self.authentic.forged().clone(),
            counters: self.machine.counters(),
            socket_buffer_bytes: self.group.buffer_bytes(),
            farewell: farewell.elapsed(),
        })
    }

    fn until_end(&mut self, arrivals: &mut Arrivals) -> Result<End> {
        loop {
            self.heed_wishes()?;
            let more = self.take_packets(arrivals)?;
            let now = self.clock.now();
            if self.machine.poll_timeout().is_some_and(|due| due <= now) {
                self.machine.handle_timeout(now);
            }
            self.hand_on()?;
            self.transmit();
            if self.heard {
                let (receivers, blocks) = (self.machine.receivers(), self.machine.counters().blocks_received);
                self.consumer.observe(SessionView { receivers, blocks });
            }
            if let Some(end) = self.is_over(now) {
                return Ok(end);
            }
            if !more {
                self.wait()?;
            }
        }
    }

    fn is_over(&mut self, now: Instant) -> Option<End> {
        let (lacked, by_session) = self.lacked.counts();
        let done = self.finishing && lacked == 0;
        let stuck = by_session > 0 && now.since(self.moved_at) > self.options.stalled_after;
        match self.end {
            _ if done => Some(End::Complete),
            _ if self.options.stop.is_stopped() => Some(End::Stopped),
            // Packets with another epoch are not authenticated: they are believed only while the old epoch is silent.
            Some(End::NewEpoch) if now.since(self.heard_at) < EPOCH_DOUBT => None,
            Some(end) => Some(end),
            None if self.outage.is_some() => {
                let is_final = self.outage.as_mut().is_some_and(|outage| outage.is_final(now));
                is_final.then_some(End::Silent { heard: true })
            }
            None if self.heard => stuck.then_some(End::Stalled),
            None => stuck.then_some(End::Silent { heard: false }),
        }
    }

    /// Sends the LEAVEs of the state machine.
    fn leave(&mut self) {
        let begin = self.clock.now();
        self.machine.leave(begin);
        loop {
            let now = self.clock.now();
            self.machine.handle_timeout(now);
            self.transmit();
            if self.machine.is_gone() || now.since(begin) > FAREWELL {
                return;
            }
            let due = self.machine.poll_timeout().map_or(Duration::ZERO, |due| due.since(now));
            let _ = udp::wait(&[], None, due.min(FAREWELL));
        }
    }

    fn heed_wishes(&mut self) -> Result<()> {
        let (mut wanted, mut hurried) = (Vec::new(), Vec::new());
        for wish in self.consumer.wishes()? {
            let wish = match wish {
                Wish::Hurry(stored) => {
                    hurried.push(stored);
                    Wish::Want(stored..stored + 1)
                }
                wish => wish,
            };
            match wish {
                Wish::Lengths(lengths) => self.lacked.learn(self.packing.packing(lengths)?),
                Wish::Want(range) if range.clone().last().is_some_and(|last| !self.lacked.is_known(last)) => {
                    let context = format!("objects {range:?} are wanted, which the session does not have");
                    return Err(Error::new(ErrorKind::Invalid, context));
                }
                Wish::Want(range) => wanted.push(range),
                Wish::Hurry(_) => unreachable!("it was made a want"),
                Wish::Have(stored) => {
                    self.judge_trial(stored);
                    let whole = self.lacked.have(stored);
                    if let Some(slot) = whole.and_then(|object| self.machine.satisfied(object)) {
                        self.buffers.drop(slot);
                    }
                }
                Wish::Nothing => self.finishing = true,
            }
        }
        if !wanted.is_empty() {
            self.want(&wanted);
        }
        let now = self.clock.now();
        for stored in hurried {
            self.machine.urge(now, self.lacked.object_of(stored));
        }
        Ok(())
    }

    fn want(&mut self, stored: &[Range<u64>]) {
        let now = self.clock.now();
        self.moved_at = now;
        let ways = self.lacked.want(stored, self.packing.receivers, &mut self.scattered_bytes);
        for Range { start: mut first, end } in ways.objects {
            while first < end {
                let count = u32::try_from(end - first).unwrap_or(u32::MAX);
                self.machine.want(now, ObjectRange { first, count });
                first += u64::from(count);
            }
        }
        self.counted.scattered += ways.scattered.len() as u64;
        ways.scattered.into_iter().for_each(|stored| self.consumer.get_otherwise(stored));
    }

    /// Reads a bounded number of batches of packets. True if there may be more.
    fn take_packets(&mut self, arrivals: &mut Arrivals) -> Result<bool> {
        for _ in 0..BATCHES_PER_TURN {
            let came = self.group.receive(arrivals);
            if !came.map_err(|error| Error::from_source(ErrorKind::Io, "receive from the group", error))? {
                return Ok(false);
            }
            let now = self.clock.now();
            let (key, shape) = (self.group_key.clone(), self.shape);
            for train in arrivals.trains() {
                let packets = open_train(&key, &shape, train.bytes, train.packet_bytes);
                let kept = u64::try_from(train.kept.as_nanos()).unwrap_or(0);
                let from = (train.from.ip(), Instant(now.0.saturating_sub(kept)));
                for (datagram, packet) in train.bytes.chunks(train.packet_bytes).zip(packets) {
                    match packet {
                        Ok(packet) => self.take_packet(now, from, datagram, &packet),
                        Err(why) => self.machine.handle_reject(why),
                    }
                }
            }
            // Complete objects are passed on while they are still in the processor's cache.
            self.hand_on()?;
        }
        Ok(true)
    }

    /// Takes a packet that came from an address and arrived at a time.
    fn take_packet(
        &mut self,
        now: Instant,
        (from, arrived): (IpAddr, Instant),
        datagram: &[u8],
        packet: &Downstream<'_>,
    ) {
        if !self.authentic.accepts(from, datagram, packet) {
            return;
        }
        if let Downstream::Block(header, _) = packet
            && self.lacked.bytes_of(header.object).is_some_and(|bytes| bytes != header.object_bytes)
        {
            return self.authentic.note(from);
        }
        (self.heard, self.heard_at) = (true, now);
        let disposition = self.machine.handle_late_input(now, arrived, packet);
        if let Disposition::Place { slot, offset, begins } = disposition
            && let Downstream::Block(header, payload) = packet
        {
            if let Some(padded) = begins {
                self.buffers.begin(slot, header.object_bytes, padded);
            }
            let placed = self.buffers.place(slot, offset, payload);
            if let Some(cipher) = &self.cipher {
                cipher.apply(header.sequence, placed);
            }
        }
    }

    /// Handles the state machine's events, and passes complete objects to the consumer until it has no room.
    fn hand_on(&mut self) -> Result<()> {
        self.heed_events();
        while let Some(mut whole) = self.waiting.pop_front() {
            if !self.hand_on_parts(&mut whole)? {
                self.waiting.push_front(whole);
                break;
            }
            self.machine.verified(self.clock.now(), whole.slot, true);
            self.machine.release(whole.slot);
            self.heed_events();
        }
        Ok(())
    }

    /// Passes the wanted parts of an object to the consumer, which verifies each part by its own digest: a wrong part
    /// does not affect the others. False if the consumer has no room.
    fn hand_on_parts(&mut self, whole: &mut Whole) -> Result<bool> {
        while let Some((stored, part)) = whole.parts.pop() {
            if !self.lacked.contains(stored) {
                continue;
            }
            let accept = self.consumer.take(stored, &whole.bytes.slice(part.clone()))?;
            self.moved_at = self.clock.now();
            match accept {
                Accept::Full => {
                    whole.parts.push((stored, part));
                    return Ok(false);
                }
                Accept::Bad if self.lacked.get_otherwise(stored) => {
                    self.counted.spoilt += 1;
                    self.consumer.mend(stored, &whole.bytes.slice(part));
                }
                Accept::Bad => {}
                Accept::Taken => {
                    self.counted.objects += 1;
                    self.counted.bytes += part.len() as u64;
                    self.lacked.have(stored);
                }
            }
        }
        Ok(true)
    }

    /// Leaves a stored object to unicast. Returns 1, or 0 if it is not wanted or already left to unicast.
    fn get_otherwise(&mut self, stored: u64) -> u64 {
        let is_new = self.lacked.get_otherwise(stored);
        if is_new {
            self.consumer.get_otherwise(stored);
        }
        u64::from(is_new)
    }

    fn heed_events(&mut self) {
        let now = self.clock.now();
        self.foreign.look(now);
        while let Some(event) = self.machine.poll_event() {
            match event {
                ReceiverEvent::Complete { object, slot, bytes, held } => {
                    self.complete(object, slot, bytes, &held);
                }
                ReceiverEvent::FetchByUnicast { object } => {
                    let stored = self.lacked.stored(object);
                    self.counted.unanswered += stored.map(|stored| self.get_otherwise(stored)).sum::<u64>();
                }
                ReceiverEvent::Silent { .. } => match self.options.reach.as_ref().filter(|_| self.heard) {
                    Some(reach) => self.outage = Some(Outage::begin(reach)),
                    None => self.end = Some(End::Silent { heard: self.heard }),
                },
                ReceiverEvent::Stalled { .. } if self.waiting.is_empty() => self.end = Some(End::Stalled),
                ReceiverEvent::Stalled { .. } => {}
                ReceiverEvent::Resumed => (self.end, self.outage) = (None, None),
                ReceiverEvent::TooSlow(strain) if self.options.leaves_if_slow && !self.options.stays => {
                    // Without other traffic, leaving makes room for nobody.
                    if strain != Strain::Queue || self.foreign.wants_room(now) {
                        self.end = Some(End::TooSlow(strain));
                    }
                }
                ReceiverEvent::Half(half) if self.options.leaves_if_slow => self.end = Some(End::Half(half)),
                ReceiverEvent::Behind { bytes_each_second }
                    if self.options.leaves_if_slow && !self.options.stays && self.trial.is_none() =>
                {
                    self.begin_trial(now, bytes_each_second);
                }
                ReceiverEvent::TooSlow(_) | ReceiverEvent::Half(_) | ReceiverEvent::Behind { .. } => {}
                ReceiverEvent::NewEpoch { .. } => self.end = Some(End::NewEpoch),
                ReceiverEvent::Ended => self.end = Some(End::Ended),
            }
        }
    }

    /// Fetches an object in another way, since the session brings little.
    fn begin_trial(&mut self, now: Instant, by_session: u64) {
        let stored = self.machine.next_lacking(0).map(|object| self.lacked.stored(object));
        for stored in stored.into_iter().flatten() {
            if self.get_otherwise(stored) > 0 {
                let bytes = self.lacked.stored_bytes(stored).unwrap_or(HEAD_BYTES_MIN);
                self.trial = Some(Trial { stored, bytes, begun: now, by_session });
                return;
            }
        }
    }

    /// An object arrived in another way: if it was fetched to see how fast that is, the session may be left.
    fn judge_trial(&mut self, stored: u64) {
        let now = self.clock.now();
        if self.trial.take_if(|trial| trial.stored == stored).is_some_and(|trial| trial.is_better(now)) {
            self.end = Some(End::Behind);
        }
    }

    /// Restores an object with the symbols in its buffer, and splits it into stored objects.
    fn complete(&mut self, object: u64, slot: Slot, bytes: u32, held: &[Held]) {
        let block_bytes = self.shape.block_bytes.into();
        let right = held.is_empty() || code::recover(self.buffers.of(slot), block_bytes, held).is_ok();
        let bytes = self.buffers.lend(slot, bytes);
        match self.lacked.parts(object, bytes.len()).filter(|_| right) {
            Some(mut parts) => {
                parts.reverse();
                self.waiting.push_back(Whole { slot, bytes, parts });
            }
            // Its length is wrong, so a member forged packets: the machine reports it as `FetchByUnicast`.
            None => self.machine.verified(self.clock.now(), slot, false),
        }
    }

    fn transmit(&mut self) {
        while let Some(mut packet) = self.machine.poll_transmit() {
            seal(&self.receiver_key, &mut packet);
            // A packet that cannot be sent is lost, as on the network: the machine will report again.
            let _ = self.report.send(&packet);
        }
    }

    fn wait(&self) -> Result<()> {
        let due = self.machine.poll_timeout().map_or(WAIT_MAX, |due| due.since(self.clock.now()));
        let longest = if self.waiting.is_empty() { WAIT_MAX } else { RETRY };
        let waker = self.consumer.waker();
        let waited = match waker {
            Some(waker) => udp::wait(&[&self.group, waker], None, due.min(longest)),
            None => udp::wait(&[&self.group], None, due.min(longest)),
        };
        waker.into_iter().for_each(Waker::clear);
        waited.map(drop).map_err(|error| Error::from_source(ErrorKind::Io, "wait for the group", error))
    }
}
