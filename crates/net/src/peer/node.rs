//! A member of a swarm: its sockets, its reports, and its answers to requests that a switch passed on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use proto::multicast::Key;
use proto::peer::{
    AVOIDED_MAX, Hearing, MemberId, Offer, Offered, PACKET_BYTES_MAX, Packet, Part, Report, Request, SwarmId,
    Window, batch_of, open, peek, seal_packet,
};
use socket2::{Domain, Socket, Type};

use super::spool::{Spool, SpoolLimits};
use super::upload::{self, Served, Uploads};
use crate::api::SwarmGrant;
use crate::clock::Clock;
use crate::pace::Pace;
use crate::udp;
use crate::waker::Waker;

/// Ports of members, for UDP and TCP: the first one that is free.
const PORTS: std::ops::RangeInclusive<u16> = 7700..=7715;
/// A member reports at least this often.
const REPORT_AT_LEAST: Duration = Duration::from_secs(2);
/// Most packets of one report; the rest follows with the next.
const WINDOWS_MAX: usize = 4;
/// A member that leaves sends what was asked for already, for at most this time.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Answers that wait for the seeker. More are dropped: it asks again.
const ANSWERS_MAX: usize = 256;
/// Numbers of requests that announce a fetch begin here; those of a seeker are lower.
const ANNOUNCED: u32 = 1 << 31;

/// How a machine takes part in swarms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerOptions {
    /// Whether others may get objects from this machine.
    pub serves: bool,
    /// What it keeps for them.
    pub spool: SpoolLimits,
    /// Where it is: equal for machines at one switch or in one rack. 0: as the server says.
    pub place: u32,
    /// Most bytes per second that it sends to all others together. `None`: as many as they take.
    pub upload_bytes_per_second: Option<u64>,
}

impl PeerOptions {
    /// It serves what fits into its memory.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let spool = SpoolLimits::of_this_machine();
        Self { serves: true, spool, place: 0, upload_bytes_per_second: None }
    }
}

/// What a member did for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerTraffic {
    /// Bytes of objects that it sent.
    pub sent_bytes: u64,
    /// Transfers that it serves now.
    pub uploads: usize,
}

/// A member of a swarm, until it is dropped.
pub struct Node {
    shared: Arc<Shared>,
    over: Arc<AtomicBool>,
    answers: Receiver<Answer>,
    hearing: Mutex<Hearing>,
    threads: Vec<JoinHandle<()>>,
}

/// An OFFER, the number of its request, and where it came from.
pub(super) type Answer = (u32, IpAddr, Offer);

/// What the threads of a node share.
struct Shared {
    grant: SwarmGrant,
    served: Arc<Served>,
    serves: bool,
    /// The network loses full-size packets to or from this machine.
    is_narrow: AtomicBool,
    place: u32,
    socket: UdpSocket,
    server: SocketAddr,
    port: u16,
    report_number: AtomicU32,
    announced: AtomicU32,
    replies: Sender<Answer>,
}

impl Node {
    /// Takes part in the swarm of `grant`, whose redirector is at `server` (its port is that of the grant).
    ///
    /// # Errors
    /// `Io` if there is no free port, or sockets or threads fail.
    pub fn start(grant: SwarmGrant, server: IpAddr, options: PeerOptions) -> Result<Self> {
        let context = |error| Error::from_source(ErrorKind::Io, "open the ports for other machines", error);
        let (socket, listener) = sockets().map_err(context)?;
        let port = socket.local_addr().map_err(context)?.port();
        let is_v6 = socket.local_addr().map_err(context)?.is_ipv6();
        let server = match server {
            IpAddr::V4(address) if is_v6 => IpAddr::V6(address.to_ipv6_mapped()),
            address => address,
        };
        let (replies, answers) = bounded(ANSWERS_MAX);
        let shared = Arc::new(Shared {
            served: Arc::new(Served {
                swarm: SwarmId(grant.swarm.0),
                key: grant.transfer_key.0,
                spool: Spool::new(grant.objects, options.spool),
                uploads: Uploads::new(),
                pace: options.upload_bytes_per_second.map(|rate| Arc::new(Pace::new(rate))),
                sent_bytes: AtomicU64::new(0),
                waker: Waker::new().map_err(context)?,
            }),
            serves: options.serves,
            is_narrow: AtomicBool::new(false),
            place: if options.place == 0 { grant.place } else { options.place },
            socket,
            server: SocketAddr::new(server, grant.port),
            port,
            report_number: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            replies,
            grant,
        });
        let over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let (control, control_over) = (Arc::clone(&shared), Arc::clone(&over));
        threads.push(thread("peer-control", move || control.control(&control_over)).map_err(context)?);
        if options.serves {
            let (upload, upload_over) = (Arc::clone(&shared.served), Arc::clone(&over));
            let listen = move || upload::listen(&listener, &upload, &upload_over);
            threads.push(thread("peer-listen", listen).map_err(context)?);
        }
        Ok(Self { shared, over, answers, hearing: Mutex::default(), threads })
    }

