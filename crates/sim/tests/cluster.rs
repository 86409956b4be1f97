//! Tests clusters under faults: many seeds pass, and equal seeds give equal runs.

use std::sync::atomic::{AtomicU64, Ordering};

use sim::run_cluster;

const SEEDS: u64 = 2000;

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let next = AtomicU64::new(0);
    let (stored, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    let outcome = run_cluster(seed);
                    stored.fetch_add(outcome.stored, Ordering::Relaxed);
                    taken.fetch_add(outcome.taken, Ordering::Relaxed);
                    assert!(
                        outcome.violations.is_empty(),
                        "see it again: cargo run -p diskcast-sim -- --cluster --seed {seed}\n{:#?}",
                        outcome.violations
                    );
                }
            });
        }
    });
    // The runs do what they are for.
    assert!(stored.load(Ordering::Relaxed) > 100 * SEEDS / 2, "{stored:?} contents were stored");
    assert!(taken.load(Ordering::Relaxed) > SEEDS, "{taken:?} segments were taken from clients that died");
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..20 {
        let (one, two) = (run_cluster(seed), run_cluster(seed));
        assert_eq!((one.trace, one.steps, one.stored), (two.trace, two.steps, two.stored));
    }
}
