//! Tests of the seeker.
#![expect(clippy::cast_possible_truncation, reason = "tests count to some hundreds")]

mod deaf;
mod silent;

use std::net::{IpAddr, Ipv4Addr};

use super::*;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 100));

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn seeker(objects: u32, rank: u32) -> Seeker {
    let mut seeker =
        Seeker::new(SeekerConfig { objects, rank, window_objects: 160, request_objects: 160, fan_in: 4 });
    (0..u64::from(objects)).for_each(|object| seeker.want(object));
    seeker
}

fn member(number: u64) -> Offered {
    let address = Some(Ipv4Addr::new(10, 0, 0, number as u8).into());
    Offered::Member { member: MemberId(number), address, port: 7700 }
}

/// All requests that it sends now.
fn requests(seeker: &mut Seeker, now: Instant) -> Vec<(u32, Part)> {
    std::iter::from_fn(|| seeker.poll_request(now)).map(|(number, request)| (number, request.part)).collect()
}

fn actions(seeker: &mut Seeker) -> Vec<Action> {
    std::iter::from_fn(|| seeker.poll_action()).collect()
}

/// The part that a member or the server is to send.
fn parts(seeker: &mut Seeker) -> Vec<(Source, Part)> {
    let part = |action| match action {
        Action::Pull { member, part, .. } => Some((Source::Member(member), part)),
        Action::Server(part) => Some((Source::Server, part)),
        Action::Drop(_) => None,
    };
    actions(seeker).into_iter().filter_map(part).collect()
}

#[test]
fn each_begins_at_its_share_so_that_the_first_requests_of_all_are_one_copy() {
    let firsts: Vec<u32> =
        (0..8).map(|rank| requests(&mut seeker(32 * 64, rank), at(0))[0].1.batch).collect();
    assert_eq!(firsts, [0, 32, 16, 48, 8, 40, 24, 56]);
}

#[test]
fn a_late_member_begins_at_its_share_of_what_it_misses_by_small_requests() {
    let begin = |rank| {
        let config =
            SeekerConfig { objects: 32 * 64, rank, window_objects: 8, request_objects: 4, fan_in: 4 };
        let mut seeker = Seeker::new(config);
        (0..320).for_each(|object| seeker.want(object));
        requests(&mut seeker, at(0))
    };
    let first: Vec<u32> = (0..4).map(|rank| begin(rank)[0].1.batch).collect();
    assert_eq!(first, [0, 5, 2, 7]);
    assert_eq!(begin(0).iter().map(|(_, part)| part.mask).collect::<Vec<_>>(), [0xf, 0xf0]);
}

#[test]
fn what_is_offered_is_pulled_and_what_nobody_has_comes_from_the_server() {
    let mut seeker = seeker(70, 0);
    let asked = requests(&mut seeker, at(0));
    assert_eq!(asked.iter().map(|(_, part)| part.count()).sum::<u32>(), 70);
    let offer = |part, offered| Offer { part, offered };
    let (number, part) = asked[0];
    let half = Part { mask: 0xffff, ..part };
    seeker.handle_offer(at(1), number, SERVER, &offer(half, member(1)));
    seeker.handle_offer(at(1), asked[1].0, SERVER, &offer(asked[1].1, Offered::Nobody { others: false }));
    seeker.handle_offer(at(1), asked[2].0, SERVER, &offer(asked[2].1, Offered::Wait { milliseconds: 50 }));
    let expected = [(Source::Member(MemberId(1)), half), (Source::Server, asked[1].1)];
    assert_eq!(parts(&mut seeker), expected);
    let again = requests(&mut seeker, at(2));
    assert_eq!(again.iter().map(|(_, part)| *part).collect::<Vec<_>>(), [Part { mask: 0xffff_0000, ..part }]);
    assert!(seeker.poll_timeout(at(2)).is_some_and(|due| due <= at(51)));
    seeker.handle_timeout(at(51));
    assert_eq!(requests(&mut seeker, at(51))[0].1, asked[2].1, "after the wait");
    for object in half.objects() {
        assert!(seeker.arrived(at(60), Source::Member(MemberId(1)), object, true));
    }
    assert!(!seeker.arrived(at(60), Source::Member(MemberId(1)), 0, true), "twice");
    assert_eq!((seeker.missing(), seeker.counters().from_members), (54, 16));
}

