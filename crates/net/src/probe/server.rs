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
use crate::api::{Key, ProbeView, SessionId};
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

#[derive(Debug)]
struct Counted {
    view: ProbeView,
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
        let sizes = config.sizes.iter().map(|&size| (size, 0)).collect();
        let view = ProbeView { rounds: 0, reports: 0, sizes: Some(sizes), from: None };
        let counted = Counted { view, asked_at: Duration::ZERO, over: false };
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

    /// What it has sent and what arrived. A probe about which nobody asks ends.
    #[must_use]
    pub fn view(&self) -> ProbeView {
        let mut counted = self.shared.counted.lock();
        counted.asked_at = self.shared.clock.elapsed();
        counted.view.clone()
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
        let (reports, asked_at) = {
            let counted = shared.counted.lock();
            (counted.view.reports, counted.asked_at)
        };
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
        shared.counted.lock().view.rounds = round;
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
    let (key, probe) = (config.key.into(), low_bits(config.id));
    let headers = usize::from(header_bytes(config.group.is_ipv4()));
    for (from, datagram) in arrivals.packets() {
        let view = &mut shared.counted.lock().view;
        if Packet::open(From::Machine, &key, probe, datagram).is_some() {
            view.reports += 1;
            view.from = Some(from);
        } else if let Some(packet) = Packet::open(From::MachineSized, &key, probe, datagram) {
            let is_whole = datagram.len() + headers == usize::from(packet.ip_bytes);
            // Only sizes of this probe are counted, so that the table does not grow.
            let count = view.sizes.as_mut().and_then(|sizes| sizes.get_mut(&packet.ip_bytes));
            if let Some(count) = count.filter(|_| is_whole) {
                *count += 1;
            }
        }
    }
}

/// The part of a probe's id that packets carry.
pub(super) fn low_bits(id: SessionId) -> u64 {
    u64::try_from(id.0 & u128::from(u64::MAX)).expect("64 bits")
}
