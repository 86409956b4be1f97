//! Multicast as diskcast does it: the server knows what each receiver lacks, and multicasts in the order of the image,
//! round and round, each chunk that somebody lacks. A late joiner receives the rest of the round, then what it missed,
//! together with all others that missed it. So it takes as long as alone, and what is sent again is what was sent
//! before the last one joined. (Measured in the lab: 16 hosts that start over the time of one transfer cost 1.95
//! images, and all take 1.01 times as long as alone.) What a receiver loses it reports, and the server sends it again
//! before it continues.
//!
//! Simplified: a chunk is lost as a whole and sent again as a whole, where diskcast sends symbols of a code. The rate
//! is that of the setting, and the server waits for room in the memory of every receiver that lacks the next chunk, as
//! the rate control would make it do.

use std::collections::VecDeque;

use base::{Duration, Instant};

use super::bits::Bits;
use super::{Policy, Setting, Stage};
use crate::fabric::Place;

/// A chunk that is still lacking is sent again this long after it was sent, to give reports time to arrive.
const REPORTED_AFTER: Duration = Duration::from_millis(10);
/// How often the server looks whether there is room again.
const LOOK_AFTER: Duration = Duration::from_millis(2);
/// Payload of a packet, and its size on the wire.
const BLOCK_BYTES: u64 = 1424;
const BLOCK_WIRE_BYTES: u64 = 1538;

/// The state of the server.
#[derive(Debug)]
pub struct Multicast {
    /// Number of receivers that wait for each chunk.
    wanted: Vec<u32>,
    sent: Vec<Option<Instant>>,
    members: Vec<Place>,
    /// What each receiver waits for.
    waits: Vec<Bits>,
    /// Chunks that were reported lost.
    repairs: VecDeque<u32>,
    next: u32,
    is_sending: bool,
    bounded: bool,
    wire_bytes: u64,
    /// A receiver joined late: it gets from others what went out before.
    is_spread: bool,
}

/// What a receiver tells the server.
#[derive(Debug, Clone, Copy)]
pub enum Report {
    /// It joins.
    Join,
    /// It lost a chunk.
    Lost(u32),
}

/// What the server does next.
enum Next {
    Send(u32),
    /// Nothing can be sent before that time.
    Look(Instant),
    /// Nobody lacks anything.
    Rest,
}

