//! Control packets of peers in Ethernet frames: reads them, and changes where they go. Sources: IEEE 802.3; RFC 791;
//! RFC 8200; RFC 768; RFC 1071 (checksums).
//!
//! It reads only what the rules of the kernel lift too: IPv4 without options or fragments, IPv6 without extension
//! headers, no VLAN tag. Everything else is none of an agent's business and passes the switch.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use net::mac::Mac;

/// Addresses of both ends, and the type of what follows.
const ETHERNET_BYTES: usize = 14;
const TYPE_AT: usize = 12;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP: u8 = 17;
const UDP_BYTES: usize = 8;
/// Where a packet of peers counts its hops.
const HOPS_AT: usize = 6;

/// A UDP packet in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent the frame: a member, or the last router before the switch.
    pub source: Mac,
    /// Sender's address and port.
    pub from: SocketAddr,
    /// Receiver's address and port.
    pub to: SocketAddr,
    /// The bytes of the frame that UDP carries.
    pub payload: Range<usize>,
}

/// Where a packet is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Who sends the frame on: the switch. With the asker's address the tables of switches below would take the asker
    /// for somebody above them.
    pub source: Mac,
    /// Who is to get the frame.
    pub destination: Mac,
    /// New address and port.
    pub to: SocketAddr,
}

/// Places of the headers in a frame.
struct Layout {
    is_v4: bool,
    udp: usize,
    end: usize,
}

impl Layout {
    fn of(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET_BYTES..)?;
        let (is_v4, header, length) = match *frame.get(TYPE_AT..)?.first_chunk()? {
            TYPE_IPV4 => (true, IPV4_BYTES, usize::from(u16_at(ip, 2)?)),
            TYPE_IPV6 => (false, IPV6_BYTES, usize::from(u16_at(ip, 4)?) + IPV6_BYTES),
            _ => return None,
        };
        let plain = match is_v4 {
            // Version 4 and five words of header; neither an offset nor more fragments; UDP.
            true => *ip.first()? == 0x45 && u16_at(ip, 6)? & 0x3fff == 0 && *ip.get(9)? == UDP,
            false => *ip.first()? >> 4 == 6 && *ip.get(6)? == UDP,
        };
        let datagram = ip.get(header..length)?;
        let whole = datagram.len() >= UDP_BYTES && usize::from(u16_at(datagram, 4)?) == datagram.len();
        let udp = ETHERNET_BYTES + header;
        (plain && whole).then_some(Self { is_v4, udp, end: ETHERNET_BYTES + length })
    }

    /// Where the addresses are: of the sender, then of the receiver.
    fn addresses(&self) -> (usize, usize) {
        match self.is_v4 {
            true => (ETHERNET_BYTES + 12, ETHERNET_BYTES + 16),
            false => (ETHERNET_BYTES + 8, ETHERNET_BYTES + 24),
        }
    }

    fn address(&self, frame: &[u8], at: usize) -> Option<IpAddr> {
        let rest = frame.get(at..)?;
        Some(match self.is_v4 {
            true => IpAddr::V4(Ipv4Addr::from(*rest.first_chunk::<4>()?)),
            false => IpAddr::V6(Ipv6Addr::from(*rest.first_chunk::<16>()?)),
        })
    }

    /// Sum of the header that UDP's checksum covers but UDP does not carry.
    fn pseudo_sum(&self, frame: &[u8]) -> u32 {
        let (source, destination) = self.addresses();
        let addresses = &frame[source..destination + (destination - source)];
        let length = u32::try_from(self.end - self.udp).expect("a frame is short");
        sum(addresses) + u32::from(UDP) + length
    }
}

/// Reads a frame. `None` for what is no plain UDP packet.
#[must_use]
pub fn read(frame: &[u8]) -> Option<Datagram> {
    let layout = Layout::of(frame)?;
    let (source, destination) = layout.addresses();
    let udp = &frame[layout.udp..layout.end];
    let from = SocketAddr::new(layout.address(frame, source)?, u16_at(udp, 0)?);
    let to = SocketAddr::new(layout.address(frame, destination)?, u16_at(udp, 2)?);
    let source = Mac(*frame.get(6..)?.first_chunk()?);
    Some(Datagram { source, from, to, payload: layout.udp + UDP_BYTES..layout.end })
}

