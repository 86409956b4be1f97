//! Simulates a small network packet by packet in virtual time: servers with a network card, hosts with a switch port
//! each, TCP flows, and receivers whose processor is sometimes busy.

use std::collections::VecDeque;

use base::{Chance, Instant};

use super::super::{Feedback, Rate, RateConfig};
use super::tcp::Tcp;
use crate::multicast::receiver::delay::DelayMeter;
use crate::multicast::wire::header::ReceiverId;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const PACKET: u64 = 1514;
const BUCKET: u64 = 100 * MS;
/// Processor time of a run.
const RUN_US: u32 = 10;

/// A queue with a service rate.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub rate: f64,
    pub buffer: f64,
    pub loss_per_million: u32,
    /// Bytes that pass at once after a pause.
    pub bucket: f64,
    backlog: f64,
    at: u64,
    last: u64,
}

impl Port {
    pub(super) fn new(rate: f64, buffer: u64) -> Self {
        Self { rate, buffer: buffer as f64, loss_per_million: 0, bucket: 0.0, backlog: 0.0, at: 0, last: 0 }
    }

    /// A port that lets so many bytes pass at once after a pause, like one whose rate is limited.
    pub(super) fn with_bucket(self, bytes: u64) -> Self {
        Self { bucket: bytes as f64, backlog: -(bytes as f64), ..self }
    }

    /// Bytes that wait at `now`; below 0 those that may pass at once.
    pub(super) fn backlog(&mut self, now: u64) -> f64 {
        self.backlog = (self.backlog - self.rate / 8e9 * (now - self.at) as f64).max(-self.bucket);
        self.at = now;
        self.backlog
    }

    /// When a packet that arrives at `now` leaves the queue; `Err` with that time if the packet finds no room.
    pub(super) fn pass(&mut self, now: u64, bytes: u64) -> Result<u64, u64> {
        let through = self.backlog(now) + bytes as f64;
        let when = now + (through.max(0.0) * 8e9 / self.rate) as u64;
        if through > self.buffer {
            return Err(when);
        }
        self.backlog = through;
        self.last = self.last.max(when);
        Ok(self.last)
    }
}

/// A processor that is busy with other work now and then.
#[derive(Debug, Default)]
struct Cpu {
    pauses: VecDeque<(u64, u64)>,
    planned: u64,
}

impl Cpu {
    fn awake(&mut self, at: u64, chance: &mut Chance) -> u64 {
        while self.planned <= at {
            let from = self.planned + (1 + chance.below(20)) * MS;
            let to = from + (5 + chance.below(21)) * MS;
            self.pauses.push_back((from, to));
            self.planned = to;
        }
        self.pauses.iter().find(|(from, to)| (*from..*to).contains(&at)).map_or(at, |(_, to)| *to)
    }
}

pub(super) struct Host {
    pub port: Port,
    /// What its processor takes from its socket, and what the socket holds; `None`: it reads at once.
    pub socket: Option<Port>,
    /// Whether its processor is busy with other work now and then.
    pub busy: bool,
    /// Whether it asks for room for other traffic.
    pub crowded: bool,
    /// Nothing enters its port before.
    pub joins: u64,
    cpu: Cpu,
}

/// A packet that came to a host.
struct Came {
    at: u64,
    read: u64,
    stamp_us: u32,
    lost: bool,
}

struct Listener {
    meter: DelayMeter,
    /// Timestamp of the last packet that was signed: one in 10 ms is, as STATUS is.
    signed_us: Option<u32>,
    came: VecDeque<Came>,
    report_at: u64,
    arrived: u64,
    lost: u64,
    pub buckets: Vec<u64>,
}

pub(super) struct ServerHost {
    pub rate: Rate,
    /// It wakes up late, by this time at most, in ns, whenever it has waited: its processor has other work.
    pub late: u64,
    awake_at: u64,
    nic: Port,
    begins: u64,
    transit: VecDeque<(u64, u32)>,
    retry_at: u64,
    listeners: Vec<Listener>,
}

pub(super) struct Net {
    pub now: u64,
    pub hosts: Vec<Host>,
    pub servers: Vec<ServerHost>,
    pub flows: Vec<(usize, Tcp)>,
    pub chance: Chance,
    pub trace: bool,
}