impl Multicast {
    /// A server without receivers.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        Self {
            wanted: vec![0; setting.chunks as usize],
            sent: vec![None; setting.chunks as usize],
            members: Vec::new(),
            waits: vec![Bits::new(setting.chunks); setting.receivers.len()],
            repairs: VecDeque::new(),
            next: 0,
            is_sending: false,
            bounded: setting.machine.memory_chunks < setting.chunks,
            wire_bytes: setting.chunk_bytes.div_ceil(BLOCK_BYTES) * BLOCK_WIRE_BYTES,
            is_spread: false,
        }
    }

    /// Number of receivers that wait for something, if none of all came late; else 1: each keeps everything then.
    pub(super) fn together(&self) -> u32 {
        if self.is_spread { 1 } else { u32::try_from(self.members.len()).expect("few receivers") }
    }

    /// Whether a receiver that joins now should get the chunk from somebody else, who holds it if `is_held`: nobody
    /// waits for it here, and it went out already or others hold it.
    pub(super) fn is_elsewhere(&self, now: Instant, chunk: u32, is_held: bool) -> bool {
        let sent = self.sent[chunk as usize];
        // It is being sent to those that waited.
        let is_under_way = sent.is_some_and(|sent| now.since(sent) < REPORTED_AFTER);
        is_under_way || self.wanted[chunk as usize] == 0 && (sent.is_some() || is_held)
    }

    /// A receiver joins, and waits for the chunks that it lacks and that are not `elsewhere`.
    pub(super) fn join<M: Clone>(
        &mut self,
        stage: &mut Stage<M>,
        from: Place,
        elsewhere: impl Fn(&Self, u32) -> bool,
    ) {
        let number = stage.number(from).expect("a receiver");
        for chunk in 0..stage.setting().chunks {
            if stage.holds(from, chunk) {
                continue;
            }
            if elsewhere(self, chunk) {
                self.is_spread = true;
            } else if self.waits[number].set(chunk) {
                self.wanted[chunk as usize] += 1;
            }
        }
        self.members.push(from);
        self.begin(stage);
    }

    /// A receiver lost a chunk.
    pub(super) fn lost<M: Clone>(&mut self, stage: &mut Stage<M>, chunk: u32) {
        // Receivers that lost the same chunk at the same time are served by one repair.
        if !self.repairs.contains(&chunk) {
            self.repairs.push_back(chunk);
        }
        self.begin(stage);
    }

    /// A chunk has arrived at a receiver.
    pub(super) fn settle(&mut self, number: usize, chunk: u32) {
        if self.waits[number].has(chunk) {
            self.waits[number].clear(chunk);
            self.wanted[chunk as usize] -= 1;
        }
    }

    /// A receiver waits for nothing more.
    pub(super) fn leave(&mut self, at: Place) {
        self.members.retain(|&member| member != at);
    }

    fn begin<M: Clone>(&mut self, stage: &mut Stage<M>) {
        if !self.is_sending {
            self.send_next(stage);
        }
    }

    /// Sends the next chunk that somebody lacks, or sets the time for the next look.
    pub(super) fn send_next<M: Clone>(&mut self, stage: &mut Stage<M>) {
        let server = stage.setting().server;
        let look = match self.next(stage) {
            Next::Send(chunk) => {
                self.sent[chunk as usize] = Some(stage.now());
                Some(stage.cast(server, chunk, self.wire_bytes))
            }
            Next::Look(at) => Some(at),
            Next::Rest => None,
        };
        self.is_sending = look.is_some();
        if let Some(look) = look {
            stage.wake(server, look, 0);
        }
    }

    fn next<M: Clone>(&mut self, stage: &Stage<M>) -> Next {
        let (now, chunks) = (stage.now(), stage.setting().chunks);
        while let Some(chunk) = self.repairs.pop_front() {
            if self.wanted[chunk as usize] > 0 {
                return Next::Send(chunk);
            }
        }
        let mut look: Option<Instant> = None;
        for chunk in (self.next..chunks).chain(0..self.next) {
            if self.wanted[chunk as usize] == 0 {
                continue;
            }
            let again = self.sent[chunk as usize].map(|sent| sent + REPORTED_AFTER);
            if let Some(again) = again.filter(|&again| again > now) {
                look = Some(look.map_or(again, |look| look.min(again)));
            } else if self.is_full(stage, chunk) {
                return Next::Look(now + LOOK_AFTER);
            } else {
                self.next = (chunk + 1) % chunks;
                return Next::Send(chunk);
            }
        }
        look.map_or(Next::Rest, Next::Look)
    }

    /// Whether a receiver that lacks the chunk has no memory for it.
    fn is_full<M: Clone>(&self, stage: &Stage<M>, chunk: u32) -> bool {
        self.bounded && self.members.iter().any(|&at| !stage.holds(at, chunk) && stage.room(at) == 0)
    }
}

impl Policy for Multicast {
    type Message = Report;

    fn started(&mut self, stage: &mut Stage<Report>, at: Place) {
        stage.listen(at);
        let server = stage.setting().server;
        stage.tell(at, server, Report::Join);
    }

    fn told(&mut self, stage: &mut Stage<Report>, _: Place, from: Place, report: Report) {
        match report {
            Report::Join => self.join(stage, from, |_, _| false),
            Report::Lost(chunk) => self.lost(stage, chunk),
        }
    }

    fn arrived(&mut self, stage: &mut Stage<Report>, at: Place, _: Place, chunk: u32, _: bool) {
        self.settle(stage.number(at).expect("a receiver"), chunk);
        if stage.is_complete(at) {
            self.leave(at);
        }
    }

    fn missed(&mut self, stage: &mut Stage<Report>, at: Place, _: Place, chunk: u32) {
        let server = stage.setting().server;
        stage.tell(at, server, Report::Lost(chunk));
    }

    fn woken(&mut self, stage: &mut Stage<Report>, _: Place, _: u64) {
        self.send_next(stage);
    }
}
