//! What a machine that boots from the network is told by DHCP: where its boot loader is. Beside another DHCP server
//! nothing else (proxyDHCP); alone on a network also an address, if asked for.
//!
//! Sources: RFC 2131 and 2132 (DHCP), the Preboot Execution Environment 2.1 (PXE), RFC 4578 (its options), UEFI 2.10
//! section 24.7 (HTTP boot), and iPXE's `dhcp/175`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use base::Instant;
use dhcproto::v4::{Architecture, DhcpOption, Flags, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable as _, Decoder, Encodable as _};

use super::files::BootFiles;
use super::firmware::{Firmware, Offer};
use super::leases::Leases;
use super::reply::reply_to;
use crate::mac::Mac;

/// Where clients listen.
pub(super) const CLIENT_PORT: u16 = 68;
/// Where servers and relays listen.
pub(super) const SERVER_PORT: u16 = 67;
/// Where a client with an address asks a proxy again.
pub(super) const PROXY_PORT: u16 = 4011;

/// The option 43 that says: no menu, no search for other servers, just take the file.
const TAKE_THE_FILE: [u8; 4] = [6, 1, 8, 255];
/// Where iPXE says what it can do, and its word for HTTP.
const IPXE: u8 = 175;
const IPXE_HTTP: u8 = 19;
/// Longest address of a network card in a message.
const ADDRESS_BYTES_MAX: usize = 16;
/// The smallest message that every client accepts (RFC 951).
pub(super) const MESSAGE_BYTES_MIN: usize = 300;

/// What a machine asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Who asked.
    pub mac: Mac,
    /// Its firmware, if that asked, and is one that can be helped; `None` for an operating system.
    pub firmware: Option<Firmware>,
    /// Whether firmware asked, also such as can't be helped.
    pub is_firmware: bool,
}

/// An answer, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// The message.
    pub packet: Vec<u8>,
    /// Broadcast while the client has no address.
    pub to: SocketAddrV4,
}

/// The server's side of DHCP on one network.
pub(super) struct Site {
    /// Our address there.
    pub address: Ipv4Addr,
    /// What machines boot.
    pub files: Arc<dyn BootFiles>,
    /// The addresses that we give; `None` beside another DHCP server.
    pub leases: Option<Leases>,
}

impl Site {
    /// What `packet` asks, which came to `port` at the time `now`, and what to answer. `None` for anything but a
    /// client's message.
    pub(super) fn receive(
        &mut self,
        packet: &[u8],
        port: u16,
        now: Instant,
    ) -> Option<(Asked, Option<Answer>)> {
        let message = Message::decode(&mut Decoder::new(packet)).ok()?;
        if message.opcode() != Opcode::BootRequest || usize::from(message.hlen()) > ADDRESS_BYTES_MAX {
            return None;
        }
        let mac = Mac(message.chaddr().try_into().ok()?);
        let kind = message.opts().msg_type()?;
        let class = class(&message);
        let is_firmware = class.starts_with(b"PXEClient") || class.starts_with(b"HTTPClient");
        let firmware = if is_firmware { firmware(&message, class) } else { None };
        let asked = Asked { mac, firmware, is_firmware };
        // It is told nothing, and goes on to its disk.
        let firmware = firmware.filter(|firmware| {
            !firmware.loads_at_once(self.files.unified().is_some()) || self.files.boots(mac)
        });
        let reply = match (&mut self.leases, port, kind) {
            (_, PROXY_PORT, MessageType::Request | MessageType::Inform) => {
                firmware.map(|_| reply_to(&message, self.address, MessageType::Ack))
            }
            (Some(leases), SERVER_PORT, _) => leases.reply(&message, mac, kind, self.address, now),
            (None, SERVER_PORT, MessageType::Discover) => {
                firmware.map(|_| reply_to(&message, self.address, MessageType::Offer))
            }
            _ => None,
        };
        let answer = reply.and_then(|mut reply| {
            if reply.opts().msg_type() != Some(MessageType::Nak)
                && let Some(firmware) = firmware
            {
                self.add_boot(&message, &mut reply, firmware, mac);
            }
            let mut packet = reply.to_vec().ok()?;
            packet.resize(packet.len().max(MESSAGE_BYTES_MIN), 0);
            Some(Answer { packet, to: destination(&message) })
        });
        Some((asked, answer))
    }

