//! The packet socket of an agent (packet(7)): gets copies of the frames that its filter takes, before the bridge and
//! the rules see them, and sends frames through the bridge.
#![expect(unsafe_code, reason = "options and addresses of packet sockets have no wrapper")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, Socket, Type};

use super::filter;
use net::packet_socket::ignore_outgoing;

/// `ETH_P_ALL`: taken before the bridge.
const ALL_PROTOCOLS: u16 = 3;
/// Queue of frames that the agent did not read yet: about 8000 requests, each of which counts as 768 bytes there.
const QUEUE_BYTES: usize = 6 << 20;

/// The socket.
#[derive(Debug)]
pub(super) struct Tap(Socket);

impl Tap {
    /// Takes the control packets to `server` at all interfaces of this thread's network namespace; REQUESTs only
    /// if the agent `answers` for them.
    pub(super) fn open(server: SocketAddr, answers: bool) -> io::Result<Self> {
        // Without a protocol nothing arrives before the filter is there.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        let program: Vec<SockFilter> =
            filter::lifted(server, answers).into_iter().map(SockFilter::from).collect();
        socket.attach_filter(&program)?;
        socket.set_nonblocking(true)?;
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).is_err() {
            socket.set_recv_buffer_size(QUEUE_BYTES)?;
        }
        // What the switch sends is not looked at: that would copy each frame that it forwards.
        ignore_outgoing(&socket)?;
        socket.bind(&link(0, ALL_PROTOCOLS))?;
        Ok(Self(socket))
    }

    /// The next frame: its length, and the index of the interface at which it arrived. `None` if there is none.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<Option<(usize, u32)>> {
        match recvfrom::<LinkAddr>(self.0.as_raw_fd(), into) {
            Ok((length, from)) => {
                let ingress = from.map_or(0, |from| from.ifindex());
                Ok(Some((length, u32::try_from(ingress).unwrap_or(0))))
            }
            // The last two: an interface went down, or away.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN | Errno::ENODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a frame by the interface with this index.
    pub(super) fn send(&self, frame: &[u8], by: u32) -> io::Result<()> {
        self.0.send_to(frame, &link(by, 0)).map(drop)
    }

    /// How many frames were lost since the last call, because the queue was full.
    pub(super) fn take_lost(&self) -> u64 {
        let mut found = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = length_of(&found);
        // SAFETY: the kernel writes at most `length` bytes into two plain numbers, and `length`; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if result == 0 { found.tp_drops.into() } else { 0 }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The address of an interface; 0 for all of them.
fn link(index: u32, protocol: u16) -> SockAddr {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a `sockaddr_ll` is one of the system's addresses, for which any bytes are valid.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = libc::sa_family_t::try_from(libc::AF_PACKET).expect("a small number");
    link.sll_protocol = protocol.to_be();
    link.sll_ifindex = libc::c_int::try_from(index).unwrap_or(0);
    let length = length_of(link);
    // SAFETY: the storage holds an address of this length.
    unsafe { SockAddr::new(storage, length) }
}

fn length_of<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).expect("a short value")
}
