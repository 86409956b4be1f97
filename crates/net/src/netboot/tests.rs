//! Tests what machines are answered, by messages of a client.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use dhcproto::v4::{Architecture, DhcpOption, Message, MessageType, OptionCode, UnknownOption};
use dhcproto::{Decodable as _, Decoder, Encodable as _};
use parking_lot::Mutex;

use super::dhcp::{PROXY_PORT, SERVER_PORT, Site};
use super::{BootFiles, LeaseBook, Leases};
use crate::mac::Mac;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const IDLE: [u8; 6] = [0x52, 0x54, 0, 9, 9, 9];
const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// Files of a server for which all machines but one have a job.
struct Files {
    unified: bool,
}

impl BootFiles for Files {
    fn open(&self, _: &str) -> Option<bytes::Bytes> {
        None
    }

    fn boots(&self, mac: Mac) -> bool {
        mac != Mac(IDLE)
    }

    fn unified(&self) -> Option<&'static str> {
        self.unified.then_some(super::unified::SHIM)
    }
}

/// Addresses of machines.
type Addresses = Arc<Mutex<HashMap<Mac, Ipv4Addr>>>;

/// What a server keeps while it is restarted: leases, how old they are, and the addresses that never change.
#[derive(Clone, Default)]
struct Book(Addresses, Duration, Addresses);

impl LeaseBook for Book {
    fn fixed(&self) -> HashMap<Mac, Ipv4Addr> {
        self.2.lock().clone()
    }

    fn load(&self) -> base::Result<Vec<(Mac, Ipv4Addr, Duration)>> {
        Ok(self.0.lock().iter().map(|(mac, address)| (*mac, *address, self.1)).collect())
    }

    fn keep(&self, mac: Mac, address: Option<Ipv4Addr>) -> base::Result<()> {
        match address {
            Some(address) => drop(self.0.lock().insert(mac, address)),
            None => drop(self.0.lock().remove(&mac)),
        }
        Ok(())
    }
}

fn site(range: Option<(u8, u8)>) -> Site {
    site_with(range, &Book::default())
}

fn site_with(range: Option<(u8, u8)>, book: &Book) -> Site {
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    let leases = range.map(|(first, last)| {
        Leases::of((address(first), address(last)), OWN, 24, Box::new(book.clone()), Instant::ZERO).unwrap()
    });
    Site { address: OWN, files: std::sync::Arc::new(Files { unified: false }), leases }
}

fn message(kind: MessageType, mac: [u8; 6]) -> Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(7, none, none, none, none, &mac);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    message
}

/// What firmware sends.
fn firmware(kind: MessageType, class: &str, number: Option<u16>) -> Message {
    let mut message = message(kind, MAC);
    message.opts_mut().insert(DhcpOption::ClassIdentifier(class.as_bytes().to_vec()));
    message.opts_mut().insert(DhcpOption::ClientMachineIdentifier(vec![0; 17]));
    if let Some(number) = number {
        message.opts_mut().insert(DhcpOption::ClientSystemArchitecture(Architecture(number)));
    }
    message
}

/// The answer to `message`, and where it goes.
fn ask(site: &mut Site, message: &Message, port: u16, seconds: u64) -> Option<(Message, SocketAddrV4)> {
    let now = Instant::ZERO + Duration::from_secs(seconds);
    let (asked, answer) = site.receive(&message.to_vec().unwrap(), port, now).unwrap();
    assert_eq!(asked.mac, Mac(message.chaddr().try_into().unwrap()));
    answer.map(|answer| (Message::decode(&mut Decoder::new(&answer.packet)).unwrap(), answer.to))
}

fn file(reply: &Message) -> String {
    match reply.opts().get(OptionCode::BootfileName) {
        Some(DhcpOption::BootfileName(name)) => String::from_utf8(name.clone()).unwrap(),
        _ => String::new(),
    }
}

