//! The host of a receiver: its state machine, its buffers, its disk, and how it crashes and restarts.

use std::collections::VecDeque;

use base::{Chance, Duration, Instant};
use proto::code::{Held, recover};
use proto::multicast::{
    Disposition, Downstream, ObjectRange, Receiver, ReceiverConfig, ReceiverEvent, ReceiverId, Reject, Shape,
    Slot, open_downstream,
};

use crate::scenario::{Ailment, Host};
use crate::server_host::{Packet, Sent, group_key};
use crate::truth::Truth;

/// An object that is being written to the disk.
#[derive(Debug)]
struct Job {
    slot: Slot,
    object: u64,
    bytes: u32,
    /// May be longer than `bytes`, because of padding.
    buffer: Vec<u8>,
}

/// An object with enough blocks and symbols to be recovered.
struct Complete {
    object: u64,
    slot: Slot,
    bytes: u32,
    held: Box<[Held]>,
}

/// The admission to a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub shape: Shape,
    pub receiver: ReceiverId,
    /// Number of receivers admitted so far, this one included.
    pub receivers: u32,
}

/// Time for which the server may continue to serve requests of a receiver that has left.
const MISSED_FOR: Duration = Duration::from_secs(5);

/// A request of a host to the simulated world.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Send this to the server.
    Send(Vec<u8>),
    /// Report at this time that the disk has written the object that was queued last.
    Written(Instant),
    /// Fetch an object over the control connection.
    Unicast(u64),
    /// Fetch everything that is not installed over the control connection, as fast as the port allows.
    UnicastRest,
    /// Ask for a grant.
    Regrant,
    /// An object passed or failed verification.
    Judged { object: u64, ok: bool },
    /// The machine reports that everything is installed.
    Done,
}

/// The state of a receiver's host.
#[derive(Debug)]
pub(crate) struct ReceiverHost {
    /// `None` while it is down or done.
    pub machine: Option<Receiver>,
    pub shape: Shape,
    /// Counts starts, so that events of an earlier life can be ignored.
    pub life: u32,
    pub timer: Option<Instant>,
    pub disk_bytes_per_second: u64,
    /// Which objects are on the disk: survives crashes.
    pub installed: Vec<bool>,
    pub done_at: Option<Instant>,
    /// When the last head object had arrived.
    pub heads_at: Option<Instant>,
    pub silent: bool,
    pub regrant_pending: bool,
    /// When it left the group because its port is too slow, and which objects it lacked then.
    pub left_at: Option<Instant>,
    lacked: Vec<bool>,
    pub buffered_bytes: u64,
    pub buffer_bytes: u64,
    pub stalls: u64,
    pub reports: u64,
    pub report_bytes: u64,
    ailment: Option<Ailment>,
    number: u32,
    grants: u32,
    buffers: Vec<Option<Vec<u8>>>,
    disk: VecDeque<Job>,
    disk_free_at: Instant,
}

impl ReceiverHost {
    pub(crate) fn new(number: usize, host: &Host, truth: &Truth) -> Self {
        Self {
            machine: None,
            shape: truth.shape,
            life: 0,
            timer: None,
            disk_bytes_per_second: host.disk_bytes_per_second,
            installed: vec![false; truth.objects.len()],
            done_at: None,
            heads_at: None,
            silent: false,
            regrant_pending: false,
            left_at: None,
            lacked: Vec::new(),
            buffered_bytes: 0,
            buffer_bytes: host.buffer_bytes,
            stalls: 0,
            reports: 0,
            report_bytes: 0,
            ailment: host.ailment,
            number: u32::try_from(number).expect("few hosts"),
            grants: 0,
            buffers: Vec::new(),
            disk: VecDeque::new(),
            disk_free_at: Instant::ZERO,
        }
    }

    /// The number with which the server admits it next.
    pub(crate) fn next_receiver(&mut self) -> ReceiverId {
        self.grants += 1;
        ReceiverId(self.number | self.grants << 16)
    }

