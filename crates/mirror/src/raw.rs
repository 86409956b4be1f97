//! A raw file or block device, served without an image: for tests and benchmarks of the front ends.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, ErrorKind, Result};
use disk::{Geometry, ReadAt, Target, TargetOptions, WriteAt, open_target};

use crate::served::{Durability, Served, Space, Status, StatusRun, check_range, push_run};

/// Holes are searched in steps of this many bytes.
const HOLE_STEP_BYTES: u64 = 1 << 16;

/// See the module.
#[derive(Debug)]
pub struct RawDisk {
    target: Target,
    closed: AtomicBool,
}

impl RawDisk {
    /// Opens the raw file or block device at `path`. If `size_bytes` is given, a file is created if needed and grown
    /// to that size.
    pub fn open(path: &Path, size_bytes: Option<u64>) -> Result<Self> {
        let options = TargetOptions { create_size: size_bytes, ..TargetOptions::default() };
        let target =
            open_target(path, &options).map_err(|error| error.within("open the disk to be served"))?;
        Ok(Self { target, closed: AtomicBool::new(false) })
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Refused, format!("`{}` is closed", self.target.name())));
        }
        check_range(&self.target.geometry(), offset, bytes)
    }

    fn complete(&self, done: Result<()>, durability: Durability) -> Result<()> {
        let done = done.and_then(|()| match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.target.sync(),
        });
        done.map_err(|error| error.within("serve a disk"))
    }
}

impl Served for RawDisk {
    fn geometry(&self) -> Geometry {
        self.target.geometry()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len() as u64)?;
        self.complete(self.target.read_exact_at(into, offset), Durability::Cached)
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        self.check(offset, into.len() as u64)?;
        self.target.read_cached_at(into, offset).map_err(|error| error.within("serve a disk"))
    }

    fn write(&self, offset: u64, bytes: &[u8], durability: Durability) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        self.complete(self.target.write_all_at(bytes, offset), durability)
    }

    fn flush(&self) -> Result<()> {
        self.check(0, 0)?;
        self.complete(Ok(()), Durability::Durable)
    }

    fn discard(&self, offset: u64, bytes: u64, durability: Durability) -> Result<()> {
        self.check(offset, bytes)?;
        match self.target.discard(offset, bytes) {
            // A medium without support for discards keeps its bytes, which is allowed.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            done => self.complete(done, durability),
        }
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, space: Space, durability: Durability) -> Result<()> {
        self.check(offset, bytes)?;
        let done = match space {
            Space::Free => self.target.write_zeroes(offset, bytes),
            Space::Keep => self.target.allocate_zeroes(offset, bytes),
        };
        self.complete(done, durability)
    }

    fn status(&self, offset: u64, bytes: u64, runs_max: usize) -> Result<Vec<StatusRun>> {
        self.check(offset, bytes)?;
        let (mut runs, mut at, end) = (Vec::new(), offset, offset + bytes);
        while at < end {
            let data = self.target.next_data(at).min(end);
            let (bytes, hole) =
                if data > at { (data - at, true) } else { ((end - at).min(HOLE_STEP_BYTES), false) };
            push_run(
                &mut runs,
                StatusRun { bytes, status: Status { zero: hole, hole, dirty: false, local: true } },
            );
            if runs.len() > runs_max {
                runs.truncate(runs_max);
                break;
            }
            at += bytes;
        }
        Ok(runs)
    }

    fn zeroes_fast(&self) -> bool {
        // A file system punches holes; a device may have to write zeros.
        !self.target.is_device()
    }

    fn close(&self) -> Result<()> {
        self.flush()?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk(folder: &tempfile::TempDir) -> RawDisk {
        RawDisk::open(&folder.path().join("disk"), Some(4 * MIB)).unwrap()
    }

    #[test]
    fn what_was_written_is_read_and_holes_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        disk.write(MIB, &[7; 8192], Durability::Durable).unwrap();
        disk.write_zeroes(MIB, 4096, Space::Free, Durability::Cached).unwrap();
        let mut bytes = [1; 8192];
        disk.read(MIB, &mut bytes).unwrap();
        assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..].iter().all(|&byte| byte == 7));
        let runs = disk.status(0, 4 * MIB, 100).unwrap();
        assert_eq!(runs.iter().map(|run| run.bytes).sum::<u64>(), 4 * MIB);
        assert!(runs[0].status.hole && runs.iter().any(|run| !run.status.hole));
        assert_eq!(disk.status(0, 4 * MIB, 1).unwrap().len(), 1);
    }

    #[test]
    fn what_is_read_at_once_is_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        disk.write(MIB, &[7; 8192], Durability::Cached).unwrap();
        let mut bytes = [1; 8192];
        // Not every file system supports reads from the page cache only.
        if disk.read_now(MIB, &mut bytes).unwrap() {
            assert_eq!(bytes, [7; 8192]);
        }
        assert_eq!(disk.read_now(4 * MIB, &mut bytes).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn zeros_may_keep_their_space() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        disk.write(0, &[7; 65536], Durability::Cached).unwrap();
        disk.write_zeroes(0, 65536, Space::Keep, Durability::Durable).unwrap();
        let mut bytes = [1; 65536];
        disk.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        let allocated = std::fs::metadata(folder.path().join("disk")).unwrap();
        assert!(std::os::unix::fs::MetadataExt::blocks(&allocated) >= 128);
    }

    #[test]
    fn nothing_is_served_behind_the_end_or_after_closing() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk(&folder);
        assert_eq!(
            disk.write(4 * MIB, &[0; 512], Durability::Cached).unwrap_err().kind(),
            ErrorKind::Invalid
        );
        disk.close().unwrap();
        assert_eq!(disk.read(0, &mut [0; 512]).unwrap_err().kind(), ErrorKind::Refused);
    }
}
