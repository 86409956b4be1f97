//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test cluster store::`.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test that fails says where")]

mod compaction;
mod conformance;
mod engine;
mod etcd_access;
mod kills;
mod lone;
mod readahead;
mod rebuild;
mod refusals;
mod restore;
mod rot;
mod salvage;
mod store;
