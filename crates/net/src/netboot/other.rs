//! Looks for another DHCP server on a network: asks for an address there as a client that nobody knows, and never takes
//! it. Sources: RFC 2131, section 4.1; packet(7).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use base::{Error, Result};
use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable as _, Decoder, Encodable as _};
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};

use super::dhcp::{CLIENT_PORT, MESSAGE_BYTES_MIN, SERVER_PORT};
use super::{MESSAGE_BYTES_MAX, SLEEP_MAX, bound};
use crate::clock::{self, Clock};
use crate::interface::Interface;

/// A question or its answer may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(1500);
/// `ETH_P_ALL`, in network byte order: what this machine itself sends is not heard otherwise.
const ALL_FRAMES: u16 = 0x0003_u16.to_be();
const IPV4: u8 = 4;
const UDP: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;

/// The address of a server that gives addresses on the network of `interface`, also if it runs on this machine; `None`
/// if nobody answers within `time`.
///
/// # Errors
/// `Denied` without the right to listen to all packets (`CAP_NET_RAW`); `Io`.
pub fn other_dhcp(interface: &Interface, time: Duration) -> Result<Option<Ipv4Addr>> {
    let failed =
        |error| Error::from_io(format!("look for another DHCP server on `{}`", interface.name), error);
    // Packets are heard before any firewall, and whoever has the client's port for himself. First, so that no answer is
    // missed.
    let listener = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from(ALL_FRAMES))));
    let listener = listener.map_err(failed)?;
    listener.set_read_timeout(Some(SLEEP_MAX)).map_err(failed)?;
    let socket = bound(&interface.name, Ipv4Addr::UNSPECIFIED, 0)?;
    let asked = Asked::draw();
    let question = asked.discover();
    let (clock, mut next, mut packet) = (Clock::start(), Duration::ZERO, [0; MESSAGE_BYTES_MAX]);
    while clock.elapsed() < time {
        if clock.elapsed() >= next {
            next += ASK_AGAIN;
            // What can't be sent nobody answers.
            let _ = socket.send_to(&question, SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT));
        }
        let Ok((bytes, from)) = recvfrom::<LinkAddr>(listener.as_raw_fd(), &mut packet) else { continue };
        let is_here = from.is_some_and(|from| Ok(interface.index) == u32::try_from(from.ifindex()));
        let heard = packet.get(..bytes).filter(|_| is_here).and_then(|packet| asked.offer(packet));
        if heard.is_some() {
            return Ok(heard);
        }
    }
    Ok(None)
}

/// What was asked for.
struct Asked {
    /// A card that nobody has: random, unicast, locally administered.
    mac: [u8; 6],
    transaction: u32,
}

impl Asked {
    fn draw() -> Self {
        let [first, b, c, d, e, f, ..] = clock::jitter().u64().to_be_bytes();
        let transaction = u32::try_from(clock::jitter().u64() >> 32).expect("32 bits");
        Self { mac: [(first & 0xFC) | 0x02, b, c, d, e, f], transaction }
    }

    /// The message of a client that looks for a server.
    fn discover(&self) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(self.transaction, none, none, none, none, &self.mac);
        // It has no address at which it could be answered.
        message.set_flags(Flags::default().set_broadcast());
        message.opts_mut().insert(DhcpOption::MessageType(MessageType::Discover));
        let mut packet = message.to_vec().expect("a message of fixed parts");
        packet.resize(packet.len().max(MESSAGE_BYTES_MIN), 0);
        packet
    }

    /// Who offers an address by this IPv4 packet. One that only tells machines what to boot is no such server.
    fn offer(&self, packet: &[u8]) -> Option<Ipv4Addr> {
        let (version, header) = (packet.first()? >> 4, usize::from(packet.first()? & 0xF) * 4);
        let (is_udp, udp) = (version == IPV4 && *packet.get(9)? == UDP, packet.get(header..)?);
        let port = |at: usize| Some(u16::from_be_bytes(*udp.get(at..)?.first_chunk()?));
        if !is_udp || (port(0)?, port(2)?) != (SERVER_PORT, CLIENT_PORT) {
            return None;
        }
        let message = Message::decode(&mut Decoder::new(udp.get(UDP_HEADER_BYTES..)?)).ok()?;
        let is_ours = message.xid() == self.transaction && message.chaddr() == self.mac;
        let is_offer = message.opcode() == Opcode::BootReply
            && message.opts().msg_type() == Some(MessageType::Offer)
            && !message.yiaddr().is_unspecified();
        let source = Ipv4Addr::from(*packet.get(12..)?.first_chunk::<4>()?);
        let server = match message.opts().get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(server)) => *server,
            _ => source,
        };
        (is_ours && is_offer).then_some(server)
    }
}
