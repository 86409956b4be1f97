//! Tests of single steps of the law.

use super::super::law::{Law, Verdict};
use super::super::look::Look;
use super::super::sense::{Loss, View};

const RATE: f64 = 1e9;

fn look(now: f64, queue: f64, loss: f64, sent: f64, delivered: f64) -> Look {
    let loss = Loss { part: loss, of: 1000.0 };
    let view = View {
        queue,
        queue_last: queue,
        queue_before: queue,
        queue_median: queue,
        loss,
        loss_last: loss,
        pace: 0.0,
        receivers: 1,
    };
    Look {
        now,
        passed: 0.025,
        sent,
        limited: false,
        view: Some(view),
        baseline: Some(0.0),
        fresh: true,
        delivered,
        packet: 12_000.0 / RATE,
    }
}

/// A law that has found its link.
fn following() -> Law {
    let mut law = Law::new(1.0, RATE, 1e6, 1e12);
    assert_eq!(law.look(&look(1.1, 0.02, 0.0, RATE, RATE)), Verdict::Cut);
    law.look(&look(1.2, 0.0, 0.0, law.rate, law.rate));
    assert!(!law.is_seeking() && (0.85 * RATE..RATE).contains(&law.rate), "{}", law.rate);
    law
}

#[test]
fn no_loss_cuts_deeper_than_to_half_and_what_drains_the_queue() {
    let mut law = following();
    let before = law.rate;
    assert_eq!(law.look(&look(1.3, 0.02, 0.9, before, 0.1 * before)), Verdict::Cut);
    assert!((0.35 * before..0.51 * before).contains(&law.rate), "{} of {before}", law.rate);
}

#[test]
fn a_cut_is_one_of_what_is_sent() {
    let mut law = following();
    let sent = law.rate / 2.0;
    assert_eq!(law.look(&look(1.3, 0.002, 0.0, sent, sent)), Verdict::Calm);
    let limited = Look { limited: true, ..look(1.4, 0.02, 0.0, sent, 0.8 * sent) };
    assert_eq!(law.look(&limited), Verdict::Cut);
    assert!(law.rate < 0.8 * sent, "{} of {sent}", law.rate);
}
