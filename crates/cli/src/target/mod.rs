//! Checks, confirms and opens the target of an install or fetch.

mod copies;
mod draft;
mod into;
mod kind;
mod room;
mod several;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Subject;
use base::units::show_bytes;
pub(crate) use copies::new_volumes;
use disk::device::NullTarget;
use disk::logical_volume::LogicalVolume;
use disk::{Geometry, ReadAt, TargetOptions, WriteAt};
pub(crate) use draft::{Drafts, beginnings, is_begun};
use image::{Catalogue, FreeSpace, InstallOptions, Manifest, OldSignature, Reuse};
pub(crate) use into::{check_source_disk, is_of_one_volume, set_place};
pub(crate) use kind::{STDOUT, is_null, is_plain};
use kind::{back_there, geometry, is_device, is_source, wanted_bytes};
use mirror::nbd::{ExportAddress, NbdDisk};
pub(crate) use room::check_room;
use serde_json::json;
pub(crate) use several::{check_distinct, check_rule, list, resolve, resolve_all, texts};

use crate::args::{Effort, FileForm, Free, Global, Reuse as When, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::source::export;
use crate::ui::output::Output;
use crate::ui::prompt;

/// Opens the disk that an NBD server exports as `address`, if `version` fits on it.
fn open_export(address: &str, version: &Manifest) -> Result<NbdDisk> {
    let needs = geometry(version);
    let disk = NbdDisk::open(&ExportAddress::parse(address)?)?.with_sectors(needs.logical_sector_bytes);
    let has = disk.geometry();
    let why = if disk.is_read_only() {
        "its server allows no writes".to_owned()
    } else if has.size_bytes < needs.size_bytes {
        format!("it has {} bytes, the image needs {}", has.size_bytes, needs.size_bytes)
    } else {
        return Ok(disk);
    };
    Err(Failure::new(Exit::Refused, format!("`{address}` can't take the image: {why}"))
        .hint("nothing was written"))
}

/// Refuses what needs a file or a disk, when standard output is the target.
pub(crate) fn check_stream(writing: &Writing, effort: &Effort) -> Result<()> {
    let Writing { free, resume, grow, size, form, own, .. } = writing;
    let needs_disk = *free != Free::Skip
        || *resume
        || grow.is_some()
        || size.is_some()
        || *form != FileForm::Raw
        || writing.copy_of.is_some()
        || writing.create_volume
        || writing.into.is_some();
    if needs_disk || own.personal().is_any() || effort.disk_rate.is_some() {
        let text = "standard output gets the disk as it is: --free, --resume, --grow, --size, --as, --copy-of, --into, \
                    --create-volume, --disk-rate and a machine's own are for disks and files";
        return Err(Failure::new(Exit::Usage, text));
    }
    Ok(())
}

/// Refuses what `writing` asks for and the target at `path` can't have. Writes nothing.
pub(crate) fn check_form(path: &Path, writing: &Writing) -> Result<()> {
    let becomes_volume = copies::new_volume(path, writing).is_some();
    let is_file = !is_null(path) && export(path).is_none() && !is_device(path) && !becomes_volume;
    if writing.form != FileForm::Raw && !is_file {
        let text = format!("--as is for files: `{}` takes the disk as it is", path.display());
        return Err(Failure::new(Exit::Usage, text));
    }
    if writing.compress && writing.form != FileForm::Qcow2 {
        return Err(Failure::new(Exit::Usage, "--compress is for --as qcow2"));
    }
    if writing.compress && writing.resume {
        return Err(Failure::new(Exit::Usage, "a compressed file can't be resumed: leave out --resume"));
    }
    // It was made before the install was interrupted.
    let is_made = writing.create_volume && LogicalVolume::at(path).is_some();
    if writing.size.is_some() && !is_file && !becomes_volume && !is_made {
        return Err(Failure::new(
            Exit::Usage,
            format!("`{}` has its size: --size is for files", path.display()),
        ));
    }
    Ok(())
}

/// Checks that `version` may be written to `path`, without writing anything. The disk that it was captured from is
/// refused unless `onto_source` is set.
pub(crate) fn check(path: &Path, version: &Manifest, writing: &Writing) -> Result<()> {
    if let Some(number) = writing.into {
        into::check(path, version, number, writing)?;
    }
    copies::check(path, version, writing).map_err(Failure::unwritten)?;
    if copies::new_volume(path, writing).is_some() {
        return Ok(());
    }
    check_existing(path, version, writing.onto_source || writing.into.is_some())
}

/// The same for a target that begins with what it holds.
fn check_existing(path: &Path, version: &Manifest, onto_source: bool) -> Result<()> {
    if is_null(path) {
        return Ok(());
    }
    if let Some(address) = export(path) {
        return open_export(address, version).map(drop);
    }
    disk::preflight(path, geometry(version), None).map_err(|error| {
        let failure = Failure::from(error);
        if failure.subject == Some(Subject::Target) {
            failure.hint("nothing was written; `diskcast shrink` makes an image that fits a smaller disk")
        } else {
            failure.unwritten()
        }
    })?;
    if onto_source || !path.exists() {
        return Ok(());
    }
    let source = is_source(&format!("`{}`", path.display()), version, &disk::place_of(path)?);
    source.map_or(Ok(()), |failure| Err(back_there(failure)))
}

/// Like [`check`], but `path` must also be a block device.
pub(crate) fn check_device(path: &Path, version: &Manifest, onto_source: bool) -> Result<()> {
    if is_device(path) {
        return check_existing(path, version, onto_source);
    }
    Err(Failure::new(Exit::Refused, format!("`{}` is not a block device", path.display()))
        .hint("without --device the disk's bytes are kept in its folder"))
}

/// Number of bytes of a file that would be lost; 0 if it is missing, empty or only holes.
fn held_bytes(path: &Path) -> u64 {
    let Ok(file) = std::fs::File::open(path) else { return 0 };
    let len = file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(0, |found| found.len());
    match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) {
        Err(rustix::io::Errno::NXIO) => 0,
        _ => len,
    }
}

