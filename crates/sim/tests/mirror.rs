//! Tests the mirror under faults drawn from seeds.

use sim::mirror::{MirrorOutcome, MirrorScenario, run};

/// Number of seeds; `diskcast-sim --mirror --count N` tries more.
const SEEDS: u64 = 300;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_torn_is_served() {
    let (mut published, mut crashes) = (0, 0);
    for seed in 0..SEEDS {
        let outcome = run(&MirrorScenario::mixed(seed));
        assert!(
            outcome.violations.is_empty(),
            "cargo run -p diskcast-sim -- --mirror --seed {seed}: {:#?}",
            outcome.violations
        );
        published += outcome.published;
        crashes += outcome.crashes;
    }
    assert!(u64::from(published) > SEEDS / 2 && u64::from(crashes) > SEEDS, "{published}, {crashes}");
}

#[test]
fn seeds_that_once_broke_a_rule_pass() {
    // A node that chunks needed no more failed, and with it reads of these chunks.
    let outcome = run(&MirrorScenario::mixed(162_381_293_880_059));
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..10 {
        let traces = [(); 2].map(|()| run(&MirrorScenario::mixed(seed)).trace);
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
}

#[test]
fn what_others_read_is_prefetched_and_given_up_where_it_does_not_pay() {
    // A quarter of 1000 chunks is empty; the others have 100 bytes.
    const FORETOLD_BYTES: u64 = 75_000;
    let waits = |outcome: &MirrorOutcome| outcome.counters.demanded_chunks;
    let mut waited = [0, 0];
    for seed in 0..10 {
        let wrong = run(&MirrorScenario::hinted(seed, false));
        let (brought, used) = (wrong.counters.expected_bytes, wrong.counters.expected_used_bytes);
        assert!(wrong.violations.is_empty() && !wrong.expects, "seed {seed}: {:?}", wrong.violations);
        assert!(brought < FORETOLD_BYTES / 2 && used == 0, "seed {seed}: {brought} {used}");
        let right = run(&MirrorScenario::hinted(seed, true));
        let (brought, used) = (right.counters.expected_bytes, right.counters.expected_used_bytes);
        assert!(right.violations.is_empty() && right.expects, "seed {seed}: {:?}", right.violations);
        assert!(brought > FORETOLD_BYTES / 4 && used > 0, "seed {seed}: {used} of {brought}");
        waited = [waited[0] + waits(&wrong), waited[1] + waits(&right)];
    }
    assert!(waited[1] < waited[0], "reads that waited: {waited:?}");
}
