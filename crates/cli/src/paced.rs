//! Disks that are read and written no faster than a rate, for hosts that are busy with other work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Geometry, ReadAt, WriteAt};
use parking_lot::Mutex;

use crate::clock;

/// What may pass at once after a pause.
const BURST: Duration = Duration::from_millis(50);

/// A disk with a limit.
pub(crate) struct Paced<D> {
    disk: D,
    began: Instant,
    pace: Mutex<Pace>,
}

/// Counts what passes.
#[derive(Debug)]
struct Pace {
    bytes_per_second: u64,
    /// When everything so far has passed at the rate, from the start.
    free_at: Duration,
}

impl Pace {
    /// How long something of `bytes` bytes that begins at `now` has to wait.
    fn wait(&mut self, now: Duration, bytes: u64) -> Duration {
        let start = self.free_at.max(now.saturating_sub(BURST));
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        self.free_at = start + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        start.saturating_sub(now)
    }
}

impl<D> Paced<D> {
    fn new(disk: D, bytes_per_second: u64) -> Self {
        let pace = Pace { bytes_per_second, free_at: Duration::ZERO };
        Self { disk, began: clock::now(), pace: Mutex::new(pace) }
    }

    fn pass(&self, bytes: usize) {
        let wait = self.pace.lock().wait(clock::now().duration_since(self.began), bytes as u64);
        if !wait.is_zero() {
            clock::pause(wait);
        }
    }
}

/// `disk` with a limit, if there is one.
pub(crate) fn target(disk: Arc<dyn WriteAt>, bytes_per_second: Option<u64>) -> Arc<dyn WriteAt> {
    match bytes_per_second {
        Some(rate) => Arc::new(Paced::new(disk, rate)),
        None => disk,
    }
}

/// `disk` with a limit.
pub(crate) fn source(disk: &dyn ReadAt, bytes_per_second: u64) -> Paced<&dyn ReadAt> {
    Paced::new(disk, bytes_per_second)
}

impl<D: Inner> ReadAt for Paced<D> {
    fn geometry(&self) -> Geometry {
        self.disk.inner().geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> base::Result<()> {
        self.pass(buf.len());
        self.disk.inner().read_exact_at(buf, offset)
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
        self.pass(buf.len());
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
        self.pass(buf.len());
        self.disk.read_back_at(buf, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_passes_than_the_rate_allows() {
        let mut pace = Pace { bytes_per_second: 1000, free_at: Duration::ZERO };
        let ms = Duration::from_millis;
        assert_eq!(pace.wait(ms(0), 100), ms(0));
        assert_eq!(pace.wait(ms(0), 100), ms(100));
        assert_eq!(pace.wait(ms(100), 100), ms(100));
        // After a pause, a little is made up for, and no more.
        assert_eq!(pace.wait(ms(10_000), 50), ms(0));
        assert_eq!(pace.wait(ms(10_000), 50), ms(0));
        assert_eq!(pace.wait(ms(10_000), 50), ms(50));
        // Over many requests of several readers the mean is the rate.
        let (mut now, mut bytes) = (ms(20_000), 0);
        while now < ms(30_000) {
            now += pace.wait(now, 37);
            bytes += 37;
        }
        assert!((9900..=10_150).contains(&bytes), "{bytes}");
    }
}
