//! Options of packet sockets (packet(7)).
#![expect(unsafe_code, reason = "these options have no wrapper")]

use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc;
use socket2::Socket;

/// Does not hear what this machine sends.
pub fn ignore_outgoing(socket: &Socket) -> io::Result<()> {
    set(socket, libc::PACKET_IGNORE_OUTGOING, &1_i32)
}

/// Hears all groups that reach the interface with this index: cards drop those that nobody on the machine has joined.
pub(crate) fn hear_all_groups(socket: &Socket, interface: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: libc::c_int::try_from(interface).unwrap_or(0),
        mr_type: libc::c_ushort::try_from(libc::PACKET_MR_ALLMULTI).expect("a small number"),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// `T` is what packet(7) names for the option.
fn set<T: Copy>(socket: &Socket, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).expect("a short value");
    // SAFETY: the kernel reads `length` bytes of a plain value that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
