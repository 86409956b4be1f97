//! The receiver's driver: one thread takes packets in, and hands whole objects on.
//!
//! Each block is copied once, from where the kernel put it into its object's buffer. What cannot be handed on at once
//! (the installer is busy) stays in its buffer, and so the machine runs out of buffers, not this process of memory.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use base::{Instant, limits};
use bytes::Bytes;
use proto::multicast::{
    Disposition, Downstream, ObjectRange, Receiver, ReceiverConfig, ReceiverCounters, ReceiverEvent,
    ReceiverId, Shape, Slot, open_downstream, seal,
};

use crate::api::SessionGrant;
use crate::clock::{self, Clock, Stop};
use crate::error::{Error, ErrorKind, Result};
use crate::interface::Interface;
use crate::udp::{self, Arrivals, GroupReceiver, ReportSocket};

/// Longest wait of the driver, so that it notices what nobody tells it.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Wait while objects cannot be handed on.
const RETRY: Duration = Duration::from_millis(2);
/// How long a server must have been silent until another epoch is believed.
const EPOCH_DOUBT: Duration = Duration::from_millis(500);
/// How long the goodbye may take.
const FAREWELL: Duration = Duration::from_millis(100);
/// Batches that are taken in between two looks at everything else.
const BATCHES_PER_TURN: usize = 16;

/// How a session is received.
#[derive(Debug, Clone)]
pub struct ReceiveOptions {
    /// Interface to join the group on.
    pub interface: Interface,
    /// Whether to join for the server's address only.
    pub source_specific: bool,
    /// Memory for objects, in bytes.
    pub buffer_bytes: u64,
    /// What an object has on average, in bytes.
    pub object_bytes_mean: u32,
    /// Without any packet of the server for so long, the session has failed.
    pub silent_after: Duration,
    /// Without any new object for so long, though the server speaks and there is room, the session has failed.
    pub stalled_after: Duration,
    /// Ends it.
    pub stop: Stop,
}

impl ReceiveOptions {
    /// The defaults, on `interface`.
    #[must_use]
    pub fn on(interface: Interface) -> Self {
        Self {
            interface,
            source_specific: false,
            buffer_bytes: limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            object_bytes_mean: limits::CHUNK_BYTES_DEFAULT,
            silent_after: Duration::from_secs(3),
            stalled_after: Duration::from_secs(10),
            stop: Stop::new(),
        }
    }
}

/// What came of handing an object on.
#[derive(Debug)]
pub enum Accept {
    /// It is right and taken, or no longer needed.
    Taken,
    /// There is no room now: it will be handed on again.
    Full,
    /// Its digest is wrong.
    Bad,
}

/// What a receiver changes of what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// These objects are wanted.
    Want(std::ops::Range<u64>),
    /// This object is here by other means.
    Have(u64),
    /// Nothing more will be wanted: when all is here, the session has done its work.
    Nothing,
}

/// Who wants the objects. Called by the driving thread, and must not wait.
pub trait Consumer {
    /// What changed of what is wanted, since the last call.
    ///
    /// # Errors
    /// Any error ends the session.
    fn wishes(&mut self) -> Result<Vec<Wish>>;

    /// Takes the bytes of `object`, after having verified them.
    ///
    /// # Errors
    /// Any error ends the session.
    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept>;

    /// `object` came with a wrong digest and will not be asked for again: get it by other means.
    fn spoilt(&mut self, object: u64);
}

/// Why receiving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All that was wanted is here.
    Complete,
    /// Nothing was heard from the server, ever or any more.
    Silent {
        /// Whether anything was heard before.
        heard: bool,
    },
    /// The server speaks, but nothing new comes.
    Stalled,
    /// The server started anew: ask it for another grant.
    NewEpoch,
    /// The server ended the session.
    Ended,
    /// The caller asked to stop.
    Stopped,
}

/// What receiving did.
#[derive(Debug, Clone)]
pub struct Received {
    /// Why it ended.
    pub end: End,
    /// Objects handed on.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What the machine counted.
    pub counters: ReceiverCounters,
    /// Receive buffer that the system granted, in bytes.
    pub socket_buffer_bytes: usize,
}

