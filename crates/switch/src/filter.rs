//! What the kernel lifts: a filter for the packet socket (classic BPF, `filter.rst` of the kernel) and rules of
//! nftables that hold back the REQUESTs which the agent answers for. Both take the same packets, byte for byte: what
//! the rules hold back and the filter does not take would be lost.

use std::net::{IpAddr, SocketAddr};

use socket2::SockFilter;

/// Bytes of a REQUEST.
const REQUEST_BYTES: u32 = 80;
const UDP_BYTES: u32 = 8;
const MAGIC: u32 = u32::from_be_bytes(*b"DCPE");
/// Version 1, REQUEST, no hops, and not *direct*: the bytes after the magic, and those of their bits that count.
const ANSWERED: u32 = 0x0103_0000;
const ANSWERED_MASK: u32 = 0xffff_ff01;

/// Instructions of classic BPF (`linux/filter.h`).
mod code {
    pub(super) const LOAD_WORD: u16 = 0x20;
    pub(super) const LOAD_HALF: u16 = 0x28;
    pub(super) const LOAD_BYTE: u16 = 0x30;
    pub(super) const AND: u16 = 0x54;
    pub(super) const IF_EQUAL: u16 = 0x15;
    pub(super) const IF_ANY_BIT: u16 = 0x45;
    pub(super) const RETURN: u16 = 0x06;
}

/// An instruction: what it does, how many to skip if its condition holds and if not, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u16,
    holds: u8,
    fails: u8,
    number: u32,
}

impl Instruction {
    const fn new(code: u16, holds: u8, fails: u8, number: u32) -> Self {
        Self { code, holds, fails, number }
    }
}

impl From<Instruction> for SockFilter {
    fn from(of: Instruction) -> Self {
        Self::new(of.code, of.holds, of.fails, of.number)
    }
}

/// Where the kernel tells that it took a VLAN tag off the frame (`SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`).
const IS_TAGGED: u32 = 0xffff_f000 + 48;
const WHOLE_PACKET: u32 = 0x4_0000;

/// A check: load, mask, compare. If it fails, the frame is not taken.
enum Check {
    Is(u16, u32, u32),
    IsMasked(u16, u32, u32, u32),
    HasNone(u16, u32, u32),
}

/// The filter that takes REPORT, LEAVE and, if the agent `answers`, the REQUESTs for which it does, on their way to
/// `server`.
pub(super) fn lifted(server: SocketAddr, answers: bool) -> Vec<Instruction> {
    let mut checks = vec![Check::HasNone(code::LOAD_BYTE, IS_TAGGED, 0xff)];
    let (udp, length) = match server.ip() {
        IpAddr::V4(address) => {
            checks.extend([
                Check::Is(code::LOAD_HALF, 12, 0x0800),
                Check::Is(code::LOAD_BYTE, 23, 17),
                Check::Is(code::LOAD_BYTE, 14, 0x45),
                Check::HasNone(code::LOAD_HALF, 20, 0x3fff),
                Check::Is(code::LOAD_WORD, 30, address.to_bits()),
            ]);
            (34, (16, 20 + UDP_BYTES + REQUEST_BYTES))
        }
        IpAddr::V6(address) => {
            checks.extend([
                Check::Is(code::LOAD_HALF, 12, 0x86dd),
                Check::Is(code::LOAD_BYTE, 20, 17),
                Check::IsMasked(code::LOAD_BYTE, 14, 0xf0, 0x60),
            ]);
            let words = address
                .octets()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| u32::from_be_bytes(*word))
                .collect::<Vec<_>>();
            let places = (38..).step_by(4);
            checks.extend(places.zip(words).map(|(at, word)| Check::Is(code::LOAD_WORD, at, word)));
            (54, (18, UDP_BYTES + REQUEST_BYTES))
        }
    };
    checks.push(Check::Is(code::LOAD_HALF, udp + 2, server.port().into()));
    checks.push(Check::Is(code::LOAD_WORD, udp + 8, MAGIC));
    let request = [
        Check::Is(code::LOAD_HALF, length.0, length.1),
        Check::Is(code::LOAD_HALF, udp + 4, UDP_BYTES + REQUEST_BYTES),
        Check::IsMasked(code::LOAD_WORD, udp + 12, ANSWERED_MASK, ANSWERED),
    ];
    let mut program: Vec<Instruction> = checks.iter().flat_map(assemble).collect();
    // REPORT or LEAVE of version 1.
    program.push(Instruction::new(code::LOAD_HALF, 0, 0, udp + 12));
    let request: Vec<Instruction> = match answers {
        true => request.iter().flat_map(assemble).collect(),
        false => vec![Instruction::new(code::RETURN, 0, 0, 0)],
    };
    let take = u8::try_from(request.len()).expect("a short program");
    program.push(Instruction::new(code::IF_EQUAL, take + 1, 0, 0x0101));
    program.push(Instruction::new(code::IF_EQUAL, take, 0, 0x0102));
    program.extend(request);
    program.push(Instruction::new(code::RETURN, 0, 0, WHOLE_PACKET));
    program
}