    /// Joins the server's current session for the objects that are not on the disk.
    pub(crate) fn join(&mut self, now: Instant, grant: Grant, truth: &Truth, chance: &mut Chance) {
        assert!(self.disk.is_empty(), "joins with an idle disk");
        let Grant { shape, receiver, receivers } = grant;
        self.shape = shape;
        self.buffers.clear();
        (self.buffered_bytes, self.silent, self.timer) = (0, false, None);
        let mut machine = Receiver::new(
            now,
            ReceiverConfig {
                stays: false,
                shape,
                receiver,
                buffer_bytes: self.buffer_bytes,
                object_bytes_mean: truth.object_bytes_mean(),
                silent_after: Duration::from_secs(1),
                stalled_after: Duration::from_secs(2),
                receivers,
                chance: chance.fork(),
            },
        );
        for (object, _) in (0..).zip(&self.installed).filter(|(_, installed)| !**installed) {
            machine.want(now, ObjectRange { first: object, count: 1 });
        }
        self.machine = Some(machine);
    }

    /// Crashes: loses everything but the disk.
    pub(crate) fn crash(&mut self) {
        self.life += 1;
        self.machine = None;
        self.buffers.clear();
        self.disk.clear();
        (self.buffered_bytes, self.timer, self.regrant_pending, self.left_at) = (0, None, false, None);
    }

    /// Whether no write is queued.
    pub(crate) fn is_disk_idle(&self) -> bool {
        self.disk.is_empty()
    }

    /// Whether nothing more can be expected of it.
    pub(crate) fn is_over(&self) -> bool {
        self.machine.is_none() && (self.done_at.is_some() || self.never_ends())
    }

    /// Whether its ailment keeps it from getting the image.
    pub(crate) fn never_ends(&self) -> bool {
        matches!(self.ailment, Some(Ailment::Silent { .. } | Ailment::Dead { .. }))
    }

    /// Whether it receives packets to the group.
    pub(crate) fn listens(&self) -> bool {
        self.machine.is_some() && self.left_at.is_none()
    }

    /// Whether the server may still assume that it takes part and lacks `object`. Of a receiver that left, it goes on
    /// to send what was requested before, although that may have come in another way since.
    pub(crate) fn is_missed(&self, now: Instant, object: u64) -> bool {
        match self.left_at {
            Some(at) => now.since(at) < MISSED_FOR && self.lacked[object as usize],
            None => self.done_at.is_none() && self.life > 0 && self.machine.is_none(),
        }
    }

