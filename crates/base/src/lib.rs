//! Basic types that all other crates use: units, digests, hexadecimal text, errors, limits, sets of sectors, points in
//! time and random numbers. This crate knows nothing about disks, images or networks. It reads no clock, and does no
//! I/O.

pub mod chance;
pub mod digest;
pub mod error;
pub mod extent;
pub mod hex;
pub mod limits;
pub mod runs;
pub mod time;
pub mod units;
pub mod wire;
mod zero;

pub use chance::Chance;
pub use digest::Digest;
pub use error::{Error, ErrorKind, Result, Subject, chain};
pub use extent::{Extent, ExtentSet};
pub use runs::RunSet;
pub use time::{Duration, Instant};
pub use zero::is_zero;
