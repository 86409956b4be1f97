//! Members that accept and send nothing, or have nothing to send.

use super::*;

/// A seeker that asked members 0 and 1 at 1 ms.
fn that_asked_two() -> Seeker {
    let mut seeker = seeker(64, 0);
    for (member, (number, part)) in (0..).zip(requests(&mut seeker, at(0))) {
        seeker.handle_offer(at(1), number, SERVER, &Offer { part, offered: super::member(member) });
    }
    assert_eq!(parts(&mut seeker).len(), 2);
    seeker
}

#[test]
fn who_says_nothing_is_left_soon_if_others_answer() {
    let mut seeker = that_asked_two();
    seeker.moved(at(21), Source::Member(MemberId(1)));
    seeker.handle_timeout(at(200));
    assert!(actions(&mut seeker).is_empty());
    assert!(seeker.poll_timeout(at(200)).is_some_and(|due| due <= at(251)));
    seeker.handle_timeout(at(251));
    assert_eq!(actions(&mut seeker), [Action::Drop(MemberId(0))]);
    let again = requests(&mut seeker, at(251));
    assert_eq!(again.iter().map(|(_, part)| part.count()).sum::<u32>(), 32, "somebody else is asked at once");
    // Who has answered may pause.
    seeker.handle_timeout(at(2_000));
    assert!(actions(&mut seeker).is_empty());
}

#[test]
fn where_nobody_has_answered_yet_all_may_take_longer() {
    let mut seeker = that_asked_two();
    seeker.handle_timeout(at(1_900));
    assert!(actions(&mut seeker).is_empty());
    // On a way that takes long, others may, too.
    seeker.moved(at(1_900), Source::Member(MemberId(1)));
    seeker.handle_timeout(at(1_950));
    assert!(actions(&mut seeker).is_empty());
    seeker.handle_timeout(at(2_001));
    assert_eq!(actions(&mut seeker), [Action::Drop(MemberId(0))]);
}

#[test]
fn a_connection_that_is_not_used_is_closed_so_that_others_can_be_served() {
    let mut seeker = seeker(64, 0);
    let asked = requests(&mut seeker, at(0));
    seeker.handle_offer(at(0), asked[0].0, SERVER, &Offer { part: asked[0].1, offered: member(1) });
    seeker.handle_offer(at(0), asked[1].0, SERVER, &Offer { part: asked[1].1, offered: member(2) });
    actions(&mut seeker);
    for object in 0..32 {
        seeker.arrived(at(10), Source::Member(MemberId(1)), object, true);
    }
    seeker.moved(at(10), Source::Member(MemberId(2)));
    seeker.handle_timeout(at(100));
    assert!(actions(&mut seeker).is_empty());
    seeker.handle_timeout(at(301));
    assert_eq!(actions(&mut seeker), [Action::Drop(MemberId(1))]);
    assert_eq!(seeker.counters().failures, 0);
}
