//! UDP sockets of multicast sessions: runs of packets are sent and received with one system call each.
//!
//! Sending uses generic segmentation offload (`UDP_SEGMENT`, `udp(7)`): up to 64 packets of equal size in one call.
//! If the kernel or a network driver refuses it, packets are sent one by one. Receiving uses `recvmmsg` with generic
//! receive offload (`UDP_GRO`). All sockets are non-blocking; only [`wait`] blocks.
//!
//! A shaped or slow link pushes back through the send buffer. The buffer is small on purpose: a repair cannot
//! overtake packets that are already in it. A queue discipline that drops packets is noticed too, because
//! `IP_RECVERR` makes the send call fail with `ENOBUFS`.

mod offload;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use crate::interface::Interface;
use offload::OffloadSocket;
pub use offload::{Arrivals, Sent, Train};

/// Default size of the send buffer, in bytes. The kernel grants twice that and counts its own overhead, so a few runs
/// fit: enough to keep a link busy between two wake-ups, and about 2 ms at 1 Gbit/s.
pub(crate) const SEND_BUFFER_BYTES: usize = 192 << 10;
/// At lower rates the send buffer holds what takes this time to send, in milliseconds, but at least
/// `SEND_BUFFER_BYTES_MIN`.
const SEND_BUFFER_MS: u64 = 3;
/// The longest queue of other flows that the buffer follows.
const QUEUE_MS_MAX: u64 = 100;
const SEND_BUFFER_BYTES_MIN: usize = 16 << 10;
/// Requested size of the receive buffer, in bytes: what arrives at 10 Gbit/s while the reader sleeps for 13 ms.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// How a [`GroupSender`] sends.
#[derive(Debug, Clone)]
pub struct SendOptions {
    /// Interface from which packets are sent.
    pub interface: Interface,
    /// Routers that a packet may pass, plus one. 1 keeps it on the local network.
    pub ttl: u32,
    /// Whether receivers on this machine get the packets.
    pub loopback: bool,
    /// Port from which packets are sent and to which reports are sent; 0 for any.
    pub port: u16,
    /// Send buffer, in bytes.
    pub send_buffer_bytes: usize,
}

impl SendOptions {
    /// The defaults on `interface`: TTL 1, also to receivers on this machine, any port.
    #[must_use]
    pub fn on(interface: Interface) -> Self {
        Self { interface, ttl: 1, loopback: true, port: 0, send_buffer_bytes: SEND_BUFFER_BYTES }
    }
}

/// The server's socket of a session: sends to the group, and receives reports.
pub struct GroupSender {
    socket: OffloadSocket,
    group: SocketAddr,
}

impl GroupSender {
    /// A socket that sends to `group`.
    ///
    /// # Errors
    /// `Invalid` if `group` is not a multicast address; `NotFound` if the interface has no address of that family;
    /// `Io`.
    pub fn open(group: SocketAddr, options: &SendOptions) -> Result<Self> {
        let group = scoped(group, options.interface.index);
        let source = options
            .interface
            .address(group.is_ipv4())
            .ok_or_else(|| no_address(&options.interface, group))?;
        if !group.ip().is_multicast() {
            return Err(Error::new(ErrorKind::Invalid, format!("{} is not a multicast address", group.ip())));
        }
        let bind = scoped(SocketAddr::new(source, options.port), options.interface.index);
        let opened = Self::configure(group, bind, options);
        opened.map_err(|error| {
            Error::from_source(ErrorKind::Io, format!("open a socket on {bind} for {group}"), error)
        })
    }

