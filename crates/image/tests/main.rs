//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test image tree::`.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test that fails says where")]

mod common;
mod edit;
mod golden;
mod gpt;
mod hostile;
mod manifest;
mod old;
mod qcow2;
mod reuse;
mod round_trip;
mod several;
#[path = "common/stack.rs"]
mod stack;
mod stacked;
#[path = "../../disk/tests/common/mod.rs"]
mod tools;
mod tree;
