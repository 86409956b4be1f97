//! Frisbee's policy: the receivers ask for chunks and the server multicasts what was asked for, first come, first
//! served (USENIX ATC 2003, section 4.3, and the sources of 2020, `frisbee` and `frisbeed`).
//!
//! - A client asks for chunks in a random order of its own, two ahead of what it has received.
//! - All requests are multicast, so a client does not ask for what anybody has asked for within the last second.
//! - After 90 ms without anything useful it asks whatever was asked for before, less and less often.
//! - The server queues requests, merges those for a chunk that is queued already, and ignores those for the chunk that
//!   it is sending. It does not know who has what: a late joiner's requests are sent to everybody again.
//!
//! Simplified: a chunk is lost or received as a whole, and clients hear each other's requests at once.

use base::{Chance, Duration, Instant};

use std::collections::VecDeque;

use super::bits::Bits;
use super::{Policy, Setting, Stage};
use crate::fabric::Place;

/// Chunks that a client asks for ahead.
const AHEAD: usize = 2;
/// A chunk that was asked for is not asked for again for this time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A client that received nothing useful for this time asks again, then after twice and more of it.
const IDLE: Duration = Duration::from_millis(90);
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Bytes of a block of 1 KiB on the wire.
const BLOCK_WIRE_BYTES: u64 = 1114;

/// The state of the server and of all clients.
#[derive(Debug)]
pub struct Frisbee {
    clients: Vec<Client>,
    /// When anybody last asked for each chunk.
    asked: Vec<Option<Instant>>,
    queue: VecDeque<u32>,
    queued: Bits,
    sending: Option<u32>,
    wire_bytes: u64,
}

#[derive(Debug, Clone)]
struct Client {
    order: Vec<u32>,
    /// All chunks before this place of the order are received.
    cursor: usize,
    started: Instant,
    /// When it last received something useful, or asked because it did not.
    useful: Instant,
    idle: Duration,
}

/// A request for a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Request(u32);

impl Frisbee {
    /// A server without clients.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        let mut chance = Chance::from_seed(setting.seed).fork();
        let client = |_: &Place| Client {
            order: shuffled(setting.chunks, &mut chance),
            cursor: 0,
            started: Instant::ZERO,
            useful: Instant::ZERO,
            idle: IDLE,
        };
        Self {
            clients: setting.receivers.iter().map(client).collect(),
            asked: vec![None; setting.chunks as usize],
            queue: VecDeque::new(),
            queued: Bits::new(setting.chunks),
            sending: None,
            wire_bytes: setting.chunk_bytes.div_ceil(1024) * BLOCK_WIRE_BYTES,
        }
    }

    /// A client asks for the next chunks that it lacks; all of them if it is `idle`.
    fn ask(&mut self, stage: &mut Stage<Request>, at: Place, idle: bool) {
        let client = &mut self.clients[stage.number(at).expect("a client")];
        while client.order.get(client.cursor).is_some_and(|&chunk| stage.holds(at, chunk)) {
            client.cursor += 1;
        }
        let room = AHEAD.min(stage.room(at) as usize);
        let order = client.order[client.cursor..].iter().copied();
        let next: Vec<u32> = order.filter(|&chunk| !stage.holds(at, chunk)).take(room).collect();
        let (now, heard_from, server) = (stage.now(), client.started, stage.setting().server);
        for chunk in next {
            let asked = &mut self.asked[chunk as usize];
            let heard = asked.filter(|&asked| asked >= heard_from && now.since(asked) < AGAIN_AFTER);
            if idle || heard.is_none() {
                *asked = Some(now);
                stage.ask(at, server, Request(chunk));
            }
        }
    }

    fn send_next(&mut self, stage: &mut Stage<Request>) {
        self.sending = self.queue.pop_front();
        if let Some(chunk) = self.sending {
            self.queued.clear(chunk);
            let server = stage.setting().server;
            let next = stage.cast(server, chunk, self.wire_bytes);
            stage.wake(server, next, 0);
        }
    }
}

impl Policy for Frisbee {
    type Message = Request;

    fn started(&mut self, stage: &mut Stage<Request>, at: Place) {
        let (now, client) = (stage.now(), &mut self.clients[stage.number(at).expect("a client")]);
        (client.started, client.useful) = (now, now);
        stage.listen(at);
        stage.wake(at, now + IDLE, 0);
        self.ask(stage, at, false);
    }

    fn told(&mut self, stage: &mut Stage<Request>, _: Place, _: Place, Request(chunk): Request) {
        if self.sending == Some(chunk) || !self.queued.set(chunk) {
            return;
        }
        self.queue.push_back(chunk);
        if self.sending.is_none() {
            self.send_next(stage);
        }
    }

    fn arrived(&mut self, stage: &mut Stage<Request>, at: Place, _: Place, _: u32, fresh: bool) {
        if fresh && !stage.is_complete(at) {
            let client = &mut self.clients[stage.number(at).expect("a client")];
            (client.useful, client.idle) = (stage.now(), IDLE);
            self.ask(stage, at, false);
        }
    }

    fn freed(&mut self, stage: &mut Stage<Request>, at: Place) {
        if !stage.is_complete(at) {
            self.ask(stage, at, false);
        }
    }

    fn woken(&mut self, stage: &mut Stage<Request>, at: Place, _: u64) {
        if at == stage.setting().server {
            return self.send_next(stage);
        }
        if stage.is_complete(at) {
            return;
        }
        let (now, client) = (stage.now(), &mut self.clients[stage.number(at).expect("a client")]);
        let is_idle = now >= client.useful + client.idle;
        if is_idle {
            (client.useful, client.idle) = (now, (client.idle * 2).min(IDLE_MAX));
        }
        let next = client.useful + client.idle;
        stage.wake(at, next, 0);
        if is_idle {
            self.ask(stage, at, true);
        }
    }
}

fn shuffled(count: u32, chance: &mut Chance) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, chance.below(last as u64 + 1) as usize);
    }
    order
}
