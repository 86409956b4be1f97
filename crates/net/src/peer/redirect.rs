//! The server's redirector: its socket, its thread, and the keys of swarms. Source: `formats/peer.md`.
//!
//! All keys are derived from the server's secret and the names of swarm and member, so that members need not join again
//! when the server is restarted: its tables fill with their next reports.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Digest, Error, ErrorKind, Result};
use parking_lot::Mutex;
use proto::peer::{
    Contact, MemberId, PACKET_BYTES_MAX, Packet, Redirector, RedirectorConfig, RedirectorCounters, SwarmId,
    SwarmView, open, peek, seal_packet,
};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::api::{Key, Name, SwarmGrant, TransferKey};
use crate::clock::Clock;
use crate::udp;
use crate::waker::Waker;

/// Shortest time between two reports of a member, and the part of it for each member of its swarm.
const REPORT_MS: u64 = 50;
const REPORT_US_PER_MEMBER: u64 = 200;
/// Longest wait of the thread, so that it notices the end.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// Runs the redirector of a server until it is dropped.
pub struct RedirectorServer {
    shared: Arc<Shared>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    key: hmac::Key,
    clock: Clock,
    redirector: Mutex<Redirector>,
    over: AtomicBool,
    waker: Waker,
}

impl RedirectorServer {
    /// Takes packets at `listen`. All keys are derived from `secret`.
    ///
    /// # Errors
    /// `Io` if the port cannot be opened, or no thread started.
    pub fn start(secret: &[u8; 32], listen: SocketAddr) -> Result<Self> {
        let context =
            |error| Error::from_source(ErrorKind::Io, format!("take packets of peers on {listen}"), error);
        let socket = UdpSocket::bind(listen).map_err(context)?;
        let port = socket.local_addr().map_err(context)?.port();
        socket.set_nonblocking(true).map_err(context)?;
        let shared = Arc::new(Shared {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            clock: Clock::start(),
            redirector: Mutex::new(Redirector::new(RedirectorConfig::default())),
            over: AtomicBool::new(false),
            waker: Waker::new().map_err(context)?,
        });
        let ours = Arc::clone(&shared);
        let spawned = std::thread::Builder::new().name("redirector".into()).spawn(move || ours.run(&socket));
        let thread = Some(spawned.map_err(context)?);
        Ok(Self { shared, port, thread })
    }

    /// The swarm of the version with this manifest: the same after a restart.
    #[must_use]
    pub fn swarm_of(&self, manifest: &Digest) -> Name {
        let tag = hmac::sign(&self.shared.key, &[b"swarm", &manifest.0[..]].concat());
        Name(u64::from_le_bytes(*tag.as_ref().first_chunk().expect("32 bytes")))
    }

    /// Admits a member, the `rank`th, to the swarm of a version with `objects` objects. It is at `place` (0: unknown).
    ///
    /// # Errors
    /// `Refused` if there are too many swarms; `Io` if the system has no random numbers.
    pub fn admit(&self, swarm: Name, objects: u32, rank: u32, place: u32) -> Result<SwarmGrant> {
        let shared = &self.shared;
        let mut random = [0; 8];
        let drawn = SystemRandom::new().fill(&mut random);
        drawn.map_err(|_| Error::new(ErrorKind::Io, "draw the name of a member from the system"))?;
        let member = MemberId(u64::from_le_bytes(random).max(1));
        let swarm = SwarmId(swarm.0);
        let (held, members) = {
            let mut redirector = shared.redirector.lock();
            if !redirector.expect(shared.clock.now(), swarm, objects) {
                return Err(Error::new(ErrorKind::Refused, "there are too many swarms"));
            }
            (redirector.held(swarm), redirector.view(swarm).members)
        };
        Ok(SwarmGrant {
            peer: proto::peer::VERSION,
            swarm: Name(swarm.0),
            member: Name(member.0),
            member_key: shared.member_key(swarm, member),
            offer_key: shared.offer_key(swarm),
            transfer_key: TransferKey(shared.derive(b"transfer", swarm, 0)),
            rank,
            port: self.port,
            objects,
            report_ms: REPORT_MS + u64::from(members) * REPORT_US_PER_MEMBER / 1000,
            held: held.into_iter().map(|run| (run.start, run.end - run.start)).collect(),
            place,
            others: members > 0,
        })
    }

    /// What the members of a swarm hold together.
    #[must_use]
    pub fn held(&self, swarm: Name) -> Vec<Range<u32>> {
        self.shared.redirector.lock().held(SwarmId(swarm.0))
    }

    /// A swarm in numbers.
    #[must_use]
    pub fn view(&self, swarm: Name) -> SwarmView {
        self.shared.redirector.lock().view(SwarmId(swarm.0))
    }

    /// What the redirector did so far, and how many members it knows.
    #[must_use]
    pub fn counters(&self) -> (RedirectorCounters, usize) {
        let redirector = self.shared.redirector.lock();
        (redirector.counters(), redirector.members())
    }
}

impl Drop for RedirectorServer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn derive(&self, what: &[u8], swarm: SwarmId, member: u64) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        [what, &swarm.0.to_le_bytes(), &member.to_le_bytes()].iter().for_each(|part| context.update(part));
        *context.sign().as_ref().first_chunk().expect("32 bytes")
    }

    fn member_key(&self, swarm: SwarmId, member: MemberId) -> Key {
        Key(*self.derive(b"member", swarm, member.0).first_chunk().expect("32 bytes"))
    }

    fn offer_key(&self, swarm: SwarmId) -> Key {
        Key(*self.derive(b"offer", swarm, 0).first_chunk().expect("32 bytes"))
    }

    /// Answers packets until the server ends.
    fn run(&self, socket: &UdpSocket) {
        let mut buffer = [0; PACKET_BYTES_MAX + 1];
        while !self.over.load(Ordering::Acquire) {
            match socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    if let Some(answer) = self.take(&buffer[..length], from) {
                        // What is lost is asked again.
                        let _ = socket.send_to(&answer, from);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !udp::wait(&[socket, &self.waker], None, WAIT_MAX).unwrap_or(false) {
                        self.redirector.lock().handle_timeout(self.clock.now());
                    }
                }
                // Errors that the network signalled for an earlier answer.
                Err(_) => {}
            }
        }
    }

    /// Takes a packet, and returns the answer.
    fn take(&self, packet: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
        let head = peek(packet).ok()?;
        let key = self.member_key(head.swarm, head.member);
        let opened = open(Some(&key.into()), packet).ok()?;
        let contact = Contact { from: SocketAddr::new(from.ip().to_canonical(), from.port()), ingress: 0 };
        let now = self.clock.now();
        let mut redirector = self.redirector.lock();
        redirector.handle_timeout(now);
        match opened {
            Packet::Report(report) => {
                redirector.handle_report(now, head.swarm, head.member, contact, &report);
                None
            }
            Packet::Leave => {
                redirector.handle_leave(head.swarm, head.member, contact);
                None
            }
            Packet::Request(request) => {
                let (swarm, member) = (head.swarm, head.member);
                let offer = redirector.handle_passed_on(now, swarm, member, &request, head.hops)?.offer();
                drop(redirector);
                let key = self.offer_key(head.swarm).into();
                Some(seal_packet(&key, head.swarm, MemberId(0), head.number, &Packet::Offer(offer)))
            }
            Packet::Offer(_) => None,
        }
    }
}
