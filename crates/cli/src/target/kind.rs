//! What kind of target a path names.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use base::limits::SECTOR_BYTES;
use disk::{Geometry, Place};
use image::Manifest;

use crate::args::{FileForm, Writing};
use crate::exit::{Exit, Failure};
use crate::source::export;

/// The target that stands for standard output.
pub(crate) const STDOUT: &str = "-";
/// A target that drops all data, to test a network or to measure.
const NULL: &str = "null:";

/// Whether `path` is the target that drops all data.
pub(crate) fn is_null(path: &Path) -> bool {
    path.as_os_str() == NULL
}

/// Whether `path` is a disk, or a file that will hold one byte by byte.
pub(crate) fn is_plain(path: &Path, writing: &Writing) -> bool {
    !is_null(path) && export(path).is_none() && writing.form == FileForm::Raw
}

/// Whether `path` is a block device.
pub(crate) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// The refusal of the target `name` at `place` if `version` was captured from there.
pub(crate) fn is_source(name: &str, version: &Manifest, place: &Place) -> Option<Failure> {
    let text = || format!("{name} is what {}@{} was captured from", version.image, version.number);
    version.came_from(place).then(|| Failure::new(Exit::Refused, text()))
}

/// Adds how such a target is meant nevertheless.
pub(crate) fn back_there(failure: Failure) -> Failure {
    failure.hint("--onto-source puts it back there; nothing was written")
}

/// How large a file or volume that is made becomes, in bytes.
pub(crate) fn wanted_bytes(version: &Manifest, writing: &Writing) -> u64 {
    writing.size.unwrap_or(0).max(geometry(version).size_bytes)
}

/// The geometry of the disk of `version`.
pub(crate) fn geometry(version: &Manifest) -> Geometry {
    Geometry {
        size_bytes: version.size_sectors * SECTOR_BYTES,
        logical_sector_bytes: version.logical_sector_bytes,
        physical_sector_bytes: version.physical_sector_bytes,
    }
}
