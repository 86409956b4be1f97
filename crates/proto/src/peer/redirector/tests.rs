//! Whom the redirector names.
#![expect(clippy::cast_possible_truncation, reason = "tests count to some hundreds")]

use std::net::Ipv4Addr;

use base::Chance;

use super::*;
use crate::peer::Part;
use crate::peer::wire::packet::{AVOIDED_MAX, Window};

const SWARM: SwarmId = SwarmId(1);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn contact(member: u64) -> Contact {
    Contact { from: (Ipv4Addr::new(10, 0, 0, member as u8), 7700).into(), ingress: member as u32 }
}

fn report(place: u32, held: Range<u32>) -> Report {
    let held = if held.is_empty() { Vec::new() } else { vec![held] };
    let window = Window { objects: 0..320, held };
    Report { port: 7700, uploads: 0, place, objects: 320, window }
}

fn request(batch: u32, mask: u32) -> Request {
    Request {
        part: Part { batch, mask },
        avoided: [MemberId(0); AVOIDED_MAX],
        blamed: 0,
        direct: false,
        scouts: false,
    }
}

fn tell(redirector: &mut Redirector, ms: u64, member: u64, place: u32, held: Range<u32>) {
    redirector.handle_report(at(ms), SWARM, MemberId(member), contact(member), &report(place, held));
}

fn ask(redirector: &mut Redirector, ms: u64, member: u64, request: &Request) -> (u32, Option<u64>, bool) {
    let choice = redirector.handle_request(at(ms), SWARM, MemberId(member), request).expect("a known swarm");
    let (named, waits) = match choice.chosen {
        Chosen::Member { member, .. } => (Some(member.0), false),
        Chosen::Nobody { .. } => (None, false),
        Chosen::Wait { .. } => (None, true),
    };
    (choice.part.mask, named, waits)
}

#[test]
fn holders_are_named_in_turn_and_the_loaded_one_last() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    (1..=4).for_each(|member| tell(&mut redirector, 0, member, 0, 0..320));
    tell(&mut redirector, 0, 9, 0, 0..0);
    let mut named: Vec<u64> =
        (0..8).map(|batch| ask(&mut redirector, 1, 9, &request(batch, 0xff)).1.unwrap()).collect();
    let second = named.split_off(4);
    assert_eq!(named, second, "in turn");
    named.sort_unstable();
    assert_eq!(named, [1, 2, 3, 4]);
    // Who asks is never named, and neither is who has nothing of it.
    tell(&mut redirector, 2, 5, 0, 0..32);
    assert_ne!(ask(&mut redirector, 2, 1, &request(1, 1)).1, Some(1));
    assert!((0..20).all(|_| ask(&mut redirector, 2, 9, &request(3, 1)).1 != Some(5)));
}

#[test]
fn what_nobody_has_goes_to_the_first_that_asks_and_the_others_wait() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    [1, 2].into_iter().for_each(|member| tell(&mut redirector, 0, member, 0, 0..0));
    assert_eq!(ask(&mut redirector, 0, 1, &request(0, 0b0011)), (0b0011, None, false));
    assert_eq!(ask(&mut redirector, 0, 2, &request(0, 0b0110)), (0b0100, None, false), "the rest of it");
    assert_eq!(ask(&mut redirector, 0, 2, &request(0, 0b0011)), (0b0011, None, true));
    tell(&mut redirector, 5, 1, 0, 0..2);
    assert_eq!(ask(&mut redirector, 5, 2, &request(0, 0b0011)), (0b0011, Some(1), false));
    // One that left without having it: the next is told to get it.
    assert_eq!(ask(&mut redirector, 5, 1, &request(5, 1)), (1, None, false));
    redirector.handle_leave(SWARM, MemberId(1), contact(1));
    assert_eq!(ask(&mut redirector, 5, 2, &request(5, 1)), (1, None, false));
}

