//! Names the files whose content lies in given sectors of a filesystem, as the kernel tells it (`FIEMAP`). The
//! filesystem is mounted read-only over a read-only loop device, and without replaying its journal: nothing is written.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, ExtentSet, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::ioctl::places_of;
use crate::tools::{self, Attached, Mounted};

/// The filesystems that tell where a file lies on their device, and the options that mount them without a write. Btrfs
/// tells it in numbers of its own.
const KNOWN: &[(&str, &str)] =
    &[("ext2", "ro"), ("ext3", "ro,noload"), ("ext4", "ro,noload"), ("xfs", "ro,norecovery,nouuid")];

/// A file or folder that has content in the sectors that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileThere {
    /// Its path from the filesystem's root.
    pub path: PathBuf,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// How many of its bytes lie there, in whole sectors.
    pub bytes: u64,
}

/// The files and folders of the filesystem `kind` in the sectors `part` of the disk at `path` that have content in
/// `sectors`, counted from the start of the filesystem; by path. `Unsupported` if this kind of filesystem does not tell
/// where its files lie; `Refused` if this process is not root's or a tool is missing; `Io` if it can't be mounted.
pub fn files_at(
    path: &Path,
    part: Extent,
    sector_bytes: u32,
    kind: &str,
    sectors: &ExtentSet,
) -> Result<Vec<FileThere>> {
    let Some((kind, options)) = KNOWN.iter().find(|(known, _)| *known == kind) else {
        let text = format!("{kind} does not tell where its files lie");
        return Err(Error::new(ErrorKind::Unsupported, text));
    };
    tools::check("to name files", &["losetup", "mount", "umount"])?;
    let device = Attached::to_read(path, part, sector_bytes)?;
    let mounted = Mounted::at(device.path(), kind, &format!("{options},nosuid,nodev,noexec"))?;
    let found = walk(mounted.path(), sectors);
    mounted.end()?;
    device.end()?;
    found
}

/// Looks at all files and folders below `root`, on its filesystem only.
fn walk(root: &Path, sectors: &ExtentSet) -> Result<Vec<FileThere>> {
    let failed =
        |what: &str, error| Error::from_io(format!("{what} a folder of a mounted filesystem"), error);
    let filesystem = root.symlink_metadata().map_err(|error| failed("look at", error))?.dev();
    let (mut found, mut waiting) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = waiting.pop() {
        // What can't be looked at, as in a damaged filesystem, has no name; the rest has.
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.dev() != filesystem || !(about.is_dir() || about.is_file()) {
            continue;
        }
        if about.is_dir() {
            waiting
                .extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        let bytes = bytes_there(&path, &about, sectors)?;
        if bytes > 0 {
            let path = Path::new("/").join(path.strip_prefix(root).unwrap_or(&path));
            found.push(FileThere { path, is_folder: about.is_dir(), bytes });
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// How many bytes of the content of `path` lie in `sectors`.
fn bytes_there(path: &Path, about: &Metadata, sectors: &ExtentSet) -> Result<u64> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path);
    let places = match opened.as_ref().map(places_of) {
        Ok(Ok(places)) => places,
        // XFS tells nothing of folders.
        Ok(Err(Errno::OPNOTSUPP | Errno::NOTTY)) if about.is_dir() => return Ok(0),
        Ok(Err(Errno::OPNOTSUPP)) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the filesystem does not tell where its files lie",
            ));
        }
        Ok(Err(_)) | Err(_) => return Ok(0),
    };
    let in_sectors = |(offset, len): (u64, u64)| {
        let place = Extent::between(offset / SECTOR_BYTES, (offset + len).div_ceil(SECTOR_BYTES));
        sectors.within(place).map(Extent::len_bytes).sum::<u64>()
    };
    Ok(places.into_iter().map(in_sectors).sum())
}
