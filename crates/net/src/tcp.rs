//! TCP between machines that are near each other: what was lost is sent again soon.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};

/// `TCP_RTO_MIN_US` of `include/uapi/linux/tcp.h`, since Linux 6.15: the least time after which TCP sends again, in µs.
const TCP_RTO_MIN_US: libc::c_int = 45;
/// Many times what a packet takes within a site, a tenth of what the kernel waits at least.
const RETRANSMIT_MIN: Duration = Duration::from_millis(20);

sockopt_impl!(
    /// See [`retransmit_soon`].
    RetransmitMin, SetOnly, libc::IPPROTO_TCP, TCP_RTO_MIN_US, libc::c_int);

/// Makes `socket` repeat after 20 ms, and four times the variation of the path, what nobody acknowledged; of a
/// listener, all that it accepts. Kernels before Linux 6.15 wait 200 ms as ever.
pub fn retransmit_soon(socket: &impl AsFd) {
    let micros = i32::try_from(RETRANSMIT_MIN.as_micros()).expect("20 ms fit");
    let _ = setsockopt(socket, RetransmitMin, &micros);
}