#[test]
fn answers_to_other_questions_change_nothing() {
    let mut seeker = seeker(64, 0);
    let asked = requests(&mut seeker, at(0));
    let (number, part) = asked[0];
    seeker.handle_offer(at(1), 99, SERVER, &Offer { part, offered: member(1) });
    seeker.handle_offer(
        at(1),
        number,
        SERVER,
        &Offer { part: Part { batch: 7, ..part }, offered: member(1) },
    );
    seeker.arrived(at(1), Source::Member(MemberId(5)), 3, true);
    assert!(actions(&mut seeker).is_empty());
    assert_eq!(seeker.missing(), 63, "a right object is taken, whoever sends it");
}

#[test]
fn a_liar_is_dropped_blamed_and_never_asked_again() {
    let mut seeker = seeker(32, 0);
    let (number, part) = requests(&mut seeker, at(0))[0];
    seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered: member(3) });
    actions(&mut seeker);
    seeker.arrived(at(2), Source::Member(MemberId(3)), 0, false);
    assert_eq!(actions(&mut seeker), [Action::Drop(MemberId(3))]);
    let (number, request) = seeker.poll_request(at(2)).unwrap();
    assert_eq!((request.part, request.avoided[0], request.blamed), (part, MemberId(3), 1));
    seeker.handle_offer(at(9_000), number, SERVER, &Offer { part, offered: member(3) });
    assert!(actions(&mut seeker).is_empty());
    assert!(seeker.poll_request(at(9_000)).is_none(), "not at once: it would be named again");
    let mut now = at(9_000);
    while actions(&mut seeker).is_empty() {
        now = seeker.poll_timeout(now).expect("a bounded wait");
        seeker.handle_timeout(now);
        if let Some((number, request)) = seeker.poll_request(now) {
            seeker.handle_offer(now, number, SERVER, &Offer { part: request.part, offered: member(3) });
        }
        assert!(now < at(10_000), "in the end the server is asked");
    }
}

#[test]
fn who_fails_lacks_or_stalls_is_replaced() {
    let mut seeker = seeker(96, 0);
    let asked = requests(&mut seeker, at(0));
    for (offered, (number, part)) in (1..).map(member).zip(asked.clone()) {
        seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered });
    }
    assert_eq!(parts(&mut seeker).len(), 3);
    seeker.failed(at(2), MemberId(1));
    seeker.lacks(at(2), Source::Member(MemberId(2)), asked[1].1);
    let again: Vec<Part> = requests(&mut seeker, at(2)).into_iter().map(|(_, part)| part).collect();
    assert_eq!(again, [asked[0].1, asked[1].1]);
    seeker.handle_timeout(at(2001));
    assert!(actions(&mut seeker).contains(&Action::Drop(MemberId(3))), "it stalled");
    assert_eq!(seeker.counters().failures, 2);
}

#[test]
fn who_is_busy_or_closes_what_is_not_used_has_not_failed() {
    let mut seeker = seeker(96, 0);
    for round in 0..4 {
        let now = at(round * 300);
        let (number, part) = requests(&mut seeker, now)[0];
        seeker.handle_offer(now, number, SERVER, &Offer { part, offered: member(1) });
        let pulled = (Source::Member(MemberId(1)), part);
        assert!(parts(&mut seeker).contains(&pulled), "round {round}: it is asked again soon");
        seeker.busy(now, MemberId(1));
    }
    seeker.failed(at(1000), MemberId(1));
    assert_eq!(seeker.counters().failures, 0);
}

#[test]
fn what_did_not_come_is_asked_for_before_anything_else() {
    let mut seeker = seeker(640, 0);
    let asked = requests(&mut seeker, at(0));
    for (number, part) in asked.clone() {
        seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered: member(u64::from(number)) });
    }
    for object in asked[1..].iter().flat_map(|(_, part)| part.objects()) {
        seeker.arrived(at(2), Source::Server, object, true);
    }
    assert_ne!(requests(&mut seeker, at(3)).len(), 0, "it has moved on");
    seeker.failed(at(4), MemberId(asked[0].0.into()));
    let freed = parts(&mut seeker);
    let next = requests(&mut seeker, at(5));
    assert_eq!(next.first().map(|(_, part)| *part), Some(asked[0].1), "{freed:?}");
}

#[test]
fn few_members_send_at_once_and_the_rest_takes_its_turn() {
    let mut seeker = seeker(32 * 5, 0);
    let asked = requests(&mut seeker, at(0));
    assert_eq!(asked.len(), 5);
    for (offered, (number, part)) in (1..).map(member).zip(asked.clone()) {
        seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered });
    }
    assert_eq!(parts(&mut seeker).len(), 4);
    for object in asked[0].1.objects() {
        seeker.arrived(at(5), Source::Member(MemberId(1)), object, true);
    }
    assert_eq!(parts(&mut seeker), [(Source::Member(MemberId(5)), asked[4].1)]);
}