impl Net {
    pub(super) fn new(ports: &[Port]) -> Self {
        let hosts = ports.iter().map(|port| Host {
            port: port.clone(),
            socket: None,
            busy: false,
            crowded: false,
            joins: 0,
            cpu: Cpu::default(),
        });
        let seed = std::env::var("RATE_SEED").map_or(7, |seed| seed.parse().expect("a number"));
        let trace = std::env::var("RATE_TRACE").is_ok();
        Self {
            now: SECOND,
            hosts: hosts.collect(),
            servers: vec![],
            flows: vec![],
            chance: Chance::from_seed(seed),
            trace,
        }
    }

    pub(super) fn server(&mut self, after: u64, initial: u64, nic: Port) -> &mut ServerHost {
        let config = RateConfig { initial, floor: 1_000_000, ceiling: 40_000_000_000 };
        let begins = self.now + after;
        let listeners = (0..self.hosts.len()).map(|index| Listener {
            meter: DelayMeter::default(),
            signed_us: None,
            came: VecDeque::new(),
            report_at: begins + 2 * MS + index as u64 * 10_007 % (5 * MS),
            arrived: 0,
            lost: 0,
            buckets: vec![],
        });
        self.servers.push(ServerHost {
            rate: Rate::new(Instant(begins), config),
            late: 0,
            awake_at: 0,
            nic,
            begins,
            transit: VecDeque::new(),
            retry_at: 0,
            listeners: listeners.collect(),
        });
        self.servers.last_mut().unwrap()
    }

    /// The host joins later.
    pub(super) fn joins_after(&mut self, host: usize, time: u64) {
        self.reports_after(host, time);
        self.hosts[host].joins = self.now + time;
    }

    /// The host is silent at first.
    pub(super) fn reports_after(&mut self, host: usize, time: u64) {
        let now = self.now;
        self.servers.iter_mut().for_each(|server| server.listeners[host].report_at = now + time);
    }

    pub(super) fn tcp(&mut self, after: u64, host: usize) {
        let begins = self.now + after;
        self.flows.push((host, Tcp::new(begins)));
    }

    pub(super) fn run(&mut self, time: u64) {
        let end = self.now + time;
        let mut shown = self.now;
        loop {
            let servers = self.servers.iter().map(ServerHost::next);
            let flows = self.flows.iter().map(|(_, flow)| flow.next());
            let next = servers.chain(flows).min().unwrap_or(u64::MAX).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            if self.trace && self.now >= shown && std::env::var("RATE_NOSHOW").is_err() {
                shown += 25 * MS;
                self.show();
            }
            for index in 0..self.servers.len() {
                self.serve(index);
            }
            for (host, flow) in &mut self.flows {
                let port = &mut self.hosts[*host].port;
                flow.act(self.now, port, &mut self.chance);
            }
        }
    }

    /// Prints if `RATE_TRACE` is set.
    #[expect(clippy::print_stderr, reason = "asked for")]
    pub(super) fn say(&self, line: &str) {
        if self.trace {
            eprintln!("{line}");
        }
    }

    /// Fails the test, unless results are only collected.
    pub(super) fn demand(&self, good: bool, outcome: &impl std::fmt::Debug) {
        assert!(good || self.trace, "{outcome:#?}");
    }

    fn show(&mut self) {
        let now = self.now;
        let queue = self.hosts[0].port.backlog(now) * 8.0 / self.hosts[0].port.rate * 1e3;
        let mut line = format!("{:8.3} queue {queue:6.2} ms", now as f64 / 1e9 - 1.0);
        for server in &self.servers {
            let rate = server.rate.bits_per_second() as f64 / 1e6;
            line += &format!(" | {rate:8.2} {}", server.rate.law_name());
        }
        for (_, flow) in &self.flows {
            line += &format!(" | tcp window {:6.1}", flow.window());
        }
        self.say(&line);
    }

