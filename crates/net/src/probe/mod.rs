//! Probes: whether multicast and reports really pass between a server and a machine, as `diskcast doctor` asks. The
//! server sends packets of several sizes to a group of their own, the machine answers by unicast, and each says what
//! arrived. Source: `formats/probe.md`.

mod listen;
mod packet;
mod packet_socket;
mod server;

use std::time::Duration;

pub use listen::{Heard, ListenOptions, listen};
pub(crate) use packet_socket::GroupListener;
pub use packet_socket::Querier;
pub use server::{ProbeConfig, ProbeServer, draw};

/// Time from one round of packets to the next.
pub const ROUND: Duration = Duration::from_millis(200);
/// Longest time that a probe runs.
pub const PROBE_MAX: Duration = Duration::from_secs(20 * 60);
/// Time after which a probe about which nobody asks ends.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

/// Sizes of IP packets, in bytes, below the largest of a probe: what common tunnels and links leave of 1500 bytes.
const SIZES: &[u16] = &[100, 576, 1280, 1400, 1420, 1450, 1472, 1492];

/// The sizes of the packets of a round on a path of `mtu` bytes, in ascending order; the last is `mtu`.
#[must_use]
pub fn sizes(mtu: u32) -> Vec<u16> {
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX - 8).max(576);
    SIZES.iter().copied().filter(|&size| size < mtu).chain([mtu]).collect()
}

/// Bytes of the headers of IP and UDP.
fn header_bytes(ipv4: bool) -> u16 {
    if ipv4 { 28 } else { 48 }
}

#[cfg(test)]
mod tests;