    /// The objects that it holds for others. Only verified ones may be put there.
    #[must_use]
    pub fn spool(&self) -> &Spool {
        &self.shared.served.spool
    }

    /// What the server granted.
    #[must_use]
    pub fn grant(&self) -> &SwarmGrant {
        &self.shared.grant
    }

    /// What it did for others so far.
    #[must_use]
    pub fn traffic(&self) -> PeerTraffic {
        let sent_bytes = self.shared.served.sent_bytes.load(Ordering::Relaxed);
        PeerTraffic { sent_bytes, uploads: self.shared.served.uploads.count() }
    }

    /// Port of its packets and its transfers.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// Tells the redirector that this machine gets an object from the server now: others wait for it. The answer tells
    /// whether there are others.
    pub fn announce(&self, object: u64) {
        let number = ANNOUNCED | self.shared.announced.fetch_add(1, Ordering::Relaxed);
        let part = batch_of(object);
        self.ask(
            number,
            Request { part, avoided: [MemberId(0); AVOIDED_MAX], blamed: 0, direct: true, scouts: false },
        );
    }

    /// The network loses full-size packets to or from this machine: it takes small ones, and serves nobody.
    pub fn narrow(&self) {
        self.shared.is_narrow.store(true, Ordering::Release);
    }

    /// Whether that was found.
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        self.shared.is_narrow.load(Ordering::Acquire)
    }

    /// Sends a request to the redirector.
    pub(super) fn ask(&self, number: u32, request: Request) {
        self.shared.send(&self.shared.own_key(), number, &Packet::Request(request), self.shared.server);
    }

    /// Answers to requests.
    pub(super) fn answers(&self) -> &Receiver<Answer> {
        &self.answers
    }

    /// Whether anybody answered the last pull's requests.
    pub(super) fn hearing(&self) -> &Mutex<Hearing> {
        &self.hearing
    }

    pub(super) fn transfer_key(&self) -> &[u8; 32] {
        &self.shared.grant.transfer_key.0
    }

    pub(super) fn swarm(&self) -> SwarmId {
        self.shared.swarm()
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({:?})", self.grant().member)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.shared.served.waker.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // Twice, since a packet may be lost; the redirector notices the silence otherwise.
        for _ in 0..2 {
            self.shared.send(&self.shared.own_key(), 0, &Packet::Leave, self.shared.server);
        }
        // What was asked for already would otherwise have to come from somebody else.
        self.shared.served.uploads.finish(LINGER_MAX);
        self.shared.served.uploads.close();
        if let Some(pace) = &self.shared.served.pace {
            pace.end();
        }
    }
}

impl Shared {
    fn swarm(&self) -> SwarmId {
        SwarmId(self.grant.swarm.0)
    }

    fn serves(&self) -> bool {
        self.serves && !self.is_narrow.load(Ordering::Acquire)
    }

    fn own_key(&self) -> Key {
        self.grant.member_key.into()
    }

