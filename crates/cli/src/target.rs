//! The target of an install or a fetch: everything that must hold before its first byte is written.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use disk::device::NullTarget;
use disk::{Geometry, TargetOptions, WriteAt};
use image::{FreeSpace, InstallOptions, Manifest};

use crate::args::{Effort, Free, Global, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::prompt;

/// A target that takes everything and keeps nothing, to try a network or to measure.
const NULL: &str = "null:";

/// Whether nothing is to be kept.
pub fn is_null(path: &Path) -> bool {
    path.as_os_str() == NULL
}

/// Checks that `version` may be written to `path`, without writing anything.
pub fn check(path: &Path, version: &Manifest) -> Result<()> {
    if is_null(path) {
        return Ok(());
    }
    disk::preflight(path, geometry(version), None).map_err(|error| {
        let failure = Failure::from(error);
        if failure.exit == Exit::Refused { failure.hint("nothing was written") } else { failure }
    })
}

/// Checks the same of what has to be a block device.
pub fn check_device(path: &Path, version: &Manifest) -> Result<()> {
    if is_device(path) {
        return check(path, version);
    }
    Err(Failure::new(Exit::Refused, format!("`{}` is no block device", path.display()))
        .hint("without --device the disk's bytes are kept in its folder"))
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Asks before a disk is overwritten, unless told not to.
pub fn confirm(path: &Path, version: &Manifest, global: &Global) -> Result<()> {
    if !is_device(path) || global.yes {
        return Ok(());
    }
    let (image, number) = (&version.image, version.number);
    prompt::confirm(&format!("all data on {} will be overwritten by {image}@{number}", path.display()))
}

/// Opens the target for writing.
pub fn open(path: &Path, version: &Manifest) -> Result<Arc<dyn WriteAt>> {
    let geometry = geometry(version);
    if is_null(path) {
        return Ok(Arc::new(NullTarget::new(geometry)));
    }
    let options = TargetOptions {
        create_size: Some(geometry.size_bytes),
        file_sector_bytes: Some(geometry.logical_sector_bytes),
        force: false,
    };
    Ok(Arc::new(disk::open_target(path, &options)?))
}

/// What the options say about writing to `path`.
pub fn options(path: &Path, writing: &Writing, effort: &Effort) -> InstallOptions {
    InstallOptions {
        free: match writing.free {
            Free::Skip => FreeSpace::Skip,
            Free::Zero => FreeSpace::Zero,
            Free::Discard => FreeSpace::Discard,
        },
        // Nothing can be read back from nowhere.
        verify: !writing.no_verify && !is_null(path),
        resume: writing.resume && !is_null(path),
        decode: true,
        threads: effort.threads.map_or(0, Into::into),
        memory_bytes: effort.memory,
    }
}

/// One line for people: what would be written where.
pub fn plan(path: &Path, version: &Manifest) -> String {
    let (image, number) = (&version.image, version.number);
    let (content, size) =
        (show_bytes(version.statistics.data_bytes), show_bytes(geometry(version).size_bytes));
    format!(
        "would do: write {image}@{number} ({content} of data on a disk of {size}) to {}\n",
        path.display()
    )
}

fn geometry(version: &Manifest) -> Geometry {
    Geometry {
        size_bytes: version.size_sectors * SECTOR_BYTES,
        logical_sector_bytes: version.logical_sector_bytes,
        physical_sector_bytes: version.physical_sector_bytes,
    }
}