#[test]
fn beside_another_server_firmware_learns_its_loader_and_nothing_else() {
    let mut site = site(None);
    for (class, number, loader) in [
        ("PXEClient:Arch:00000:UNDI:002001", Some(0), "undionly.kpxe"),
        ("PXEClient:Arch:00007:UNDI:003016", Some(7), "snponly.efi"),
        ("PXEClient:Arch:00009:UNDI:003016", None, "snponly.efi"),
        (
            "HTTPClient:Arch:00016:UNDI:003001",
            Some(16),
            "http://10.0.0.1/machine/52-54-00-01-02-03/diskcast.iso",
        ),
    ] {
        let discover = firmware(MessageType::Discover, class, number);
        let (offer, to) = ask(&mut site, &discover, SERVER_PORT, 0).unwrap();
        assert_eq!((offer.opts().msg_type(), file(&offer)), (Some(MessageType::Offer), loader.to_owned()));
        assert_eq!((offer.yiaddr(), offer.siaddr(), offer.xid()), (Ipv4Addr::UNSPECIFIED, OWN, 7));
        assert_eq!(to, SocketAddrV4::new(Ipv4Addr::BROADCAST, 68));
        for code in [OptionCode::SubnetMask, OptionCode::Router, OptionCode::AddressLeaseTime] {
            assert!(offer.opts().get(code).is_none(), "{code:?}");
        }
        // An address is given by the other server.
        let request = firmware(MessageType::Request, class, number);
        assert!(ask(&mut site, &request, SERVER_PORT, 0).is_none());
        let (ack, _) = ask(&mut site, &request, PROXY_PORT, 0).unwrap();
        assert_eq!((ack.opts().msg_type(), file(&ack)), (Some(MessageType::Ack), loader.to_owned()));
    }
    // Operating systems, and machines for which there is no loader.
    assert!(ask(&mut site, &message(MessageType::Discover, MAC), SERVER_PORT, 0).is_none());
    let arm = firmware(MessageType::Discover, "PXEClient:Arch:00011:UNDI:003016", Some(11));
    assert!(ask(&mut site, &arm, SERVER_PORT, 0).is_none());
}

