//! A receiver in a room: its state machine, its random losses, and the blocks that it has. Its disk takes no time,
//! and every object passes verification.

use std::sync::Arc;

use base::{Chance, Duration, Instant};
use proto::multicast::{Disposition, Downstream, ObjectRange, Receiver, ReceiverConfig, ReceiverEvent};

use crate::network::Link;

/// The state of a receiver in a room.
#[derive(Debug)]
pub(super) struct Host {
    /// `None` before it starts and after it has left.
    pub machine: Option<Receiver>,
    /// The earliest time for which its timer is set.
    pub timer: Option<Instant>,
    pub started_at: Instant,
    pub done_at: Option<Instant>,
    /// Number of packets that arrive before the next loss.
    until_loss: u64,
    /// Number of placed blocks by object, while the object is incomplete.
    placed: Box<[u16]>,
    chance: Chance,
    loss_per_million: u32,
    port_bits_per_second: u64,
}

/// The image to transfer.
#[derive(Debug)]
pub(super) struct Image {
    pub object_bytes: Arc<[u32]>,
    /// Number of blocks of each object.
    pub blocks: Vec<u32>,
}

/// Output of the hosts of a room, collected while one of them acts.
#[derive(Debug, Default)]
pub(super) struct Acts {
    /// Reports that the host sends, and their times.
    pub reports: Vec<(Instant, Vec<u8>)>,
    /// Broken rules.
    pub breaches: Vec<(&'static str, String)>,
    /// Packets passed to machines.
    pub deliveries: u64,
    /// Packets that were lost on the way.
    pub losses: u64,
    /// Bytes fetched by unicast.
    pub unicast_bytes: u64,
}

impl Host {
    pub(super) fn new(objects: usize, link: &Link, chance: Chance) -> Self {
        let mut host = Self {
            machine: None,
            timer: None,
            started_at: Instant::ZERO,
            done_at: None,
            until_loss: 0,
            placed: vec![0; objects].into(),
            chance,
            loss_per_million: link.loss_per_million,
            port_bits_per_second: link.bits_per_second,
        };
        host.until_loss = host.skip();
        host
    }

    pub(super) fn start(&mut self, now: Instant, config: ReceiverConfig, image: &Image, acts: &mut Acts) {
        let objects = ObjectRange { first: 0, count: self.placed.len() as u32 };
        let mut machine = Receiver::new(now, config);
        machine.want(now, objects);
        self.machine = Some(machine);
        self.started_at = now;
        self.drain(now, image, acts);
    }

    /// Handles those packets of a burst that are not lost. Returns one bit for each packet that the receiver had a
    /// use for, lost ones included.
    pub(super) fn receive(
        &mut self,
        packets: &[Downstream<'static>],
        at: &[Option<Instant>],
        image: &Image,
        acts: &mut Acts,
    ) -> u64 {
        let mut used = 0;
        for (index, (packet, at)) in packets.iter().zip(at).enumerate() {
            let lost = at.is_none() || self.loses();
            let Some(now) = at.filter(|_| !lost) else {
                acts.losses += 1;
                used |= u64::from(self.has_use_for(packet, image)) << index;
                continue;
            };
            self.tick(now, image, acts);
            let Some(machine) = self.machine.as_mut().filter(|_| self.done_at.is_none()) else { break };
            acts.deliveries += 1;
            let did = machine.handle_input(now, packet);
            if let (Disposition::Place { .. }, Downstream::Block(header, _)) = (did, packet) {
                self.placed[header.object as usize] += 1;
                used |= 1 << index;
            }
            self.drain(now, image, acts);
        }
        used
    }

    fn has_use_for(&self, packet: &Downstream<'static>, image: &Image) -> bool {
        let Downstream::Block(header, _) = packet else { return false };
        u32::from(self.placed[header.object as usize]) < image.blocks[header.object as usize]
    }

    /// Fires its timer as often as it is due up to `now`.
    pub(super) fn tick(&mut self, now: Instant, image: &Image, acts: &mut Acts) {
        while let Some(at) = self.due().filter(|&at| at <= now) {
            let machine = self.machine.as_mut().expect("who has a timer is there");
            machine.handle_timeout(at);
            self.drain(at, image, acts);
        }
    }

    /// Whether it receives packets to the group.
    pub(super) const fn listens(&self) -> bool {
        self.machine.is_some() && self.done_at.is_none()
    }

    /// When its timer fires next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.machine.as_ref().and_then(Receiver::poll_timeout)
    }

    /// Whether a packet to the server is lost.
    pub(super) fn loses_report(&mut self) -> bool {
        self.chance.hits(self.loss_per_million)
    }

    /// Handles the events and output of the machine.
    fn drain(&mut self, now: Instant, image: &Image, acts: &mut Acts) {
        let Some(machine) = &mut self.machine else { return };
        while let Some(event) = machine.poll_event() {
            match event {
                ReceiverEvent::Complete { object, slot, .. } => {
                    let (has, needs) = (self.placed[object as usize], image.blocks[object as usize]);
                    if u32::from(has) < needs {
                        let what = format!("{now:?}: object {object} with {has} of {needs} blocks");
                        acts.breaches.push(("what is complete has all its blocks", what));
                    }
                    machine.verified(now, slot, true);
                    machine.release(slot);
                }
                ReceiverEvent::FetchByUnicast { object } => {
                    acts.unicast_bytes += u64::from(image.object_bytes[object as usize]);
                    machine.satisfied(object);
                }
                ReceiverEvent::TooSlow(_) | ReceiverEvent::Half(_) | ReceiverEvent::Behind { .. } => {
                    let objects = (0..).zip(&*image.object_bytes);
                    let lacked = objects.filter(|&(object, _)| machine.next_lacking(object) == Some(object));
                    let bytes: u64 = lacked.map(|(_, &bytes)| u64::from(bytes)).sum();
                    acts.unicast_bytes += bytes;
                    let takes = Duration::from_nanos(bytes * 8_000_000_000 / self.port_bits_per_second);
                    self.done_at = Some(now + takes);
                    machine.leave(now);
                }
                ReceiverEvent::Silent { .. }
                | ReceiverEvent::Stalled { .. }
                | ReceiverEvent::Resumed
                | ReceiverEvent::NewEpoch { .. }
                | ReceiverEvent::Ended => {}
            }
        }
        if machine.lacking() == 0 && self.done_at.is_none() {
            self.done_at = Some(now);
            machine.leave(now);
        }
        while let Some(report) = machine.poll_transmit() {
            acts.reports.push((now, report));
        }
        if machine.is_gone() {
            self.machine = None;
        }
    }

    /// Whether the next packet is lost at random.
    fn loses(&mut self) -> bool {
        let lost = self.until_loss == 0;
        self.until_loss = if lost { self.skip() } else { self.until_loss - 1 };
        lost
    }

    /// Number of packets before the next loss: geometrically distributed.
    fn skip(&mut self) -> u64 {
        if self.loss_per_million == 0 {
            return u64::MAX;
        }
        // Uniform in (0, 1].
        let uniform = (self.chance.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
        let keeps = (1.0 - f64::from(self.loss_per_million) / 1e6).ln();
        (uniform.ln() / keeps) as u64
    }
}

/// Time without a packet after which a receiver in a room reports silence.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(1);
