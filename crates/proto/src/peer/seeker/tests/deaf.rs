//! A redirector that answers no more, or never did.

use super::*;

/// Whatever the server is asked for arrives. Returns how many objects that are.
fn from_server(seeker: &mut Seeker, now: Instant) -> usize {
    let of_server = |(source, part): (Source, Part)| {
        assert_eq!(source, Source::Server);
        part.objects()
    };
    let objects: Vec<u64> = parts(seeker).into_iter().flat_map(of_server).collect();
    objects.iter().for_each(|&object| assert!(seeker.arrived(now, Source::Server, object, true)));
    objects.len()
}

/// Runs until the server is asked for something, which arrives. Returns when, and how many requests were sent.
fn until_the_server_is_asked(seeker: &mut Seeker, from: Instant) -> (Instant, usize) {
    let (mut now, mut sent) = (from, 0);
    loop {
        sent += requests(seeker, now).len();
        if from_server(seeker, now) > 0 {
            return (now, sent);
        }
        now = seeker.poll_timeout(now).expect("a bounded wait");
        seeker.handle_timeout(now);
        assert!(now < from + Duration::from_secs(3));
    }
}

/// A seeker of many objects whose first three requests were not answered.
fn that_is_deaf() -> (Seeker, Instant) {
    let mut seeker = seeker(32 * 20, 0);
    let (now, _) = until_the_server_is_asked(&mut seeker, at(0));
    (seeker, now)
}

#[test]
fn a_redirector_that_has_answered_before_is_given_a_second_and_then_the_server_is_asked() {
    let mut seeker = seeker(64, 0);
    let (number, part) = requests(&mut seeker, at(0))[0];
    seeker.handle_offer(at(0), number, SERVER, &Offer { part, offered: member(1) });
    part.objects().for_each(|object| seeker.have(object));
    actions(&mut seeker);
    let (when, sent) = until_the_server_is_asked(&mut seeker, at(0));
    assert_eq!((when, sent, seeker.counters().unanswered), (at(1500), 3, 1));
}

#[test]
fn one_that_never_answered_is_given_less() {
    let mut seeker = seeker(32, 0);
    assert_eq!(until_the_server_is_asked(&mut seeker, at(0)), (at(300), 2));
}

#[test]
fn then_the_server_is_asked_at_once_and_the_redirector_now_and_then() {
    let (mut seeker, mut now) = that_is_deaf();
    let begin = now;
    let mut sent = 0;
    while seeker.missing() > 200 {
        assert!(now.since(begin) < Duration::from_millis(500), "{} are missing", seeker.missing());
        sent += requests(&mut seeker, now).len();
        from_server(&mut seeker, now);
        now = now + Duration::from_millis(10);
        seeker.handle_timeout(now);
    }
    assert_eq!(sent, 0);
    now = now + Duration::from_secs(1);
    assert_eq!(requests(&mut seeker, now).len(), 1, "one asks whether it answers now");
}

#[test]
fn the_next_seeker_knows_it_already() {
    let (before, _) = that_is_deaf();
    let mut next = seeker(32, 0).with_hearing(at(0), before.hearing());
    assert_eq!(until_the_server_is_asked(&mut next, at(0)), (at(0), 0));
}

#[test]
fn an_answer_that_comes_too_late_tells_that_there_is_somebody() {
    let (mut seeker, now) = that_is_deaf();
    let part = Part { batch: 0, mask: u32::MAX };
    seeker.handle_offer(now, 1, SERVER, &Offer { part, offered: member(1) });
    let asked = requests(&mut seeker, now);
    assert!(asked.len() > 1, "{asked:?}");
}

#[test]
fn what_was_asked_for_a_second_time_in_vain_is_asked_for_again() {
    let mut seeker = seeker(32, 0);
    let (number, part) = requests(&mut seeker, at(0))[0];
    seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered: member(1) });
    actions(&mut seeker);
    (0..30).for_each(|object| _ = seeker.arrived(at(10), Source::Member(MemberId(1)), object, true));
    let doubled = requests(&mut seeker, at(6900));
    assert_eq!(doubled.len(), 1, "two are late, so somebody else is asked for them, too");
    // Nobody answers, and the member fails meanwhile.
    seeker.failed(at(6950), MemberId(1));
    actions(&mut seeker);
    let mut now = at(6950);
    let mut asked = 0;
    while now < at(12_000) {
        let again = requests(&mut seeker, now).into_iter().filter(|(number, _)| *number != doubled[0].0);
        asked |= again.fold(0, |mask, (_, part)| mask | part.mask);
        asked |= parts(&mut seeker).iter().fold(0, |mask, (_, part)| mask | part.mask);
        now = seeker.poll_timeout(now).unwrap_or(at(12_000)).max(now + Duration::from_millis(1));
        seeker.handle_timeout(now);
    }
    assert_eq!(asked & doubled[0].1.mask, doubled[0].1.mask);
}