/// Asks the user before a disk, or a file that is not empty, is overwritten; not with `--yes`, or for files with
/// `--overwrite` or `--resume`.
pub(crate) fn confirm(
    path: &Path,
    version: &Manifest,
    global: &Global,
    writing: Option<&Writing>,
) -> Result<()> {
    if global.yes {
        return Ok(());
    }
    let (image, number) = (&version.image, version.number);
    let by = format!("will be overwritten by {image}@{number}");
    let goes_on = writing.is_some_and(|writing| writing.overwrite || writing.resume);
    if let Some(place) = writing.and_then(|writing| writing.into).filter(|_| !goes_on || is_device(path)) {
        let question = format!("all data on {} {by}", into::name(path, place));
        return prompt::confirm(&question, "say --yes if you are sure");
    }
    if is_device(path) || export(path).is_some() {
        return prompt::confirm(&format!("all data on {} {by}", path.display()), "say --yes if you are sure");
    }
    let held = if is_null(path) { 0 } else { held_bytes(path) };
    if held == 0 || goes_on {
        return Ok(());
    }
    let question = format!("{} holds {} already, which {by}", path.display(), show_bytes(held));
    prompt::confirm(&question, "say --overwrite if you are sure, or --resume to go on with an install")
}

/// Opens the target for writing; creates a missing file.
pub(crate) fn open(path: &Path, version: &Manifest, writing: &Writing) -> Result<Arc<dyn WriteAt>> {
    if is_null(path) {
        return Ok(Arc::new(NullTarget::new(geometry(version))));
    }
    if let Some(address) = export(path) {
        return Ok(Arc::new(open_export(address, version)?));
    }
    if let Some(number) = writing.into {
        return into::open(path, version, number);
    }
    if writing.form == FileForm::Qcow2 {
        let size_bytes = opening(version, writing).create_size.unwrap_or(0);
        let geometry = Geometry { size_bytes, ..geometry(version) };
        return Ok(Arc::new(match &writing.copy_of {
            Some(base) => disk::open_qcow2_overlay(path, geometry, writing.resume, base)?,
            None => disk::open_qcow2_target(path, geometry, writing.resume)?,
        }));
    }
    let opening = opening(version, writing);
    if copies::begin(path, version, writing)? {
        // Its size was rounded up, and its group decides on its sectors. A device that does not appear is no new file.
        disk::preflight(path, geometry(version), None)?;
        return Ok(Arc::new(disk::open_target(path, &TargetOptions { create_size: None, ..opening })?));
    }
    Ok(Arc::new(disk::open_target(path, &opening)?))
}

