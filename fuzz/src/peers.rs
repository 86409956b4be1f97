//! Packets of machines that serve each other, and the machines that take them. A tag is made right where a member could
//! have sent the packet.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};

use base::{Duration, Instant};
use proto::multicast::{Key, TAG_BYTES, tag};
use proto::peer::{
    AVOIDED_MAX, Contact, MemberId, Offer, Offered, Packet, Part, RECORD_BYTES, Record, Redirector,
    RedirectorConfig, Report, Request, Seeker, SeekerConfig, Source, SwarmId, Window, open, peek,
    seal_packet,
};

use crate::Target;

pub(crate) const REDIRECTOR: Target =
    Target { name: "redirector", seeds: from_members, take: take_redirector };
pub(crate) const SEEKER: Target = Target { name: "seeker", seeds: offers, take: take_seeker };
pub(crate) const RECORD: Target = Target { name: "record", seeds: records, take: take_record };

const KEY: Key = Key([9; 16]);
const SWARM: SwarmId = SwarmId(4);
const OBJECTS: u32 = 100;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The machines live through many packets.
const LIFETIME: u32 = 500;

fn sealed(member: u64, number: u32, packet: &Packet) -> Vec<u8> {
    let mut bytes = seal_packet(&KEY, SWARM, MemberId(member), number, packet);
    bytes.truncate(bytes.len() - TAG_BYTES);
    bytes
}

fn part() -> Part {
    Part { batch: 1, mask: 0xff }
}

fn from_members() -> Vec<Vec<u8>> {
    let report = |held| {
        let window = Window { objects: 0..OBJECTS, held };
        Packet::Report(Report { port: 7700, uploads: 0, place: 1, objects: OBJECTS, window })
    };
    let scattered = (0..33).map(|at| 3 * at..3 * at + 1).collect();
    let request =
        Request { part: part(), avoided: [MemberId(2); AVOIDED_MAX], blamed: 1, direct: false, scouts: true };
    vec![
        sealed(1, 1, &report(vec![0..50, 60..61])),
        sealed(2, 1, &report(scattered)),
        sealed(3, 1, &Packet::Request(request)),
        sealed(1, 0, &Packet::Leave),
    ]
}

fn offers() -> Vec<Vec<u8>> {
    let member = Offered::Member { member: MemberId(3), address: Some(HERE), port: 7700 };
    [Offered::Nobody { others: false }, Offered::Wait { milliseconds: 5 }, member]
        .map(|offered| sealed(0, 1, &Packet::Offer(Offer { part: part(), offered })))
        .into()
}

fn records() -> Vec<Vec<u8>> {
    let all =
        [Record::Get(part()), Record::Lacks(part()), Record::Object { object: 3, bytes: 9 }, Record::Busy];
    all.map(|record| record.encode().to_vec()).into()
}

/// The damaged packet with the right tag.
fn opened(input: &[u8]) -> Option<(proto::peer::Peek, Packet)> {
    let mut tagged = input.to_vec();
    if let Some(hops) = tagged.get_mut(6) {
        *hops = 0;
    }
    let packet = [input, &tag(&KEY, &tagged)].concat();
    Some((peek(&packet).ok()?, open(Some(&KEY), &packet).ok()?))
}

fn take_redirector(input: &[u8]) {
    thread_local!(static LIFE: RefCell<Option<(Redirector, u32)>> = const { RefCell::new(None) });
    assert!(open(Some(&KEY), input).is_err(), "a packet without a tag was let in");
    let Some((head, packet)) = opened(input) else { return };
    LIFE.with_borrow_mut(|life| {
        let config = RedirectorConfig { members_max: 20, swarms_max: 4, ..RedirectorConfig::default() };
        let (mut machine, age) = life.take().unwrap_or_else(|| (Redirector::new(config), 0));
        let now = Instant::ZERO + Duration::from_millis(10) * age;
        let contact = Contact { from: (HERE, 7700).into(), ingress: 0 };
        match &packet {
            Packet::Report(report) => machine.handle_report(now, head.swarm, head.member, contact, report),
            Packet::Leave => machine.handle_leave(head.swarm, head.member, contact),
            Packet::Request(request) => {
                if let Some(choice) = machine.handle_request(now, head.swarm, head.member, request) {
                    assert!(
                        choice.part.batch == request.part.batch && choice.part.mask & !request.part.mask == 0
                    );
                    assert!(choice.part.mask != 0);
                }
            }
            Packet::Offer(_) => {}
        }
        machine.handle_timeout(now);
        assert!(machine.members() <= 20);
        *life = (age < LIFETIME).then_some((machine, age + 1));
    });
}

fn take_seeker(input: &[u8]) {
    thread_local!(static LIFE: RefCell<Option<(Seeker, u32)>> = const { RefCell::new(None) });
    let Some((head, Packet::Offer(offer))) = opened(input) else { return };
    LIFE.with_borrow_mut(|life| {
        let config =
            SeekerConfig { objects: OBJECTS, rank: 1, window_objects: 40, request_objects: 8, fan_in: 2 };
        let (mut machine, age) = life.take().unwrap_or_else(|| (Seeker::new(config), 0));
        (0..u64::from(OBJECTS)).filter(|_| age == 0).for_each(|object| machine.want(object));
        let now = Instant::ZERO + Duration::from_millis(10) * age;
        machine.handle_timeout(now);
        let mut numbers = vec![head.number];
        while let Some((number, request)) = machine.poll_request(now) {
            assert!(request.part.objects().all(|object| object < u64::from(OBJECTS)));
            numbers.push(number);
        }
        for number in numbers {
            machine.handle_offer(now, number, HERE, &offer);
        }
        while machine.poll_action().is_some() {}
        machine.arrived(now, Source::Member(MemberId(3)), u64::from(age), age % 7 != 0);
        *life = (age < LIFETIME).then_some((machine, age + 1));
    });
}

fn take_record(input: &[u8]) {
    if let Some(bytes) = input.first_chunk::<RECORD_BYTES>()
        && let Ok(record) = Record::parse(bytes)
    {
        assert_eq!(Record::parse(&record.encode()), Ok(record));
    }
}
