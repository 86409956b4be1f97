//! The interface between the front ends and the disks that they serve. Many threads may read and write a disk at
//! once.
//!
//! Calls block; a front end uses one thread for each request in flight. A read that waits 10 ms for a chunk from a
//! server costs only a waiting thread. [`Served::read_now`] is for the thread that reads a front end's socket: a
//! read that need not wait need not be handed to another thread.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use disk::Geometry;

/// What a write guarantees when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Readers see it. It survives the death of this process, but a power cut only after a [`Served::flush`].
    #[default]
    Cached,
    /// It survives a power cut (NBD's and SCSI's FUA).
    Durable,
}

/// What happens to the space of a range that is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Space {
    /// It may be freed: the range may become a hole.
    #[default]
    Free,
    /// It stays allocated, so that later writes there do not run out of space (NBD's `NO_HOLE`).
    Keep,
}

/// What is known about a range without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// It reads as zeros.
    pub zero: bool,
    /// Nothing is allocated there: neither locally nor in the image.
    pub hole: bool,
    /// It was written, so it may differ from the disk's base version.
    pub dirty: bool,
    /// It is local: a read needs no source.
    pub local: bool,
}

/// A run of bytes with the same status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusRun {
    /// The number of bytes, at least one logical sector.
    pub bytes: u64,
    /// The status of all of them.
    pub status: Status,
}

/// A disk that a front end serves. Offsets and lengths are bytes, and multiples of the logical sector; a call fails
/// with `Invalid` if they are not, or reach past the end of the disk. Overlapping requests that are in flight at the
/// same time take effect in any order, sector by sector. Every read that begins after a write returned sees that
/// write.
pub trait Served: Send + Sync {
    /// Size and sector sizes; they never change.
    fn geometry(&self) -> Geometry;

    /// Whether writes, zeroing and discards are `Refused`.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Fills `into` with the bytes from `offset` on. `Unreachable` if no source delivers them within the time
    /// allowed, `Corrupt` if every source has them damaged.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Writes `bytes` at `offset`. `Full` if the local file system has no room.
    fn write(&self, offset: u64, bytes: &[u8], durability: Durability) -> Result<()>;

    /// Makes every write durable that returned before this call. After an error none of them may be assumed durable.
    fn flush(&self) -> Result<()>;

    /// Says that the content of `bytes` bytes from `offset` is not needed any more. They read as zeros or as before.
    fn discard(&self, offset: u64, bytes: u64, durability: Durability) -> Result<()>;

    /// Makes `bytes` bytes from `offset` read as zeros.
    fn write_zeroes(&self, offset: u64, bytes: u64, space: Space, durability: Durability) -> Result<()>;

    /// Whether [`Served::write_zeroes`] is faster than writing as many zeros (NBD's `FAST_ZERO`).
    fn zeroes_fast(&self) -> bool {
        false
    }

    /// The status of the `bytes` bytes from `offset` on: at least one run and at most `runs_max`; neighbours differ.
    /// The runs may end before the range does, and may be pessimistic: zeros may be reported as data, and a hole as
    /// allocated.
    fn status(&self, offset: u64, bytes: u64, runs_max: usize) -> Result<Vec<StatusRun>>;

    /// Fills `into` like [`Served::read`] if that is possible without waiting for a source or for local storage. If
    /// not, it returns false at once, and the content of `into` is undefined.
    fn read_now(&self, _offset: u64, _into: &mut [u8]) -> Result<bool> {
        Ok(false)
    }

    /// Makes everything durable and closes the disk. Later calls are `Refused`.
    fn close(&self) -> Result<()>;
}

/// A wrapper that refuses all changes of a disk.
pub struct ReadOnly(pub Arc<dyn Served>);

impl ReadOnly {
    fn refuse<T>() -> Result<T> {
        Err(Error::new(ErrorKind::Refused, "the disk is read-only"))
    }
}

impl Served for ReadOnly {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.0.read(offset, into)
    }

    fn write(&self, _offset: u64, _bytes: &[u8], _durability: Durability) -> Result<()> {
        Self::refuse()
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn discard(&self, _offset: u64, _bytes: u64, _durability: Durability) -> Result<()> {
        Self::refuse()
    }

    fn write_zeroes(&self, _offset: u64, _bytes: u64, _space: Space, _durability: Durability) -> Result<()> {
        Self::refuse()
    }

    fn status(&self, offset: u64, bytes: u64, runs_max: usize) -> Result<Vec<StatusRun>> {
        self.0.status(offset, bytes, runs_max)
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        self.0.read_now(offset, into)
    }

    fn close(&self) -> Result<()> {
        self.0.close()
    }
}

/// `Invalid` unless the range lies inside the disk, in whole logical sectors.
pub(crate) fn check_range(geometry: &Geometry, offset: u64, bytes: u64) -> Result<()> {
    let unit = u64::from(geometry.logical_sector_bytes);
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= geometry.size_bytes);
    if inside && offset.is_multiple_of(unit) && bytes.is_multiple_of(unit) {
        return Ok(());
    }
    let size = geometry.size_bytes;
    let text = format!("{bytes} bytes at offset {offset} of a disk of {size} bytes in sectors of {unit}");
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Adds `run` to `runs`. It is joined with the last run if both have the same status.
pub fn push_run(runs: &mut Vec<StatusRun>, run: StatusRun) {
    match runs.last_mut() {
        Some(last) if last.status == run.status => last.bytes += run.bytes,
        _ if run.bytes > 0 => runs.push(run),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_sectors_inside_the_disk() {
        let geometry =
            Geometry { size_bytes: 1 << 20, logical_sector_bytes: 4096, physical_sector_bytes: 4096 };
        assert!(check_range(&geometry, 0, 1 << 20).is_ok());
        assert!(check_range(&geometry, 1 << 20, 0).is_ok());
        for (offset, bytes) in [(512, 4096), (0, 512), (1 << 20, 4096), (u64::MAX - 4095, 4096)] {
            let error = check_range(&geometry, offset, bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
