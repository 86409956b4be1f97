//! Where packets to a client go: the interface, the IP family, and the group of a session or a probe.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base::{Digest, Error};
use net::api::{Family, ProblemKind};
use net::interface::{self, Interface};

use crate::problem::Failure;

/// UDP port of all groups.
pub(crate) const GROUP_PORT: u16 = 7718;
/// UDP ports that receivers report to, one per session.
pub(crate) const REPORT_PORTS: std::ops::RangeInclusive<u16> = 7719..=7818;

/// How to multicast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MulticastOptions {
    /// Network interface, by name or address; `None`: the interface of the route to the client, but not loopback.
    pub interface: Option<String>,
    /// Maximum rate of all sessions together, in bits per second on the wire; `None`: unlimited.
    pub rate_bits_per_second: Option<u64>,
    /// Minimum rate of each session that has something to send, in bits per second, as far as the maximum allows it.
    pub rate_floor_bits_per_second: u64,
    /// Whether blocks are encrypted if the repository is not.
    pub encrypted: bool,
    /// Time to live of the packets: the number of routers that they may pass, plus one. With 1 they stay in the
    /// network.
    pub ttl: u8,
    /// Whether machines are known to come one soon after the other. Then the first does not begin alone, and a session
    /// sends again what receivers missed that came late, also if other machines have it. It is done sooner where many
    /// come, and sends more where few do.
    pub together: bool,
}

/// The interface on which to multicast to the client at `peer`.
pub(crate) fn interface_towards(options: &MulticastOptions, peer: SocketAddr) -> Result<Interface, Failure> {
    let Some(choice) = &options.interface else {
        let (interface, _) = interface::towards(peer).map_err(|error| unavailable(&error))?;
        // One copy per machine is all that multicast could reach.
        return match interface.loopback {
            true => Err(refused(
                "the client is on the server's machine, by loopback: there is nobody to share with",
            )),
            false => Ok(interface),
        };
    };
    interface::choose(choice).map_err(|error| unavailable(&error))
}

/// Whether to use IPv4: takes the first of the client's families that the interface has an address of. If the client
/// has no preference, IPv4 comes first. `None` if the interface has no suitable address.
pub(crate) fn family(interface: &Interface, families: &[Family]) -> Option<bool> {
    let any = [Family::V4, Family::V6];
    let wanted = if families.is_empty() { &any } else { families };
    wanted.iter().map(|family| *family == Family::V4).find(|&ipv4| interface.address(ipv4).is_some())
}

/// The multicast group of one session, as a transient address: in 239.255.0.0/16 (RFC 2365, local scope), or in
/// 239.192.0.0/16 if packets may pass routers; for IPv6 in ff12 (link) or ff15 (site) of RFC 4291, with a group id of
/// the dynamic range of RFC 3307.
pub(crate) fn group(manifest: &Digest, epoch: u32, number: u64, ipv4: bool, ttl: u8) -> SocketAddr {
    let seed = [manifest.0.as_slice(), &epoch.to_le_bytes(), &number.to_le_bytes()].concat();
    // A hash spreads the sessions over the group addresses, also those of different servers in one network.
    let [a, b, c, d, ..] = Digest::of(&seed).0;
    let address: IpAddr = if ipv4 {
        // Not x.0 nor x.255, which some switches treat as broadcast.
        Ipv4Addr::new(239, if ttl > 1 { 192 } else { 255 }, a, b.clamp(1, 254)).into()
    } else {
        let scope = if ttl > 1 { 0xff15 } else { 0xff12 };
        let id = [u16::from_be_bytes([a | 0x80, b]), u16::from_be_bytes([c, d])];
        Ipv6Addr::new(scope, 0, 0, 0, 0, 0, id[0], id[1]).into()
    };
    SocketAddr::new(address, GROUP_PORT)
}

pub(crate) fn refused(why: &str) -> Failure {
    Failure::new(ProblemKind::Refused, why)
}

/// `Refused`, since the client can use unicast instead; the text tells the operator why.
pub(crate) fn unavailable(error: &Error) -> Failure {
    refused(&format!("multicast does not work on this server: {}", base::chain(error)))
}

/// Whether the port is in use, so that another one may work.
pub(crate) fn is_taken(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|io| io.kind() == std::io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_has_a_group_of_its_own_in_the_right_scope() {
        let groups: std::collections::HashSet<_> =
            (0..50).map(|number| group(&Digest([1; 32]), 7, number, true, 1)).collect();
        assert!(groups.len() >= 49, "{} of 50", groups.len());
        for (ipv4, ttl, prefix) in
            [(true, 1, "239.255."), (true, 2, "239.192."), (false, 1, "[ff12::"), (false, 9, "[ff15::")]
        {
            let group = group(&Digest([1; 32]), 7, 1, ipv4, ttl);
            assert!(group.ip().is_multicast() && group.to_string().starts_with(prefix), "{group}");
        }
    }

    #[test]
    fn loopback_is_used_only_if_it_was_chosen() {
        let towards = |interface: Option<&str>| {
            let options = MulticastOptions {
                interface: interface.map(str::to_owned),
                rate_bits_per_second: None,
                rate_floor_bits_per_second: 1,
                encrypted: true,
                ttl: 1,
                together: false,
            };
            interface_towards(&options, "127.0.0.1:9".parse().unwrap()).is_ok_and(|found| found.loopback)
        };
        assert!(towards(Some("lo")) && !towards(None));
    }
}
