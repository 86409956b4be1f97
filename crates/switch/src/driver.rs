//! The thread of an agent: reads lifted frames, sends those that were held back, renews the rules.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use parking_lot::Mutex;

use super::agent::{Agent, SwitchCounters};
#[cfg(feature = "ebpf")]
use super::fast::Fast;
#[cfg(not(feature = "ebpf"))]
use super::no_fast::Fast;
use super::ports::{Bridge, Choice, Port};
use super::rules::{ALIVE, Rules};
use super::tap::Tap;
use net::clock::Clock;
use net::udp;
use net::waker::Waker;

/// Time between two renewals of the rules.
const TICK: Duration = Duration::from_millis(500);
/// Ticks between two looks at the ports, which may come and go.
const PORTS_TICKS: u32 = 10;
/// Most frames between two looks at the clock.
const BURST: usize = 64;
/// Longest frame that is read whole: a control packet is at most 1400 bytes.
const FRAME_BYTES: usize = 2048;

/// How an agent works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchOptions {
    /// The ports that it looks after.
    pub ports: Choice,
    /// The server whose packets it lifts, as members address it.
    pub server: SocketAddr,
    /// Whether a program in the kernel redirects requests by itself; only what it cannot decide comes to the agent.
    /// Needs the feature `ebpf`.
    pub in_kernel: bool,
}

/// An agent at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchStatus {
    /// What it did.
    pub counters: SwitchCounters,
    /// Members heard below.
    pub members: usize,
    /// Their swarms.
    pub swarms: usize,
    /// The ports.
    pub ports: Vec<Port>,
    /// Whether requests come to the agent. If not, all of them flow to the server.
    pub holds: bool,
}

/// An agent that works until it is dropped.
#[derive(Debug)]
pub struct SwitchAgent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    over: AtomicBool,
    waker: Waker,
    status: Mutex<SwitchStatus>,
}

impl SwitchAgent {
    /// Starts an agent in the network namespace of this thread.
    ///
    /// # Errors
    /// `NotFound` for ports that do not exist; `Refused` if another agent works there; `Unsupported` without the tool
    /// `nft`, or if this build cannot load programs into the kernel; `Io`, for example without root.
    pub fn start(options: SwitchOptions) -> Result<Self> {
        let context = |error| Error::from_source(ErrorKind::Io, "open a packet socket at the switch", error);
        let bridge = Bridge::find(&options.ports)?;
        let tap = Tap::open(options.server, !options.in_kernel).map_err(context)?;
        let (fast, rules) = match options.in_kernel {
            true => (Some(Fast::start(options.server, &bridge)?), None),
            false => (None, Some(Rules::install(&bridge.ports, options.server)?)),
        };
        let status = SwitchStatus { ports: bridge.ports.clone(), holds: true, ..SwitchStatus::default() };
        let shared = Shared {
            over: AtomicBool::new(false),
            waker: Waker::new().map_err(context)?,
            status: Mutex::new(status),
        };
        let shared = Arc::new(shared);
        let clock = Clock::start();
        let agent = Agent::new(bridge.mac, options.in_kernel);
        let mut driver = Driver {
            shared: Arc::clone(&shared),
            renewed_at: clock.now(),
            rules,
            agent,
            clock,
            options,
            bridge,
            tap,
            fast,
            ticks: 0,
        };
        let spawned = std::thread::Builder::new().name("switch".into()).spawn(move || driver.run());
        Ok(Self { shared, thread: Some(spawned.map_err(context)?) })
    }

    /// What it did, and whom it knows; at most half a second old.
    #[must_use]
    pub fn status(&self) -> SwitchStatus {
        self.shared.status.lock().clone()
    }
}

impl Drop for SwitchAgent {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Driver {
    shared: Arc<Shared>,
    options: SwitchOptions,
    clock: Clock,
    bridge: Bridge,
    tap: Tap,
    rules: Option<Rules>,
    renewed_at: Instant,
    fast: Option<Fast>,
    agent: Agent,
    ticks: u32,
}

impl Driver {
    fn run(&mut self) {
        let mut due = self.clock.now() + TICK;
        while !self.shared.over.load(Ordering::Acquire) {
            let now = self.clock.now();
            if now >= due {
                self.tick(now);
                due = now + TICK;
            }
            let sockets: [&dyn std::os::fd::AsFd; 2] = [&self.tap, &self.shared.waker];
            let ready = udp::wait(&sockets, None, due.since(now));
            if ready.unwrap_or(false) {
                self.take(BURST);
            }
        }
        // First nothing more is held back, then what was held back goes on its way.
        self.rules = None;
        while self.take(BURST) == BURST {}
        self.publish(false);
        self.fast = None;
    }

    /// Takes at most `most` frames. Returns how many there were.
    fn take(&mut self, most: usize) -> usize {
        let now = self.clock.now();
        // After a standstill longer than the rules hold, requests have passed by themselves, and were repeated.
        let is_late = now.since(self.renewed_at) >= ALIVE;
        let mut frame = [0; FRAME_BYTES];
        let mut count = 0;
        while count < most {
            let Ok(Some((length, ingress))) = self.tap.receive(&mut frame) else { break };
            count += 1;
            let frame = &mut frame[..length.min(FRAME_BYTES)];
            let is_ours = self.bridge.ports.iter().any(|port| port.index == ingress);
            if is_ours && self.agent.handle(now, ingress, frame) && !is_late
                // The bridge knows by which port a member, or the server, is reached.
                && self.tap.send(frame, self.bridge.port.index).is_err()
            {
                self.agent.counters_mut().unsent += 1;
            }
        }
        self.tell_kernel();
        count
    }

    fn tick(&mut self, now: Instant) {
        self.ticks += 1;
        self.agent.sweep(now);
        self.tell_kernel();
        if self.ticks.is_multiple_of(PORTS_TICKS) {
            self.look_at_ports();
        }
        if let Some(fast) = &mut self.fast {
            let holds = fast.renew();
            return self.publish(holds);
        }
        let renewed = self.rules.as_mut().is_some_and(|rules| rules.is_alive() && rules.renew().is_ok());
        if renewed {
            // What arrived during a standstill is not for the agent any more.
            if now.since(self.renewed_at) >= ALIVE {
                while self.take(BURST) == BURST {}
            }
            self.renewed_at = now;
        } else {
            self.install();
        }
        self.publish(self.rules.is_some());
    }

    fn tell_kernel(&mut self) {
        if let Some(fast) = &mut self.fast {
            fast.apply(&mut self.agent);
        }
    }

    /// Takes the rules away and tries to install them again.
    fn install(&mut self) {
        self.rules = None;
        while self.take(BURST) == BURST {}
        self.rules = Rules::install(&self.bridge.ports, self.options.server).ok();
        if self.rules.is_some() {
            self.renewed_at = self.clock.now();
        }
    }

    fn look_at_ports(&mut self) {
        let Ok(found) = Bridge::find(&self.options.ports) else { return };
        if found != self.bridge {
            self.bridge = found;
            match &mut self.fast {
                Some(fast) => fast.look_at_ports(&self.bridge),
                None => self.install(),
            }
        }
    }

    fn publish(&mut self, holds: bool) {
        let lost = self.tap.take_lost();
        self.agent.counters_mut().lost += lost;
        self.agent.counters_mut().redirected_in_kernel = self.fast.as_ref().map_or(0, Fast::redirected);
        *self.shared.status.lock() = SwitchStatus {
            counters: self.agent.counters(),
            members: self.agent.members(),
            swarms: self.agent.swarms(),
            ports: self.bridge.ports.clone(),
            holds,
        };
    }
}
