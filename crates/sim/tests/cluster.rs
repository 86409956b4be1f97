//! Tests clusters under faults: many seeds pass, and equal seeds give equal runs.

use std::sync::atomic::{AtomicU64, Ordering};

use sim::run_cluster;

use crate::common::for_seeds;

const SEEDS: u64 = 2000;

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let (stored, taken, freed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(SEEDS, |seed| {
        let outcome = run_cluster(seed);
        stored.fetch_add(outcome.stored, Ordering::Relaxed);
        taken.fetch_add(outcome.taken, Ordering::Relaxed);
        freed.fetch_add(outcome.freed, Ordering::Relaxed);
        assert!(
            outcome.violations.is_empty(),
            "see it again: cargo run -p diskcast-sim -- --cluster --seed {seed}\n{:#?}",
            outcome.violations
        );
    });
    // The runs do what they are for.
    assert!(stored.load(Ordering::Relaxed) > 100 * SEEDS / 2, "{stored:?} contents were stored");
    assert!(freed.load(Ordering::Relaxed) > 3 * SEEDS, "{freed:?} segments were compacted and freed");
    assert!(taken.load(Ordering::Relaxed) > SEEDS, "{taken:?} segments were taken from clients that died");
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..20 {
        let (one, two) = (run_cluster(seed), run_cluster(seed));
        assert_eq!((one.trace, one.steps, one.stored), (two.trace, two.steps, two.stored));
    }
}