    /// Says where the boot loader is.
    fn add_boot(&self, message: &Message, reply: &mut Message, firmware: Firmware, mac: Mac) {
        let address = self.address;
        let file = firmware.loader(
            mac,
            Offer { address, gives_addresses: self.leases.is_some(), unified: self.files.unified() },
        );
        reply.set_siaddr(address);
        let class: &[u8] = if firmware == Firmware::UefiHttp { b"HTTPClient" } else { b"PXEClient" };
        let options = reply.opts_mut();
        options.insert(DhcpOption::ClassIdentifier(class.to_vec()));
        options.insert(DhcpOption::BootfileName(file.clone().into_bytes()));
        if firmware != Firmware::UefiHttp {
            options.insert(DhcpOption::TFTPServerName(address.to_string().into_bytes()));
            options.insert(DhcpOption::VendorExtensions(TAKE_THE_FILE.to_vec()));
        }
        if let Some(machine) = message.opts().get(OptionCode::ClientMachineIdentifier) {
            options.insert(machine.clone());
        }
        if firmware != Firmware::UefiHttp {
            reply.set_fname_str(&file);
        }
    }
}

/// Whether iPXE asks, and can read by HTTP.
fn is_ipxe(message: &Message) -> bool {
    let can_http = |words: &[u8]| {
        // Options in an option (RFC 2132, 8.4).
        let mut rest = words;
        while let [code, len, more @ ..] = rest {
            if *code == IPXE_HTTP {
                return true;
            }
            rest = more.get(usize::from(*len)..).unwrap_or_default();
        }
        false
    };
    match message.opts().get(OptionCode::from(IPXE)) {
        Some(DhcpOption::Unknown(option)) => can_http(option.data()),
        _ => false,
    }
}

fn class(message: &Message) -> &[u8] {
    match message.opts().get(OptionCode::ClassIdentifier) {
        Some(DhcpOption::ClassIdentifier(class)) => class,
        _ => &[],
    }
}

/// The firmware that sent `message`, by its option 93, else by its class (`PXEClient:Arch:00007:…`). `None` if there is
/// no boot loader for it.
fn firmware(message: &Message, class: &[u8]) -> Option<Firmware> {
    let number = match message.opts().get(OptionCode::ClientSystemArchitecture) {
        Some(DhcpOption::ClientSystemArchitecture(Architecture(number))) => Some(*number),
        _ => {
            let text = std::str::from_utf8(class).ok()?;
            text.split(':').nth(2).and_then(|number| number.parse().ok())
        }
    };
    // IANA, "Processor Architecture Types". Some firmware for x86-64 says 9.
    match (number?, class.starts_with(b"HTTPClient")) {
        (0 | 7 | 9, false) if is_ipxe(message) => Some(Firmware::Ipxe),
        (0, false) => Some(Firmware::Bios),
        (7 | 9, false) => Some(Firmware::Uefi),
        (16, true) => Some(Firmware::UefiHttp),
        _ => None,
    }
}

/// Where a reply to `message` goes.
fn destination(message: &Message) -> SocketAddrV4 {
    let broadcast = Flags::default().set_broadcast();
    if message.giaddr() != Ipv4Addr::UNSPECIFIED {
        SocketAddrV4::new(message.giaddr(), SERVER_PORT)
    } else if message.ciaddr() != Ipv4Addr::UNSPECIFIED && message.flags() != broadcast {
        SocketAddrV4::new(message.ciaddr(), CLIENT_PORT)
    } else {
        SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT)
    }
}
