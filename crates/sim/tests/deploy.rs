//! Deployments to hosts that fail, hang, lie and come back.

use sim::deploy::{DeployScenario, run};

#[test]
fn no_rule_is_broken() {
    for seed in 0..4000 {
        let outcome = run(&DeployScenario::mixed(seed));
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let traces = |seed| (run(&DeployScenario::mixed(seed)).trace, run(&DeployScenario::mixed(seed)).trace);
    assert!((0..20).map(traces).all(|(a, b)| a == b));
}

#[test]
fn most_of_a_thousand_hosts_are_ready() {
    let outcome = run(&DeployScenario::large(1000, 1));
    assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
    assert!(outcome.counts.ready > 920 && outcome.counts.failed > 20, "{:?}", outcome.counts);
}