#[test]
fn the_last_objects_are_asked_of_one_other_if_they_are_late() {
    let mut seeker = seeker(32, 0);
    let (number, part) = requests(&mut seeker, at(0))[0];
    seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered: member(1) });
    for object in 0..30 {
        seeker.arrived(at(10), Source::Member(MemberId(1)), object, true);
    }
    assert!(requests(&mut seeker, at(100)).is_empty(), "it is fast");
    assert!(requests(&mut seeker, at(6900)).len() == 1 && requests(&mut seeker, at(6901)).is_empty());
    assert_eq!(seeker.counters().doubled, 2);
}

#[test]
fn as_much_is_under_way_as_arrives_in_a_moment() {
    let config = SeekerConfig { objects: 3200, rank: 0, window_objects: 160, request_objects: 4, fan_in: 4 };
    let mut seeker = Seeker::new(config);
    (0..3200).for_each(|object| seeker.want(object));
    let mut under_way = |from: u64, count: u64, spacing_us: u64| {
        let mut last = 0;
        for step in 0..count {
            let now = at(from) + Duration::from_micros(step * spacing_us);
            for (number, part) in requests(&mut seeker, now) {
                seeker.handle_offer(now, number, SERVER, &Offer { part, offered: member(1) });
            }
            seeker.arrived(now, Source::Member(MemberId(1)), from + step, true);
            last = seeker.out.count();
        }
        last
    };
    assert_eq!(under_way(0, 1, 0), 11);
    let slow = under_way(1000, 100, 10_000);
    assert!((12..=16).contains(&slow), "{slow} of 100 a second");
    let fast = under_way(2000, 1000, 1000);
    assert!((140..=160).contains(&fast), "{fast} of 1000 a second");
}

#[test]
fn what_waits_behind_other_objects_of_a_member_is_not_late() {
    let config = SeekerConfig { objects: 96, rank: 0, window_objects: 160, request_objects: 4, fan_in: 4 };
    let mut seeker = Seeker::new(config);
    (0..96).for_each(|object| seeker.want(object));
    // 10 ms each, one after the other, from the only one that has them.
    for object in 0..96 {
        let now = at(10 * (object + 1));
        for (number, part) in requests(&mut seeker, now) {
            seeker.handle_offer(now, number, SERVER, &Offer { part, offered: member(1) });
        }
        seeker.arrived(now, Source::Member(MemberId(1)), object, true);
    }
    assert_eq!((seeker.missing(), seeker.counters().doubled), (0, 0));
}

#[test]
fn who_is_told_to_wait_does_not_ask_for_everything_meanwhile() {
    let mut seeker = seeker(32 * 200, 0);
    let mut sent = 0;
    for now in (0..40).map(at) {
        for (number, part) in requests(&mut seeker, now) {
            sent += 1;
            let wait = Offered::Wait { milliseconds: 40 };
            seeker.handle_offer(now, number, SERVER, &Offer { part, offered: wait });
        }
    }
    assert!(sent <= 48, "{sent} requests in the time of one wait");
}

#[test]
fn who_only_claims_to_have_objects_costs_some_seconds_and_then_the_server_is_asked() {
    let mut seeker = seeker(320, 0);
    let (mut now, mut asked) = (at(0), 0);
    while now < at(30_000) && asked == 0 {
        for (number, part) in requests(&mut seeker, now) {
            let offered = Offered::Wait { milliseconds: u16::MAX };
            seeker.handle_offer(now, number, SERVER, &Offer { part, offered });
        }
        asked = parts(&mut seeker).iter().filter(|(source, _)| *source == Source::Server).count();
        let due = seeker.poll_timeout(now).expect("a bounded wait");
        assert!(due <= now + Duration::from_secs(1), "no wait is longer, whatever an offer says");
        now = due;
        seeker.handle_timeout(now);
    }
    assert!(asked > 0 && (at(10_000)..at(12_000)).contains(&now), "{now:?}");
}

