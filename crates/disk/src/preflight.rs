//! Checks a target before the first byte is written to it. Nothing here writes.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base::units::show_bytes;
use base::{Error, ErrorKind, Result, Subject};
use rustix::fs::OFlags;

use crate::Geometry;
use crate::file::{Identity, device_geometry, identify, io_error};
use crate::in_use::{is_read_only, use_of_device, use_of_file};

/// Checks that an image of geometry `needed` may be written to `target`, without writing anything. `source` is the file
/// or device from which the image is captured at the same time, if there is one. A missing or short file is accepted,
/// because [`crate::open_target`] creates and grows files. `Refused`, with the reason, if the target is too small, has
/// another sector size, is read-only, mounted, otherwise in use, or the source itself; `NotFound` if its folder is
/// missing; `Io`.
pub fn preflight(target: &Path, needed: Geometry, source: Option<Identity>) -> Result<()> {
    let identity = match identify(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return check_parent(target),
        other => other?,
    };
    if source == Some(identity) {
        return Err(refused(target, "is the source itself"));
    }
    let in_use = match identity {
        Identity::File { .. } => use_of_file(identity)?,
        Identity::Device { rdev } => use_of_device(rdev, source)?,
    };
    if let Some(how) = in_use {
        return Err(refused(target, &how));
    }
    match identity {
        Identity::File { .. } => check_writable(target, OFlags::empty()),
        Identity::Device { rdev } => {
            check_geometry(target, needed)?;
            // Opening a read-only device for writing may succeed, so ask sysfs first.
            if is_read_only(rdev) {
                return Err(refused(target, "is read-only"));
            }
            check_writable(target, OFlags::EXCL)
        }
    }
}

fn refused(target: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("`{}` {why}", target.display()))
}

/// Checks a missing target: it can be created if its folder exists, and is not the one of devices.
fn check_parent(target: &Path) -> Result<()> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = parent.canonicalize().map_err(|e| io_error("look at the folder", parent, e))?;
    // A file in the folder of devices lies in memory. Who names one means a disk, and mistyped its name.
    if folder.starts_with("/dev") && !folder.starts_with("/dev/shm") {
        return Err(refused(target, "does not exist, and `/dev` is not a place for a file"));
    }
    Ok(())
}

/// Opens the target for writing, which changes nothing. With `EXCL` this fails if the kernel itself uses the device.
fn check_writable(target: &Path, flags: OFlags) -> Result<()> {
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(target);
    opened.map(drop).map_err(|e| match e.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::BUSY) => refused(target, "is in use"),
        Some(rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            refused(target, "is read-only, or you may not write it")
        }
        _ => io_error("open", target, e),
    })
}

/// Checks size and sector size of a device.
fn check_geometry(target: &Path, needed: Geometry) -> Result<()> {
    let file = std::fs::File::open(target).map_err(|e| io_error("open", target, e))?;
    let found = device_geometry(&file, target)?;
    if found.size_bytes < needed.size_bytes {
        let (has, wants) = (show_bytes(found.size_bytes), show_bytes(needed.size_bytes));
        let (bytes, least) = (found.size_bytes, needed.size_bytes);
        let why =
            format!("is too small: it has {has} ({bytes} bytes), the image needs {wants} ({least} bytes)");
        return Err(refused(target, &why).about(Subject::Target));
    }
    if found.logical_sector_bytes != needed.logical_sector_bytes {
        let (has, wants) = (found.logical_sector_bytes, needed.logical_sector_bytes);
        return Err(refused(target, &format!("has logical sectors of {has} bytes, the image of {wants}")));
    }
    Ok(())
}
