//! The foundation of all other crates: units, digests, errors, limits, extents and sets of them, clock and chance.
//! Nothing here knows about disks, images or networks, reads a clock, or does I/O.

pub mod chance;
pub mod digest;
pub mod error;
pub mod extent;
pub mod limits;
pub mod runs;
pub mod time;
pub mod units;
pub mod wire;

pub use chance::Chance;
pub use digest::Digest;
pub use error::{Error, ErrorKind, Result, chain};
pub use extent::{Extent, ExtentSet};
pub use runs::RunSet;
pub use time::{Duration, Instant};
