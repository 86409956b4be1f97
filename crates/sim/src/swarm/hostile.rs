//! What a hostile member sends now and then. It is admitted, so it has a key of its own and that of offers.

use std::net::IpAddr;

use base::Chance;
use proto::peer::{
    AVOIDED_MAX, Availability, MemberId, Offer, Offered, Packet, Part, Report, Request, Window,
};

use super::member::{address, name, sealed};
use super::scenario::{Malice, SwarmScenario};

/// A packet, and to whom: a member, or the redirector.
pub(super) type Sent = (Option<usize>, MemberId, Vec<u8>);

/// Names beyond those of members, under which a hostile one reports.
const NAMES: u64 = 40;

/// What hostile member `index` sends at a time.
pub(super) fn packets(
    scenario: &SwarmScenario,
    index: usize,
    malice: Malice,
    chance: &mut Chance,
) -> Vec<Sent> {
    let (own, members) = (name(index), scenario.members.len() as u64);
    let batches = u64::from(scenario.objects.div_ceil(32));
    let part = |chance: &mut Chance| Part { batch: chance.below(batches) as u32, mask: u32::MAX };
    let mut sent = vec![(None, own, sealed(own, 1, &claim(scenario, index)))];
    let mut number = 1_000_000;
    let mut request = |sent: &mut Vec<Sent>, part, blamed: Option<MemberId>| {
        let mut request =
            Request { part, avoided: [MemberId(0); AVOIDED_MAX], blamed: 0, direct: false, scouts: false };
        if let Some(member) = blamed {
            (request.avoided[0], request.blamed) = (member, 1);
        }
        number += 1;
        sent.push((None, own, sealed(own, number, &Packet::Request(request))));
    };
    if malice.hoards {
        (0..batches).for_each(|batch| {
            request(&mut sent, Part { batch: batch as u32, mask: u32::MAX }, None);
        });
    }
    if malice.slanders {
        let victim = MemberId(1 + chance.below(members));
        request(&mut sent, part(chance), Some(victim));
    }
    if malice.forges {
        for _ in 0..8 {
            let victim = chance.below(members) as usize;
            let member = MemberId(1 + chance.below(members + 4));
            let ip: IpAddr = address(chance.below(members + 4) as usize).ip();
            let offered = match chance.below(4) {
                0 => Offered::Wait { milliseconds: 60_000 },
                1 => Offered::Nobody { others: true },
                _ => Offered::Member { member, address: Some(ip), port: 7700 },
            };
            let offer = Packet::Offer(Offer { part: part(chance), offered });
            let number = chance.below(60) as u32;
            sent.push((Some(victim), own, sealed(MemberId(0), number, &offer)));
        }
    }
    if malice.floods {
        // In reality it would have to join under each of them.
        let other = MemberId(100 + chance.below(NAMES));
        sent.push((None, other, sealed(other, 1, &claim(scenario, index))));
    }
    sent
}

/// A report of everything.
fn claim(scenario: &SwarmScenario, index: usize) -> Packet {
    let objects = scenario.objects;
    let mut all = Availability::none(objects);
    all.fill(0..objects, true);
    let place = scenario.members[index].place;
    Packet::Report(Report { port: 7700, uploads: 0, place, objects, window: Window::of(&all, 0) })
}
