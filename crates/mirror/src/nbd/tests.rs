//! A disk without content, for the unit tests of this front end.

use base::{Error, ErrorKind, Result};
use disk::Geometry;

use crate::{Durability, Served, Space, StatusRun};

/// A disk that has a size and sector sizes, and fails all requests.
pub(super) struct Fake(pub Geometry);

fn nothing<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "a disk without content"))
}

impl Served for Fake {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn read(&self, _offset: u64, _into: &mut [u8]) -> Result<()> {
        nothing()
    }

    fn write(&self, _offset: u64, _bytes: &[u8], _durability: Durability) -> Result<()> {
        nothing()
    }

    fn flush(&self) -> Result<()> {
        nothing()
    }

    fn discard(&self, _offset: u64, _bytes: u64, _durability: Durability) -> Result<()> {
        nothing()
    }

    fn write_zeroes(&self, _offset: u64, _bytes: u64, _space: Space, _durability: Durability) -> Result<()> {
        nothing()
    }

    fn status(&self, _offset: u64, _bytes: u64, _runs_max: usize) -> Result<Vec<StatusRun>> {
        nothing()
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