    fn send(&self, key: &Key, number: u32, packet: &Packet, to: SocketAddr) {
        let member = MemberId(self.grant.member.0);
        let bytes = seal_packet(key, self.swarm(), member, number, packet);
        // What is lost is sent again.
        let _ = self.socket.send_to(&bytes, to);
    }

    /// Reports, and takes packets, until the node ends.
    fn control(&self, over: &AtomicBool) {
        let clock = Clock::start();
        let interval = Duration::from_millis(self.grant.report_ms.max(20));
        let (mut told, mut next, mut first) = (None, clock.now(), 0);
        // A change is told twice, since a packet may be lost.
        let mut again = true;
        let mut buffer = [0; PACKET_BYTES_MAX];
        while !over.load(Ordering::Acquire) {
            let now = clock.now();
            let changes = self.served.spool.changes();
            let is_told = told == Some(changes) && first == 0 && !again;
            let due = if is_told { next + REPORT_AT_LEAST } else { next + interval };
            if told.is_none() || due <= now {
                again = told != Some(changes);
                first = self.report(first);
                (told, next) = (Some(changes), now);
                continue;
            }
            // What arrives does not wake this thread: it looks once in an interval.
            let wait = due.since(now).min(interval);
            if !udp::wait(&[&self.socket, &self.served.waker], None, wait).unwrap_or(false) {
                continue;
            }
            while let Ok((length, from)) = self.socket.recv_from(&mut buffer) {
                self.take(&buffer[..length], from);
            }
        }
    }

    /// Reports what it holds from object `first` on. Returns from where to go on next time, 0 after the end.
    fn report(&self, first: u32) -> u32 {
        let held = self.served.spool.held();
        let mut at = first;
        for _ in 0..WINDOWS_MAX {
            let window = Window::of(&held, at);
            at = window.objects.end;
            let number = self.report_number.fetch_add(1, Ordering::Relaxed);
            let report = Report {
                port: if self.serves() { self.port } else { 0 },
                uploads: u8::try_from(self.served.uploads.count()).unwrap_or(u8::MAX),
                place: self.place,
                objects: self.grant.objects,
                window,
            };
            self.send(&self.own_key(), number, &Packet::Report(report), self.server);
            if at >= self.grant.objects {
                return 0;
            }
        }
        at
    }

    fn take(&self, packet: &[u8], from: SocketAddr) {
        let Ok(head) = peek(packet) else { return };
        if head.swarm != self.swarm() {
            return;
        }
        let offer_key: Key = self.grant.offer_key.into();
        // The tag of a request is under its sender's key, which only the server knows.
        match open(head.is_offer.then_some(&offer_key), packet) {
            Ok(Packet::Offer(offer)) => {
                let _ = self.replies.try_send((head.number, from.ip().to_canonical(), offer));
            }
            Ok(Packet::Request(request)) if self.serves() => {
                let part = request.part;
                let has = Part { mask: part.mask & self.served.spool.mask(part.batch), ..part };
                let member = MemberId(self.grant.member.0);
                let offer = match has.mask {
                    0 => Offer { part, offered: Offered::Nobody { others: false } },
                    _ => Offer {
                        part: has,
                        offered: Offered::Member { member, address: None, port: self.port },
                    },
                };
                self.send(&offer_key, head.number, &Packet::Offer(offer), from);
            }
            _ => {}
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

/// A socket for packets and one for transfers with the same port, which take no waiting.
fn sockets() -> io::Result<(UdpSocket, TcpListener)> {
    let mut last = None;
    let families = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    for address in families {
        for port in PORTS.chain([0]) {
            match pair(SocketAddr::new(address, port)) {
                Ok(pair) => return Ok(pair),
                Err(error) => last = Some(error),
            }
        }
    }
    Err(last.expect("something was tried"))
}

fn pair(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let open = |address: SocketAddr, kind| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let packets: UdpSocket = open(address, Type::DGRAM)?.into();
    let transfers = open(packets.local_addr()?, Type::STREAM)?;
    transfers.listen(64)?;
    crate::tcp::retransmit_soon(&transfers);
    Ok((packets, transfers.into()))
}
