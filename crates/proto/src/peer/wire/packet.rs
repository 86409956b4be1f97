//! The packets between members of a swarm and its redirector, by UDP. All fields are clear, so that an agent on a
//! switch reads them; their tag covers neither addresses nor the count of hops, so that it may pass a REQUEST on.
//! Source: `formats/peer.md`, section 2.

use std::net::{IpAddr, Ipv6Addr};

use base::wire::Reader;

use super::window::HEADER_BYTES;
pub use super::window::{PACKET_BYTES_MAX, Reject, Window};
use crate::multicast::{Key, TAG_BYTES, tag};
use crate::peer::availability::Part;

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Most members that a REQUEST may name as not to be offered.
pub const AVOIDED_MAX: usize = 4;

const MAGIC: [u8; 4] = *b"DCPE";
const HOPS_AT: usize = 6;

mod kind {
    pub(super) const REPORT: u8 = 1;
    pub(super) const LEAVE: u8 = 2;
    pub(super) const REQUEST: u8 = 3;
    pub(super) const OFFER: u8 = 4;
}

mod offered {
    pub(super) const NOBODY: u8 = 0;
    pub(super) const MEMBER: u8 = 1;
    pub(super) const WAIT: u8 = 2;
}

/// Names a swarm: those that fetch, use or keep one version of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwarmId(pub u64);

/// Names a member of a swarm; 0 is the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u64);

/// What a member holds, and where it serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Port of its transfers, by TCP, at the address that the report comes from; 0 if it does not serve.
    pub port: u16,
    /// Number of transfers that it serves now, at most 255.
    pub uploads: u8,
    /// Where it is: equal for members at one switch or in one rack; 0 if it does not know.
    pub place: u32,
    /// Number of objects of the version.
    pub objects: u32,
    /// What it holds.
    pub window: Window,
}

/// Asks who holds some objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which objects, at least one.
    pub part: Part,
    /// Members not to offer; 0 for an entry that is not used.
    pub avoided: [MemberId; AVOIDED_MAX],
    /// Those of them that sent wrong bytes, the lowest bit for the first.
    pub blamed: u8,
    /// Whether only the server may answer: switches pass it on as it is.
    pub direct: bool,
    /// Whether the asker wants them only of a member near, who has them now: it does not ask the server for them yet.
    pub scouts: bool,
}

/// What an OFFER says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// Nobody else has them: the server has.
    Nobody {
        /// Whether others lack them, too, so that multicast would serve several.
        others: bool,
    },
    /// A member has them.
    Member {
        /// Who.
        member: MemberId,
        /// Its address; `None` for the one from which this packet came.
        address: Option<IpAddr>,
        /// Port of its transfers.
        port: u16,
    },
    /// Somebody near is about to have them.
    Wait {
        /// After this time the request may be made again, in milliseconds.
        milliseconds: u16,
    },
}

/// Answers a REQUEST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The objects that this is about: those of the request, or some of them.
    pub part: Part,
    /// Where to get them.
    pub offered: Offered,
}

/// The body of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// From a member to the redirector.
    Report(Report),
    /// From a member to the redirector: it serves no more.
    Leave,
    /// From a member to the redirector, which may be passed on to another member.
    Request(Request),
    /// From the redirector, or a member, to the member that asked.
    Offer(Offer),
}

/// The head of a packet, before its tag was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek {
    /// The swarm.
    pub swarm: SwarmId,
    /// Who sent it.
    pub member: MemberId,
    /// Number of the request, which its OFFER repeats; of a REPORT: grows with each.
    pub number: u32,
    /// How often it was passed on by a switch or a member.
    pub hops: u8,
    /// Whether it is an OFFER, whose key all members share; each member has a key of its own for the others.
    pub is_offer: bool,
}

/// Reads the head of a packet, which says under which key its tag is.
///
/// # Errors
/// [`Reject`] for what is no packet of this version.
pub fn peek(packet: &[u8]) -> Result<Peek, Reject> {
    if packet.len() > PACKET_BYTES_MAX {
        return Err(Reject::Length);
    }
    let mut from = Reader::new(packet);
    if from.array::<4>()? != MAGIC || from.array::<1>()? != [VERSION] {
        return Err(Reject::Version);
    }
    let [kind, hops, _flags] = from.array::<3>()?;
    let (swarm, member, number) = (SwarmId(from.u64()?), MemberId(from.u64()?), from.u32()?);
    Ok(Peek { swarm, member, number, hops, is_offer: kind == kind::OFFER })
}