    fn configure(group: SocketAddr, bind: SocketAddr, options: &SendOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(group), Type::DGRAM, Some(Protocol::UDP))?;
        if let IpAddr::V4(source) = bind.ip() {
            socket.set_multicast_if_v4(&source)?;
            socket.set_multicast_ttl_v4(options.ttl)?;
            socket.set_multicast_loop_v4(options.loopback)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_multicast_if_v6(options.interface.index)?;
            socket.set_multicast_hops_v6(options.ttl)?;
            socket.set_multicast_loop_v6(options.loopback)?;
        }
        socket.set_send_buffer_size(options.send_buffer_bytes)?;
        grow_receive_buffer(&socket, RECEIVE_BUFFER_BYTES / 4);
        socket.bind(&bind.into())?;
        let socket = OffloadSocket::new(socket)?;
        socket.state.enable_transport_errors((&socket.socket).into())?;
        Ok(Self { socket, group })
    }

    /// The group and port to which it sends.
    #[must_use]
    pub fn group(&self) -> SocketAddr {
        self.group
    }

    /// The address from which it sends, and at which it receives reports.
    ///
    /// # Errors
    /// `Io` if the system does not tell it.
    pub fn local(&self) -> Result<SocketAddr> {
        self.socket
            .local()
            .map_err(|error| Error::from_source(ErrorKind::Io, "read a socket's address", error))
    }

    /// How many packets of `packet_bytes` bytes one call can send.
    #[must_use]
    pub fn run_max(&self, packet_bytes: usize) -> usize {
        self.socket.run_max(packet_bytes)
    }

    /// Sends `packets`, each of `packet_bytes` bytes (the last may be shorter), to the group. May send only a part.
    ///
    /// # Errors
    /// Errors of the system. A full buffer or queue is no error: see [`Sent`].
    pub fn send(&self, packets: &[u8], packet_bytes: usize) -> io::Result<Sent> {
        self.retried(|| self.socket.send_run(self.group, packets, packet_bytes))
    }

    /// Sends one packet to one receiver.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_to(&self, receiver: SocketAddr, packet: &[u8]) -> io::Result<Sent> {
        self.retried(|| self.socket.send(receiver, packet, packet.len()))
    }

    /// Sizes the send buffer so that it drains within a few milliseconds at `bits_per_second`, and `queue` later. Later
    /// packets, like repairs, cannot overtake its content, and receivers would see its delay as congestion. But what
    /// the socket has in a queue of that length is this flow's part of it, so less than the rate's part would not do.
    /// More than that (the system counts memory, not bytes) does no harm: then the rate is the limit.
    pub(crate) fn fit_buffer(&self, bits_per_second: u64, queue: Duration) {
        let ms = SEND_BUFFER_MS + 2 * u64::try_from(queue.as_millis()).unwrap_or(u64::MAX).min(QUEUE_MS_MAX);
        // The kernel grants twice the requested size.
        let bytes = usize::try_from(bits_per_second / 8 * ms / 1000 / 2).unwrap_or(usize::MAX);
        let _ =
            self.socket.socket.set_send_buffer_size(bytes.clamp(SEND_BUFFER_BYTES_MIN, SEND_BUFFER_BYTES));
    }

    /// Reads packets that have arrived into `arrivals`. False if there are none.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn receive(&self, arrivals: &mut Arrivals) -> io::Result<bool> {
        let received = self.socket.receive(arrivals);
        received.or_else(|_| {
            self.socket.drain_errors();
            self.socket.receive(arrivals)
        })
    }

    /// Repeats a failed call once: the first may only report an error that the network signalled for an earlier
    /// packet.
    fn retried(&self, send: impl Fn() -> io::Result<Sent>) -> io::Result<Sent> {
        send().or_else(|_| {
            self.socket.drain_errors();
            send()
        })
    }

    /// Clears errors that the network signalled, which would end every [`wait`].
    pub(crate) fn drain_errors(&self) {
        self.socket.drain_errors();
    }
}

impl AsFd for GroupSender {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.socket.as_fd()
    }
}

/// A receiver's socket for packets to the group.
pub struct GroupReceiver {
    socket: OffloadSocket,
    buffer_bytes: usize,
}

impl GroupReceiver {
    /// Joins `group` on `interface`. With a `source`, IPv4 joins accept only packets from it (RFC 4607 needs a group
    /// in 232.0.0.0/8; for other groups the kernel uses it as a filter).
    ///
    /// # Errors
    /// `Io`, also if the system allows no more memberships.
    pub fn join(group: SocketAddr, interface: &Interface, source: Option<IpAddr>) -> Result<Self> {
        let group = scoped(group, interface.index);
        Self::configure(group, interface, source).map_err(|error| {
            Error::from_source(
                ErrorKind::Io,
                format!("join group {group} on interface `{}`", interface.name),
                error,
            )
        })
    }

    fn configure(group: SocketAddr, interface: &Interface, source: Option<IpAddr>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(group), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        let buffer_bytes = grow_receive_buffer(&socket, RECEIVE_BUFFER_BYTES);
        socket.bind(&group.into())?;
        match (group.ip(), source) {
            (IpAddr::V4(group), Some(IpAddr::V4(source))) => {
                // Otherwise Linux also delivers packets of groups that other sockets of this machine have joined.
                socket.set_multicast_all_v4(false)?;
                let interface = interface.ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED);
                socket.join_ssm_v4(&source, &group, &interface)?;
            }
            (IpAddr::V4(group), _) => {
                socket.set_multicast_all_v4(false)?;
                socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface.index))?;
            }
            (IpAddr::V6(group), _) => {
                socket.set_multicast_all_v6(false)?;
                socket.join_multicast_v6(&group, interface.index)?;
            }
        }
        Ok(Self { socket: OffloadSocket::new(socket)?, buffer_bytes })
    }

    /// Size of the receive buffer that the system granted, in bytes. If it is less than [`RECEIVE_BUFFER_BYTES`],
    /// bursts may be lost: `net.core.rmem_max` is low, and the process lacks the privilege to exceed it.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Reads packets that have arrived into `arrivals`. False if there are none.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn receive(&self, arrivals: &mut Arrivals) -> io::Result<bool> {
        self.socket.receive(arrivals)
    }
}

