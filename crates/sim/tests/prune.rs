//! Tests prunes at the same time as writers: many seeds pass, and equal seeds give equal runs.

use std::sync::atomic::{AtomicU64, Ordering};

use sim::run_prunes;

use crate::common::for_seeds;

const SEEDS: u64 = 1000;

#[test]
fn nothing_live_is_deleted_and_all_garbage_goes() {
    let (published, deleted, revoked) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(SEEDS, |seed| {
        let outcome = run_prunes(seed);
        published.fetch_add(outcome.published, Ordering::Relaxed);
        deleted.fetch_add(outcome.deleted, Ordering::Relaxed);
        revoked.fetch_add(outcome.revoked, Ordering::Relaxed);
        assert!(
            outcome.violations.is_empty(),
            "see it again: cargo run -p diskcast-sim -- --prune --seed {seed}\n{:#?}",
            outcome.violations
        );
    });
    // The runs were busy enough to be meaningful.
    let (published, deleted, revoked) = (published.into_inner(), deleted.into_inner(), revoked.into_inner());
    assert!(
        published > 5 * SEEDS && deleted > 4 * SEEDS && revoked > SEEDS / 2,
        "{published} {deleted} {revoked}"
    );
}

#[test]
fn seeds_that_once_broke_a_rule_pass() {
    // A prune that slept until its `end` was made and deleted by others made it again, and deleted a list of what is in
    // doubt, without which no later prune can work.
    let outcome = run_prunes(777_000_000_401);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..40 {
        let (one, two) = (run_prunes(seed), run_prunes(seed));
        assert_eq!((one.trace, one.operations), (two.trace, two.operations), "seed {seed}");
        assert_ne!(one.trace, run_prunes(seed + 1).trace, "seeds {seed} and {}", seed + 1);
    }
}
