//! What a disk is made of: devices and raw files, partition tables, and which of its sectors matter.
//! Knows nothing of images.

pub mod device;
pub mod error;

pub use device::{Geometry, ReadAt, WriteAt};
pub use error::{Error, ErrorKind, Result};
