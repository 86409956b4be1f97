//! Tests of the simulated swarm: seeds with faults and hostile members break no rule.

use sim::swarm::{SwarmScenario, run};

#[test]
fn no_seed_breaks_a_rule() {
    for seed in 0..400 {
        let outcome = run(&SwarmScenario::mixed(seed));
        let again = format!("cargo run --release -p diskcast-sim -- --peers --seed {seed}");
        assert!(outcome.violations.is_empty(), "{again}\n{:#?}", outcome.violations);
    }
}

#[test]
fn seeds_that_once_broke_a_rule_pass() {
    // What members failed to send was left to the server without a bound.
    for seed in [262_837_846_410_505, 101_946_192_101_842] {
        let outcome = run(&SwarmScenario::mixed(seed));
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..40 {
        let trace = || run(&SwarmScenario::mixed(seed)).trace;
        assert_eq!(trace(), trace(), "seed {seed}");
    }
    assert_ne!(run(&SwarmScenario::mixed(1)).trace, run(&SwarmScenario::mixed(2)).trace);
}

#[test]
fn members_serve_each_other_and_the_server_the_rest() {
    let (mut server, mut peers) = (0, 0);
    for seed in 0..100 {
        let outcome = run(&SwarmScenario::mixed(seed));
        (server, peers) = (server + outcome.server_objects, peers + outcome.peer_objects);
    }
    assert!(peers > server, "{peers} objects from members, {server} from the server");
}