    fn serve(&mut self, index: usize) {
        let now = self.now;
        let server = &mut self.servers[index];
        if now < server.begins {
            return;
        }
        server.send(now, &mut self.chance);
        while let Some((_, stamp)) = server.transit.pop_front_if(|(at, _)| *at <= now) {
            let listeners = self.hosts.iter_mut().zip(&mut server.listeners);
            for (host, listener) in listeners.filter(|(host, _)| host.joins <= now) {
                let (when, lost) = match host.port.pass(now, PACKET) {
                    Ok(when) => (when, self.chance.hits(host.port.loss_per_million)),
                    Err(when) => (when, true),
                };
                let at = when + 50_000;
                let read =
                    host.socket.as_mut().filter(|_| !lost).map_or(Ok(at), |socket| socket.pass(at, PACKET));
                let lost = lost || read.is_err();
                listener.came.push_back(Came { at, read: read.unwrap_or(at), stamp_us: stamp, lost });
            }
        }
        let receivers = u32::try_from(self.hosts.len()).unwrap();
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let listener = &mut server.listeners[number];
            if listener.report_at > now {
                continue;
            }
            let awake = if host.busy { host.cpu.awake(now, &mut self.chance) } else { now };
            if awake > now {
                listener.report_at = awake;
                continue;
            }
            while let Some(came) = listener.came.pop_front_if(|came| came.read <= now) {
                let bucket = ((came.read - SECOND) / BUCKET) as usize;
                listener.buckets.resize(listener.buckets.len().max(bucket + 1), 0);
                if came.lost {
                    listener.lost += 1;
                    continue;
                }
                listener.arrived += 1;
                listener.buckets[bucket] += PACKET;
                let stamp_us = came.stamp_us;
                let is_signed = listener.signed_us.is_none_or(|last| stamp_us.wrapping_sub(last) >= 10_000);
                if is_signed {
                    listener.signed_us = Some(stamp_us);
                }
                let read = if host.busy { host.cpu.awake(came.read, &mut self.chance) } else { came.read };
                listener.meter.kept(Instant(read).since(Instant(came.at)));
                listener.meter.packet(Instant(came.at), stamp_us, is_signed);
            }
            let report = Feedback {
                receiver: ReceiverId(u32::try_from(number).unwrap()),
                queue_us: listener.meter.take(Instant(now)),
                arrived: listener.arrived,
                lost: listener.lost,
                crowded: host.crowded,
            };
            let bits = f64::from(server.rate.reports_bits_per_second(Instant(now)));
            let interval = (f64::from(receivers) * 150.0 * 8.0 / bits * 1e9).clamp(10e6, 60e9) as u64;
            listener.report_at = now + interval / 2 + self.chance.below(interval);
            if listener.arrived > 0 {
                server.rate.feedback(Instant(now), &report, receivers);
            }
        }
    }

    /// Bytes per 100 ms that arrived at `host` from `server`, from `from` to `to` (in ms since the start).
    pub(super) fn delivered(&self, server: usize, host: usize, from_ms: u64, to_ms: u64) -> Vec<u64> {
        let buckets = &self.servers[server].listeners[host].buckets;
        (from_ms / 100..to_ms / 100)
            .map(|bucket| buckets.get(bucket as usize).copied().unwrap_or(0))
            .collect()
    }

    /// The mean rate in bits per second over that time.
    pub(super) fn mean(&self, server: usize, host: usize, from_ms: u64, to_ms: u64) -> f64 {
        let sum: u64 = self.delivered(server, host, from_ms, to_ms).iter().sum();
        sum as f64 * 8e3 / (to_ms - from_ms) as f64
    }

    /// Part of the packets to a host that were lost.
    pub(super) fn lost(&self, server: usize, host: usize) -> f64 {
        let listener = &self.servers[server].listeners[host];
        listener.lost as f64 / (listener.lost + listener.arrived) as f64
    }
}

impl ServerHost {
    fn next(&self) -> u64 {
        let sending = self.rate.ready_at().0.max(self.begins).max(self.retry_at).max(self.awake_at);
        let transit = self.transit.front().map_or(u64::MAX, |(at, _)| *at);
        let reports = self.listeners.iter().map(|listener| listener.report_at).min().unwrap_or(u64::MAX);
        sending.min(transit).min(reports)
    }

    fn send(&mut self, now: u64, chance: &mut Chance) {
        if now < self.awake_at {
            return;
        }
        let mut clock_us = (now / 1000) as u32;
        while self.rate.ready_at().0 <= now && self.retry_at <= now {
            let run = u64::from(self.rate.run_blocks_max(PACKET, 43));
            let over = self.nic.backlog(now) + (run * PACKET) as f64 - self.nic.buffer;
            if over > 0.0 {
                self.rate.excuse();
                self.retry_at = now + (over * 8e9 / self.nic.rate) as u64 + 1000;
                return;
            }
            for _ in 0..run {
                let through = self.nic.pass(now, PACKET).unwrap();
                self.transit.push_back((through, clock_us));
            }
            clock_us += RUN_US;
            self.rate.sent(Instant(now), run * PACKET);
        }
        if self.late > 0 {
            self.awake_at = self.rate.ready_at().0.max(now) + chance.below(self.late);
        }
    }
}