#[test]
fn alone_on_a_network_machines_get_addresses_too() {
    let mut site = site(Some((100, 101)));
    let discover = firmware(MessageType::Discover, "PXEClient:Arch:00007", Some(7));
    let (offer, _) = ask(&mut site, &discover, SERVER_PORT, 0).unwrap();
    assert_eq!((offer.yiaddr(), file(&offer)), (Ipv4Addr::new(10, 0, 0, 100), "shimx64.efi".to_owned()));
    let mut request = firmware(MessageType::Request, "PXEClient:Arch:00007", Some(7));
    request.opts_mut().insert(DhcpOption::ServerIdentifier(OWN));
    request.opts_mut().insert(DhcpOption::RequestedIpAddress(offer.yiaddr()));
    let (ack, _) = ask(&mut site, &request, SERVER_PORT, 1).unwrap();
    assert_eq!((ack.opts().msg_type(), ack.yiaddr()), (Some(MessageType::Ack), offer.yiaddr()));

    // The system on it gets the same one, without a boot loader; another machine gets the next one.
    let (offer, _) = ask(&mut site, &message(MessageType::Discover, MAC), SERVER_PORT, 2).unwrap();
    assert_eq!((offer.yiaddr(), file(&offer)), (ack.yiaddr(), String::new()));
    let (offer, _) = ask(&mut site, &message(MessageType::Discover, [2; 6]), SERVER_PORT, 3).unwrap();
    assert_eq!(offer.yiaddr(), Ipv4Addr::new(10, 0, 0, 101));
    // There is none for a third one, until an offer was not taken up.
    assert!(ask(&mut site, &message(MessageType::Discover, [4; 6]), SERVER_PORT, 4).is_none());
    let (offer, _) = ask(&mut site, &message(MessageType::Discover, [4; 6]), SERVER_PORT, 100).unwrap();
    assert_eq!(offer.yiaddr(), Ipv4Addr::new(10, 0, 0, 101));
    // Who chose another server, or asks for what another one has, gets nothing of ours.
    let mut elsewhere = message(MessageType::Request, [5; 6]);
    elsewhere.opts_mut().insert(DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 0, 0, 2)));
    assert!(ask(&mut site, &elsewhere, SERVER_PORT, 5).is_none());
    let mut taken = message(MessageType::Request, [5; 6]);
    taken.opts_mut().insert(DhcpOption::RequestedIpAddress(Ipv4Addr::new(10, 0, 0, 100)));
    let (nak, _) = ask(&mut site, &taken, SERVER_PORT, 5).unwrap();
    assert_eq!((nak.opts().msg_type(), nak.yiaddr()), (Some(MessageType::Nak), Ipv4Addr::UNSPECIFIED));
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    for (first, last, why) in [
        (address(9), address(8), "a range has"),
        (address(0), address(8), "own"),
        (Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 1, 9), "do not lie"),
    ] {
        let leases = Leases::of((first, last), OWN, 24, Box::new(Book::default()), Instant::ZERO);
        let said = leases.err().unwrap().to_string();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_restart_of_the_server_gives_no_address_twice() {
    let book = Book::default();
    let class = "PXEClient:Arch:00007";
    let ask_as = |site: &mut Site, kind: MessageType, last: u8, wanted: Option<Ipv4Addr>| {
        let mut message = firmware(kind, class, Some(7));
        message.set_chaddr(&[0x52, 0x54, 0, 0, 0, last]);
        if let Some(wanted) = wanted {
            message.opts_mut().insert(DhcpOption::RequestedIpAddress(wanted));
        }
        ask(site, &message, SERVER_PORT, 0).map(|(reply, _)| reply.yiaddr())
    };
    let mut before = site_with(Some((100, 102)), &book);
    let first = ask_as(&mut before, MessageType::Discover, 1, None).unwrap();
    assert_eq!(ask_as(&mut before, MessageType::Request, 1, Some(first)), Some(first));
    // An offer is nothing that a machine has.
    ask_as(&mut before, MessageType::Discover, 2, None).unwrap();
    assert_eq!(book.0.lock().len(), 1);

    let mut after = site_with(Some((100, 102)), &book);
    let second = ask_as(&mut after, MessageType::Discover, 3, Some(first)).unwrap();
    assert_ne!(second, first, "another machine has it");
    assert_eq!(ask_as(&mut after, MessageType::Request, 3, Some(second)), Some(second));
    assert_eq!(ask_as(&mut after, MessageType::Request, 1, Some(first)), Some(first));
    // What is given back is free, and stays so.
    ask_as(&mut after, MessageType::Release, 1, None);
    assert_eq!(book.load().unwrap(), [(Mac([0x52, 0x54, 0, 0, 0, 3]), second, Duration::ZERO)]);
    // What ended long ago holds nothing.
    let mut later =
        site_with(Some((100, 100)), &Book(book.0.clone(), Duration::from_secs(90_000), Addresses::default()));
    assert!(ask_as(&mut later, MessageType::Discover, 4, None).is_some());
    // An address that somebody else has is not given again.
    let mut site = site_with(Some((100, 101)), &Book::default());
    let first = ask_as(&mut site, MessageType::Discover, 1, None).unwrap();
    ask_as(&mut site, MessageType::Decline, 1, None);
    assert_ne!(ask_as(&mut site, MessageType::Discover, 1, None).unwrap(), first);
}

/// What a machine with the address 52:54:00:00:00:`last` of a card is given, or what becomes of its lease.
fn ask_for(
    site: &mut Site,
    kind: MessageType,
    last: u8,
    wanted: Option<Ipv4Addr>,
    seconds: u64,
) -> Option<(MessageType, Ipv4Addr)> {
    let mut message = message(kind, [0x52, 0x54, 0, 0, 0, last]);
    if let Some(wanted) = wanted {
        message.opts_mut().insert(DhcpOption::RequestedIpAddress(wanted));
    }
    let (reply, _) = ask(site, &message, SERVER_PORT, seconds)?;
    Some((reply.opts().msg_type().unwrap(), reply.yiaddr()))
}

#[test]
fn a_fixed_address_is_given_to_its_machine_always_and_to_nobody_else() {
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    let fixed = |book: &Book, last: u8, at: Ipv4Addr| {
        book.2.lock().insert(Mac([0x52, 0x54, 0, 0, 0, last]), at);
    };
    let (offer, ack) = (MessageType::Offer, MessageType::Ack);
    let book = Book::default();
    let mut site = site_with(Some((100, 102)), &book);
    // Inside the range, and outside of it.
    fixed(&book, 1, address(101));
    fixed(&book, 2, address(7));
    let ask = |site: &mut Site, kind, last, wanted, seconds| ask_for(site, kind, last, wanted, seconds);
    let (discover, request) = (MessageType::Discover, MessageType::Request);
    assert_eq!(ask(&mut site, discover, 3, Some(address(101)), 0), Some((offer, address(100))));
    assert_eq!(ask(&mut site, discover, 4, Some(address(7)), 0), Some((offer, address(102))));
    assert_eq!(ask(&mut site, discover, 5, None, 0), None, "there is none left");
    for (last, own) in [(1, address(101)), (2, address(7))] {
        assert_eq!(ask(&mut site, discover, last, Some(address(100)), 1), Some((offer, own)));
        assert_eq!(ask(&mut site, request, last, Some(own), 1), Some((ack, own)));
    }
    // Long after all leases have ended, too.
    assert_eq!(ask(&mut site, discover, 6, None, 90_000).unwrap().0, offer);
    assert_eq!(ask(&mut site, discover, 1, None, 90_001), Some((offer, address(101))));

    // One that another machine has is its own until then, and it gets no more of it.
    let book = Book::default();
    let mut site = site_with(Some((100, 102)), &book);
    assert_eq!(ask(&mut site, discover, 3, Some(address(101)), 0), Some((offer, address(101))));
    assert_eq!(ask(&mut site, request, 3, Some(address(101)), 0), Some((ack, address(101))));
    assert_eq!(ask(&mut site, request, 1, Some(address(100)), 0), Some((ack, address(100))));
    fixed(&book, 1, address(101));
    assert_eq!(ask(&mut site, discover, 1, None, 10), Some((offer, address(100))));
    assert_eq!(ask(&mut site, request, 3, Some(address(101)), 1800).unwrap().0, MessageType::Nak);
    assert_eq!(ask(&mut site, discover, 3, Some(address(101)), 1801), Some((offer, address(102))));
    assert_eq!(ask(&mut site, request, 1, Some(address(100)), 1802).unwrap().0, MessageType::Nak);
    assert_eq!(ask(&mut site, discover, 1, None, 1803), Some((offer, address(101))));
    // What is no address of this network is none.
    for wrong in [Ipv4Addr::new(10, 0, 1, 7), OWN, address(0), address(255)] {
        fixed(&book, 9, wrong);
        assert!(!super::is_host(wrong, OWN, 24));
        assert_ne!(ask(&mut site, discover, 9, None, 90_000), Some((offer, wrong)));
    }
}

#[test]
fn no_packet_is_too_strange() {
    let good = firmware(MessageType::Discover, "PXEClient:Arch:00007", Some(7)).to_vec().unwrap();
    let mut seed = 1_u64;
    let mut chance = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 40).unwrap()
    };
    let mut site = site(Some((100, 200)));
    for _ in 0..20_000 {
        let mut packet = good.clone();
        for _ in 0..1 + chance() % 4 {
            let at = chance() % packet.len();
            packet[at] = u8::try_from(chance() % 256).unwrap();
        }
        packet.truncate(chance() % (packet.len() + 1));
        for port in [SERVER_PORT, PROXY_PORT] {
            let _ = site.receive(&packet, port, Instant::ZERO);
        }
    }
}

