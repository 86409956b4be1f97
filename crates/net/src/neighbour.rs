//! Finds the link address of a server soon, on links that lose packets. The kernel asks for it by ARP when the first
//! packet is sent to the server, and asks again only after a second (`retrans_time_ms`, arp(7)). Of many machines that
//! start together some lose that one packet, and would join a session a second late. So this machine asks again
//! itself, after 20 ms, 60 ms and so on, and the kernel takes the answer. Sources: RFC 826; packet(7).
//!
//! IPv4 only, and only with the right to open packet sockets (`CAP_NET_RAW`), which who writes to disks usually has.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, MsgFlags, sendto};
use socket2::{Domain, Socket, Type};

use crate::interface;

/// Time before the first look; it doubles after each.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Looks until this is given up: 1.26 s. Then the kernel has asked again, too.
const LOOKS: u32 = 6;
/// `ATF_COM` of the kernel: the entry has an address.
const COMPLETE: u32 = 2;
const ETHERNET_BYTES: usize = 6;
const TABLE: &str = "/proc/thread-self/net/arp";

/// Asks for one server at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Neighbour(Arc<AtomicBool>);

impl Neighbour {
    /// Helps to find the link address of `server`, a name or address to which a packet is about to be sent. Returns at
    /// once; does nothing if the server is known, or is behind a router.
    pub(crate) fn find_soon(&self, server: &str) {
        if server == "localhost" || self.0.swap(true, Ordering::AcqRel) {
            return;
        }
        let (is_running, server) = (Arc::clone(&self.0), server.to_owned());
        let look = move || {
            let found = (server.as_str(), 0).to_socket_addrs().into_iter().flatten().next();
            if let Some(IpAddr::V4(server)) = found.map(|server| server.ip().to_canonical())
                && !server.is_loopback()
            {
                ask_until_known(server, LOOKS);
            }
            is_running.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("find-server".into()).spawn(look).is_err() {
            self.0.store(false, Ordering::Release);
        }
    }
}

/// Asks while the kernel looks for `server` itself, so that it takes the answer.
fn ask_until_known(server: Ipv4Addr, looks: u32) {
    let mut question = None;
    for look in 0..looks {
        thread::park_timeout(PAUSE_MIN * 2_u32.pow(look));
        let table = std::fs::read_to_string(TABLE).unwrap_or_default();
        match state_of(&table, server) {
            State::Known => return,
            State::Unknown => {}
            State::Sought => {
                question = question.or_else(|| Question::about(server));
                let Some(question) = &question else { return };
                question.ask();
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The kernel has not asked for it, for example because it is behind a router.
    Unknown,
    Sought,
    Known,
}

/// What the kernel's table says of `server`: a line for each neighbour, with its address first and its flags third.
fn state_of(table: &str, server: Ipv4Addr) -> State {
    let flags = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let address: Ipv4Addr = fields.next()?.parse().ok()?;
        let flags = u32::from_str_radix(fields.nth(1)?.trim_start_matches("0x"), 16).ok()?;
        (address == server).then_some(flags)
    });
    match flags {
        None => State::Unknown,
        Some(flags) if flags & COMPLETE != 0 => State::Known,
        Some(_) => State::Sought,
    }
}

/// An ARP request, and what is needed to broadcast it.
struct Question {
    socket: Socket,
    everybody: LinkAddr,
    frame: Vec<u8>,
}

impl Question {
    /// `None` without the right to ask, or if the interface is no Ethernet.
    fn about(server: Ipv4Addr) -> Option<Self> {
        let (interface, source) = interface::towards((server, 9).into()).ok()?;
        let IpAddr::V4(source) = source else { return None };
        let links = getifaddrs().ok()?.filter(|entry| entry.interface_name == interface.name);
        let (own, everybody) = links.into_iter().find_map(|entry| {
            let own = entry.address.as_ref()?.as_link_addr()?.addr()?;
            Some((own, *entry.broadcast.as_ref()?.as_link_addr()?))
        })?;
        let socket = Socket::new(Domain::PACKET, Type::RAW, None).ok()?;
        let frame = request(own, source, everybody.addr()?, server);
        Some(Self { socket, everybody, frame })
    }

    fn ask(&self) {
        // If it can't be sent, the kernel still asks by itself.
        let _ = sendto(self.socket.as_raw_fd(), &self.frame, &self.everybody, MsgFlags::empty());
    }
}

/// An Ethernet frame with an ARP request (RFC 826) for `wanted`.
fn request(
    own: [u8; ETHERNET_BYTES],
    source: Ipv4Addr,
    everybody: [u8; ETHERNET_BYTES],
    wanted: Ipv4Addr,
) -> Vec<u8> {
    // Ethernet's type, then: addresses of Ethernet and IPv4, their lengths, and that this is a request.
    const KIND: [u8; 10] = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1];
    [&everybody[..], &own, &KIND, &own, &source.octets(), &[0; ETHERNET_BYTES], &wanted.octets()].concat()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;

    use super::*;
    use crate::testbed::{Signal, on_a_link};

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

    #[test]
    fn the_table_of_the_kernel_is_understood() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     10.77.0.3        0x1         0x2         1a:2b:3c:4d:5e:6f     *        eth0\n\
                     10.77.0.1        0x1         0x0         00:00:00:00:00:00     *        eth0\n";
        assert_eq!(state_of(table, SERVER), State::Sought);
        assert_eq!(state_of(table, [10, 77, 0, 3].into()), State::Known);
        assert_eq!(state_of(table, [10, 77, 0, 30].into()), State::Unknown);
        assert_eq!(state_of("", SERVER), State::Unknown);
    }

    #[test]
    fn a_server_is_found_although_the_kernel_asked_in_vain() {
        const LATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
        let (known, until_known) = std::sync::mpsc::channel();
        let state = || state_of(&std::fs::read_to_string(TABLE).unwrap(), LATE);
        let client = |signal: &Signal| {
            // The kernel asks once, and again after an hour.
            std::fs::write("/proc/sys/net/ipv4/neigh/eth0/retrans_time_ms", "3600000").unwrap();
            UdpSocket::bind("10.77.0.2:0").unwrap().send_to(&[1], (LATE, 9)).unwrap();
            assert_eq!(state(), State::Sought);
            signal.give();
            ask_until_known(LATE, 10);
            assert_eq!(state(), State::Known);
            known.send(()).unwrap();
        };
        let server = move || {
            let late = ["addr", "add", "10.77.0.9/24", "dev", "eth0"];
            assert!(Command::new("ip").args(late).status().unwrap().success());
            // With this thread the network would end.
            let _ = until_known.recv();
        };
        on_a_link(server, client);
    }
}
