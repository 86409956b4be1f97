//! Network interfaces: which ones exist, and which one a session uses.
//!
//! Machines in data centres usually have several interfaces. Without a choice, multicast leaves by the one that the
//! system prefers. So the choice is explicit: by name, by address, or the interface towards the server.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use base::{Error, ErrorKind, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{LinkAddr, SockaddrStorage, getsockopt, sockopt};

use crate::api::Family;
use crate::mac::Mac;

/// MTU in bytes that is assumed if the system does not tell: Ethernet's.
pub(crate) const MTU_DEFAULT: u32 = 1500;

/// What a server listens on for all addresses of this machine: those of IPv6, too, if it has any and its sockets for
/// these take IPv4 as well.
#[must_use]
pub fn any_address() -> IpAddr {
    let takes_both =
        std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "0");
    let takes_both = takes_both && UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if takes_both { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// A network interface of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, `eth0`.
    pub name: String,
    /// Its index, from 1, for IPv6 scopes and socket options.
    pub index: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The network of its first IPv4 address: the lowest address in it, and the bits that all of them have.
    pub network: Option<(Ipv4Addr, u32)>,
    /// The address of its card, if it has one.
    pub card: Option<Mac>,
    /// Whether it is up.
    pub up: bool,
    /// Whether it supports multicast.
    pub multicast: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
}

impl Interface {
    /// Its first IPv4 address.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }

    /// Its address for packets of a session (source address); of IPv6 a global address rather than a link-local one.
    /// `None` if it has no address of the family.
    #[must_use]
    pub fn address(&self, ipv4: bool) -> Option<IpAddr> {
        let link_local = |a: &&IpAddr| matches!(a, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.addresses.iter().filter(|address| address.is_ipv4() == ipv4).min_by_key(link_local).copied()
    }

    /// The families of its addresses, best first. `by_ipv4`: the server is reached by IPv4, so packets of that family
    /// have a route.
    #[must_use]
    pub fn families(&self, by_ipv4: bool) -> Vec<Family> {
        let family = |ipv4| if ipv4 { Family::V4 } else { Family::V6 };
        [by_ipv4, !by_ipv4].into_iter().filter(|&ipv4| self.address(ipv4).is_some()).map(family).collect()
    }

    /// Size in bytes of the largest IP packet; [`MTU_DEFAULT`] if the system does not tell.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu_of_route().or_else(|| self.mtu_of_sysfs()).unwrap_or(MTU_DEFAULT)
    }

    /// Asks the network stack of this thread's namespace, whose interfaces `/sys` may not show.
    fn mtu_of_route(&self) -> Option<u32> {
        let socket = UdpSocket::bind((self.ipv4()?, 0)).ok()?;
        let reference = socket2::SockRef::from(&socket);
        reference.set_multicast_if_v4(&self.ipv4()?).ok()?;
        socket.connect((Ipv4Addr::new(239, 255, 0, 1), 9)).ok()?;
        u32::try_from(getsockopt(&socket, sockopt::IpMtu).ok()?).ok()
    }

    fn mtu_of_sysfs(&self) -> Option<u32> {
        std::fs::read_to_string(format!("/sys/class/net/{}/mtu", self.name)).ok()?.trim().parse().ok()
    }
}

/// All interfaces of this thread's network namespace, by index.
///
/// # Errors
/// `Io` if the system does not list them.
pub fn all() -> Result<Vec<Interface>> {
    let listed =
        getifaddrs().map_err(|error| Error::from_source(ErrorKind::Io, "list network interfaces", error))?;
    let mut found = BTreeMap::new();
    for entry in listed {
        let index = if_nametoindex(entry.interface_name.as_str()).unwrap_or(0);
        let interface = found.entry(index).or_insert_with(|| Interface {
            name: entry.interface_name.clone(),
            index,
            addresses: Vec::new(),
            network: None,
            card: None,
            up: entry.flags.contains(InterfaceFlags::IFF_UP),
            multicast: entry.flags.contains(InterfaceFlags::IFF_MULTICAST),
            loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        });
        interface.addresses.extend(entry.address.as_ref().and_then(ip_of));
        let (own, mask) = (ipv4_of(entry.address.as_ref()), ipv4_of(entry.netmask.as_ref()));
        let network = own.zip(mask).map(|(own, mask)| (own & mask, mask.to_bits().leading_ones()));
        interface.network = interface.network.or(network);
        // As the network stack of this thread's namespace says, which `/sys` may not show.
        let card = entry.address.as_ref().and_then(SockaddrStorage::as_link_addr).and_then(LinkAddr::addr);
        interface.card = interface.card.or(card.map(Mac));
    }
    found.remove(&0);
    Ok(found.into_values().collect())
}

