//! One member: its seeker, its connections, and what it holds.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use base::Instant;
use proto::multicast::Key;
use proto::peer::{
    Availability, MemberId, Packet, Report, Seeker, SeekerConfig, SwarmId, Window, seal_packet,
};

use super::scenario::SwarmScenario;

pub(super) const SWARM: SwarmId = SwarmId(77);
pub(super) const OFFER_KEY: Key = Key([9; 16]);
const PORT: u16 = 7700;

/// The state of a member, honest or not.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) seeker: Seeker,
    pub(super) held: Availability,
    pub(super) started: bool,
    pub(super) gone: bool,
    pub(super) done: bool,
    pub(super) stalled_until: Instant,
    /// When it has sent what it was asked for.
    pub(super) free_at: Instant,
    /// Numbers of its connections to others, and when it last saw bytes there.
    pub(super) connections: BTreeMap<MemberId, u64>,
    pub(super) connected: u64,
    /// Objects to be asked of the server, and how many are.
    pub(super) orders: VecDeque<u64>,
    pub(super) ordered: usize,
    pub(super) number: u32,
    place: u32,
    /// When its next timer is due.
    pub(super) wakes: Option<Instant>,
}

impl Member {
    pub(super) fn new(scenario: &SwarmScenario, index: usize) -> Self {
        let SwarmScenario { objects, window_objects, request_objects, fan_in, .. } = *scenario;
        let config = SeekerConfig { objects, rank: index as u32, window_objects, request_objects, fan_in };
        let mut seeker = Seeker::new(config);
        (0..u64::from(objects)).for_each(|object| seeker.want(object));
        Self {
            seeker,
            held: Availability::none(objects),
            started: false,
            gone: false,
            done: false,
            stalled_until: Instant::ZERO,
            free_at: Instant::ZERO,
            connections: BTreeMap::new(),
            connected: 0,
            orders: VecDeque::new(),
            ordered: 0,
            number: 0,
            place: scenario.members[index].place,
            wakes: None,
        }
    }

    /// What it reports now.
    pub(super) fn report(&mut self) -> Packet {
        let (objects, window) = (self.held.objects(), Window::of(&self.held, 0));
        Packet::Report(Report { port: PORT, uploads: 0, place: self.place, objects, window })
    }
}

/// A packet of a member.
pub(super) fn sealed(name: MemberId, number: u32, packet: &Packet) -> Vec<u8> {
    let key = if matches!(packet, Packet::Offer(_)) { OFFER_KEY } else { key(name) };
    seal_packet(&key, SWARM, name, number, packet)
}

/// The key of a member.
pub(super) fn key(name: MemberId) -> Key {
    Key([name.0 as u8; 16])
}

/// The name of a member.
pub(super) fn name(index: usize) -> MemberId {
    MemberId(index as u64 + 1)
}

/// Where a member is heard.
pub(super) fn address(index: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, index as u8 + 1)), PORT)
}

/// Who is at an address.
pub(super) fn at_address(address: SocketAddr) -> Option<usize> {
    match address.ip() {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
        IpAddr::V6(_) => None,
    }
}
