//! The switch of the seeded bugs. `cargo xtask mutants` adds this module to `base` in the copy that it builds.

use std::sync::OnceLock;

/// Whether the bug `name` is switched on in this process.
#[must_use]
pub fn is(name: &str) -> bool {
    static CHOSEN: OnceLock<String> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("DISKCAST_MUTANT").unwrap_or_default()) == name
}