#[test]
fn who_is_to_wait_as_a_switch_says_is_told_so() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    let passed_on = |redirector: &mut Redirector, mask| {
        redirector.handle_passed_on(at(0), SWARM, MemberId(2), &request(0, mask), 1)
    };
    assert_eq!(passed_on(&mut redirector, 1), None, "nobody knows this swarm");
    tell(&mut redirector, 0, 1, 0, 0..64);
    let choice = passed_on(&mut redirector, 0b101).unwrap();
    assert!(matches!(choice.chosen, Chosen::Wait { milliseconds: 1..=1000 }), "{choice:?}");
    assert_eq!((choice.part.mask, redirector.counters().waits), (0b101, 2));
}

#[test]
fn who_asks_alone_is_told_so() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    let nobody = |redirector: &mut Redirector, ms, batch| {
        redirector.handle_request(at(ms), SWARM, MemberId(1), &request(batch, 1)).unwrap().chosen
    };
    tell(&mut redirector, 0, 1, 0, 0..0);
    assert_eq!(nobody(&mut redirector, 0, 0), Chosen::Nobody { others: false });
    tell(&mut redirector, 0, 2, 0, 0..32);
    assert_eq!(nobody(&mut redirector, 0, 1), Chosen::Nobody { others: true });
    tell(&mut redirector, 4000, 1, 0, 0..0);
    assert_eq!(nobody(&mut redirector, 5000, 2), Chosen::Nobody { others: false }, "silent for long");
}

#[test]
fn a_place_gets_an_object_from_afar_once() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    tell(&mut redirector, 0, 1, 1, 0..320);
    (2..=5).for_each(|member| tell(&mut redirector, 0, member, 2, 0..0));
    assert_eq!(ask(&mut redirector, 0, 2, &request(0, 1)), (1, Some(1), false));
    assert!((3..=5).all(|member| ask(&mut redirector, 0, member, &request(0, 1)) == (1, None, true)));
    tell(&mut redirector, 9, 2, 2, 0..1);
    assert!((3..=4).all(|member| ask(&mut redirector, 9, member, &request(0, 1)) == (1, Some(2), false)));
    assert_eq!((redirector.counters().far, redirector.counters().near), (1, 2));
}

#[test]
fn a_member_sends_to_few_at_a_time_and_the_others_wait_for_them() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    tell(&mut redirector, 0, 1, 0, 0..320);
    (2..=9).for_each(|member| tell(&mut redirector, 0, member, 0, 0..0));
    let named = |redirector: &mut Redirector, ms, member| ask(redirector, ms, member, &request(0, 1)).1;
    let first: Vec<_> = (2..=9).map(|member| named(&mut redirector, 1, member)).collect();
    assert_eq!(first, [Some(1), Some(1), None, None, None, None, None, None]);
    assert_eq!(named(&mut redirector, 2, 2), Some(1), "who has a slot keeps it");
    tell(&mut redirector, 3, 2, 0, 0..1);
    assert_eq!(named(&mut redirector, 3, 9), Some(2), "somebody else has it now");
    assert_eq!(ask(&mut redirector, 3, 8, &request(1, 1)).1, None, "of what only the first has");
    assert_eq!(ask(&mut redirector, 400, 8, &request(1, 1)).1, Some(1), "slots end");
    tell(&mut redirector, 400, 9, 0, 64..320);
    assert_eq!(ask(&mut redirector, 401, 7, &request(1, 1)).1, Some(1), "two of them");
    assert_eq!(ask(&mut redirector, 401, 9, &request(1, 1)).1, Some(1), "who lacks less goes first");
    assert_eq!(ask(&mut redirector, 402, 7, &request(1, 1)).1, Some(1), "one slot is left");
    assert_eq!(ask(&mut redirector, 402, 8, &request(1, 1)).1, None, "but not for all");
}

