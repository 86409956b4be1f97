//! All tests of the crate from outside, in one program. One room of it, or one test, runs by its name:
//! `cargo test --workspace --test disk xfs::`.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test that fails says where")]

mod btrfs;
mod claims;
mod common;
mod containers;
mod damage;
mod devices;
mod disks;
mod exfat;
mod ext;
mod fat;
mod grow;
mod lvm;
mod ntfs;
mod personal;
mod rescue;
mod shrink;
mod sources;
mod stacked;
mod xfs;
