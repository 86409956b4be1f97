//! The target of an install or a fetch: everything that must hold before its first byte is written.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use disk::device::NullTarget;
use disk::{Geometry, TargetOptions, WriteAt};
use image::{Catalogue, FreeSpace, InstallOptions, Manifest, OldSignature};
use serde_json::json;

use crate::args::{Effort, Free, Global, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::output::Output;
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
pub fn open(path: &Path, version: &Manifest, writing: &Writing) -> Result<Arc<dyn WriteAt>> {
    if is_null(path) {
        return Ok(Arc::new(NullTarget::new(geometry(version))));
    }
    Ok(Arc::new(disk::open_target(path, &opening(version, writing))?))
}

fn opening(version: &Manifest, writing: &Writing) -> TargetOptions {
    let geometry = geometry(version);
    TargetOptions {
        create_size: Some(geometry.size_bytes),
        cut: !writing.keep_size,
        file_sector_bytes: Some(geometry.logical_sector_bytes),
        force: false,
    }
}

/// Says which signatures of what was on the target before lie in space that the version of `catalogue` leaves free, and
/// what becomes of them. Nothing is written.
pub fn show_old(
    path: &Path,
    version: &Manifest,
    catalogue: &Catalogue,
    writing: &Writing,
    output: Output,
) -> Result<()> {
    if is_null(path) {
        return Ok(());
    }
    let Some(target) = disk::look_at_target(path, &opening(version, writing))? else { return Ok(()) };
    let (has, image) = (target.geometry().size_bytes, geometry(version).size_bytes);
    // A file will be as long as the image, unless it may stay longer.
    let size = if is_device(path) || writing.keep_size { has.max(image) } else { image };
    let old = image::old_signatures(catalogue, &*target, size)?;
    show_signatures(&old, writing, output)
}

/// A line of JSON for each, or one for people for those of a kind.
pub fn show_signatures(old: &[OldSignature], writing: &Writing, output: Output) -> Result<()> {
    let keeps = writing.keep_signatures;
    if output.is_json() {
        return old.iter().try_for_each(|one| {
            let OldSignature { kind, partition, offset, len } = one;
            let record = json!({
                "type": "old_signature", "kind": kind, "partition": partition, "offset": offset, "len": len,
                "keep": keeps,
            });
            output.result(&record, String::new)
        });
    }
    let same = |a: &OldSignature, b: &OldSignature| (a.kind, a.partition) == (b.kind, b.partition);
    for group in old.chunk_by(same) {
        let OldSignature { kind, partition, offset, .. } = &group[0];
        let place = partition.map_or_else(|| "the disk".to_owned(), |number| format!("partition {number}"));
        let fate = if keeps { "stays" } else { "is to be erased" };
        let more =
            if group.len() > 1 { format!(" and at {} places more", group.len() - 1) } else { String::new() };
        output.note(&format!("old signature of {kind} on {place}, at byte {offset}{more}: {fate}"));
    }
    Ok(())
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
        keep_signatures: writing.keep_signatures,
        keep_gpt: writing.keep_gpt,
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
