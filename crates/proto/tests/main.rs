//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test proto urgent::`.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod common;
mod crowded;
mod forged;
mod greedy;
mod latecomers;
mod newcomers;
mod packets;
mod peer;
mod silence;
mod urgent;