impl AsFd for GroupReceiver {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.socket.as_fd()
    }
}

/// A receiver's socket for its reports.
pub(crate) struct ReportSocket {
    socket: OffloadSocket,
    server: SocketAddr,
}

impl ReportSocket {
    /// A socket that sends reports to `server` through `interface`.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn open(server: SocketAddr, interface: &Interface) -> Result<Self> {
        let server = if needs_scope(server.ip()) { scoped(server, interface.index) } else { server };
        let any =
            if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv6Addr::UNSPECIFIED) };
        let open = || {
            let socket = Socket::new(Domain::for_address(server), Type::DGRAM, Some(Protocol::UDP))?;
            socket.bind(&SocketAddr::new(any, 0).into())?;
            OffloadSocket::new(socket)
        };
        let failed =
            |error| Error::from_source(ErrorKind::Io, format!("open a socket towards {server}"), error);
        Ok(Self { socket: open().map_err(failed)?, server })
    }

    /// Sends one packet to the server. A packet that cannot be sent now is lost, as on the network.
    ///
    /// # Errors
    /// Errors of the system, usually that there is no route.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<Sent> {
        self.socket.send(self.server, packet, packet.len())
    }
}

impl AsFd for ReportSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.socket.as_fd()
    }
}

/// Whether a packet was not sent because it is longer than the interface's MTU.
pub(crate) fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
}

/// Waits until one of `readable` can be read, `writable` can be written, or `timeout` has passed. True if a socket is
/// ready.
///
/// # Errors
/// Errors of the system.
pub fn wait(readable: &[&dyn AsFd], writable: Option<&dyn AsFd>, timeout: Duration) -> io::Result<bool> {
    let reading = readable.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
    let writing = writable.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT));
    let mut sockets: Vec<_> = reading.chain(writing).collect();
    let timeout = Timespec::try_from(timeout).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match poll(&mut sockets, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Requests a receive buffer of `bytes` bytes, beyond the system's limit if the process is privileged, and returns
/// the granted size in bytes.
fn grow_receive_buffer(socket: &Socket, bytes: usize) -> usize {
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = socket.set_recv_buffer_size(bytes);
    }
    // The kernel reports twice the requested size: half of it is for its bookkeeping.
    socket.recv_buffer_size().unwrap_or(0) / 2
}

fn no_address(interface: &Interface, group: SocketAddr) -> Error {
    let family = if group.is_ipv4() { "IPv4" } else { "IPv6" };
    Error::new(ErrorKind::NotFound, format!("interface `{}` has no {family} address", interface.name))
}

fn needs_scope(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || (v6.is_multicast() && v6.segments()[0] & 0xf <= 2),
    }
}

