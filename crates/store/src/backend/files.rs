//! What lies in a folder under the name of a record or an object: read and put right without waiting for anything that
//! is no file. Opening a FIFO would wait for its writer, for ever; `O_NONBLOCK` opens it at once, and then it is seen
//! for what it is. open(2), fifo(7).

use std::fs::File;
use std::io::ErrorKind as Io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::path::Path as Location;
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};

use crate::backend::scrubs::FileStamp;

/// What is set aside keeps its name, with this behind it.
pub(crate) const ASIDE: &str = "damaged";

/// How often something is set aside from one place.
const ASIDE_MAX: u32 = 1000;

/// What the file `name` in `root` holds. `NotFound` if there is none, `Corrupt` if it is longer than `bytes_max` or no
/// file, before memory is taken.
pub(crate) fn read(root: &Path, name: &str, bytes_max: u64) -> Result<Bytes> {
    let (file, bytes) = open(root, name, OFlags::RDONLY)?;
    if bytes > bytes_max {
        let text = format!("`{name}` has {bytes} bytes, more than the {bytes_max} that it could have");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    read_open(&file, bytes).map_err(|error| Error::from_io(format!("read `{name}`"), error))
}

/// The length in bytes of what lies under `name`: 0 of what is no file, `None` if nothing is there, or a folder.
pub(crate) fn size(root: &Path, name: &str) -> Result<Option<u64>> {
    match std::fs::metadata(root.join(name)) {
        Ok(found) if found.is_dir() => Ok(None),
        Ok(found) => Ok(Some(if found.is_file() { found.len() } else { 0 })),
        Err(error) if matches!(error.kind(), Io::NotFound | Io::NotADirectory) => Ok(None),
        Err(error) => Err(Error::from_io(format!("look for `{name}`"), error)),
    }
}

/// What tells the file `name` from the same file after a change. None if there is none.
pub(crate) fn stamp(root: &Path, name: &str) -> Option<FileStamp> {
    let found = std::fs::metadata(root.join(name)).ok().filter(std::fs::Metadata::is_file)?;
    let changed = u64::try_from(found.ctime()).ok()?.checked_mul(1_000_000_000)?;
    let changed_ns = changed.checked_add(u64::try_from(found.ctime_nsec()).ok()?)?;
    Some(FileStamp { inode: found.ino(), bytes: found.len(), changed_ns })
}

/// Writes `bytes` over what the file `name` holds, which has the same length and differs in one byte: whoever reads it
/// meanwhile finds it as it was or as it will be. A file that is deleted meanwhile stays deleted.
pub(crate) fn renew(root: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let failed = |error| Error::from_io(format!("put `{name}` right"), error);
    let (file, _) = match open(root, name, OFlags::WRONLY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    file.write_all_at(bytes, 0).and_then(|()| file.sync_all()).map_err(failed)
}

/// Calls `each` for the path of all that lies below the folder `name` and is no folder, files or not. Temporary files
/// of writes (`<name>#<n>`) are passed over.
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

/// Takes away what lies under `name` and can't be replaced by a file: a folder is set aside with all that is in it.
pub(crate) fn make_way_for(root: &Path, name: &str) -> Result<()> {
    let path = root.join(name);
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            make_way(&path).map_err(|error| Error::from_io(format!("make way for `{name}`"), error))
        }
        _ => Ok(()),
    }
}

/// Takes away what lies at `path`.
pub(crate) fn make_way(path: &Path) -> std::io::Result<()> {
    if !path.symlink_metadata()?.is_dir() {
        return std::fs::remove_file(path);
    }
    let aside = |count: u32| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{ASIDE}{}", if count == 0 { String::new() } else { count.to_string() }));
        aside
    };
    // What was set aside before stays.
    let free = (0..ASIDE_MAX).map(aside).find(|aside| Path::new(aside).symlink_metadata().is_err());
    std::fs::rename(path, free.ok_or(Io::AlreadyExists)?)
}

/// The file `name`, and its length in bytes.
fn open(root: &Path, name: &str, how: OFlags) -> Result<(File, u64)> {
    let no_file = || Error::new(ErrorKind::Corrupt, format!("`{name}` is damaged: it is no file"));
    let path = root.join(name);
    let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags, Mode::empty()).map(File::from);
    let file = opened.map_err(|error| {
        // A socket can't be opened at all, a folder not to be written.
        let is_other = std::fs::metadata(&path).is_ok_and(|found| !found.is_file());
        if is_other { no_file() } else { Error::from_io(format!("read `{name}`"), error) }
    })?;
    let found = file.metadata().map_err(|error| Error::from_io(format!("read `{name}`"), error))?;
    if found.is_file() { Ok((file, found.len())) } else { Err(no_file()) }
}

/// Reads what an open file holds by one system call, into memory that is not cleared before. `object_store` streams in
/// pieces of 8 KiB, and `read_to_end` would begin with as little.
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