    /// Handles a packet of the server.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        sent: &Sent,
        damaged: Option<&[u8]>,
    ) -> Option<Disposition> {
        let machine = self.machine.as_mut().filter(|_| self.left_at.is_none())?;
        if let Some(bytes) = damaged {
            self.receive_rubbish(bytes);
            return None;
        }
        if sent.epoch != self.shape.epoch {
            machine.handle_reject(Reject::Epoch(sent.epoch));
            return None;
        }
        let disposition = match &sent.packet {
            Packet::Block(header) => machine.handle_input(now, &Downstream::Block(*header, sent.payload())),
            Packet::Control(packet) => machine.handle_input(now, packet),
        };
        if let Disposition::Place { slot, offset, begins } = disposition {
            self.place(slot, offset, begins, sent.payload());
        }
        Some(disposition)
    }

    /// Handles a packet with a damaged or forged content.
    pub(crate) fn receive_rubbish(&mut self, bytes: &[u8]) {
        let Some(machine) = &mut self.machine else { return };
        match open_downstream(&group_key(self.shape.epoch), &self.shape, bytes) {
            Ok(_) => panic!("a packet that nobody sent passes its tag"),
            Err(why) => machine.handle_reject(why),
        }
    }

    /// Handles all events of the machine since the last call, and returns the resulting requests.
    pub(crate) fn drain(&mut self, now: Instant, truth: &Truth) -> Vec<Wish> {
        let mut wishes = Vec::new();
        while let Some(event) = self.machine.as_mut().and_then(Receiver::poll_event) {
            match event {
                ReceiverEvent::Complete { object, slot, bytes, held } => {
                    self.judge(now, truth, &Complete { object, slot, bytes, held }, &mut wishes);
                }
                ReceiverEvent::FetchByUnicast { object } => wishes.push(Wish::Unicast(object)),
                ReceiverEvent::Silent { .. } if self.ailment == Some(Ailment::Deaf) => {
                    self.go(now, &mut wishes)
                }
                ReceiverEvent::Silent { .. } => {
                    self.silent = true;
                    wishes.push(Wish::Regrant);
                }
                ReceiverEvent::NewEpoch { .. } | ReceiverEvent::Ended => wishes.push(Wish::Regrant),
                ReceiverEvent::Resumed => self.silent = false,
                ReceiverEvent::Stalled { .. } => self.stalls += 1,
                ReceiverEvent::TooSlow(_) | ReceiverEvent::Half(_) | ReceiverEvent::Behind { .. } => {
                    self.go(now, &mut wishes);
                }
            }
        }
        while let Some(packet) = self.machine.as_mut().and_then(Receiver::poll_transmit) {
            self.reports += 1;
            self.report_bytes += packet.len() as u64 + 8;
            wishes.push(Wish::Send(packet));
        }
        self.finish(now, &mut wishes);
        wishes
    }

    /// The disk has written the oldest object in its queue; returns the object and its content.
    pub(crate) fn written(&mut self) -> (u64, Vec<u8>) {
        let mut job = self.disk.pop_front().expect("the disk writes what it was given");
        self.buffered_bytes -= job.buffer.len() as u64;
        job.buffer.truncate(job.bytes as usize);
        self.installed[job.object as usize] = true;
        if let Some(machine) = &mut self.machine {
            machine.release(job.slot);
        }
        (job.object, job.buffer)
    }

    /// An object arrived over the control connection.
    pub(crate) fn satisfied(&mut self, object: u64) {
        self.installed[object as usize] = true;
        if let Some(slot) = self.machine.as_mut().and_then(|machine| machine.satisfied(object)) {
            self.drop_buffer(slot);
        }
    }

    fn finish(&mut self, now: Instant, wishes: &mut Vec<Wish>) {
        let Some(machine) = &mut self.machine else { return };
        if self.heads_at.is_none() && machine.next_lacking(0).is_none_or(|object| object >= self.shape.heads)
        {
            self.heads_at = Some(now);
        }
        let is_gone = machine.is_gone();
        let has_all = match self.left_at {
            Some(_) => self.installed.iter().all(|&installed| installed),
            None => machine.lacking() == 0,
        };
        if has_all && self.done_at.is_none() && self.disk.is_empty() {
            self.done_at = Some(now);
            machine.leave(now);
            wishes.push(Wish::Done);
        } else if is_gone && self.left_at.is_none_or(|_| self.done_at.is_some()) {
            self.machine = None;
        }
    }

    /// Leaves the group and fetches the rest by unicast.
    fn go(&mut self, now: Instant, wishes: &mut Vec<Wish>) {
        self.left_at = Some(now);
        self.lacked = self.installed.iter().map(|installed| !installed).collect();
        self.buffers.clear();
        self.buffered_bytes = self.disk.iter().map(|job| job.buffer.len() as u64).sum();
        self.machine.as_mut().expect("events come from a machine").leave(now);
        wishes.push(Wish::UnicastRest);
    }

    fn place(&mut self, slot: Slot, offset: u32, begins: Option<u32>, payload: &[u8]) {
        let slot = slot.0 as usize;
        if let Some(bytes) = begins {
            self.buffers.resize_with(self.buffers.len().max(slot + 1), || None);
            assert!(self.buffers[slot].is_none(), "a slot that begins is empty");
            self.buffers[slot] = Some(vec![0; bytes as usize]);
            self.buffered_bytes += u64::from(bytes);
        }
        let buffer = self.buffers[slot].as_mut().expect("a slot in use has a buffer");
        buffer[offset as usize..][..payload.len()].copy_from_slice(payload);
    }

    fn judge(&mut self, now: Instant, truth: &Truth, complete: &Complete, wishes: &mut Vec<Wish>) {
        let &Complete { object, slot, bytes, ref held } = complete;
        let block_bytes = usize::from(self.shape.block_bytes);
        let buffer = self.buffers[slot.0 as usize].as_mut().expect("a complete object has a buffer");
        let recovered = held.is_empty() || recover(buffer, block_bytes, held).is_ok();
        let ok = recovered && base::Digest::of(&buffer[..bytes as usize]) == truth.digests[object as usize];
        self.machine.as_mut().expect("events come from a machine").verified(now, slot, ok);
        wishes.push(Wish::Judged { object, ok });
        if !ok {
            self.drop_buffer(slot);
            return;
        }
        let buffer = self.buffers[slot.0 as usize].take().expect("just seen");
        let takes = Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / self.disk_bytes_per_second);
        self.disk_free_at = self.disk_free_at.max(now) + takes;
        self.disk.push_back(Job { slot, object, bytes, buffer });
        wishes.push(Wish::Written(self.disk_free_at));
    }

    fn drop_buffer(&mut self, slot: Slot) {
        if let Some(buffer) = self.buffers.get_mut(slot.0 as usize).and_then(Option::take) {
            self.buffered_bytes -= buffer.len() as u64;
        }
    }
}