/// Verifies a packet under `key` and reads it. With `None` the tag is not verified: for those that have no key.
///
/// # Errors
/// [`Reject`].
pub fn open(key: Option<&Key>, packet: &[u8]) -> Result<Packet, Reject> {
    peek(packet)?;
    let (body, found) = packet.split_last_chunk::<TAG_BYTES>().ok_or(Reject::Length)?;
    if let Some(key) = key {
        let mut tagged = body.to_vec();
        *tagged.get_mut(HOPS_AT).ok_or(Reject::Length)? = 0;
        if tag(key, &tagged) != *found {
            return Err(Reject::Tag);
        }
    }
    let (header, body) = body.split_at_checked(HEADER_BYTES).ok_or(Reject::Length)?;
    let (kind, flags) = (header[5], header[7]);
    let mut from = Reader::new(body);
    let packet = match kind {
        kind::REPORT => Packet::Report(parse_report(&mut from)?),
        kind::LEAVE => Packet::Leave,
        kind::REQUEST => Packet::Request(parse_request(&mut from, flags)?),
        kind::OFFER => Packet::Offer(parse_offer(&mut from)?),
        _ => return Err(Reject::Unknown),
    };
    match packet {
        Packet::Leave | Packet::Request(_) | Packet::Offer(_) if from.remaining() > 0 => Err(Reject::Length),
        packet => Ok(packet),
    }
}

/// The bytes of a packet, with its tag.
#[must_use]
pub fn seal_packet(key: &Key, swarm: SwarmId, member: MemberId, number: u32, packet: &Packet) -> Vec<u8> {
    let (kind, flags) = match packet {
        Packet::Report(_) => (kind::REPORT, 0),
        Packet::Leave => (kind::LEAVE, 0),
        Packet::Request(request) => (kind::REQUEST, u8::from(request.direct) | u8::from(request.scouts) << 1),
        Packet::Offer(_) => (kind::OFFER, 0),
    };
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, kind, 0, flags]);
    bytes.extend_from_slice(&swarm.0.to_le_bytes());
    bytes.extend_from_slice(&member.0.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    match packet {
        Packet::Report(report) => encode_report(report, &mut bytes),
        Packet::Leave => {}
        Packet::Request(request) => encode_request(request, &mut bytes),
        Packet::Offer(offer) => encode_offer(offer, &mut bytes),
    }
    let tag = tag(key, &bytes);
    bytes.extend_from_slice(&tag);
    bytes
}

fn encode_report(report: &Report, into: &mut Vec<u8>) {
    into.extend_from_slice(&report.place.to_le_bytes());
    into.extend_from_slice(&report.objects.to_le_bytes());
    into.extend_from_slice(&report.port.to_le_bytes());
    into.push(report.uploads);
    report.window.encode(into);
}

fn parse_report(from: &mut Reader<'_>) -> Result<Report, Reject> {
    let (place, objects, port) = (from.u32()?, from.u32()?, from.u16()?);
    let uploads = from.array::<1>()?[0];
    let window = Window::parse(from)?;
    // The list is the rest of the packet, which `Window::parse` has looked at without taking it.
    if window.objects.end > objects {
        return Err(Reject::Bounds);
    }
    Ok(Report { port, uploads, place, objects, window })
}

fn encode_request(request: &Request, into: &mut Vec<u8>) {
    encode_part(request.part, into);
    into.extend_from_slice(&[request.blamed, 0, 0, 0]);
    request.avoided.iter().for_each(|member| into.extend_from_slice(&member.0.to_le_bytes()));
}

fn parse_request(from: &mut Reader<'_>, flags: u8) -> Result<Request, Reject> {
    let part = parse_part(from)?;
    let [blamed, ..] = from.array::<4>()?;
    let mut avoided = [MemberId(0); AVOIDED_MAX];
    for member in &mut avoided {
        *member = MemberId(from.u64()?);
    }
    Ok(Request { part, avoided, blamed, direct: flags & 1 == 1, scouts: flags & 2 == 2 })
}

fn encode_offer(offer: &Offer, into: &mut Vec<u8>) {
    let others = offer.offered == Offered::Nobody { others: true };
    let (kind, port, wait, member, address) = match offer.offered {
        Offered::Nobody { .. } => (offered::NOBODY, 0, 0, 0, None),
        Offered::Member { member, address, port } => (offered::MEMBER, port, 0, member.0, address),
        Offered::Wait { milliseconds } => (offered::WAIT, 0, milliseconds, 0, None),
    };
    encode_part(offer.part, into);
    into.extend_from_slice(&[kind, u8::from(others)]);
    into.extend_from_slice(&port.to_le_bytes());
    into.extend_from_slice(&wait.to_le_bytes());
    into.extend_from_slice(&[0, 0]);
    into.extend_from_slice(&member.to_le_bytes());
    let address = match address {
        None => Ipv6Addr::UNSPECIFIED,
        Some(IpAddr::V4(address)) => address.to_ipv6_mapped(),
        Some(IpAddr::V6(address)) => address,
    };
    into.extend_from_slice(&address.octets());
}