#[test]
fn the_silent_and_those_that_left_are_named_no_more() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    (1..=3).for_each(|member| tell(&mut redirector, 0, member, 0, 0..320));
    redirector.handle_leave(SWARM, MemberId(2), contact(2));
    tell(&mut redirector, 5000, 3, 0, 0..0);
    redirector.handle_timeout(at(7000));
    assert_eq!(redirector.members(), 1);
    assert_eq!(ask(&mut redirector, 7000, 3, &request(0, 1)), (1, None, false));
    redirector.handle_timeout(at(100_000));
    redirector.handle_timeout(at(200_000));
    assert!(redirector.handle_request(at(200_000), SWARM, MemberId(3), &request(0, 1)).is_none());
    assert_eq!((redirector.members(), redirector.table_bytes), (0, 0));
}

#[test]
fn a_liar_is_banned_when_two_blame_it_and_nobody_bans_everybody() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    tell(&mut redirector, 0, 1, 0, 0..320);
    (2..=30).for_each(|member| tell(&mut redirector, 0, member, 0, 0..0));
    let mut blames = request(0, 1);
    (blames.avoided[0], blames.blamed) = (MemberId(1), 1);
    assert_eq!(ask(&mut redirector, 0, 2, &blames).1, None, "who blames it is not sent to it");
    assert_eq!(ask(&mut redirector, 0, 2, &request(1, 1)).1, None, "not later either");
    assert_eq!(ask(&mut redirector, 0, 3, &request(2, 1)).1, Some(1), "one voice is not enough");
    assert_eq!(ask(&mut redirector, 0, 3, &blames).1, None);
    assert_eq!(ask(&mut redirector, 0, 4, &request(3, 1)).1, None, "banned");
    assert_eq!(redirector.counters().banned, 1);
    let mut chance = Chance::from_seed(1);
    for _ in 0..500 {
        let liar = 29 + chance.below(2);
        let mut slander = request(9, 1);
        (slander.avoided[0], slander.blamed) = (MemberId(2 + chance.below(27)), 1);
        ask(&mut redirector, 0, liar, &slander);
    }
    assert!(redirector.counters().banned <= 17, "two liars can ban only a few");
}

#[test]
fn tables_are_bounded_and_unverified_reports_count_only_from_where_they_first_came() {
    let config =
        RedirectorConfig { members_max: 3, swarms_max: 2, authentic: false, ..RedirectorConfig::default() };
    let mut redirector = Redirector::new(config);
    (1..=5).for_each(|member| tell(&mut redirector, 0, member, 0, 0..320));
    assert_eq!((redirector.members(), redirector.counters().refused), (3, 2));
    redirector.handle_report(at(1), SWARM, MemberId(1), contact(4), &report(0, 0..0));
    redirector.handle_leave(SWARM, MemberId(2), contact(4));
    assert_eq!((redirector.members(), redirector.view(SWARM).whole), (3, 3), "forged ones change nothing");
    assert!(redirector.expect(at(2), SwarmId(2), 5) && !redirector.expect(at(2), SwarmId(3), 5));
    let other =
        Report { objects: 64, window: Window { objects: 0..64, held: Vec::new() }, ..report(0, 0..0) };
    redirector.handle_report(at(2), SWARM, MemberId(1), contact(1), &other);
    assert_eq!(redirector.counters().refused, 4, "another number of objects");
    assert!(redirector.expect(at(3), SWARM, 64));
    assert_eq!((redirector.members(), redirector.table_bytes), (0, 0), "the server knows better");
}

#[test]
fn what_members_hold_together_is_told_as_runs() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    tell(&mut redirector, 0, 1, 0, 0..40);
    tell(&mut redirector, 0, 2, 0, 30..50);
    tell(&mut redirector, 0, 3, 0, 100..101);
    assert_eq!(redirector.held(SWARM), [0..50, 100..101]);
    let view = redirector.view(SWARM);
    assert_eq!((view.members, view.whole, view.objects), (3, 0, 320));
}

