//! Every fuzz target for a bounded number of rounds, so that CI sees each of them.

#[test]
fn no_target_panics() {
    for target in fuzz::TARGETS {
        fuzz::run(target, 20_000, 1);
    }
}
