//! The mirror under seeded faults, and seeded bugs that the checkers must see.

use mirror::core::Mutant;
use sim::mirror::{MirrorScenario, run};

/// Seeds of the test; `diskcast-sim --mirror --count N` tries more.
const SEEDS: u64 = 300;
/// Seeds within which each bug must be seen.
const MUTANT_SEEDS: u64 = 400;

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
fn equal_seeds_give_equal_runs() {
    for seed in 0..10 {
        let traces = [(); 2].map(|()| run(&MirrorScenario::mixed(seed)).trace);
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
}

#[test]
fn every_seeded_bug_is_seen() {
    let unseen: Vec<Mutant> = Mutant::ALL
        .into_iter()
        .filter(|&mutant| {
            (0..MUTANT_SEEDS).all(|seed| run(&MirrorScenario::mixed(seed).with(mutant)).violations.is_empty())
        })
        .collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}
