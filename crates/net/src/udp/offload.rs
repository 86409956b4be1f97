//! A UDP socket with offloads: one system call sends or receives several packets.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use socket2::Socket;

/// Most bytes of one send call: the largest UDP datagram, in which the kernel carries a run of packets.
pub(crate) const RUN_BYTES_MAX: usize = 65_507 - 60;
/// `ENOBUFS`: a queue discipline dropped the packets.
const NO_BUFFERS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

/// The result of sending a run of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// This many bytes were sent.
    Bytes(usize),
    /// Nothing was sent: the send buffer is full. [`wait`] until it can be written.
    Blocked,
    /// Nothing was sent: the device's queue was full and dropped the packets. Wait a moment.
    Dropped,
}

/// A non-blocking UDP socket with offloads.
pub(super) struct OffloadSocket {
    pub(super) socket: Socket,
    pub(super) state: UdpSocketState,
}

impl OffloadSocket {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket, state })
    }

    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("socket has no IP address"))
    }

    pub(super) fn send(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        packet_bytes: usize,
    ) -> io::Result<Sent> {
        let segment_size = (contents.len() > packet_bytes).then_some(packet_bytes);
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
        match self.state.try_send((&self.socket).into(), &transmit) {
            Ok(()) => Ok(Sent::Bytes(contents.len())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Sent::Blocked),
            Err(error) if error.raw_os_error() == Some(NO_BUFFERS) => Ok(Sent::Dropped),
            Err(error) => Err(error),
        }
    }

    /// Sends packets of equal size, with as few calls as the kernel allows.
    pub(super) fn send_run(
        &self,
        destination: SocketAddr,
        packets: &[u8],
        packet_bytes: usize,
    ) -> io::Result<Sent> {
        let mut sent = 0;
        while sent < packets.len() {
            let per_call = self.run_max(packet_bytes) * packet_bytes;
            let piece = &packets[sent..packets.len().min(sent + per_call)];
            match self.send(destination, piece, packet_bytes) {
                Ok(Sent::Bytes(bytes)) => sent += bytes,
                Ok(full) if sent == 0 => return Ok(full),
                Ok(_) => break,
                // The kernel refused segmentation offload, and `state` has noted it: repeat, one packet per call.
                Err(_) if piece.len() > packet_bytes && self.state.max_gso_segments() == 1 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Sent::Bytes(sent))
    }

    pub(super) fn run_max(&self, packet_bytes: usize) -> usize {
        self.state.max_gso_segments().min(RUN_BYTES_MAX / packet_bytes.max(1)).max(1)
    }

    pub(super) fn receive(&self, arrivals: &mut Arrivals) -> io::Result<bool> {
        let mut buffers: Vec<_> = arrivals.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        match self.state.recv((&self.socket).into(), &mut buffers, &mut arrivals.metas) {
            Ok(count) => arrivals.count = count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => arrivals.count = 0,
            Err(error) => return Err(error),
        }
        Ok(arrivals.count > 0)
    }

    /// Clears errors that the network signalled (port unreachable): a receiver that crashed must not disturb the
    /// session.
    pub(super) fn drain_errors(&self) {
        while let Ok(Some(_)) = self.state.recv_transport_error((&self.socket).into()) {}
        let _ = self.socket.take_error();
    }
}

/// Received packets, and their buffers, which are used again by each call.
pub struct Arrivals {
    buffers: Vec<Vec<u8>>,
    metas: Vec<RecvMeta>,
    count: usize,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self::new(ARRIVAL_BUFFERS)
    }
}

/// Buffers of 64 KiB that one call fills. More would save calls, but exceed the processor's cache.
const ARRIVAL_BUFFERS: usize = 8;

impl Arrivals {
    /// `count` buffers of 64 KiB, at most 32.
    fn new(count: usize) -> Self {
        let count = count.min(BATCH_SIZE);
        Self { buffers: vec![vec![0; 1 << 16]; count], metas: vec![RecvMeta::default(); count], count: 0 }
    }

    /// The packets of the last call: sender's address and bytes.
    pub fn packets(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let runs = self.buffers.iter().zip(&self.metas).take(self.count);
        runs.flat_map(|(buffer, meta)| {
            let (train, packet_bytes) = train(buffer, meta);
            train.chunks(packet_bytes).map(|packet| (meta.addr, packet))
        })
    }

    /// The same packets as trains: packets directly one after the other, and the size of each, at least 1; the last
    /// may be shorter. Before them the sender's address.
    pub fn trains(&self) -> impl Iterator<Item = (SocketAddr, &[u8], usize)> {
        self.buffers.iter().zip(&self.metas).take(self.count).map(|(buffer, meta)| {
            let (train, packet_bytes) = train(buffer, meta);
            (meta.addr, train, packet_bytes)
        })
    }
}

fn train<'a>(buffer: &'a [u8], meta: &RecvMeta) -> (&'a [u8], usize) {
    (&buffer[..meta.len.min(buffer.len())], meta.stride.max(1))
}