#[test]
fn addresses_of_cards_are_read_as_they_are_shown() {
    assert_eq!("52-54-00-01-02-03".parse::<Mac>().unwrap(), Mac(MAC));
    assert_eq!(Mac(MAC).to_string(), "52:54:00:01:02:03");
    for text in ["", "52:54:00:01:02", "52:54:00:01:02:03:04", "52:54:00:01:02:0g", "5254:00:01:02:03:04"] {
        assert!(text.parse::<Mac>().is_err(), "{text}");
    }
}

#[test]
fn ipxe_gets_a_script_if_it_can_read_it() {
    let mut site = site(None);
    let mut discover = firmware(MessageType::Discover, "PXEClient:Arch:00000:UNDI:002001", Some(0));
    let features =
        |bytes: &[u8]| DhcpOption::Unknown(UnknownOption::new(OptionCode::from(175), bytes.to_vec()));
    for (bytes, loader) in [
        (&[0xb1, 1, 2, 0x13, 1, 1][..], "http://10.0.0.1/machine/52-54-00-01-02-03/ipxe"),
        (&[0xb1, 1, 2, 0x15, 1, 1], "undionly.kpxe"),
        (&[0xb1, 200, 0x13], "undionly.kpxe"),
    ] {
        discover.opts_mut().insert(features(bytes));
        let (offer, _) = ask(&mut site, &discover, SERVER_PORT, 0).unwrap();
        assert_eq!(file(&offer), loader, "{bytes:?}");
    }
}

#[test]
fn firmware_that_would_load_all_at_once_goes_to_its_disk_if_there_is_nothing_to_do() {
    let mut discover = firmware(MessageType::Discover, "HTTPClient:Arch:00016:UNDI:003001", Some(16));
    discover.set_chaddr(&IDLE);
    assert!(ask(&mut site(None), &discover, SERVER_PORT, 0).is_none());
    let (offer, _) = ask(&mut site(Some((100, 101))), &discover, SERVER_PORT, 0).unwrap();
    assert_eq!((offer.yiaddr(), file(&offer)), (Ipv4Addr::new(10, 0, 0, 100), String::new()));
}

#[test]
fn a_unified_image_is_what_uefi_gets_if_there_is_something_to_do() {
    let cases = [
        ("PXEClient:Arch:00007:UNDI:003016", 7, "uki/shimx64.efi"),
        ("HTTPClient:Arch:00016:UNDI:003001", 16, "http://10.0.0.1/uki/shimx64.efi"),
        ("PXEClient:Arch:00000:UNDI:002001", 0, "undionly.kpxe"),
    ];
    for range in [None, Some((100, 101))] {
        for (class, arch, loader) in cases {
            let mut site = Site { files: std::sync::Arc::new(Files { unified: true }), ..site(range) };
            let mut discover = firmware(MessageType::Discover, class, Some(arch));
            let (offer, _) = ask(&mut site, &discover, SERVER_PORT, 0).unwrap();
            assert_eq!(file(&offer), loader);
            // iPXE asks the server what to do, and so it is loaded in any case.
            discover.set_chaddr(&IDLE);
            let told = ask(&mut site, &discover, SERVER_PORT, 0);
            let told = told.map(|(offer, _)| file(&offer)).unwrap_or_default();
            assert_eq!(told, if arch == 0 { loader } else { "" });
        }
    }
}