/// `address` as sockets of this machine need it: link-local IPv6 addresses name the interface by `index`.
fn scoped(address: SocketAddr, index: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if needs_scope(address.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), index).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{interface, testbed};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pair(group: &str, port: u16) -> (GroupSender, GroupReceiver, Interface) {
        let loopback = interface::choose("lo").unwrap();
        let group = SocketAddr::new(group.parse().unwrap(), port);
        let receiver = GroupReceiver::join(group, &loopback, None).unwrap();
        let sender = GroupSender::open(group, &SendOptions::on(loopback.clone())).unwrap();
        (sender, receiver, loopback)
    }

    /// Receives until `count` packets have arrived, or none has for a while.
    fn collect(receiver: &GroupReceiver, count: usize) -> Vec<Vec<u8>> {
        let (mut arrivals, mut packets) = (Arrivals::default(), Vec::new());
        while packets.len() < count && wait(&[receiver], None, PATIENCE).unwrap() {
            receiver.receive(&mut arrivals).unwrap();
            packets.extend(arrivals.packets().map(|(_, packet)| packet.to_vec()));
        }
        packets
    }

    fn send_all(sender: &GroupSender, packets: &[u8], packet_bytes: usize) {
        let mut rest = packets;
        while !rest.is_empty() {
            match sender.send(rest, packet_bytes).unwrap() {
                Sent::Bytes(bytes) => rest = &rest[bytes..],
                Sent::Blocked => assert!(wait(&[], Some(sender), PATIENCE).unwrap()),
                Sent::Dropped => assert!(!wait(&[], None, Duration::from_millis(1)).unwrap()),
            }
        }
    }

    fn run() -> Vec<u8> {
        let mut run = vec![0; 1400 * 100 + 77];
        base::Chance::from_seed(1).fill(&mut run);
        run
    }

    fn assert_arrived(packets: &[Vec<u8>], run: &[u8], group: SocketAddr) {
        assert_eq!(packets.len(), 101, "{group}");
        assert!(packets.iter().zip(run.chunks(1400)).all(|(got, sent)| got == sent), "{group}");
    }

    #[test]
    fn a_run_of_packets_arrives_as_it_was_cut_on_loopback() {
        let (sender, receiver, _) = pair("239.255.77.1", 47_701);
        send_all(&sender, &run(), 1400);
        assert_arrived(&collect(&receiver, 101), &run(), sender.group());
    }

    /// Over a link between two machines, with both families and all scopes, where nothing but the interface is named.
    #[test]
    fn a_run_of_packets_arrives_as_it_was_cut_over_a_link() {
        for group in ["239.255.77.2", "ff12::7701", "ff15::7701", "ff35::1"] {
            let group = SocketAddr::new(group.parse().unwrap(), 47_702);
            let server = move || {
                let sender =
                    GroupSender::open(group, &SendOptions::on(interface::preferred().unwrap())).unwrap();
                send_all(&sender, &run(), 1400);
            };
            let client = move |joined: &testbed::Signal| {
                let receiver = GroupReceiver::join(group, &interface::preferred().unwrap(), None).unwrap();
                joined.give();
                assert_arrived(&collect(&receiver, 101), &run(), group);
            };
            if !testbed::on_a_link(server, client) {
                return;
            }
        }
    }

    #[test]
    fn a_report_comes_back_to_the_senders_port() {
        let (sender, _receiver, loopback) = pair("239.255.77.3", 47_703);
        let report = ReportSocket::open(sender.local().unwrap(), &loopback).unwrap();
        report.send(b"need").unwrap();
        assert!(wait(&[&sender], None, PATIENCE).unwrap());
        let mut arrivals = Arrivals::default();
        assert!(sender.receive(&mut arrivals).unwrap());
        let (from, packet) = arrivals.packets().next().unwrap();
        assert_eq!(packet, b"need");
        sender.send_to(from, b"answer").unwrap();
        assert!(wait(&[&report], None, PATIENCE).unwrap());
        assert!(report.socket.receive(&mut arrivals).unwrap());
        assert_eq!(arrivals.packets().next().unwrap().1, b"answer");
    }

    #[test]
    fn packets_arrive_when_the_kernel_gets_them_not_when_they_are_read() {
        let (sender, receiver, _) = pair("239.255.77.5", 47_705);
        let mut arrivals = Arrivals::default();
        let mut kept = |packet: &[u8], pause: Duration| {
            send_all(&sender, packet, 5);
            assert!(wait(&[&receiver], None, PATIENCE).unwrap());
            assert!(!wait(&[], None, pause).unwrap());
            receiver.receive(&mut arrivals).unwrap();
            let train = arrivals.trains().next().unwrap();
            assert_eq!(train.bytes, packet);
            train.kept
        };
        let late = kept(b"block", Duration::from_millis(80));
        assert!(late >= Duration::from_millis(80) && late < PATIENCE, "{late:?}");
        assert!(kept(b"again", Duration::ZERO) < PATIENCE);
    }

    #[test]
    fn a_dead_receiver_does_not_disturb_the_sender() {
        let (sender, receiver, loopback) = pair("239.255.77.4", 47_704);
        let report = ReportSocket::open(sender.local().unwrap(), &loopback).unwrap();
        report.send(b"need").unwrap();
        assert!(wait(&[&sender], None, PATIENCE).unwrap());
        let mut arrivals = Arrivals::default();
        sender.receive(&mut arrivals).unwrap();
        let from = SocketAddr::new("127.0.0.1".parse().unwrap(), arrivals.packets().next().unwrap().0.port());
        drop(report);
        for _ in 0..10 {
            sender.send_to(from, b"are you there?").unwrap();
            send_all(&sender, b"block", 5);
        }
        assert_eq!(collect(&receiver, 10).len(), 10);
    }

    #[test]
    fn what_is_no_group_is_refused() {
        let loopback = interface::choose("lo").unwrap();
        let refused = GroupSender::open("10.0.0.1:5".parse().unwrap(), &SendOptions::on(loopback));
        assert_eq!(refused.err().unwrap().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn link_local_addresses_name_their_interface() {
        assert_eq!(scoped("[ff12::1]:5".parse().unwrap(), 3), "[ff12::1%3]:5".parse().unwrap());
        assert_eq!(scoped("[ff18::1]:5".parse().unwrap(), 3), "[ff18::1]:5".parse().unwrap());
    }
}