/// Takes part in the session of `grant` until all that `consumer` wants is here, or it no longer works.
///
/// # Errors
/// What `consumer` says; `Invalid` for a grant that breaks its bounds; `Io` where the group cannot be joined.
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
            shape,
            receiver: ReceiverId(grant.receiver),
            buffer_bytes: options.buffer_bytes,
            object_bytes_mean: options.object_bytes_mean,
            silent_after: options.silent_after,
            stalled_after: options.stalled_after,
            chance: clock::jitter(),
            mutant: proto::multicast::Mutant::default(),
        },
    );
    let driver = Driver {
        clock,
        shape,
        machine,
        group,
        report,
        group_key: grant.group_key.into(),
        receiver_key: grant.receiver_key.into(),
        options,
        consumer,
        buffers: Buffers::default(),
        waiting: VecDeque::new(),
        heard: false,
        heard_at: clock.now(),
        end: None,
        finishing: false,
        moved_at: clock.now(),
        objects: 0,
        bytes: 0,
    };
    driver.run()
}

fn shape_of(grant: &SessionGrant) -> Result<Shape> {
    let blocks = limits::BLOCK_BYTES_MIN..=limits::BLOCK_BYTES_MAX;
    let objects = 1..=limits::SESSION_OBJECTS_MAX;
    if !blocks.contains(&grant.block_bytes)
        || !objects.contains(&grant.object_count)
        || grant.heads > grant.object_count
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("the server's grant breaks its bounds: {grant:?}"),
        ));
    }
    Ok(Shape {
        session: u64::try_from(grant.session.0 & u128::from(u64::MAX)).expect("64 bits"),
        epoch: grant.epoch,
        objects: grant.object_count,
        heads: grant.heads,
        block_bytes: grant.block_bytes,
    })
}

/// Buffers of objects, by the machine's slots.
#[derive(Default)]
struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn place(&mut self, slot: Slot, offset: u32, begins: Option<u32>, payload: &[u8]) {
        let index = slot.0 as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, Vec::new);
        }
        if let Some(bytes) = begins {
            self.0[index] = vec![0; bytes as usize];
        }
        let offset = offset as usize;
        self.0[index][offset..offset + payload.len()].copy_from_slice(payload);
    }

    fn take(&mut self, slot: Slot) -> Vec<u8> {
        self.0.get_mut(slot.0 as usize).map(std::mem::take).unwrap_or_default()
    }
}

/// An object that is whole, and was not taken yet.
struct Whole {
    object: u64,
    slot: Slot,
    bytes: Bytes,
}

struct Driver<'a> {
    clock: Clock,
    shape: Shape,
    machine: Receiver,
    group: GroupReceiver,
    report: ReportSocket,
    group_key: proto::multicast::Key,
    receiver_key: proto::multicast::Key,
    options: &'a ReceiveOptions,
    consumer: &'a mut dyn Consumer,
    buffers: Buffers,
    waiting: VecDeque<Whole>,
    heard: bool,
    heard_at: Instant,
    /// What the machine says of the session's end.
    end: Option<End>,
    /// Nothing more will be wanted.
    finishing: bool,
    /// When an object was last handed on, or could not be because the consumer had no room.
    moved_at: Instant,
    objects: u64,
    bytes: u64,
}

