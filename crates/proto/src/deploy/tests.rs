//! Waves, hosts that hang, and what is said of the time left.

use std::time::Duration;

use base::{Digest, Instant};

use super::{Action, Counts, Deploy, HostState, Rules, Said};

const ROOT: Digest = Digest([7; Digest::BYTES]);

fn rules() -> Rules {
    Rules {
        at_once: 100,
        wave: 100,
        stagger: Duration::ZERO,
        attempts: 3,
        pause: Duration::from_secs(2),
        silence: Duration::from_secs(30),
        standstill: Duration::from_secs(120),
        host_time: None,
        time: None,
        failures: None,
    }
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn start(host: usize, attempt: u32) -> Action {
    Action::Start { host, attempt }
}

fn failed(again: bool) -> Said {
    Said::Failed { why: "no route to it".to_owned(), again }
}

#[test]
fn waves_follow_each_other() {
    let mut deploy = Deploy::new(3, ROOT, Rules { wave: 2, ..rules() }, at(0));
    assert_eq!(deploy.next(at(0)), [start(0, 1), start(1, 1)]);
    deploy.heard(0, 1, Said::Ready { root: ROOT }, at(5));
    assert_eq!(deploy.next(at(5)), [], "host 1 is at work");
    deploy.heard(1, 1, failed(true), at(6));
    assert_eq!(deploy.next(at(6)), [], "host 1 is tried again first");
    assert_eq!(deploy.wakes(), Some(at(8)));
    assert_eq!(deploy.next(at(8)), [start(1, 2)]);
    deploy.heard(1, 2, failed(false), at(9));
    assert_eq!(deploy.next(at(9)), [start(2, 1)]);
    deploy.heard(2, 1, Said::Ready { root: ROOT }, at(10));
    assert!(deploy.is_over());
    assert_eq!(deploy.counts(), Counts { ready: 2, failed: 1, ..Counts::default() });
}

#[test]
fn hosts_begin_one_after_the_other() {
    let mut deploy = Deploy::new(3, ROOT, Rules { stagger: Duration::from_secs(4), ..rules() }, at(0));
    assert_eq!(deploy.next(at(0)), [start(0, 1)]);
    assert_eq!(deploy.wakes(), Some(at(4)));
    assert_eq!(deploy.next(at(3)), []);
    assert_eq!(deploy.next(at(4)), [start(1, 1)]);
}

#[test]
fn a_wave_that_has_to_wait_for_its_turn_begins_then() {
    let rules = Rules { wave: 1, stagger: Duration::from_secs(4), ..rules() };
    let mut deploy = Deploy::new(2, ROOT, rules, at(0));
    deploy.next(at(0));
    deploy.heard(0, 1, Said::Ready { root: ROOT }, at(1));
    assert_eq!((deploy.next(at(1)), deploy.wakes()), (vec![], Some(at(4))));
    assert_eq!(deploy.next(at(4)), [start(1, 1)]);
}

#[test]
fn what_hangs_is_ended_and_tried_again_only_when_it_has_ended() {
    let mut deploy = Deploy::new(1, ROOT, rules(), at(0));
    assert_eq!(deploy.next(at(0)), [start(0, 1)]);
    deploy.heard(0, 1, Said::Progress { step: 1, done: 5, total: 10 }, at(10));
    assert_eq!(deploy.next(at(39)), []);
    assert_eq!(deploy.next(at(40)), [Action::Stop { host: 0 }]);
    assert_eq!(deploy.next(at(500)), [], "the first attempt may still write");
    deploy.heard(0, 1, failed(false), at(500));
    assert_eq!(deploy.next(at(502)), [start(0, 2)]);
    // It comes back: what it says now is of no account.
    deploy.heard(0, 1, Said::Ready { root: ROOT }, at(503));
    assert!(matches!(deploy.host(0), HostState::Working { .. }));
    // It lives, but gets no further.
    for second in 503..622 {
        deploy.heard(0, 2, Said::Alive, at(second));
        assert_eq!(deploy.next(at(second)), []);
    }
    assert_eq!(deploy.next(at(622)), [Action::Stop { host: 0 }]);
    // Its last words came while it was ended.
    deploy.heard(0, 2, Said::Ready { root: ROOT }, at(623));
    assert!(matches!(deploy.host(0), HostState::Ready { .. }));
}

#[test]
fn who_has_another_version_is_not_ready() {
    let mut deploy = Deploy::new(1, ROOT, rules(), at(0));
    deploy.next(at(0));
    deploy.heard(0, 1, Said::Ready { root: Digest([8; Digest::BYTES]) }, at(1));
    let HostState::Failed { why } = deploy.host(0) else { panic!("{:?}", deploy.host(0)) };
    assert!(why.contains("another version"), "{why}");
}

#[test]
fn too_many_failures_and_the_end_of_time_stop_the_rest() {
    let few = Rules { at_once: 1, attempts: 1, failures: Some(1), ..rules() };
    let mut deploy = Deploy::new(3, ROOT, few, at(0));
    deploy.next(at(0));
    deploy.heard(0, 1, failed(true), at(1));
    assert_eq!(deploy.next(at(1)), []);
    assert!(deploy.is_over());
    assert_eq!(deploy.counts(), Counts { failed: 1, left_out: 2, ..Counts::default() });

    let timed = Rules { at_once: 1, time: Some(Duration::from_secs(20)), ..rules() };
    let mut deploy = Deploy::new(2, ROOT, timed, at(0));
    deploy.next(at(0));
    assert_eq!(deploy.wakes(), Some(at(20)));
    assert_eq!(deploy.next(at(20)), [Action::Stop { host: 0 }]);
    deploy.heard(0, 1, failed(true), at(21));
    assert_eq!(deploy.counts(), Counts { left_out: 2, ..Counts::default() });
}

#[test]
fn the_time_left_counts_those_that_wait() {
    let mut deploy = Deploy::new(4, ROOT, Rules { at_once: 2, ..rules() }, at(0));
    assert_eq!(deploy.left(at(0)), None);
    deploy.next(at(0));
    for host in 0..2 {
        deploy.heard(host, 1, Said::Progress { step: 0, done: 25, total: 100 }, at(10));
    }
    let seconds = |deploy: &Deploy, now| deploy.left(at(now)).map(|left| left.as_secs());
    assert_eq!(seconds(&deploy, 10), Some(30 + 40));
    (0..2).for_each(|host| deploy.heard(host, 1, Said::Ready { root: ROOT }, at(40)));
    deploy.next(at(40));
    assert_eq!(seconds(&deploy, 41), Some(39), "they have not said anything, but the others took 40 s");
}
