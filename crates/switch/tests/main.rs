//! All tests of the crate from outside, in one program. One test runs by its name:
//! `cargo test --workspace --test switch switch::`.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod switch;