/// Makes a frame fit to be sent again: verifies UDP's checksum, or completes one that the sender left to its interface.
/// False if the packet is damaged.
#[must_use]
pub fn settle(frame: &mut [u8]) -> bool {
    let Some(layout) = Layout::of(frame) else { return false };
    let pseudo = layout.pseudo_sum(frame);
    let found = u16_at(frame, layout.udp + 6).expect("UDP's header is there");
    match found {
        // IPv4 allows packets without a checksum.
        0 => layout.is_v4,
        // What the kernel of a virtual machine or a container leaves to hardware that does not exist.
        found if found == fold(pseudo) => {
            fill(frame, &layout);
            true
        }
        _ => fold(pseudo + sum(&frame[layout.udp..layout.end])) == u16::MAX,
    }
}

/// Sends a packet of peers to somebody else: changes the addresses of Ethernet and IP and the port, counts a hop. The
/// frame is one that [`settle`] accepted. False, and nothing is changed, if the new address is of the other family.
#[must_use]
pub fn redirect(frame: &mut [u8], target: &Target) -> bool {
    let Some(layout) = Layout::of(frame) else { return false };
    let hops = layout.udp + UDP_BYTES + HOPS_AT;
    if layout.is_v4 != target.to.is_ipv4() || hops >= layout.end {
        return false;
    }
    frame[..6].copy_from_slice(&target.destination.0);
    frame[6..TYPE_AT].copy_from_slice(&target.source.0);
    let (_, destination) = layout.addresses();
    match target.to.ip() {
        IpAddr::V4(address) => frame[destination..][..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => frame[destination..][..16].copy_from_slice(&address.octets()),
    }
    frame[layout.udp + 2..][..2].copy_from_slice(&target.to.port().to_be_bytes());
    if layout.is_v4 {
        let header = ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES;
        frame[ETHERNET_BYTES + 10..][..2].fill(0);
        let checksum = !fold(sum(&frame[header]));
        frame[ETHERNET_BYTES + 10..][..2].copy_from_slice(&checksum.to_be_bytes());
    }
    count_hop(frame)
}

/// Counts a hop of a packet of peers. The frame is one that [`settle`] accepted. False, and nothing is changed, if it
/// is too short for one.
#[must_use]
pub(super) fn count_hop(frame: &mut [u8]) -> bool {
    let Some(layout) = Layout::of(frame) else { return false };
    let hops = layout.udp + UDP_BYTES + HOPS_AT;
    if hops >= layout.end {
        return false;
    }
    frame[hops] = frame[hops].saturating_add(1);
    if u16_at(frame, layout.udp + 6) != Some(0) {
        fill(frame, &layout);
    }
    true
}

/// A frame with `payload` and the addresses of `datagram`, for `destination`. `None` if these are of two families, or
/// the payload is too long.
#[must_use]
pub fn write(datagram: &Datagram, destination: Mac, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(payload.len() + UDP_BYTES).ok()?;
    let mut frame = [&destination.0[..], &datagram.source.0].concat();
    match (datagram.from.ip(), datagram.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = length.checked_add(20)?.to_be_bytes();
            frame.extend(TYPE_IPV4);
            frame.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, UDP, 0, 0]);
            frame.extend([from.octets(), to.octets()].concat());
            let checksum = !fold(sum(&frame[ETHERNET_BYTES..]));
            frame[ETHERNET_BYTES + 10..][..2].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend(TYPE_IPV6);
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([UDP, 64]);
            frame.extend([from.octets(), to.octets()].concat());
        }
        _ => return None,
    }
    for number in [datagram.from.port(), datagram.to.port(), length, 0] {
        frame.extend(number.to_be_bytes());
    }
    frame.extend(payload);
    let layout = Layout::of(&frame)?;
    fill(&mut frame, &layout);
    Some(frame)
}

/// Computes UDP's checksum.
fn fill(frame: &mut [u8], layout: &Layout) {
    frame[layout.udp + 6..][..2].fill(0);
    let checksum = !fold(layout.pseudo_sum(frame) + sum(&frame[layout.udp..layout.end]));
    // 0 would say that there is none.
    let checksum = if checksum == 0 { u16::MAX } else { checksum };
    frame[layout.udp + 6..][..2].copy_from_slice(&checksum.to_be_bytes());
}

