//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test mirror swarm::`.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test that fails says where")]

mod boots;
mod commit;
mod common;
mod disk;
mod fuse;
mod fuse_common;
mod fuse_killed;
mod killed;
mod multicast;
mod nbd_attached;
mod nbd_client;
mod nbd_common;
mod nbd_tools;
mod nbd_wire;
mod swarm;
