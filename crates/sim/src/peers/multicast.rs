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
    /// Number of receivers that lack each chunk.
    wanted: Vec<u32>,
    sent: Vec<Option<Instant>>,
    members: Vec<Place>,
    /// Whether the server has counted what each receiver lacks.
    joined: Vec<bool>,
    /// Chunks that were reported lost.
    repairs: VecDeque<u32>,
    next: u32,
    is_sending: bool,
    bounded: bool,
    wire_bytes: u64,
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
            joined: vec![false; setting.receivers.len()],
            repairs: VecDeque::new(),
            next: 0,
            is_sending: false,
            bounded: setting.machine.memory_chunks < setting.chunks,
            wire_bytes: setting.chunk_bytes.div_ceil(BLOCK_BYTES) * BLOCK_WIRE_BYTES,
        }
    }

    /// Sends the next chunk that somebody lacks, or sets the time for the next look.
    fn send_next(&mut self, stage: &mut Stage<Report>) {
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

    fn next(&mut self, stage: &Stage<Report>) -> Next {
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
    fn is_full(&self, stage: &Stage<Report>, chunk: u32) -> bool {
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
            Report::Join => {
                for (chunk, wanted) in (0..).zip(&mut self.wanted) {
                    *wanted += u32::from(!stage.holds(from, chunk));
                }
                self.joined[stage.number(from).expect("a receiver")] = true;
                self.members.push(from);
            }
            // Receivers that lost the same chunk at the same time are served by one repair.
            Report::Lost(chunk) if self.repairs.contains(&chunk) => {}
            Report::Lost(chunk) => self.repairs.push_back(chunk),
        }
        if !self.is_sending {
            self.send_next(stage);
        }
    }

    fn arrived(&mut self, stage: &mut Stage<Report>, at: Place, _: Place, chunk: u32, fresh: bool) {
        if fresh && self.joined[stage.number(at).expect("a receiver")] {
            self.wanted[chunk as usize] -= 1;
        }
        if stage.is_complete(at) {
            self.members.retain(|&member| member != at);
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
