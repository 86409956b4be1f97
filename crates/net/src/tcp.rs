//! Sets TCP for machines that are near each other: lost packets are repeated soon, and what is sent beside a multicast
//! session comes without bursts.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};

/// `TCP_RTO_MIN_US` of `include/uapi/linux/tcp.h`, since Linux 6.15: the minimum retransmission timeout in µs.
const TCP_RTO_MIN_US: libc::c_int = 45;
/// Many times the round-trip time within a site, and a tenth of the kernel's default.
const RETRANSMIT_MIN: Duration = Duration::from_millis(20);

sockopt_impl!(
    /// See [`retransmit_soon`].
    RetransmitMin, SetOnly, libc::IPPROTO_TCP, TCP_RTO_MIN_US, libc::c_int);

/// Sets the minimum retransmission timeout of `socket` to 20 ms; for a listener, of all connections that it accepts.
/// Kernels before Linux 6.15 ignore this and keep 200 ms.
pub fn retransmit_soon(socket: &impl AsFd) {
    let micros = i32::try_from(RETRANSMIT_MIN.as_micros()).expect("20 ms fit");
    let _ = setsockopt(socket, RetransmitMin, &micros);
}

sockopt_impl!(
    /// See [`pace`].
    MaxPacingRate, SetOnly, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, u32);

/// Limits the rate at which the kernel sends on `socket`, in bits per second; `None`: no limit. The kernel spreads the
/// packets over time by itself (`man 8 tc-fq`; without that queueing discipline TCP does it, since Linux 4.13).
pub fn pace(socket: &impl AsFd, rate: Option<u64>) {
    let bytes = rate.map_or(u32::MAX, |rate| u32::try_from(rate / 8).unwrap_or(u32::MAX));
    let _ = setsockopt(socket, MaxPacingRate, &bytes);
}
