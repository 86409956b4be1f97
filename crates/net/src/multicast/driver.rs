//! The thread that drives the state machine of a server's session and its socket. It never waits for a disk: the
//! machine requests objects in advance, other threads read and verify them, and blocks are sent from memory, a run of
//! them with one system call. If the socket is full, the thread waits for room, and processes reports meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Instant, RunSet};
use bytes::Bytes;
use crossbeam_channel::Receiver;
use proto::multicast::{OwnShare, Server, ServerEvent, Transmit};

use super::budget::{CLAIM_INTERVAL, Share};
use super::outgoing::{Outgoing, Protection};
use super::readahead::ReadAhead;
use super::sent_rate::SentRate;
use crate::api::{ReceiverStatistics, SessionStatistics};
use crate::clock::Clock;
use crate::udp::{self, Arrivals, GroupSender, Sent};

use super::ELSEWHERE_LEAST;
use super::session::{Command, RATE_MAX, Shared, milliseconds};

/// Longest wait of the thread, so that it notices changes that do not wake it.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Longest wait for room in the socket.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(10);
/// Pause after the device's queue has dropped a run.
const DROPPED_PAUSE: Duration = Duration::from_micros(500);
/// Pause after the system refused to send a run.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Number of runs that are sent before the thread reads reports again.
const RUNS_PER_TURN: usize = 8;
/// A session that sent almost nothing for this time has nothing to send.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Longest time in which BYE is repeated when a session is stopped.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the thread waits for.
#[derive(Clone, Copy, PartialEq)]
enum Waiting {
    /// Nothing: there is more to send.
    No,
    /// A report, a loaded object or a timeout.
    ForWork,
    /// Room in the socket.
    ForRoom,
    /// Only for this time: the device dropped a run, or the system refused it.
    For(Duration),
}

/// The last claim on the server's budget: when it was, the ceiling that it gave, and the bytes sent by then.
struct Claimed {
    at: Instant,
    ceiling: u64,
    sent_bytes: u64,
}

