//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test store trust::`.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test that fails says where")]

mod append;
mod blob;
mod cache;
mod common;
mod conformance;
mod faults;
mod forms;
mod full;
mod golden;
mod history;
mod hostile;
mod linearizable;
mod links;
mod network;
mod power;
mod profiles;
mod prune;
mod readers;
mod rot;
mod sealed;
mod signed;
mod strange;
mod trust;