/// Sum of the 16-bit words of at most 64 KiB.
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |&byte| u32::from(byte) << 8);
    words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum::<u32>() + last
}

/// The sum with its carries added.
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).expect("the second carry leaves no third")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
pub(super) mod tests {
    use base::Chance;

    use super::*;

    /// A frame with a right checksum.
    pub(crate) fn frame(source: Mac, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        write(&Datagram { source, from, to, payload: 0..payload.len() }, Mac([2; 6]), payload).unwrap()
    }

    fn pairs() -> [(SocketAddr, SocketAddr, SocketAddr); 2] {
        let at = |text: &str| text.parse().unwrap();
        [
            (at("10.77.0.3:7700"), at("10.77.0.1:7717"), at("10.77.0.9:7701")),
            (at("[fd77::3]:7700"), at("[fd77::1]:7717"), at("[fd77::9]:7701")),
        ]
    }

    #[test]
    fn a_redirected_packet_is_right_and_damage_shows() {
        let mut chance = Chance::from_seed(4);
        for (from, to, other) in pairs() {
            for length in [7, 80, 81, 1400] {
                let payload: Vec<u8> = (0..length).map(|_| chance.u64() as u8).collect();
                let mut bytes = frame(Mac([7; 6]), from, to, &payload);
                let seen = read(&bytes).unwrap();
                assert_eq!((seen.source, seen.from, seen.to), (Mac([7; 6]), from, to));
                assert_eq!(&bytes[seen.payload], &payload[..]);
                let target = Target { source: Mac([8; 6]), destination: Mac([9; 6]), to: other };
                assert!(settle(&mut bytes) && redirect(&mut bytes, &target));
                let seen = read(&bytes).unwrap();
                assert_eq!((seen.source, seen.from, seen.to), (Mac([8; 6]), from, other));
                assert_eq!(
                    (&bytes[..6], bytes[seen.payload.start + 6]),
                    (&[9; 6][..], payload[6].saturating_add(1))
                );
                assert!(settle(&mut bytes.clone()), "the checksum is right");
                let at = seen.payload.start + chance.below(length as u64) as usize;
                bytes[at] ^= 0x10;
                assert!(!settle(&mut bytes), "damage at {at}");
            }
        }
    }

    #[test]
    fn a_checksum_that_was_left_to_hardware_is_completed() {
        for (from, to, _) in pairs() {
            let whole = frame(Mac([7; 6]), from, to, &[5; 80]);
            let mut partial = whole.clone();
            let layout = Layout::of(&partial).unwrap();
            let pseudo = fold(layout.pseudo_sum(&partial));
            partial[layout.udp + 6..][..2].copy_from_slice(&pseudo.to_be_bytes());
            assert!(settle(&mut partial));
            assert_eq!(partial, whole);
        }
    }

    #[test]
    fn no_bytes_panic_and_only_plain_udp_is_read() {
        let mut chance = Chance::from_seed(8);
        for (from, to, other) in pairs() {
            let good = frame(Mac([7; 6]), from, to, &[5; 80]);
            for _ in 0..20_000 {
                let mut bytes = good.clone();
                for _ in 0..1 + chance.below(4) {
                    let at = chance.below(bytes.len() as u64) as usize;
                    bytes[at] = chance.u64() as u8;
                }
                bytes.truncate(chance.below(bytes.len() as u64 + 1) as usize);
                if let Some(seen) = read(&bytes) {
                    assert!(seen.payload.end <= bytes.len());
                }
                let _ = settle(&mut bytes);
                let target = Target { source: Mac([8; 6]), destination: Mac([9; 6]), to: other };
                let _ = redirect(&mut bytes, &target);
            }
            let mut tagged = good.clone();
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            assert_eq!(read(&tagged), None);
        }
        let (from, to, _) = pairs()[0];
        for (at, value) in [(14, 0x46), (20, 0x20), (21, 1), (23, 6)] {
            let mut bytes = frame(Mac([7; 6]), from, to, &[5; 80]);
            bytes[at] = value;
            assert_eq!(read(&bytes), None, "options, fragments, TCP");
        }
    }
}
