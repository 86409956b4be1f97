//! Targets that begin as copies of what this host holds, and logical volumes that are to be made.

use std::path::{Path, PathBuf};

use disk::logical_volume::LogicalVolume;
use image::Manifest;

use super::kind::{geometry, is_device, is_null, wanted_bytes};
use crate::args::{FileForm, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::source::export;

/// The logical volume that `path` is to become.
pub(super) fn new_volume(path: &Path, writing: &Writing) -> Option<LogicalVolume> {
    let copies = writing.copy_of.as_deref().is_some_and(is_device) && writing.form == FileForm::Raw;
    LogicalVolume::at(path).filter(|_| (writing.create_volume || copies) && !path.exists())
}

/// Checks that `path` can begin as a copy of `--copy-of`.
pub(super) fn check(path: &Path, version: &Manifest, writing: &Writing) -> Result<()> {
    let Some(base) = &writing.copy_of else {
        if let Some(volume) = new_volume(path, writing) {
            volume.check(wanted_bytes(version, writing))?;
        }
        return Ok(());
    };
    let refuse = |text: &str| Err(Failure::new(Exit::Usage, format!("--copy-of: {text}")));
    if is_null(path) || export(path).is_some() || export(base).is_some() {
        return refuse("base and target are files or logical volumes of this machine");
    }
    let is_overlay = writing.form == FileForm::Qcow2;
    disk::second_copy::check_base(base, path, is_overlay)?;
    if is_overlay || (writing.resume && path.exists()) {
        return Ok(());
    }
    if is_device(base) {
        let Some(volume) = new_volume(path, writing) else {
            return refuse("a snapshot is a new logical volume, /dev/GROUP/NAME");
        };
        if writing.size.is_some() {
            return refuse("a snapshot has the size of its base: leave out --size");
        }
        return Ok(volume.check_snapshot(base, geometry(version).size_bytes)?);
    }
    if is_device(path) || new_volume(path, writing).is_some() {
        return refuse("a device shares no blocks with a file; --reuse looks for what it holds itself");
    }
    match disk::container_of(&disk::open_source(base)?) {
        None => Ok(()),
        Some(found) => refuse(&format!(
            "`{}` is {}, which a raw file can't share: --as qcow2 makes an overlay",
            base.display(),
            found.name
        )),
    }
}

/// Those of `targets` that are logical volumes to be made.
pub(crate) fn new_volumes(targets: &[PathBuf], writing: &Writing) -> Vec<LogicalVolume> {
    targets.iter().filter_map(|path| new_volume(path, writing)).collect()
}

/// Makes `path` a copy of `--copy-of`, or the logical volume that is to be made. Returns whether it made a volume.
pub(super) fn begin(path: &Path, version: &Manifest, writing: &Writing) -> Result<bool> {
    let volume = new_volume(path, writing);
    match (&writing.copy_of, volume) {
        (_, _) if writing.form != FileForm::Raw || (writing.resume && path.exists()) => Ok(false),
        (Some(base), Some(volume)) => Ok(volume.snapshot(base).map(|()| true)?),
        (Some(base), None) => Ok(disk::second_copy::share_blocks(base, path).map(|()| false)?),
        (None, Some(volume)) => Ok(volume.create(wanted_bytes(version, writing)).map(|()| true)?),
        (None, None) => Ok(false),
    }
}
