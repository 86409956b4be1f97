//! The file of an object. Appends go past the page cache where they can: new pages cost more than all else that is done
//! with what is appended (docs/notes/cluster.md). Reads go through it.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use base::{Error, Result};
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::buffers::ALIGN;

/// Space is laid out in steps of this many bytes, so that components that grow at the same time stay contiguous.
const LAYOUT_STEP_BYTES: u64 = 8 << 20;
const LAYOUT_STEP_BYTES_MIN: u64 = 256 << 10;

/// A file of an object.
#[derive(Debug)]
pub(super) struct ObjectFile {
    file: File,
    /// The same file past the page cache, if it grows and its filesystem allows that.
    direct: Option<File>,
    /// The folder, until it was synced: the file is new.
    folder: Mutex<Option<File>>,
}

impl ObjectFile {
    /// A new, empty file in `folder`.
    pub(super) fn create(path: &Path, folder: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let folder = Mutex::new(Some(File::open(folder)?));
        Ok(Self::new(file, Some(path), folder))
    }

    /// A file that exists; one that `grows` is opened for appends, too.
    pub(super) fn open(path: &Path, grows: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self::new(file, grows.then_some(path), Mutex::new(None)))
    }

    fn new(file: File, grows: Option<&Path>, folder: Mutex<Option<File>>) -> Self {
        // The kernel knows one reader of each file, the device all of them.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("flags are small");
        let open = |path| OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        Self { file, direct: grows.and_then(open), folder }
    }

    /// Its length; 0 if that can't be told.
    pub(super) fn bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.len())
    }

    /// Writes behind what is there.
    pub(super) fn append(&self, content: &[u8], at: u64) -> io::Result<()> {
        let fits = at.is_multiple_of(ALIGN as u64)
            && content.len().is_multiple_of(ALIGN)
            && content.as_ptr().align_offset(ALIGN) == 0;
        if let Some(direct) = self.direct.as_ref().filter(|_| fits) {
            match direct.write_all_at(content, at) {
                // Disks with longer blocks, and filesystems that allow it only at the first look.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                done => return done,
            }
        }
        self.file.write_all_at(content, at)
    }

    /// Writes over what is there.
    pub(super) fn write(&self, content: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(content, at)
    }

    /// Makes its content durable.
    pub(super) fn sync_content(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Makes its content and its name durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.sync_content().map_err(|error| Error::from_io("sync an object", error))?;
        let mut folder = self.folder.lock();
        if let Some(new) = folder.as_ref() {
            new.sync_all().map_err(|error| Error::from_io("sync a folder of objects", error))?;
            *folder = None;
        }
        Ok(())
    }

    /// Reads `bytes` bytes from `at`. Returns fewer at the end of the file, and where the disk can't read.
    pub(super) fn read(&self, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut content = Vec::with_capacity(bytes);
        while content.len() < bytes {
            let from = at + content.len() as u64;
            match rustix::io::pread(&self.file, spare_capacity(&mut content), from) {
                Ok(0) | Err(Errno::IO) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(content)
    }

    /// Whether the first and the last byte of `range` can be read without the disk. Memory may lose them any time.
    pub(super) fn is_in_memory(&self, range: &Range<u64>) -> bool {
        let is_there = |at| {
            let mut byte = [0];
            let buffer = &mut [IoSliceMut::new(&mut byte)];
            rustix::io::preadv2(&self.file, buffer, at, ReadWriteFlags::NOWAIT) == Ok(1)
        };
        is_there(range.start) && is_there(range.end.max(1) - 1)
    }

    /// Has the kernel read `range` into memory.
    pub(super) fn read_ahead(&self, range: &Range<u64>) {
        // Who reads it later waits for the disk if that fails.
        let bytes = NonZeroU64::new(range.end - range.start);
        let _ = rustix::fs::fadvise(&self.file, range.start, bytes, Advice::WillNeed);
    }

    /// Lays out space for the first `end` bytes, and some more, where `laid_out` bytes have it.
    pub(super) fn lay_out(&self, laid_out: &mut u64, end: u64) -> io::Result<()> {
        if end <= *laid_out {
            return Ok(());
        }
        // A short object takes little more than it needs, a long one is laid out in long pieces.
        let step = (end / 4).next_power_of_two().clamp(LAYOUT_STEP_BYTES_MIN, LAYOUT_STEP_BYTES);
        let to = end.next_multiple_of(step);
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, *laid_out, to - *laid_out) {
            Ok(()) => *laid_out = to,
            // Not every filesystem can; then the write itself takes the space.
            Err(Errno::OPNOTSUPP) => *laid_out = end,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Gives back what was laid out behind the first `bytes` bytes.
    pub(super) fn trim(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}