fn parse_offer(from: &mut Reader<'_>) -> Result<Offer, Reject> {
    let part = parse_part(from)?;
    let [kind, others] = from.array::<2>()?;
    let (port, milliseconds, _) = (from.u16()?, from.u16()?, from.u16()?);
    let (member, address) = (MemberId(from.u64()?), Ipv6Addr::from(from.array::<16>()?));
    let offered = match kind {
        offered::NOBODY => Offered::Nobody { others: others == 1 },
        offered::WAIT => Offered::Wait { milliseconds },
        offered::MEMBER if port == 0 || member.0 == 0 => return Err(Reject::Bounds),
        offered::MEMBER => {
            let address = (!address.is_unspecified()).then(|| IpAddr::V6(address).to_canonical());
            Offered::Member { member, address, port }
        }
        _ => return Err(Reject::Unknown),
    };
    Ok(Offer { part, offered })
}

fn encode_part(part: Part, into: &mut Vec<u8>) {
    into.extend_from_slice(&part.batch.to_le_bytes());
    into.extend_from_slice(&part.mask.to_le_bytes());
}

fn parse_part(from: &mut Reader<'_>) -> Result<Part, Reject> {
    let part = Part { batch: from.u32()?, mask: from.u32()? };
    if part.mask == 0 || part.batch >= u32::MAX / crate::peer::BATCH_OBJECTS {
        return Err(Reject::Bounds);
    }
    Ok(part)
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "tests count to some hundreds")]
mod tests {
    use std::net::Ipv4Addr;

    use base::Chance;

    use super::*;

    fn samples() -> Vec<Packet> {
        let part = Part { batch: 7, mask: 0x8000_0001 };
        let window = Window { objects: 5..900, held: vec![5..6, 30..800, 899..900] };
        let report = Report { port: 7700, uploads: 3, place: 9, objects: 1000, window };
        let avoided = [MemberId(4), MemberId(0), MemberId(9), MemberId(0)];
        let address = Some(Ipv4Addr::new(10, 77, 0, 3).into());
        let member = Offered::Member { member: MemberId(8), address, port: 7700 };
        let offers = [Offered::Nobody { others: true }, Offered::Wait { milliseconds: 40 }, member];
        let offers = offers.map(|offered| Packet::Offer(Offer { part, offered }));
        let request = Request { part, avoided, blamed: 4, direct: true, scouts: true };
        [Packet::Report(report), Packet::Leave, Packet::Request(request)].into_iter().chain(offers).collect()
    }

    #[test]
    fn packets_come_back_and_no_changed_byte_passes() {
        let key = Key([7; 16]);
        for packet in samples() {
            let bytes = seal_packet(&key, SwarmId(3), MemberId(11), 5, &packet);
            assert_eq!(open(Some(&key), &bytes), Ok(packet.clone()));
            let head = peek(&bytes).unwrap();
            assert_eq!((head.swarm, head.member, head.number, head.hops), (SwarmId(3), MemberId(11), 5, 0));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                let opened = open(Some(&key), &damaged);
                assert!(
                    if at == HOPS_AT { opened.is_ok() } else { opened.is_err() },
                    "byte {at} of {packet:?}"
                );
                assert!(open(Some(&key), &bytes[..at]).is_err());
            }
        }
    }

    #[test]
    fn hostile_bytes_are_refused_without_a_panic() {
        let mut chance = Chance::from_seed(9);
        for packet in samples() {
            let bytes = seal_packet(&Key([7; 16]), SwarmId(3), MemberId(11), 5, &packet);
            for _ in 0..2000 {
                let mut damaged = bytes.clone();
                for _ in 0..1 + chance.below(4) {
                    let at = chance.below(damaged.len() as u64) as usize;
                    damaged[at] = chance.u64() as u8;
                }
                if let Ok(Packet::Report(report)) = open(None, &damaged) {
                    assert!(report.window.objects.end <= report.objects);
                    assert!(report.window.held.iter().all(|run| run.end <= report.window.objects.end));
                }
            }
        }
    }
}
