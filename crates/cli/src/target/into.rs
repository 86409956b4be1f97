//! One partition of a disk or raw file as the target, and the place that its boot sectors name.

use std::path::Path;
use std::sync::Arc;

use base::Extent;
use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use disk::{ReadAt as _, TargetOptions, Window, WriteAt};
use image::Manifest;

use super::kind::{STDOUT, back_there, geometry, is_null, is_plain, is_source};
use crate::args::Writing;
use crate::exit::{Exit, Failure, Result};
use crate::source::export;
use crate::ui::output::Output;

/// How to open a disk or file with a partition table: it keeps its size.
fn opening(version: &Manifest) -> TargetOptions {
    let file_sector_bytes = Some(version.logical_sector_bytes);
    TargetOptions { create_size: None, cut: false, file_sector_bytes, force: false, alone: false }
}

/// Where partition `number` of the disk at `path` lies. `Refused` if there is none, or if the table can't be relied on.
fn extent(path: &Path, version: &Manifest, number: u32) -> Result<Extent> {
    let found = || -> base::Result<Extent> {
        let disk = disk::open_source(path)?;
        let (has, needs) = (disk.geometry().logical_sector_bytes, version.logical_sector_bytes);
        if has != needs {
            let text =
                format!("`{}` has logical sectors of {has} bytes, the image of {needs}", path.display());
            return Err(base::Error::new(base::ErrorKind::Refused, text));
        }
        disk::partition_of(&disk, number)
    };
    found().map_err(|error| Failure::from(error).unwritten())
}

/// Refuses to put one partition of an image over the disk that it was captured from, with its table.
pub(crate) fn check_source_disk(path: &Path, whole: &Manifest, writing: &Writing) -> Result<()> {
    if is_null(path) || export(path).is_some() || writing.into.is_some() || !path.exists() {
        return Ok(());
    }
    let place = disk::place_of(path)?;
    let Some(failure) = is_source(&format!("`{}`", path.display()), whole, &place) else { return Ok(()) };
    if whole.disk.source.as_ref().is_some_and(|source| source.start_sector == place.start_sector) {
        return Err(failure.hint("--into NUMBER writes one partition of it; nothing was written"));
    }
    if writing.onto_source { Ok(()) } else { Err(back_there(failure)) }
}

/// Checks that `version` fits into partition `number` of the disk at `path`, and is of one partition itself.
pub(super) fn check(path: &Path, version: &Manifest, number: u32, writing: &Writing) -> Result<()> {
    if is_null(path) || export(path).is_some() || path.as_os_str() == STDOUT {
        return Err(Failure::new(Exit::Usage, "--into is for disks and raw files"));
    }
    if !is_of_one_volume(version) {
        let text = "the image is of a whole disk, --into takes one partition";
        return Err(Failure::new(Exit::Usage, text).hint("--partition takes one out of it"));
    }
    if writing.own.personal().is_any() {
        let text = "--into writes one partition: a machine's own takes the disk";
        return Err(Failure::new(Exit::Usage, text).hint("`diskcast personalize` changes it afterwards"));
    }
    let extent = extent(path, version, number)?;
    let (has, needs) = (extent.len_bytes(), geometry(version).size_bytes);
    let name = name(path, number);
    if has < needs {
        let text = format!(
            "{name} is too small: it has {} ({has} bytes), the image needs {} ({needs} bytes)",
            show_bytes(has),
            show_bytes(needs)
        );
        return Err(Failure::new(Exit::Refused, text).unwritten());
    }
    let mut place = disk::place_of(path)?;
    place.start_sector += extent.start;
    let source = is_source(&name, version, &place).filter(|_| !writing.onto_source);
    source.map_or(Ok(()), |failure| Err(back_there(failure)))
}

/// The partition in messages.
pub(super) fn name(path: &Path, number: u32) -> String {
    format!("partition {number} of {}", path.display())
}

/// Opens partition `number` for writing.
pub(super) fn open(path: &Path, version: &Manifest, number: u32) -> Result<Arc<dyn WriteAt>> {
    let extent = extent(path, version, number)?;
    let disk = Arc::new(disk::open_target(path, &opening(version))?);
    Ok(Arc::new(Window::new(disk, extent, name(path, number))?))
}

/// Whether the image is one volume, not a disk with a partition table.
pub(crate) fn is_of_one_volume(version: &Manifest) -> bool {
    let is_part = version.origin.start_sector > 0 || version.origin.disk_sectors > version.size_sectors;
    is_part || version.disk.table == disk::TableKind::None.as_str()
}

/// Corrects the number of sectors before the partition in the boot sectors of FAT and NTFS, if the image is one volume
/// and its target a partition.
pub(crate) fn set_place(path: &Path, version: &Manifest, writing: &Writing, output: Output) -> Result<()> {
    if !is_plain(path, writing) || !is_of_one_volume(version) {
        return Ok(());
    }
    let (at, start) = match writing.into {
        Some(number) => {
            let extent = extent(path, version, number)?;
            (extent.start, extent.start)
        }
        None => (0, disk::place_of(path)?.start_sector),
    };
    // What is no partition has no sectors before it, or nobody knows them.
    if start == 0 {
        return Ok(());
    }
    let unit = version.logical_sector_bytes;
    let start = u32::try_from(start * SECTOR_BYTES / u64::from(unit)).unwrap_or(u32::MAX);
    let changed = std::fs::OpenOptions::new().read(true).write(true).open(path).and_then(|file| {
        let volume = Extent::new(at, version.size_sectors);
        let changed = disk::position::set_hidden_sectors(&file, volume, unit, None, start)?;
        file.sync_all().map(|()| changed)
    });
    let changed = changed.map_err(|error| {
        base::Error::from_io(format!("correct the boot sectors on `{}`", path.display()), error)
    })?;
    if changed > 0 {
        output.note(&format!("its boot sectors name its new place now: sector {start}"));
    }
    Ok(())
}
