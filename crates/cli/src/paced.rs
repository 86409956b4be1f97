//! Disks that are read and written no faster than a rate, for hosts that are busy with other work.

use std::sync::Arc;

use disk::{Geometry, ReadAt, WriteAt};
use net::pace::Pace;

/// A disk with a limit.
pub(crate) struct Paced<D> {
    disk: D,
    pace: Pace,
}

/// `disk` with a limit, if there is one.
pub(crate) fn target(disk: Arc<dyn WriteAt>, bytes_per_second: Option<u64>) -> Arc<dyn WriteAt> {
    match bytes_per_second {
        Some(rate) => Arc::new(Paced { disk, pace: Pace::new(rate) }),
        None => disk,
    }
}

/// `disk` with a limit.
pub(crate) fn source(disk: &dyn ReadAt, bytes_per_second: u64) -> Paced<&dyn ReadAt> {
    Paced { disk, pace: Pace::new(bytes_per_second) }
}

impl<D: Inner> ReadAt for Paced<D> {
    fn geometry(&self) -> Geometry {
        self.disk.inner().geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> base::Result<()> {
        self.pace.wait(buf.len());
        self.disk.inner().read_exact_at(buf, offset)
    }

    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> base::Result<()> {
        self.pace.wait(buf.len());
        self.disk.inner().read_past_cache_at(buf, offset)
    }

    fn name(&self) -> &str {
        self.disk.inner().name()
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.disk.inner().next_data(offset)
    }
}

/// What is paced, as a disk to read.
trait Inner: Send + Sync {
    fn inner(&self) -> &dyn ReadAt;
}

impl Inner for &dyn ReadAt {
    fn inner(&self) -> &dyn ReadAt {
        *self
    }
}

impl Inner for Arc<dyn WriteAt> {
    fn inner(&self) -> &dyn ReadAt {
        &**self
    }
}

impl WriteAt for Paced<Arc<dyn WriteAt>> {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> base::Result<()> {
        self.pace.wait(buf.len());
        self.disk.write_all_at(buf, offset)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> base::Result<()> {
        self.disk.write_zeroes(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> base::Result<()> {
        self.disk.discard(offset, len)
    }

    fn sync(&self) -> base::Result<()> {
        self.disk.sync()
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> base::Result<bool> {
        self.pace.wait(buf.len());
        self.disk.read_back_at(buf, offset)
    }
}
