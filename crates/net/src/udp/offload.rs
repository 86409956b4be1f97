//! A UDP socket with offloads: one system call sends or receives several packets.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use socket2::Socket;

use crate::clock;

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
            Ok(count) => (arrivals.count, arrivals.read_at) = (count, clock::wall()),
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
    /// When they were read, by the clock that the kernel stamps them with.
    read_at: SystemTime,
}

/// A train of packets that the kernel kept for longer than this is not told from one that it kept for so long: its
/// clock may have been set meanwhile.
const KEPT_MAX: Duration = Duration::from_secs(1);

/// Packets directly one after the other, from one sender.
pub struct Train<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// Their bytes.
    pub bytes: &'a [u8],
    /// The size of each, at least 1; the last may be shorter.
    pub packet_bytes: usize,
    /// For how long the kernel had them until they were read; 0 if it does not tell.
    pub kept: Duration,
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
        Self {
            buffers: vec![vec![0; 1 << 16]; count],
            metas: vec![RecvMeta::default(); count],
            count: 0,
            read_at: SystemTime::UNIX_EPOCH,
        }
    }

    /// The packets of the last call: sender's address and bytes.
    pub fn packets(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let runs = self.buffers.iter().zip(&self.metas).take(self.count);
        runs.flat_map(|(buffer, meta)| {
            let (train, packet_bytes) = train(buffer, meta);
            train.chunks(packet_bytes).map(|packet| (meta.addr, packet))
        })
    }

    /// The same packets as trains.
    pub fn trains(&self) -> impl Iterator<Item = Train<'_>> {
        self.buffers.iter().zip(&self.metas).take(self.count).map(|(buffer, meta)| {
            let (bytes, packet_bytes) = train(buffer, meta);
            Train { from: meta.addr, bytes, packet_bytes, kept: self.kept(meta) }
        })
    }

    fn kept(&self, meta: &RecvMeta) -> Duration {
        let stamp = meta.timestamp.and_then(|stamp| SystemTime::UNIX_EPOCH.checked_add(stamp));
        let kept = stamp.and_then(|stamp| self.read_at.duration_since(stamp).ok());
        kept.unwrap_or_default().min(KEPT_MAX)
    }
}

fn train<'a>(buffer: &'a [u8], meta: &RecvMeta) -> (&'a [u8], usize) {
    (&buffer[..meta.len.min(buffer.len())], meta.stride.max(1))
}
