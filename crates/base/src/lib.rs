//! What every other crate stands on: units, digests, limits, extents, faults, clock and chance.
//! Nothing here knows of disks, images or networks, and nothing here reads a clock or does I/O.

pub mod chance;
pub mod digest;
pub mod extent;
pub mod fault;
pub mod limits;
pub mod time;
pub mod units;
pub mod wire;

pub use chance::Chance;
pub use digest::Digest;
pub use extent::{Extent, ExtentSet};
pub use fault::Fault;
pub use time::{Duration, Instant};
