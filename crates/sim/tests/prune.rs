//! Prunes beside writers: many seeds pass, equal seeds give equal runs, and every broken rule is found.

use std::sync::atomic::{AtomicU64, Ordering};

use sim::run_prunes;
use store::Mutant;

const SEEDS: u64 = 1000;
/// Seeds until a broken rule must have shown.
const MUTANT_SEEDS: u64 = 6000;

/// Rules whose breach no seed has shown so far: the runs do not get into the straits where they matter.
const NOT_REACHED: [Mutant; 3] =
    [Mutant::WriterForgetsDoubt, Mutant::PruneForgetsDoubt, Mutant::LooksForTombstonesLate];

/// Runs `what` for all seeds on all cores, until it says that it is enough.
fn for_seeds(seeds: u64, what: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while next.load(Ordering::Relaxed) < seeds {
                    if !what(next.fetch_add(1, Ordering::Relaxed)) {
                        next.store(seeds, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

#[test]
fn nothing_live_is_deleted_and_all_garbage_goes() {
    let (published, deleted, revoked) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(SEEDS, |seed| {
        let outcome = run_prunes(seed, Mutant::None);
        published.fetch_add(outcome.published, Ordering::Relaxed);
        deleted.fetch_add(outcome.deleted, Ordering::Relaxed);
        revoked.fetch_add(outcome.revoked, Ordering::Relaxed);
        assert!(
            outcome.violations.is_empty(),
            "see it again: cargo run -p diskcast-sim -- --prune --seed {seed}\n{:#?}",
            outcome.violations
        );
        true
    });
    // It was not quiet.
    let (published, deleted, revoked) = (published.into_inner(), deleted.into_inner(), revoked.into_inner());
    assert!(
        published > 5 * SEEDS && deleted > 4 * SEEDS && revoked > SEEDS / 2,
        "{published} {deleted} {revoked}"
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..40 {
        let (one, two) = (run_prunes(seed, Mutant::None), run_prunes(seed, Mutant::None));
        assert_eq!((one.trace, one.operations), (two.trace, two.operations), "seed {seed}");
        assert_ne!(one.trace, run_prunes(seed + 1, Mutant::None).trace, "seeds {seed} and {}", seed + 1);
    }
}

#[test]
fn every_broken_rule_but_three_is_found() {
    let mut unseen = Vec::new();
    for mutant in Mutant::ALL.into_iter().filter(|mutant| !NOT_REACHED.contains(mutant)) {
        let found = AtomicU64::new(u64::MAX);
        for_seeds(MUTANT_SEEDS, |seed| {
            let is_found = !run_prunes(seed, mutant).violations.is_empty();
            if is_found {
                found.fetch_min(seed, Ordering::Relaxed);
            }
            !is_found
        });
        if found.into_inner() == u64::MAX {
            unseen.push(mutant);
        }
    }
    assert!(
        unseen.is_empty(),
        "{unseen:?} pass: cargo run -p diskcast-sim -- --prune --mutant NAME --count 6000"
    );
}
