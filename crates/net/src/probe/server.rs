//! The server's side of a probe: one thread that sends rounds of packets and counts reports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::packet::{From, Packet};
use super::{PROBE_MAX, ROUND, header_bytes};
use crate::api::{Key, SessionId};
use crate::clock::{Clock, Stop};
use crate::udp::{Arrivals, GroupSender, SendOptions, wait};

/// What a probe sends, and where.
#[derive(Debug, Clone)]
pub struct ProbeConfig {
    /// The probe's id.
    pub id: SessionId,
    /// Key of the packets of both sides.
    pub key: Key,
    /// Group and port to which it sends.
    pub group: SocketAddr,
    /// Interface and socket options.
    pub send: SendOptions,
    /// Sizes of the IP packets of a round, in bytes.
    pub sizes: Vec<u16>,
    /// A probe about which nobody asks for this time has ended.
    pub patience: Duration,
}

/// An id and a key for a probe.
///
/// # Errors
/// `Io` if the system gives no random numbers.
pub fn draw() -> Result<(SessionId, Key)> {
    let mut all = [[0; 16]; 2];
    let drawn = SystemRandom::new().fill(all.as_flattened_mut());
    drawn.map_err(|_| Error::new(ErrorKind::Io, "draw random keys from the system"))?;
    Ok((SessionId(u128::from_be_bytes(all[0])), Key(all[1])))
}

/// A running probe. Dropping it ends it.
pub struct ProbeServer {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    clock: Clock,
    stop: Stop,
    /// It ends when nobody asks for this time.
    patience: Duration,
    counted: Mutex<Counted>,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    rounds: u32,
    reports: u32,
    from: Option<SocketAddr>,
    /// When somebody last asked for its state, since it began.
    asked_at: Duration,
    over: bool,
}

impl ProbeServer {
    /// Starts to send.
    ///
    /// # Errors
    /// `Io` if the socket cannot be opened, also if its port is taken; as [`GroupSender::open`].
    pub fn start(config: ProbeConfig) -> Result<Self> {
        let socket = GroupSender::open(config.group, &config.send)?;
        let local = socket.local()?;
        let counted = Counted { rounds: 0, reports: 0, from: None, asked_at: Duration::ZERO, over: false };
        let shared = Arc::new(Shared {
            clock: Clock::start(),
            stop: Stop::new(),
            patience: config.patience,
            counted: Mutex::new(counted),
        });
        let of_thread = Arc::clone(&shared);
        let run = move || {
            send_rounds(&config, &socket, &of_thread);
            of_thread.counted.lock().over = true;
        };
        let thread = std::thread::Builder::new().name("probe".into()).spawn(run);
        let thread =
            thread.map_err(|error| Error::from_source(ErrorKind::Io, "start a probe's thread", error))?;
        Ok(Self { shared, local, thread: Some(thread) })
    }

    /// The address from which it sends, and at which it receives reports.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Rounds sent, reports that arrived, and the address of the last one. A probe about which nobody asks ends.
    #[must_use]
    pub fn view(&self) -> (u32, u32, Option<SocketAddr>) {
        let mut counted = self.shared.counted.lock();
        counted.asked_at = self.shared.clock.elapsed();
        (counted.rounds, counted.reports, counted.from)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.counted.lock().over
    }
}

impl Drop for ProbeServer {
    fn drop(&mut self) {
        self.shared.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn send_rounds(config: &ProbeConfig, socket: &GroupSender, shared: &Shared) {
    let (probe, key) = (low_bits(config.id), config.key.into());
    let headers = usize::from(header_bytes(config.group.is_ipv4()));
    let (clock, mut arrivals) = (shared.clock, Arrivals::default());
    let mut round = 0;
    while !shared.stop.is_stopped() && clock.elapsed() < PROBE_MAX {
        let Counted { reports, asked_at, .. } = *shared.counted.lock();
        if clock.elapsed().saturating_sub(asked_at) > shared.patience {
            return;
        }
        for &ip_bytes in &config.sizes {
            let packet = Packet { probe, round, ip_bytes, reports };
            let packet = packet.encode(From::Server, &key, usize::from(ip_bytes) - headers);
            // What cannot be sent counts as lost, as on the network.
            let _ = socket.send(&packet, packet.len());
        }
        round += 1;
        shared.counted.lock().rounds = round;
        let due = ROUND * round;
        while let Some(left) = due.checked_sub(clock.elapsed()).filter(|left| !left.is_zero()) {
            if wait(&[socket], None, left.min(Duration::from_millis(50))).is_err() || shared.stop.is_stopped()
            {
                break;
            }
            while socket.receive(&mut arrivals).unwrap_or(false) {
                count_reports(config, &arrivals, shared);
            }
        }
    }
}

fn count_reports(config: &ProbeConfig, arrivals: &Arrivals, shared: &Shared) {
    for (from, datagram) in arrivals.packets() {
        if Packet::open(From::Machine, &config.key.into(), low_bits(config.id), datagram).is_some() {
            let mut counted = shared.counted.lock();
            counted.reports += 1;
            counted.from = Some(from);
        }
    }
}

/// The part of a probe's id that packets carry.
pub(super) fn low_bits(id: SessionId) -> u64 {
    u64::try_from(id.0 & u128::from(u64::MAX)).expect("64 bits")
}
