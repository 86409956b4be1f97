//! Reads and repairs the files of a folder, without blocking on anything that is not a regular file. Opening a FIFO
//! would block until a writer opens it, perhaps for ever; with `O_NONBLOCK` it opens at once, and its type can be
//! checked. See open(2), fifo(7).

use std::fs::File;
use std::io::ErrorKind as Io;
use std::num::NonZero;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::path::Path as Location;
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, Mode, OFlags};

use crate::backend::scrubs::FileStamp;

/// Suffix of the name of a folder that was set aside.
pub(crate) const ASIDE: &str = "damaged";

/// How often something can be set aside at one path.
const ASIDE_MAX: u32 = 1000;

/// The content of the file `name` in `root`. `NotFound` if there is none; `Corrupt` if it is not a file, or longer
/// than `bytes_max`, which is checked before memory is allocated.
pub(crate) fn read(root: &Path, name: &str, bytes_max: u64) -> Result<Bytes> {
    let (file, bytes) = open(root, name, OFlags::RDONLY)?;
    if bytes > bytes_max {
        let text = format!("`{name}` has {bytes} bytes, more than the {bytes_max} that it could have");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    read_open(&file, bytes).map_err(|error| Error::from_io(format!("read `{name}`"), error))
}

/// Lets the kernel begin to read the file `name` into its page cache, and does not wait for it. Nothing happens if that
/// is not possible: whoever reads the file learns why.
pub(crate) fn read_ahead(root: &Path, name: &str) {
    if let Ok((file, bytes)) = open(root, name, OFlags::RDONLY) {
        let _ = rustix::fs::fadvise(&file, 0, NonZero::new(bytes), Advice::WillNeed);
    }
}

/// The length in bytes of the file `name`: 0 if it is neither file nor folder, `None` if it does not exist or is a
/// folder.
pub(crate) fn size(root: &Path, name: &str) -> Result<Option<u64>> {
    match std::fs::metadata(root.join(name)) {
        Ok(found) if found.is_dir() => Ok(None),
        Ok(found) => Ok(Some(if found.is_file() { found.len() } else { 0 })),
        Err(error) if matches!(error.kind(), Io::NotFound | Io::NotADirectory) => Ok(None),
        Err(error) => Err(Error::from_io(format!("look for `{name}`"), error)),
    }
}

/// Inode, length and ctime of the file `name`, which show whether it has changed. `None` if there is no such file.
pub(crate) fn stamp(root: &Path, name: &str) -> Option<FileStamp> {
    let found = std::fs::metadata(root.join(name)).ok().filter(std::fs::Metadata::is_file)?;
    let changed = u64::try_from(found.ctime()).ok()?.checked_mul(1_000_000_000)?;
    let changed_ns = changed.checked_add(u64::try_from(found.ctime_nsec()).ok()?)?;
    Some(FileStamp { inode: found.ino(), bytes: found.len(), changed_ns })
}

/// Overwrites the file `name` with `bytes`, which have the same length and differ in one byte. So a concurrent reader
/// sees either the old or the new content. A file that is deleted at the same time stays deleted.
pub(crate) fn renew(root: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let failed = |error| Error::from_io(format!("put `{name}` right"), error);
    let (file, _) = match open(root, name, OFlags::WRONLY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    file.write_all_at(bytes, 0).and_then(|()| file.sync_all()).map_err(failed)
}

/// Calls `each` with the path of everything below the folder `name` except folders, whether it is a regular file or
/// not. Temporary files of writes (`<name>#<n>`) are skipped.
pub(crate) fn each(root: &Path, name: &str, each: &mut dyn FnMut(Location)) -> Result<()> {
    let mut waiting = vec![name.to_owned()];
    while let Some(name) = waiting.pop() {
        let failed = |error| Error::from_io(format!("list `{name}`"), error);
        let entries = match std::fs::read_dir(root.join(&name)) {
            Err(error) if matches!(error.kind(), Io::NotFound | Io::NotADirectory) => continue,
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Some(last) = entry.file_name().to_str().filter(|last| !last.contains('#')).map(str::to_owned)
            else {
                continue;
            };
            let name = format!("{name}/{last}");
            match entry.file_type().map_err(failed)?.is_dir() {
                true => waiting.push(name),
                false => Location::parse(name).iter().for_each(|path| each(path.clone())),
            }
        }
    }
    Ok(())
}

/// Makes the path `name` free for a new file: if there is a folder, it is set aside with everything in it.
pub(crate) fn make_way_for(root: &Path, name: &str) -> Result<()> {
    let path = root.join(name);
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            make_way(&path).map_err(|error| Error::from_io(format!("make way for `{name}`"), error))
        }
        _ => Ok(()),
    }
}

/// Removes the file at `path`, or sets the folder at `path` aside.
pub(crate) fn make_way(path: &Path) -> std::io::Result<()> {
    if !path.symlink_metadata()?.is_dir() {
        return std::fs::remove_file(path);
    }
    let aside = |count: u32| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{ASIDE}{}", if count == 0 { String::new() } else { count.to_string() }));
        aside
    };
    // Folders that were set aside before are kept.
    let free = (0..ASIDE_MAX).map(aside).find(|aside| Path::new(aside).symlink_metadata().is_err());
    std::fs::rename(path, free.ok_or(Io::AlreadyExists)?)
}

/// Opens the regular file `name`; returns it with its length in bytes. `Corrupt` if it is not a regular file.
fn open(root: &Path, name: &str, how: OFlags) -> Result<(File, u64)> {
    let no_file = || Error::new(ErrorKind::Corrupt, format!("`{name}` is damaged: it is not a file"));
    let path = root.join(name);
    let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags, Mode::empty()).map(File::from);
    let file = opened.map_err(|error| {
        // A socket can't be opened at all, and a folder can't be opened for writing.
        let is_other = std::fs::metadata(&path).is_ok_and(|found| !found.is_file());
        if is_other { no_file() } else { Error::from_io(format!("read `{name}`"), error) }
    })?;
    let found = file.metadata().map_err(|error| Error::from_io(format!("read `{name}`"), error))?;
    if found.is_file() { Ok((file, found.len())) } else { Err(no_file()) }
}

/// Reads `bytes` bytes of an open file with one system call (more only after a short read), into memory that is not
/// zeroed first. `object_store` would read in pieces of 8 KiB, and `read_to_end` starts with small reads too.
pub(crate) fn read_open(file: &File, bytes: u64) -> std::io::Result<Bytes> {
    let length = usize::try_from(bytes).map_err(|_| Io::FileTooLarge)?;
    let mut content = Vec::with_capacity(length);
    while content.len() < length {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(file, spare_capacity(&mut content)))?;
        if read == 0 {
            break;
        }
    }
    content.truncate(length);
    Ok(content.into())
}