fn ipv4_of(address: Option<&SockaddrStorage>) -> Option<Ipv4Addr> {
    Some(address?.as_sockaddr_in()?.ip())
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = ipv4_of(Some(address)).map(IpAddr::V4);
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// The interface with the name or the address `choice`.
///
/// # Errors
/// `NotFound`, with the names of all interfaces; `Io`.
pub fn choose(choice: &str) -> Result<Interface> {
    let interfaces = all()?;
    let address = choice.parse::<IpAddr>().ok();
    let is_it = |i: &&Interface| i.name == choice || address.is_some_and(|a| i.addresses.contains(&a));
    interfaces.iter().find(is_it).cloned().ok_or_else(|| {
        let names: Vec<_> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let context =
            format!("no interface is called, or has the address, `{choice}`; there are {}", names.join(", "));
        Error::new(ErrorKind::NotFound, context)
    })
}

/// The interface by which packets to `peer` are sent, and their source address.
///
/// # Errors
/// `Unreachable` if there is no route; `NotFound` if no interface has that address; `Io`.
pub fn towards(peer: SocketAddr) -> Result<(Interface, IpAddr)> {
    let unreachable =
        |error| Error::from_source(ErrorKind::Unreachable, format!("find the route to {peer}"), error);
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).map_err(unreachable)?;
    socket.connect(peer).map_err(unreachable)?;
    let source = socket.local_addr().map_err(unreachable)?.ip();
    let holder = all()?.into_iter().find(|interface| interface.addresses.contains(&source));
    let missing =
        || Error::new(ErrorKind::NotFound, format!("no interface has the address {source} towards {peer}"));
    Ok((holder.ok_or_else(missing)?, source))
}

/// Whether `address` is in a network of this machine, so that no router is in between.
///
/// # Errors
/// `Io` if the system does not list its interfaces.
pub fn is_local(address: IpAddr) -> Result<bool> {
    let listed =
        getifaddrs().map_err(|error| Error::from_source(ErrorKind::Io, "list network interfaces", error))?;
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let mut networks = listed.filter_map(|entry| Some((ip_of(&entry.address?)?, ip_of(&entry.netmask?)?)));
    Ok(networks.any(|(own, mask)| {
        own.is_ipv4() == address.is_ipv4() && bits(own) & bits(mask) == bits(address) & bits(mask)
    }))
}

/// The default interface of a server: the first one that is up, has an address and supports multicast,
/// otherwise loopback.
///
/// # Errors
/// `NotFound` if there is none; `Io`.
pub fn preferred() -> Result<Interface> {
    let usable = |i: &Interface| i.up && !i.addresses.is_empty() && (i.multicast || i.loopback);
    let mut candidates: Vec<_> = all()?.into_iter().filter(usable).collect();
    candidates.sort_by_key(|interface| (interface.loopback, interface.index));
    let none = || Error::new(ErrorKind::NotFound, "no network interface is up and has an address");
    candidates.into_iter().next().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_the_route_comes_first() {
        let mut both = choose("lo").unwrap();
        both.addresses = vec!["10.0.0.1".parse().unwrap(), "fd77::1".parse().unwrap()];
        assert_eq!(both.families(true), [Family::V4, Family::V6]);
        assert_eq!(both.families(false), [Family::V6, Family::V4]);
        both.addresses.pop();
        assert_eq!(both.families(false), [Family::V4]);
    }

    #[test]
    fn loopback_is_found_by_name_address_and_route() {
        let by_name = choose("lo").unwrap();
        assert!(by_name.loopback && by_name.up, "{by_name:?}");
        assert!(by_name.mtu() >= 1500, "{}", by_name.mtu());
        assert_eq!(choose("127.0.0.1").unwrap(), by_name);
        for peer in ["127.0.0.1:9", "[::ffff:127.0.0.1]:9"] {
            let (towards, source) = towards(peer.parse().unwrap()).unwrap();
            assert_eq!((&towards, source), (&by_name, IpAddr::V4(Ipv4Addr::LOCALHOST)));
        }
    }

    #[test]
    fn a_missing_interface_is_named_beside_those_there_are() {
        let error = choose("no-such-interface").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("lo"), "{error}");
    }
}