impl Driver<'_> {
    fn run(mut self) -> Result<Received> {
        let mut arrivals = Arrivals::default();
        let outcome = self.until_end(&mut arrivals);
        // The server is told in any case, so that it does not wait for this receiver.
        self.leave();
        Ok(Received {
            end: outcome?,
            objects: self.objects,
            bytes: self.bytes,
            counters: self.machine.counters(),
            socket_buffer_bytes: self.group.buffer_bytes(),
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
            if let Some(end) = self.is_over(now) {
                return Ok(end);
            }
            if !more {
                self.wait()?;
            }
        }
    }

    fn is_over(&mut self, now: Instant) -> Option<End> {
        let done = self.finishing && self.machine.lacking() == 0 && self.waiting.is_empty();
        let stuck = self.machine.lacking() > 0 && now.since(self.moved_at) > self.options.stalled_after;
        match self.end {
            _ if done => Some(End::Complete),
            _ if self.options.stop.is_stopped() => Some(End::Stopped),
            // Anybody can claim a new epoch: it is believed only while the old one is silent.
            Some(End::NewEpoch) if now.since(self.heard_at) < EPOCH_DOUBT => None,
            Some(end) => Some(end),
            None if self.heard => stuck.then_some(End::Stalled),
            None => stuck.then_some(End::Silent { heard: false }),
        }
    }

    /// Says goodbye, as often as the machine wants to.
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
        for wish in self.consumer.wishes()? {
            match wish {
                Wish::Want(range) if range.end > self.shape.objects => {
                    let context =
                        format!("the session has {} objects, wanted are {range:?}", self.shape.objects);
                    return Err(Error::new(ErrorKind::Invalid, context));
                }
                Wish::Want(range) => self.want(range),
                Wish::Have(object) => {
                    if let Some(slot) = self.machine.satisfied(object) {
                        drop(self.buffers.take(slot));
                    }
                }
                Wish::Nothing => self.finishing = true,
            }
        }
        Ok(())
    }

    fn want(&mut self, range: std::ops::Range<u64>) {
        let now = self.clock.now();
        self.moved_at = now;
        let mut first = range.start;
        while first < range.end {
            let count = u32::try_from(range.end - first).unwrap_or(u32::MAX);
            self.machine.want(now, ObjectRange { first, count });
            first += u64::from(count);
        }
    }

    /// Takes in what has come, a bounded number of batches. True if there may be more.
    fn take_packets(&mut self, arrivals: &mut Arrivals) -> Result<bool> {
        for _ in 0..BATCHES_PER_TURN {
            let came = self.group.receive(arrivals);
            if !came.map_err(|error| Error::from_source(ErrorKind::Io, "receive from the group", error))? {
                return Ok(false);
            }
            let now = self.clock.now();
            for (_, datagram) in arrivals.packets() {
                self.take_packet(now, datagram);
            }
            // What is whole is handed on while it is still in the processor's cache.
            self.hand_on()?;
        }
        Ok(true)
    }

    fn take_packet(&mut self, now: Instant, datagram: &[u8]) {
        let packet = match open_downstream(&self.group_key, &self.shape, datagram) {
            Ok(packet) => packet,
            Err(why) => return self.machine.handle_reject(why),
        };
        (self.heard, self.heard_at) = (true, now);
        let disposition = self.machine.handle_input(now, &packet);
        if let Disposition::Place { slot, offset, begins } = disposition
            && let Downstream::Block(_, payload) = packet
        {
            self.buffers.place(slot, offset, begins, payload);
        }
    }

    /// Notes what happened, and hands whole objects on until there are no more or the consumer is full.
    fn hand_on(&mut self) -> Result<()> {
        self.heed_events();
        while let Some(whole) = self.waiting.front() {
            let accept = self.consumer.take(whole.object, &whole.bytes)?;
            let now = self.clock.now();
            self.moved_at = now;
            let slot = whole.slot;
            match accept {
                Accept::Full => break,
                Accept::Bad => self.machine.verified(now, slot, false),
                Accept::Taken => {
                    self.objects += 1;
                    self.bytes += whole.bytes.len() as u64;
                    self.machine.verified(now, slot, true);
                    self.machine.release(slot);
                }
            }
            self.waiting.pop_front();
            self.heed_events();
        }
        Ok(())
    }

    fn heed_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                ReceiverEvent::Complete { object, slot, .. } => {
                    let bytes = self.buffers.take(slot).into();
                    self.waiting.push_back(Whole { object, slot, bytes });
                }
                ReceiverEvent::FetchByUnicast { object } => self.consumer.spoilt(object),
                ReceiverEvent::Silent { .. } => self.end = Some(End::Silent { heard: self.heard }),
                ReceiverEvent::Stalled { .. } if self.waiting.is_empty() => self.end = Some(End::Stalled),
                ReceiverEvent::Stalled { .. } => {}
                ReceiverEvent::Resumed => self.end = None,
                ReceiverEvent::NewEpoch { .. } => self.end = Some(End::NewEpoch),
                ReceiverEvent::Ended => self.end = Some(End::Ended),
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(mut packet) = self.machine.poll_transmit() {
            seal(&self.receiver_key, &mut packet);
            // What cannot go is lost, as on the network: the machine reports again.
            let _ = self.report.send(&packet);
        }
    }

    fn wait(&self) -> Result<()> {
        let due = self.machine.poll_timeout().map_or(WAIT_MAX, |due| due.since(self.clock.now()));
        let longest = if self.waiting.is_empty() { WAIT_MAX } else { RETRY };
        let waited = udp::wait(&[&self.group], None, due.min(longest));
        waited.map(drop).map_err(|error| Error::from_source(ErrorKind::Io, "wait for the group", error))
    }
}
