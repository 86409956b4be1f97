//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test sim transfer::`.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod checkpoint;
mod cloud;
mod cluster;
mod common;
mod deploy;
mod fabric;
mod faults;
mod mirror;
mod moving;
mod peers;
mod prune;
mod room;
mod striped;
mod swarm;
mod transfer;
