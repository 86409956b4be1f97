//! The repository's own checks: `cargo xtask tidy`.

fn main() {}