#[test]
fn what_others_are_asked_for_is_not_asked_for_again_when_one_fails() {
    let mut seeker = seeker(32, 0);
    let (number, part) = requests(&mut seeker, at(0))[0];
    seeker.handle_offer(at(0), number, SERVER, &Offer { part, offered: member(1) });
    for object in 0..26 {
        seeker.arrived(at(10), Source::Member(MemberId(1)), object, true);
    }
    let late = requests(&mut seeker, at(1900));
    assert_eq!(late.len(), 1, "late objects are asked of another");
    seeker.failed(at(1901), MemberId(1));
    assert!(requests(&mut seeker, at(1901)).is_empty(), "that request has still to be answered");
    let nobody = Offered::Nobody { others: false };
    seeker.handle_offer(at(1902), late[0].0, SERVER, &Offer { part: late[0].1, offered: nobody });
    assert_eq!(requests(&mut seeker, at(1903))[0].1, late[0].1, "nobody is to send them any more");
}

/// A seeker for one object that somebody waits for since `at(0)`.
fn waited_for() -> Seeker {
    let config = SeekerConfig { objects: 64, rank: 0, window_objects: 160, request_objects: 4, fan_in: 4 };
    let mut seeker = Seeker::new(config);
    seeker.want_now(at(0), 40);
    seeker
}

/// When the server is asked for the object, if the driver does what it is to do and every request is answered so.
fn asked_at(
    seeker: &mut Seeker,
    mut offered: impl FnMut(u64) -> Offered,
    pulse: impl Fn(u64) -> bool,
) -> u64 {
    for ms in 0..20_000 {
        let now = at(ms);
        for (number, part) in requests(seeker, now) {
            seeker.handle_offer(now, number, SERVER, &Offer { part, offered: offered(ms) });
        }
        if pulse(ms) {
            seeker.moved(now, Source::Member(MemberId(1)));
        }
        if parts(seeker).iter().any(|(source, part)| *source == Source::Server && *part == batch_of(40)) {
            return ms;
        }
        if seeker.poll_timeout(now).is_some_and(|due| due <= now) {
            seeker.handle_timeout(now);
        }
    }
    panic!("the server is never asked");
}

#[test]
fn what_somebody_waits_for_is_left_to_members_for_a_second() {
    let wait = |_| Offered::Wait { milliseconds: 25 };
    assert!((1000..1010).contains(&asked_at(&mut waited_for(), wait, |_| false)));
    assert!((1000..1010).contains(&asked_at(&mut waited_for(), |_| member(1), |_| false)), "it stalls");
    let nobody = |_| Offered::Nobody { others: false };
    assert_eq!(asked_at(&mut waited_for(), nobody, |_| false), 0);
    let mut seeker = waited_for();
    assert_eq!(asked_at(&mut seeker, wait, |_| false), asked_at(&mut waited_for(), wait, |_| false));
    assert_eq!(seeker.counters().overdue, 1);
    seeker.handle_timeout(at(20_000));
    assert!(parts(&mut seeker).is_empty(), "it is asked once");
}

#[test]
fn a_member_that_sends_is_waited_for_longer_but_not_for_ever() {
    let sends = |until: u64| asked_at(&mut waited_for(), |_| member(1), move |ms| ms < until);
    assert!((2400..2700).contains(&sends(2000)));
    assert!((4000..4200).contains(&sends(20_000)));
}

#[test]
fn a_pause_says_nothing_about_members() {
    let mut seeker = waited_for();
    let (number, part) = requests(&mut seeker, at(0))[0];
    seeker.handle_offer(at(0), number, SERVER, &Offer { part, offered: member(1) });
    assert!(seeker.arrived(at(5), Source::Member(MemberId(1)), 40, true));
    actions(&mut seeker);
    seeker.want_now(at(60_000), 41);
    let (number, part) = requests(&mut seeker, at(60_000))[0];
    seeker.handle_offer(at(60_001), number, SERVER, &Offer { part, offered: member(1) });
    assert_eq!(parts(&mut seeker), [(Source::Member(MemberId(1)), batch_of(41))]);
    seeker.have(41);
    assert_eq!((seeker.missing(), seeker.counters().overdue), (0, 0));
}