fn assemble(check: &Check) -> Vec<Instruction> {
    let drop = Instruction::new(code::RETURN, 0, 0, 0);
    match *check {
        Check::Is(load, at, value) => {
            vec![Instruction::new(load, 0, 0, at), Instruction::new(code::IF_EQUAL, 1, 0, value), drop]
        }
        Check::IsMasked(load, at, mask, value) => vec![
            Instruction::new(load, 0, 0, at),
            Instruction::new(code::AND, 0, 0, mask),
            Instruction::new(code::IF_EQUAL, 1, 0, value),
            drop,
        ],
        Check::HasNone(load, at, mask) => {
            vec![Instruction::new(load, 0, 0, at), Instruction::new(code::IF_ANY_BIT, 0, 1, mask), drop]
        }
    }
}

/// The condition, in the words of nft(8), under which a frame that arrives at a port is held back.
pub(super) fn held_back(server: SocketAddr) -> String {
    let (udp, port, datagram) = (UDP_BYTES + REQUEST_BYTES, server.port(), "@th,64,32");
    // The type in the frame itself, which tells a tag, too.
    let network = match server.ip() {
        IpAddr::V4(address) => format!(
            "@ll,96,16 0x0800 ip protocol udp @nh,0,8 0x45 @nh,48,16 & 0x3fff == 0 ip daddr {address} ip length {}",
            20 + udp
        ),
        IpAddr::V6(address) => {
            format!("@ll,96,16 0x86dd ip6 nexthdr udp ip6 daddr {address} ip6 length {udp}")
        }
    };
    format!(
        "{network} udp dport {port} udp length {udp} {datagram} {MAGIC:#x} \
         @th,96,32 & {ANSWERED_MASK:#x} == {ANSWERED:#x}"
    )
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
pub(super) mod tests {
    use base::Chance;
    use proto::multicast::Key;
    use proto::peer::{AVOIDED_MAX, MemberId, Packet, Part, Request, SwarmId, seal_packet};

    use super::*;
    use crate::frame::read;
    use crate::frame::tests::frame;
    use net::mac::Mac;

    /// What `program` returns for a frame (without a tag), as the kernel runs it.
    fn run(program: &[Instruction], frame: &[u8]) -> bool {
        let (mut a, mut at) = (0_u32, 0);
        loop {
            let Instruction { code: op, holds, fails, number: k } = program[at];
            let load = |bytes: usize| -> Option<u32> {
                if k == IS_TAGGED {
                    return Some(0);
                }
                let found = frame.get(k as usize..k as usize + bytes)?;
                Some(found.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
            };
            at += 1;
            let loaded = match op {
                code::LOAD_WORD => load(4),
                code::LOAD_HALF => load(2),
                code::LOAD_BYTE => load(1),
                _ => Some(a),
            };
            let Some(loaded) = loaded else { return false };
            a = loaded;
            match op {
                code::AND => a &= k,
                code::IF_EQUAL => at += if a == k { holds } else { fails } as usize,
                code::IF_ANY_BIT => at += if a & k != 0 { holds } else { fails } as usize,
                code::RETURN => return k > 0,
                _ => {}
            }
        }
    }

    pub(crate) fn request(direct: bool) -> Vec<u8> {
        let part = Part { batch: 3, mask: 9 };
        let request = Request { part, avoided: [MemberId(0); AVOIDED_MAX], blamed: 0, direct, scouts: false };
        seal_packet(&Key([1; 16]), SwarmId(7), MemberId(8), 1, &Packet::Request(request))
    }

    #[test]
    fn the_filter_takes_reports_and_requests_to_the_server_and_nothing_else() {
        for (from, to, other) in [
            ("10.77.0.3:7700", "10.77.0.1:7717", "10.77.0.2:7717"),
            ("[fd77::3]:7700", "[fd77::1]:7717", "[fd77::2]:7717"),
        ] {
            let (from, to, other): (SocketAddr, SocketAddr, SocketAddr) =
                (from.parse().unwrap(), to.parse().unwrap(), other.parse().unwrap());
            let program = lifted(to, true);
            let takes = |to, payload: &[u8]| run(&program, &frame(Mac([7; 6]), from, to, payload));
            let leave = seal_packet(&Key([1; 16]), SwarmId(7), MemberId(8), 1, &Packet::Leave);
            assert!(takes(to, &request(false)) && takes(to, &leave));
            let reports_only = lifted(to, false);
            assert!(run(&reports_only, &frame(Mac([7; 6]), from, to, &leave)));
            assert!(!run(&reports_only, &frame(Mac([7; 6]), from, to, &request(false))));
            assert!(!takes(to, &request(true)), "direct");
            assert!(!takes(other, &request(false)) && !takes(other, &leave));
            assert!(!takes(to, &request(false)[..79]) && !takes(to, b"DCPX"));
            let mut passed_on = request(false);
            passed_on[6] = 1;
            assert!(!takes(to, &passed_on), "hops");
            let mut offer = request(false);
            offer[5] = 4;
            assert!(!takes(to, &offer));
            // Whatever is lifted can be read.
            let (good, mut chance) = (frame(Mac([7; 6]), from, to, &request(false)), Chance::from_seed(2));
            for _ in 0..2000 {
                let mut bytes = good.clone();
                let at = chance.below(bytes.len() as u64) as usize;
                bytes[at] = chance.u64() as u8;
                assert!(!run(&program, &bytes) || read(&bytes).is_some(), "byte {at}");
            }
        }
    }
}
