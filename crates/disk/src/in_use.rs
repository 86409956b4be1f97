//! Finds out whether a target is in use by a mount, swap space, a device mapper, a loop device or the source (proc(5),
//! Linux Documentation/ABI/testing/sysfs-block).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use base::Result;
use rustix::fs::{major, minor};

use crate::file::{Identity, identify};
use crate::mounts::{device_number, mounts, swaps};

/// How the device `rdev` or one of its partitions is in use, as a phrase that follows its name; `None` if it is not.
/// It is also in use if `source` is one of its partitions, or the disk that it is a partition of. `Io`.
pub(crate) fn use_of_device(rdev: u64, source: Option<Identity>) -> Result<Option<String>> {
    let folder = folder_of(rdev);
    let mut parts = vec![(String::new(), rdev, folder.clone())];
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some(part) = path.join("partition").exists().then(|| device_number(&path)).flatten() {
            parts.push((format!("has partition `{}`, which ", entry.file_name().display()), part, path));
        }
    }
    if let Some(Identity::Device { rdev: read }) = source {
        // In sysfs, the folder of a partition lies in the folder of its disk.
        let disk = fs::canonicalize(&folder).ok().and_then(|path| device_number(path.parent()?));
        if disk == Some(read) || parts.iter().any(|(_, part, _)| *part == read) {
            return Ok(Some("shares the disk with the source".to_owned()));
        }
    }
    let (mounts, swaps) = (mounts()?, swaps()?);
    for (whose, part, folder) in &parts {
        let identity = Identity::Device { rdev: *part };
        if let Some(mount) = mounts.iter().find(|mount| mount.is_of(*part)) {
            return Ok(Some(format!("{whose}is mounted at `{}`", mount.place.display())));
        }
        if swaps.contains(&identity) {
            return Ok(Some(format!("{whose}is used as swap space")));
        }
        if let Some(holder) = fs::read_dir(folder.join("holders")).into_iter().flatten().flatten().next() {
            return Ok(Some(format!("{whose}is in use by `{}`", holder.file_name().display())));
        }
        if let Some(over) = loops_over(identity).first().and_then(|folder| folder.file_name()) {
            return Ok(Some(format!("{whose}is in use by the loop device `{}`", over.display())));
        }
    }
    Ok(None)
}

/// Whether the device `rdev` is read-only. Opening it for writing may succeed even then.
pub(crate) fn is_read_only(rdev: u64) -> bool {
    let flag = format!("/sys/dev/block/{}:{}/ro", major(rdev), minor(rdev));
    fs::read_to_string(flag).is_ok_and(|flag| flag.trim() == "1")
}

/// How the file is in use, as a phrase that follows its name; `None` if it is not. `Io`.
pub(crate) fn use_of_file(identity: Identity) -> Result<Option<String>> {
    if swaps()?.contains(&identity) {
        return Ok(Some("is used as swap space".to_owned()));
    }
    let over = loops_over(identity);
    let over = over.first().and_then(|folder| folder.file_name());
    Ok(over.map(|name| format!("is in use by the loop device `{}`", name.display())))
}

/// The sysfs folders of the loop devices attached to the file or device `identity`.
pub(crate) fn loops_over(identity: Identity) -> Vec<PathBuf> {
    let folders = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_over = |folder: &PathBuf| {
        let Ok(path) = fs::read_to_string(folder.join("loop/backing_file")) else { return false };
        // A path of another mount namespace means nothing here, and a removed file has none: the kernel knows better.
        let by_path = identify(Path::new(path.trim_end_matches('\n'))).ok();
        by_path == Some(identity)
            || File::open(node_of(folder)).is_ok_and(|device| is_behind(&device, identity))
    };
    folders.filter(is_over).collect()
}

fn is_behind(device: &File, identity: Identity) -> bool {
    crate::ioctl::behind_loop(device) == Ok(identity)
}

/// The device that sysfs describes in `folder`.
pub(crate) fn node_of(folder: &Path) -> PathBuf {
    // In sysfs, `!` stands for a slash in a device's name.
    let name = folder.file_name().unwrap_or_default().to_string_lossy().replace('!', "/");
    Path::new("/dev").join(name)
}

/// The sysfs folder of the block device `rdev`: a symbolic link, which for a partition leads into its disk's folder.
pub(crate) fn folder_of(rdev: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev)))
}
