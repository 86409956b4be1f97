//! What a packet socket hears on the network besides what reaches the machine's own sockets: packets of a group that
//! a firewall drops, and the queries by which switches learn who wants which group. Sources: packet(7); IGMP: RFC 3376,
//! section 4.1; MLD: RFC 3810, section 5.1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};

use crate::clock::Clock;
use crate::packet_socket::hear_all_groups;
use crate::udp;

/// `ETH_P_IP` and `ETH_P_IPV6`, in network byte order.
const IPV4_FRAMES: u16 = 0x0800_u16.to_be();
/// See [`IPV4_FRAMES`].
const IPV6_FRAMES: u16 = 0x86dd_u16.to_be();
const IGMP: u8 = 2;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
/// Type of a query, in IGMP and in MLD.
const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;

/// Who asks the network's machines which groups they want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Querier {
    /// Its address; `0.0.0.0` of a switch that has none.
    pub address: IpAddr,
    /// How many of its queries were heard.
    pub queries: u32,
    /// Longest time between two of them.
    pub interval: Option<Duration>,
}

/// A packet socket of this network namespace, of which only what arrives on one interface counts.
pub(crate) struct GroupListener {
    socket: Socket,
    interface: usize,
    group: IpAddr,
    /// Packets to the group that reached this machine.
    pub(super) packets: u64,
    pub(super) querier: Option<Querier>,
    /// When the last query was heard, since the listening began.
    heard_at: Duration,
}

impl GroupListener {
    /// `None` without the right to open such a socket (`CAP_NET_RAW`).
    pub(super) fn open(group: IpAddr, interface: u32) -> Option<Self> {
        let frames = if group.is_ipv4() { IPV4_FRAMES } else { IPV6_FRAMES };
        // Without link headers: each packet begins with its IP header.
        let socket =
            Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from(frames)))).ok()?;
        socket.set_nonblocking(true).ok()?;
        let interface = usize::try_from(interface).ok()?;
        Some(Self { socket, interface, group, packets: 0, querier: None, heard_at: Duration::ZERO })
    }

    /// Also hears the group if nothing on this machine has joined it. `None` as for [`Self::open`].
    pub(crate) fn open_to_all_groups(group: IpAddr, interface: u32) -> Option<Self> {
        let listener = Self::open(group, interface)?;
        hear_all_groups(&listener.socket, interface).ok()?;
        Some(listener)
    }

    /// Takes what has arrived; `now` counts from when the listening began.
    pub(super) fn listen(&mut self, now: Duration) {
        let mut packet = [0; 128];
        // A packet socket that is opened for a kind of packets hears all interfaces until it is bound, so what came
        // before would have to be told apart in any case.
        while let Ok((bytes, from)) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut packet) {
            if from.is_none_or(|from| from.ifindex() != self.interface) {
                continue;
            }
            match seen(&packet[..bytes.min(128)]) {
                Some(Seen::Udp { to }) if to == self.group => self.packets += 1,
                Some(Seen::Query { from }) => self.count(from, now),
                _ => {}
            }
        }
    }

    /// Listens for `time`. Whether so many packets to the group arrive.
    pub(crate) fn hears(&mut self, packets: u64, time: Duration) -> Result<bool> {
        let clock = Clock::start();
        self.packets = 0;
        while clock.elapsed() < time {
            let waited = udp::wait(&[&self.socket], None, time.saturating_sub(clock.elapsed()));
            waited.map_err(|error| Error::from_source(ErrorKind::Io, "listen to the network", error))?;
            self.listen(clock.elapsed());
        }
        Ok(self.packets >= packets)
    }

    fn count(&mut self, address: IpAddr, now: Duration) {
        let since = now.saturating_sub(std::mem::replace(&mut self.heard_at, now));
        let querier = self.querier.get_or_insert(Querier { address, queries: 0, interval: None });
        if querier.queries > 0 {
            querier.interval = querier.interval.max(Some(since));
        }
        querier.address = address;
        querier.queries += 1;
    }
}

/// What a packet is, as far as a probe cares.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Udp { to: IpAddr },
    Query { from: IpAddr },
}

fn seen(packet: &[u8]) -> Option<Seen> {
    match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 0xf) * 4;
            let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
            match *packet.get(9)? {
                UDP => Some(Seen::Udp { to: address(16)?.into() }),
                IGMP if *packet.get(header)? == IGMP_QUERY => Some(Seen::Query { from: address(12)?.into() }),
                _ => None,
            }
        }
        6 => {
            let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
            match *packet.get(6)? {
                UDP => Some(Seen::Udp { to: address(24)?.into() }),
                // Queries carry a router alert.
                HOP_BY_HOP if *packet.get(40)? == ICMPV6 => {
                    let message = 40 + 8 * (usize::from(*packet.get(41)?) + 1);
                    let is_query = *packet.get(message)? == MLD_QUERY;
                    is_query.then_some(Seen::Query { from: address(8)?.into() })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.chars().filter(|c| !c.is_whitespace()).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
            .collect()
    }

    #[test]
    fn queries_of_a_linux_bridge_are_recognised() {
        // As tcpdump shows them: IGMPv3 from 0.0.0.0, MLDv2 from a link-local address.
        let igmp = bytes(
            "46c00024 00000000 01020000 00000000 e0000001 94040000 1164 eb5b 00000000 00 7d 0000 0000 0000",
        );
        assert_eq!(seen(&igmp), Some(Seen::Query { from: Ipv4Addr::UNSPECIFIED.into() }));
        let mld = bytes(
            "60000000 00240001 fe800000000000000000000000000001 ff020000000000000000000000000001
             3a00 0502 0000 0100 8200 0000 0064 0000 00000000000000000000000000000000 007d0000",
        );
        assert_eq!(seen(&mld), Some(Seen::Query { from: "fe80::1".parse().unwrap() }));
    }

    #[test]
    fn only_its_own_interface_is_heard() {
        let group: IpAddr = "239.255.79.9".parse().unwrap();
        let lo = crate::interface::choose("lo").unwrap();
        let listeners = [lo.index, lo.index + 1].map(|index| GroupListener::open(group, index));
        let [Some(mut here), Some(mut elsewhere)] = listeners else { return };
        let sender = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        sender.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
        sender.send_to(b"hello", &std::net::SocketAddr::new(group, 47909).into()).unwrap();
        while here.packets == 0 {
            here.listen(Duration::ZERO);
        }
        elsewhere.listen(Duration::ZERO);
        assert_eq!(elsewhere.packets, 0);
    }

    #[test]
    fn packets_of_a_group_are_told_from_others_and_nothing_is_too_short() {
        let udp = bytes("45000040 00004000 01110000 0a000001 effff001 1e261e26 002c0000");
        assert_eq!(seen(&udp), Some(Seen::Udp { to: "239.255.240.1".parse().unwrap() }));
        for len in 0..udp.len() {
            let _ = seen(&udp[..len]);
        }
        assert_eq!(seen(&[0x6f; 60]), None);
        assert_eq!(seen(&[]), None);
    }
}
