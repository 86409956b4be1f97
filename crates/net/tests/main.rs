//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test net dhcp::`.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod dhcp;