fn opening(version: &Manifest, writing: &Writing) -> TargetOptions {
    let geometry = geometry(version);
    let unit = u64::from(geometry.logical_sector_bytes);
    TargetOptions {
        create_size: Some(wanted_bytes(version, writing).next_multiple_of(unit)),
        cut: !writing.keep_size,
        file_sector_bytes: Some(geometry.logical_sector_bytes),
        force: false,
        alone: true,
    }
}

/// Shows the old signatures (of filesystems and partition tables) on the target in space that the new version leaves
/// free, and whether they will be erased. Writes nothing.
pub(crate) fn show_old(
    path: &Path,
    version: &Manifest,
    catalogue: &Catalogue,
    writing: &Writing,
    output: Output,
) -> Result<()> {
    let target: Box<dyn ReadAt> = match export(path) {
        Some(address) => Box::new(open_export(address, version)?),
        // Another form begins with nothing in it, and a copy with what its base holds.
        None if !is_plain(path, writing) || writing.copy_of.is_some() || writing.into.is_some() => {
            return Ok(());
        }
        None => match disk::look_at_target(path, &opening(version, writing))? {
            Some(target) => target,
            None => return Ok(()),
        },
    };
    let (has, image) = (target.geometry().size_bytes, geometry(version).size_bytes);
    // A file will have the length of the image, unless `--keep-size` lets it stay longer.
    let image = image.max(writing.size.unwrap_or(0));
    let size =
        if is_device(path) || export(path).is_some() || writing.keep_size { has.max(image) } else { image };
    let old = image::old_signatures(catalogue, &*target, size)?;
    show_signatures(&old, writing, output)
}

/// Prints the signatures: as JSON, one line for each; as text, one line for adjacent ones of one kind.
pub(crate) fn show_signatures(old: &[OldSignature], writing: &Writing, output: Output) -> Result<()> {
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

/// The install options for `path` from the command line.
pub(crate) fn options(path: &Path, writing: &Writing, effort: &Effort) -> InstallOptions {
    InstallOptions {
        free: match writing.free {
            Free::Skip => FreeSpace::Skip,
            Free::Zero => FreeSpace::Zero,
            Free::Discard => FreeSpace::Discard,
        },
        // Nothing can be read back from `null:`.
        verify: !writing.no_verify && !is_null(path),
        reuse: match writing.reuse {
            _ if is_null(path) => Reuse::Never,
            When::Always => Reuse::Always,
            _ if writing.resume || writing.copy_of.is_some() => Reuse::InPlace,
            When::Auto => Reuse::IfItPays,
            When::Never => Reuse::Never,
        },
        decode: true,
        keep_signatures: writing.keep_signatures,
        keep_gpt: writing.keep_gpt,
        threads: effort.threads.map_or(0, Into::into),
        memory_bytes: effort.memory,
    }
}

/// The text of a dry run: what would be written where.
pub(crate) fn plan(paths: &[PathBuf], version: &Manifest, writing: &Writing) -> String {
    paths.iter().map(|path| plan_of_one(path, version, writing)).collect()
}

fn plan_of_one(path: &Path, version: &Manifest, writing: &Writing) -> String {
    let (image, number) = (&version.image, version.number);
    let (content, size) =
        (show_bytes(version.statistics.data_bytes), show_bytes(geometry(version).size_bytes));
    let held = if is_null(path) || writing.into.is_some() { 0 } else { held_bytes(path) };
    let over =
        if held > 0 { format!(", over the {} that it holds", show_bytes(held)) } else { String::new() };
    format!(
        "would do: write {image}@{number} ({content} of data on a disk of {size}) to {}{over}\n",
        list(&[path.to_owned()], writing)
    )
}
