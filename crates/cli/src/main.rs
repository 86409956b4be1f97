//! Placeholder of the house: see the crate description.

fn main() {}