/// See the module.
pub(super) struct Driver {
    shared: Arc<Shared>,
    clock: Clock,
    machine: Server,
    socket: GroupSender,
    readers: ReadAhead,
    cache: HashMap<u64, Bytes>,
    outgoing: Outgoing,
    protection: Protection,
    share: Share,
    claimed: Claimed,
    arrivals: Arrivals,
    gone: BTreeMap<u32, ReceiverStatistics>,
    packet_bytes_sent: u64,
    sent_rate: SentRate,
    /// Since when the session has no receivers, and how many were admitted by then.
    deserted: Option<(Instant, usize)>,
    /// The rate for which the send buffer was last sized, and the queue of this machine's own link.
    buffer_rate: u64,
    buffer_queue: Duration,
    own: Option<OwnShare>,
    ending: Option<Instant>,
    trouble: Option<String>,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        clock: Clock,
        machine: Server,
        socket: GroupSender,
        readers: ReadAhead,
    ) -> Self {
        let protection = shared.protection();
        let share = shared.config.budget.register(shared.config.send.interface.index);
        Self {
            shared,
            deserted: Some((clock.now(), 0)),
            buffer_rate: 0,
            buffer_queue: Duration::ZERO,
            own: None,
            clock,
            machine,
            socket,
            readers,
            cache: HashMap::new(),
            outgoing: Outgoing::default(),
            protection,
            share,
            claimed: Claimed { at: Instant::ZERO, ceiling: u64::MAX, sent_bytes: 0 },
            arrivals: Arrivals::default(),
            gone: BTreeMap::new(),
            packet_bytes_sent: 0,
            sent_rate: SentRate::default(),
            ending: None,
            trouble: None,
        }
    }

    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        while !self.is_done() {
            self.shared.waker.clear();
            self.obey(commands);
            self.take_loaded();
            self.take_reports();
            let now = self.clock.now();
            if self.machine.poll_timeout().is_some_and(|due| due <= now) {
                self.machine.handle_timeout(now);
            }
            self.heed_events();
            self.claim(now);
            self.end_if_deserted();
            match self.send_some() {
                Waiting::No => {}
                _ if self.is_done() => {}
                waiting => self.wait(waiting),
            }
        }
        self.shared.over.store(true, Ordering::Release);
        *self.shared.last.lock() = Some(self.statistics());
    }

    fn is_done(&self) -> bool {
        let said = self.machine.is_ended() && self.outgoing.is_done();
        self.ending.is_some_and(|since| said || self.clock.now().since(since) > FAREWELL)
    }

    fn obey(&mut self, commands: &Receiver<Command>) {
        for command in commands.try_iter() {
            match command {
                Command::Admit(receiver, machine) => self.machine.admit(self.clock.now(), receiver, machine),
                Command::Statistics(reply) => drop(reply.send(self.statistics())),
                Command::Elsewhere(held, reply) => drop(reply.send(self.elsewhere(&held))),
                Command::Stop => self.end(),
            }
        }
    }

    /// Runs of stored objects that a new receiver should get from others: nobody waits for them here, and they went out
    /// to members that are still here, or others hold them.
    fn elsewhere(&self, held: &[Range<u32>]) -> Vec<(u64, u64)> {
        let mut runs = RunSet::new();
        let is_held = |stored: &Range<u64>| {
            let at = held.partition_point(|run| u64::from(run.end) <= stored.start);
            held.get(at)
                .is_some_and(|run| u64::from(run.start) <= stored.start && stored.end <= run.end.into())
        };
        let went_out = self.machine.went_out_to_members();
        for object in 0..self.shared.shape.objects {
            let stored = self.shared.packing.stored(object);
            let is_elsewhere = went_out(object) || is_held(&stored);
            if is_elsewhere && !self.machine.is_pending(object) {
                runs.insert(stored);
            }
        }
        // Machines that start together: what the first of them got meanwhile is not worth asking around.
        if runs.sum() < self.shared.packing.stored_objects() / ELSEWHERE_LEAST {
            return Vec::new();
        }
        runs.iter().map(|run| (run.start, run.end - run.start)).collect()
    }

    fn end(&mut self) {
        let now = self.clock.now();
        if self.ending.is_none() {
            self.shared.over.store(true, Ordering::Release);
            self.ending = Some(now);
            self.machine.end(now);
        }
    }

    /// Reports the session's rate to the server's budget now and then, and applies the ceiling that it gets.
    fn claim(&mut self, now: Instant) {
        let passed = now.since(self.claimed.at);
        let sent_bytes = self.packet_bytes_sent - self.claimed.sent_bytes;
        // Few bytes in a short time do not mean that there is nothing to send.
        let patience = if self.is_little(sent_bytes) { IDLE_AFTER } else { CLAIM_INTERVAL };
        if passed < patience {
            return;
        }
        let ceiling = self.share.claim(self.rate_of(sent_bytes, passed));
        let wire_bytes = self.with_headers(sent_bytes);
        self.sent_rate.count(now, passed, wire_bytes, self.is_little(sent_bytes));
        let of_link = self.share.of_own_link(wire_bytes);
        self.own = of_link.share;
        self.machine.set_own_share(self.own);
        self.machine.leave_room(of_link.due_bytes);
        if ceiling != self.claimed.ceiling {
            self.machine.set_ceiling(ceiling.min(RATE_MAX));
        }
        self.claimed = Claimed { at: now, ceiling, sent_bytes: self.packet_bytes_sent };
    }

    /// The bytes on the wire of packets of `sent_bytes` together.
    fn with_headers(&self, sent_bytes: u64) -> u64 {
        let headers = u64::from(super::overhead_bytes(self.shared.config.group.is_ipv4()));
        sent_bytes + sent_bytes / u64::from(self.shared.shape.block_bytes) * headers
    }

    fn is_little(&self, sent_bytes: u64) -> bool {
        sent_bytes < 4 * u64::from(self.shared.shape.block_bytes)
    }

    /// The rate to claim: the machine's rate, or less if there was less to send. 0 if only some STATUS packets were
    /// sent.
    fn rate_of(&self, sent_bytes: u64, passed: Duration) -> u64 {
        let rate = self.machine.rate();
        if self.is_little(sent_bytes) {
            return 0;
        }
        let sent = u128::from(sent_bytes) * 8_000_000_000 / passed.as_nanos().max(1);
        // After a pause the last rate says nothing about the next. In short times runs make the rate uneven, hence a
        // quarter more.
        let is_known = passed <= IDLE_AFTER;
        if is_known { rate.min(u64::try_from(sent + sent / 4).unwrap_or(u64::MAX)) } else { rate }
    }

    fn end_if_deserted(&mut self) {
        let Some((since, admitted)) = self.deserted else { return };
        let admitted_now = self.shared.admitted.lock().len();
        if admitted_now > admitted {
            self.deserted = Some((self.clock.now(), admitted_now));
        } else if self.clock.now().since(since) > self.shared.config.deserted_after {
            self.end();
        }
    }

    fn take_loaded(&mut self) {
        for (object, bytes) in self.readers.loaded() {
            self.machine.loaded(object, bytes.is_some());
            if let Some(bytes) = bytes {
                self.cache.insert(object, bytes);
            }
        }
    }

    fn take_reports(&mut self) {
        // Only one batch per turn: a sender that floods this port with reports must not keep blocks from being sent.
        if !self.socket.receive(&mut self.arrivals).unwrap_or(false) {
            return;
        }
        let now = self.clock.now();
        for (_, packet) in self.arrivals.packets() {
            match self.shared.open(packet) {
                Ok(report) => self.machine.handle_input(now, &report),
                Err(why) => self.machine.handle_reject(why),
            }
        }
    }

    fn heed_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                ServerEvent::Load(object) => self.readers.ask(object),
                ServerEvent::Evict(object) => drop(self.cache.remove(&object)),
                ServerEvent::Joined(_) => self.deserted = None,
                ServerEvent::Left(statistics) => {
                    let gone = self.show_receiver(&statistics, true);
                    self.gone.insert(gone.receiver, gone);
                }
                ServerEvent::Deserted => {
                    self.deserted = Some((self.clock.now(), self.shared.admitted.lock().len()));
                }
            }
        }
    }

    /// Sends a few runs, fewer if the socket gets full.
    fn send_some(&mut self) -> Waiting {
        for _ in 0..RUNS_PER_TURN {
            if self.outgoing.is_done() && !self.next_outgoing() {
                return Waiting::ForWork;
            }
            self.fit_buffer();
            let (rest, packet_bytes) = self.outgoing.rest();
            match self.socket.send(rest, packet_bytes) {
                Ok(Sent::Bytes(bytes)) => {
                    self.outgoing.sent(bytes);
                    self.packet_bytes_sent += bytes as u64;
                    self.trouble = None;
                }
                Ok(Sent::Blocked) => return self.held(Waiting::ForRoom),
                Ok(Sent::Dropped) => return self.held(Waiting::For(DROPPED_PAUSE)),
                Err(error) => {
                    self.trouble = Some(format!("send to {}: {error}", self.socket.group()));
                    if udp::is_too_long(&error) {
                        // The interface's MTU has become smaller. The receivers' next session will fit it.
                        self.outgoing.sent(rest.len());
                        self.end();
                        continue;
                    }
                    return self.held(Waiting::For(REFUSED_PAUSE));
                }
            }
        }
        Waiting::No
    }

    /// What comes next is late since the link had no room.
    fn held(&mut self, waiting: Waiting) -> Waiting {
        self.machine.link_was_full();
        waiting
    }

    /// Sizes the send buffer for the rate and the queue of this machine's own link, if either has changed by more than
    /// a quarter. What this thread catches up when it woke up late is to fit, too.
    fn fit_buffer(&mut self) {
        let (rate, queue) = (self.machine.rate(), self.own.map_or(Duration::ZERO, |own| own.queue));
        let queue = queue.max(self.machine.lateness());
        if rate.abs_diff(self.buffer_rate) > self.buffer_rate / 4
            || queue.abs_diff(self.buffer_queue) > self.buffer_queue / 4
        {
            (self.buffer_rate, self.buffer_queue) = (rate, queue);
            self.socket.fit_buffer(rate, queue);
        }
    }

    /// Gets the next packets from the machine and encodes them. False if nothing is due.
    fn next_outgoing(&mut self) -> bool {
        let Some(transmit) = self.machine.poll_transmit(self.clock.now()) else { return false };
        match transmit {
            Transmit::Control(packet) => self.outgoing.set_control(&self.protection, packet),
            Transmit::Blocks(run) => {
                let object = self.cache.get(&run.first.object).expect("the machine sends what is loaded");
                self.outgoing.set_run(&self.shared.shape, &self.protection, object, &run);
            }
        }
        true
    }

    fn wait(&self, waiting: Waiting) {
        let waiter: &dyn std::os::fd::AsFd = &self.shared.waker;
        // While the socket is full, nothing can be sent, even if it is due: without a wait this thread would use a
        // whole core.
        let ready = match waiting {
            Waiting::For(pause) => udp::wait(&[waiter], None, pause),
            Waiting::ForRoom => udp::wait(&[waiter, &self.socket], Some(&self.socket), ROOM_WAIT_MAX),
            Waiting::No | Waiting::ForWork => {
                let due = self.machine.poll_timeout().map_or(WAIT_MAX, |due| due.since(self.clock.now()));
                udp::wait(&[waiter, &self.socket], None, due.min(WAIT_MAX))
            }
        };
        // An error that the network reported also ends the wait. If it stayed, it would end every wait.
        if ready.unwrap_or(true) {
            self.socket.drain_errors();
        }
    }

    fn show_receiver(&self, of: &proto::multicast::ReceiverStatistics, left: bool) -> ReceiverStatistics {
        let name = self.shared.admitted.lock().name(of.receiver);
        let runtime = of.runtime.as_secs_f64();
        ReceiverStatistics {
            receiver: of.receiver.0,
            name,
            joined_ms: milliseconds(of.joined.since(Instant::ZERO)),
            runtime_ms: milliseconds(of.runtime),
            left,
            concurrency: if runtime > 0.0 { (of.concurrent.as_secs_f64() / runtime).min(1.0) } else { 0.0 },
            blocks_received: of.counters.blocks_received,
            blocks_duplicate: of.counters.blocks_duplicate,
            blocks_lost: of.counters.blocks_lost,
            blocks_refused: of.counters.blocks_refused,
            overdrawn: of.overdrawn,
        }
    }

    fn statistics(&self) -> SessionStatistics {
        let of = self.machine.statistics(self.clock.now());
        let mut receivers = self.gone.clone();
        receivers.extend(of.receivers.iter().map(|one| (one.receiver.0, self.show_receiver(one, false))));
        SessionStatistics {
            runtime_ms: milliseconds(self.clock.elapsed()),
            image_bytes: of.image_bytes,
            blocks_in_image: of.image_blocks,
            blocks_sent: of.blocks_sent,
            resent_late: of.resent.late,
            resent_buffer_full: of.resent.buffer_full,
            resent_lost: of.resent.lost,
            symbols_sent: of.symbols_sent,
            symbols_ahead: of.symbols_ahead,
            rate_bits_per_second: self.sent_rate.while_sending(),
            sending_ms: milliseconds(self.sent_rate.sending_time()),
            recent_bits_per_second: self.sent_rate.recent(self.clock.now()).filter(|_| self.ending.is_none()),
            payload_bytes: of.bytes_sent,
            packet_bytes: self.packet_bytes_sent,
            control_packets: of.control_sent,
            reports: of.reports,
            rejected: of.rejected,
            trouble: self.trouble.clone(),
            receivers: receivers.into_values().collect(),
            ..self.shared.empty_statistics()
        }
    }
}
