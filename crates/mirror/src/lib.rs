//! On-demand disks: machines run from an image before it has arrived, and commit what they changed.
//!
//! Front ends (NBD, FUSE) know a disk as something [`Served`]: the seam. [`core`] decides what is fetched when, and in which
//! order data and records reach the local medium; [`state`] is what survives a crash.

pub mod core;
pub mod error;
pub mod nbd;
pub mod raw;
pub mod served;
pub mod state;

pub use error::{Error, ErrorKind, Result};
pub use raw::RawDisk;
pub use served::{Durability, Served, Space, Status, StatusRun};