#[test]
fn who_stalls_is_replaced_before_the_server_is_asked() {
    let config = SeekerConfig { objects: 64, rank: 0, window_objects: 160, request_objects: 16, fan_in: 4 };
    let mut seeker = Seeker::new(config);
    // More than are asked of two members when they are late.
    (0..16).for_each(|object| seeker.want_now(at(0), object));
    let mut asked = Vec::new();
    for ms in 0..2000 {
        let now = at(ms);
        for (number, request) in std::iter::from_fn(|| seeker.poll_request(now)).collect::<Vec<_>>() {
            let other = if request.avoided.contains(&MemberId(1)) { 2 } else { 1 };
            seeker.handle_offer(now, number, SERVER, &Offer { part: request.part, offered: member(other) });
        }
        for (source, part) in parts(&mut seeker) {
            asked.push((source, ms / 100));
            if source == Source::Member(MemberId(2)) {
                part.objects().for_each(|object| _ = seeker.arrived(now, source, object, true));
            }
        }
        if seeker.poll_timeout(now).is_some_and(|due| due <= now) {
            seeker.handle_timeout(now);
        }
    }
    assert_eq!(asked, [(Source::Member(MemberId(1)), 0), (Source::Member(MemberId(2)), 5)]);
    assert_eq!((seeker.counters().overdue, seeker.counters().from_members), (0, 16));
}

#[test]
fn who_got_nothing_for_long_lets_only_the_server_answer_for_a_minute() {
    let mut seeker = seeker(320, 0);
    let mut is_direct = |ms| {
        let (number, request) = seeker.poll_request(at(ms)).expect("a request");
        let wait = Offer { part: request.part, offered: Offered::Wait { milliseconds: 25 } };
        seeker.handle_offer(at(ms), number, SERVER, &wait);
        request.direct
    };
    assert_eq!([0, 10_000, 10_100, 70_000, 131_000].map(&mut is_direct), [false, false, true, true, false]);
}

/// A crowded swarm: four fetch the same, and the server has enough to send to this one.
fn crowded() -> Seeker {
    let config =
        SeekerConfig { objects: 32 * 64, rank: 1, window_objects: 32, request_objects: 4, fan_in: 4 };
    let mut seeker = Seeker::new(config);
    (0..32 * 64).for_each(|object| seeker.want(object));
    for (number, part) in requests(&mut seeker, at(0)) {
        seeker.handle_offer(
            at(1),
            number,
            SERVER,
            &Offer { part, offered: Offered::Nobody { others: true } },
        );
    }
    assert_eq!(parts(&mut seeker).iter().map(|(_, part)| part.count()).sum::<u32>(), 12, "one window");
    seeker
}

#[test]
fn while_the_server_sends_others_are_asked_for_what_they_have_by_now() {
    let mut seeker = crowded();
    let scouts: Vec<(u32, Request)> = std::iter::from_fn(|| seeker.poll_request(at(2))).collect();
    assert!(scouts.iter().all(|(_, request)| request.scouts), "{scouts:?}");
    // Where those began that joined before, and may have joined later; not where this one did.
    let places: Vec<u32> = scouts.iter().map(|(_, request)| request.part.batch).collect();
    // Ranks 2, 0 and 3, as much as the server is to send; this one has rank 1.
    assert_eq!(places, [16, 0, 48]);
    let answer = |seeker: &mut Seeker, (number, request): (u32, Request), offered| {
        seeker.handle_offer(at(3), number, SERVER, &Offer { part: request.part, offered });
    };
    answer(&mut seeker, scouts[1], member(1));
    answer(&mut seeker, scouts[0], Offered::Wait { milliseconds: 25 });
    // Of a server that does not know such requests.
    answer(&mut seeker, scouts[2], Offered::Nobody { others: true });
    assert_eq!(parts(&mut seeker), [(Source::Member(MemberId(1)), scouts[1].1.part)]);
    // Where somebody had something it goes on; elsewhere it looks again later, and then ever more seldom.
    let next: Vec<_> =
        requests(&mut seeker, at(4)).into_iter().map(|(_, part)| (part.batch, part.mask)).collect();
    assert!(!next.is_empty() && next.iter().all(|(batch, _)| ![16, 48].contains(batch)), "{next:?}");
    assert!(seeker.poll_timeout(at(4)).unwrap() <= at(28));
    assert_eq!(seeker.counters().waits, 0, "nobody keeps it waiting");
}

#[test]
fn a_machine_that_is_alone_scouts_nobody() {
    let mut seeker = crowded();
    let (number, request) = seeker.poll_request(at(2)).unwrap();
    seeker.handle_offer(at(3), number, SERVER, &Offer { part: request.part, offered: member(1) });
    for (number, part) in requests(&mut seeker, at(1500)) {
        seeker.handle_offer(
            at(1501),
            number,
            SERVER,
            &Offer { part, offered: Offered::Nobody { others: false } },
        );
    }
    let more: Vec<_> = std::iter::from_fn(|| seeker.poll_request(at(1502))).collect();
    assert!(more.iter().all(|(_, request)| !request.scouts), "{more:?}");
}
