//! The order of the words, the bound of the freeze, and what a failure leaves.

use std::time::Duration;

use base::Instant;

use super::{Action, Checkpoint, Order, Phase, Rules, Said, Standing};

fn rules() -> Rules {
    Rules {
        rounds: 2,
        pause: Duration::from_secs(2),
        freeze: Duration::from_secs(10),
        silence: Duration::from_secs(30),
        standstill: Duration::from_secs(300),
        time: None,
    }
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn tells(order: Order) -> [Action; 2] {
    [0, 1].map(|host| Action::Tell { host, order })
}

fn failed(again: bool) -> Said {
    Said::Failed { why: "no agent".to_owned(), again }
}

/// A set of two hosts, both of which have said `words`.
fn after(words: &[Said]) -> Checkpoint {
    let mut set = Checkpoint::new(2, rules(), at(0));
    assert_eq!(set.next(at(0)), [0, 1].map(|host| Action::Start { host, round: 1 }));
    for word in words {
        for host in 0..2 {
            assert_eq!(set.next(at(1)), []);
            assert_eq!(set.heard(host, 1, word.clone(), at(1)), []);
        }
        set.next(at(1));
    }
    set
}

#[test]
fn all_go_on_when_all_are_frozen_and_it_is_published_when_all_have_stored() {
    let mut set = after(&[]);
    set.heard(0, 1, Said::Prepared, at(1));
    assert_eq!(set.next(at(1)), []);
    set.heard(1, 1, Said::Prepared, at(2));
    assert_eq!(set.next(at(2)), tells(Order::Freeze));
    set.heard(1, 1, Said::Frozen, at(3));
    assert_eq!((set.next(at(3)), set.wakes()), (vec![], Some(at(12))));
    set.heard(0, 1, Said::Frozen, at(4));
    assert_eq!(set.next(at(4)), tells(Order::GoOn));
    set.heard(0, 1, Said::Stored, at(5));
    assert_eq!(set.next(at(5)), []);
    set.heard(1, 1, Said::Stored, at(6));
    assert_eq!(set.next(at(6)), [Action::Publish]);
    assert_eq!(set.cancel(), [], "it is too late");
    assert_eq!(set.published(Ok(()), at(7)), tells(Order::Finish));
    set.heard(0, 1, Said::Ended, at(8));
    // It has stored its disk: what becomes of its program later does not matter for the set.
    set.heard(1, 1, failed(false), at(8));
    set.next(at(8));
    assert!(set.is_published() && set.phase() == Phase::Over);
    assert_eq!(set.host(1), &Standing::Failed("no agent".to_owned()));
}

#[test]
fn one_that_does_not_stand_still_in_time_ends_the_round_for_all() {
    let mut set = after(&[Said::Prepared]);
    set.heard(0, 1, Said::Frozen, at(2));
    assert_eq!(set.next(at(10)), []);
    assert_eq!(set.next(at(11)), [0, 1].map(|host| Action::Stop { host }));
    assert_eq!(set.failure().unwrap().host, Some(1));
    set.heard(1, 1, Said::Frozen, at(12));
    assert_eq!(set.next(at(12)), [], "it is too late");
    set.heard(0, 1, failed(true), at(12));
    assert_eq!(set.next(at(12)), [], "the other program may still hold its disk");
    set.heard(1, 1, failed(true), at(13));
    assert_eq!((set.next(at(13)), set.wakes()), (vec![], Some(at(15))));
    assert_eq!(set.next(at(15)), [0, 1].map(|host| Action::Start { host, round: 2 }));
    assert_eq!(set.heard(0, 1, Said::Prepared, at(15)), [], "it is of the first round");
    assert_eq!(set.host(0), &Standing::Prepares);
}

#[test]
fn who_refuses_is_not_asked_again_and_who_speaks_out_of_turn_is_not_believed() {
    let mut set = after(&[Said::Prepared]);
    assert_eq!(set.heard(1, 1, failed(false), at(2)), [Action::Stop { host: 0 }]);
    set.heard(0, 1, failed(true), at(3));
    set.next(at(3));
    assert_eq!((set.phase(), set.failure().unwrap().host), (Phase::Over, Some(1)));

    let mut set = after(&[Said::Prepared]);
    let stops = [0, 1].map(|host| Action::Stop { host });
    assert_eq!(set.heard(0, 1, Said::Stored, at(2)), stops);
    assert!(set.failure().unwrap().why.contains("out of turn"));
    assert_eq!(after(&[]).heard(0, 1, Said::Ended, at(2)), [Action::Stop { host: 1 }]);
}

#[test]
fn it_is_called_off_until_it_is_about_to_be_published() {
    let mut set = after(&[Said::Prepared, Said::Frozen]);
    assert_eq!(set.cancel(), [0, 1].map(|host| Action::Stop { host }));
    set.heard(0, 1, failed(true), at(3));
    set.heard(1, 1, failed(true), at(3));
    set.next(at(3));
    assert_eq!(set.phase(), Phase::Over);

    let mut set = after(&[Said::Prepared, Said::Frozen, Said::Stored]);
    assert_eq!(set.cancel(), []);
    let why = "the repository is full".to_owned();
    assert_eq!(set.published(Err(why.clone()), at(2)), [0, 1].map(|host| Action::Stop { host }));
    assert_eq!((set.failure().unwrap().why.as_str(), set.is_published()), (why.as_str(), false));
}

#[test]
fn who_is_silent_is_stopped() {
    let mut set = after(&[Said::Prepared, Said::Frozen]);
    set.heard(0, 1, Said::Alive, at(20));
    assert_eq!(set.wakes(), Some(at(31)));
    assert_eq!(set.next(at(31)), [0, 1].map(|host| Action::Stop { host }));
    assert_eq!(set.failure().unwrap().host, Some(1));
}

#[test]
fn one_that_was_told_to_end_at_last_is_not_told_again() {
    let mut set = after(&[Said::Prepared, Said::Frozen, Said::Stored]);
    set.published(Ok(()), at(2));
    set.heard(0, 1, Said::Ended, at(2));
    for second in 3..302 {
        set.heard(1, 1, Said::Alive, at(second));
        assert_eq!(set.next(at(second)), []);
    }
    assert_eq!(set.next(at(302)), [Action::Stop { host: 1 }]);
    assert_eq!((set.next(at(302)), set.wakes()), (vec![], None));
}
