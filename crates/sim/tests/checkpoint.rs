//! Sets of disks at one moment, on hosts that fail, hang, lie and come back.

use sim::checkpoint::{CheckpointScenario, run};

#[test]
fn no_rule_is_broken() {
    let mut published = 0;
    // The last ones: the only host fails while it stands still, and the next round begins late.
    for seed in (0..4000).chain([6473, 8593, 19761]) {
        let outcome = run(&CheckpointScenario::mixed(seed));
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        published += u32::from(outcome.published);
    }
    assert!((800..3200).contains(&published), "{published} of 4000 are published");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let trace = |seed| run(&CheckpointScenario::mixed(seed)).trace;
    assert!((0..20).all(|seed| trace(seed) == trace(seed)));
}