#[test]
fn a_lease_ends_although_its_member_asks_all_the_time() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    let mut others_get = Vec::new();
    for second in 0..40 {
        let ms = second * 1000;
        (1..=2).for_each(|member| tell(&mut redirector, ms, member, 0, 0..0));
        // The other first: whoever asks after the end of a lease gets it.
        let (_, _, waits) = ask(&mut redirector, ms, 2, &request(5, 1));
        others_get.extend((!waits && second > 0).then_some(second));
        ask(&mut redirector, ms, 1, &request(5, 1));
        if second == 0 {
            redirector = Redirector::new(RedirectorConfig::default());
            tell(&mut redirector, ms, 1, 0, 0..0);
            ask(&mut redirector, ms, 1, &request(5, 1));
        }
    }
    assert_eq!(others_get.first(), Some(&30));
}

#[test]
fn a_request_that_cannot_be_narrowed_waits_as_a_whole() {
    for (authentic, answer) in [(true, (0b10, None, false)), (false, (0b11, None, true))] {
        let mut redirector = Redirector::new(RedirectorConfig { authentic, ..RedirectorConfig::default() });
        (1..=2).for_each(|member| tell(&mut redirector, 0, member, 0, 0..0));
        assert_eq!(ask(&mut redirector, 0, 1, &request(5, 0b01)), (0b01, None, false));
        assert_eq!(ask(&mut redirector, 0, 2, &request(5, 0b11)), answer);
    }
}

#[test]
fn who_serves_nobody_keeps_nobody_waiting() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    let leech = Report { port: 0, ..report(0, 0..0) };
    redirector.handle_report(at(0), SWARM, MemberId(1), contact(1), &leech);
    tell(&mut redirector, 0, 2, 0, 0..0);
    assert_eq!(ask(&mut redirector, 0, 1, &request(5, 1)), (1, None, false));
    assert_eq!(ask(&mut redirector, 0, 2, &request(5, 1)), (1, None, false));
    assert_eq!(ask(&mut redirector, 0, 1, &request(5, 1)), (1, None, true), "who serves has a lease");
}

#[test]
fn who_holds_what_is_not_leased_yet_is_named_although_another_holds_more() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    tell(&mut redirector, 0, 1, 1, 0..9);
    tell(&mut redirector, 0, 2, 1, 9..10);
    (3..=4).for_each(|member| tell(&mut redirector, 0, member, 2, 0..0));
    assert_eq!(ask(&mut redirector, 0, 3, &request(0, 0x1ff)), (0x1ff, Some(1), false));
    assert_eq!(ask(&mut redirector, 0, 4, &request(0, 0x3ff)), (0x200, Some(2), false));
}

#[test]
fn who_scouts_gets_only_what_is_near_and_takes_no_lease() {
    let mut redirector = Redirector::new(RedirectorConfig::default());
    [(1, 7), (2, 7), (3, 8)]
        .iter()
        .for_each(|&(member, place)| tell(&mut redirector, 0, member, place, 0..0));
    tell(&mut redirector, 0, 3, 8, 0..32);
    let scouts = |batch| Request { scouts: true, ..request(batch, 0xff) };
    // Somebody far has it, or nobody.
    assert_eq!(ask(&mut redirector, 1, 1, &scouts(0)), (0xff, None, true));
    assert_eq!(ask(&mut redirector, 1, 1, &scouts(1)), (0xff, None, true));
    // The other one of its place does not wait for it.
    assert_eq!(ask(&mut redirector, 2, 2, &request(0, 0xff)), (0xff, Some(3), false));
    assert_eq!(ask(&mut redirector, 2, 2, &request(1, 0xff)), (0xff, None, false));
    tell(&mut redirector, 3, 2, 7, 32..64);
    assert_eq!(ask(&mut redirector, 3, 1, &scouts(1)), (0xff, Some(2), false));
}
