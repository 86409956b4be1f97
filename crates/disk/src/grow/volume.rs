//! Grows a logical volume into what its group has free, and the filesystem in it. LVM changes only its metadata
//! (`--driverloaded n`), so no kernel need know the group, which may have the name of one of this machine. A volume of
//! one piece is reached by a loop device. One of several pieces takes a device mapper, with a table of our own.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Extent, Result};

use super::way::{NO_BACKUP, WAYS, Way, enlarge, refuse_mounted};
use crate::filesystem::lvm::{LogicalVolume, PhysicalVolume, physical_volume};
use crate::tools::{self, Attached, run};
use crate::volume::Volume;
use crate::{ReadAt, open_source};

/// A logical volume that was grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrownVolume {
    /// Its name.
    pub name: String,
    /// Its filesystem.
    pub kind: &'static str,
    /// Its size in bytes before, and now.
    pub bytes: (u64, u64),
}

/// Whether this kernel has a device mapper. A node in `/dev` does not tell.
fn has_mapper() -> bool {
    run("dmsetup", &["targets"], &[], None).is_ok()
}

/// The volume that is to grow.
struct Choice<'a> {
    volume: &'a LogicalVolume,
    pieces: &'a [Extent],
    way: Way,
    kind: &'static str,
    tools: &'static [&'static str],
}

fn refused<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Refused, text))
}

/// Chooses the volume `wanted`, or the only one with a filesystem that can grow here; swap space is not meant. `None`
/// if none is wanted and there is not exactly one. `Refused`, with the reason, if the wanted one can't grow.
fn choose<'a>(all: &'a PhysicalVolume, wanted: Option<&str>) -> Result<Option<Choice<'a>>> {
    let choice = |volume: &'a LogicalVolume| {
        let kind = volume.filesystem.as_ref().map(|found| found.kind)?;
        let (kind, way, tools) = *WAYS.iter().find(|(known, ..)| *known == kind)?;
        let pieces = volume.pieces.as_deref()?;
        (way != Way::Swap && way != Way::Lvm).then_some(Choice { volume, pieces, way, kind, tools })
    };
    let mut able = all.volumes.iter().filter_map(choice);
    let Some(name) = wanted else {
        let only = able.next().filter(|only| stays_in_one_piece(all, only) || has_mapper());
        return Ok(only.filter(|_| able.next().is_none()));
    };
    if let Some(found) = able.find(|choice| choice.volume.name == name) {
        if stays_in_one_piece(all, &found) || has_mapper() {
            return Ok(Some(found));
        }
        return refused(format!(
            "logical volume `{name}` would get a second piece, and the kernel here has no device mapper to reach it"
        ));
    }
    let names: Vec<_> = all.volumes.iter().map(|volume| volume.name.as_str()).collect();
    match all.volumes.iter().find(|volume| volume.name == name) {
        None => refused(format!("there is no logical volume `{name}`; there are: {}", names.join(", "))),
        Some(volume) if volume.pieces.is_none() => {
            refused(format!("logical volume `{name}` lies in stripes and can't grow"))
        }
        Some(volume) => {
            let kind = volume.filesystem.as_ref().map_or("nothing that is known", |found| found.kind);
            refused(format!("logical volume `{name}` can't grow: it holds {kind}"))
        }
    }
}

/// Checks, before anything is written, that the volume `wanted`, or the only one that can, will grow in the physical
/// volume at `extent` of `disk`: it exists, its tools are there, and a device mapper if its pieces need one. `Refused`
/// if not.
pub fn check_volume(disk: &dyn ReadAt, extent: Extent, wanted: Option<&str>) -> Result<()> {
    let all = match physical_volume(&Volume::new(disk, extent)) {
        // Only the physical volume grows.
        Err(error) if error.kind() == ErrorKind::Refused && wanted.is_none() => return Ok(()),
        found => found?,
    };
    let Some(choice) = choose(&all, wanted)? else { return Ok(()) };
    tools::check(&format!("to grow {}", choice.kind), choice.tools)?;
    if choice.way == Way::Btrfs {
        refuse_mounted(choice.volume.filesystem.as_ref(), &choice.volume.name)?;
    }
    if stays_in_one_piece(&all, &choice) {
        return Ok(());
    }
    tools::check("a volume of several pieces", &["dmsetup"])
}

/// What a growth changes inside a physical volume. Places are those of the disk.
pub(super) struct Inside {
    /// The sectors before the first extent, where LVM has its metadata.
    pub(super) metadata: Extent,
    /// The first piece of the volume that grows, with the beginning of its filesystem.
    pub(super) front: Extent,
    /// The size of that volume in bytes.
    pub(super) bytes: u64,
}

/// What growing the volume `wanted`, or the only one that can, changes in the physical volume at `extent` of `disk`.
/// `None` if only the physical volume grows.
pub(super) fn inside(disk: &dyn ReadAt, extent: Extent, wanted: Option<&str>) -> Result<Option<Inside>> {
    let all = match physical_volume(&Volume::new(disk, extent)) {
        Err(error) if error.kind() == ErrorKind::Refused && wanted.is_none() => return Ok(None),
        found => found?,
    };
    let chosen = choose(&all, wanted)?;
    Ok(chosen.and_then(|choice| {
        let piece = choice.pieces.first()?;
        Some(Inside {
            metadata: Extent::new(extent.start, all.extents.start),
            front: Extent::new(extent.start + piece.start, piece.count),
            bytes: bytes(choice.pieces),
        })
    }))
}

/// Whether all that is free lies behind the volume, which has one piece.
fn stays_in_one_piece(all: &PhysicalVolume, choice: &Choice) -> bool {
    let [piece] = choice.pieces else { return false };
    // Without a gap before its end, and with nothing behind it, it ends where all of them do.
    all.used.runs() == [Extent::between(all.extents.start, piece.end())]
}

/// Grows the volume `wanted`, or the only one that can, of the physical volume `physical`. `None` if none did.
pub(super) fn grow(physical: &Attached, wanted: Option<&str>) -> Result<Option<GrownVolume>> {
    let device = physical.path();
    let look = || {
        let source = open_source(device)?;
        let whole = Extent::new(0, source.geometry().size_bytes / base::limits::SECTOR_BYTES);
        match physical_volume(&Volume::new(&source, whole)) {
            Err(error) if error.kind() == ErrorKind::Refused && wanted.is_none() => Ok(None),
            found => found.map(Some),
        }
    };
    let Some(before) = look()? else { return Ok(None) };
    let Some(choice) = choose(&before, wanted)? else { return Ok(None) };
    let (name, old) = (choice.volume.name.clone(), bytes(choice.pieces));
    let devices = format!("--devices={}", device.display());
    let only_metadata = ["--driverloaded", "n", &devices];
    let free = run(
        "vgs",
        &[
            &only_metadata[..],
            &NO_BACKUP,
            &["--noheadings", "--options", "vg_free_count", "--", &before.group],
        ]
        .concat(),
        &[],
        None,
    )?;
    if free.trim() != "0" {
        let volume = format!("{}/{name}", before.group);
        run(
            "lvextend",
            &[&only_metadata[..], &NO_BACKUP, &["--extents", "+100%FREE", "--", &volume]].concat(),
            &[],
            None,
        )?;
    }
    let Some(after) = look()? else { return Ok(None) };
    // Whoever activated the group knows the volume as it was.
    physical.release();
    // After a crash the volume may be larger than its filesystem already.
    let Some(choice) = choose(&after, Some(&name))? else { return Ok(None) };
    let filesystem = choice.volume.filesystem.as_ref();
    if let [piece] = choice.pieces {
        let part = Attached::over(device, *piece, 512)?;
        enlarge(choice.way, part.path(), filesystem)?;
        part.end()?;
    } else {
        let mapped = Mapped::over(device, choice.pieces)?;
        enlarge(choice.way, &mapped.0, filesystem)?;
        mapped.end()?;
    }
    let bytes = (old, bytes(choice.pieces));
    Ok((bytes.1 > bytes.0).then_some(GrownVolume { name, kind: choice.kind, bytes }))
}

fn bytes(pieces: &[Extent]) -> u64 {
    pieces.iter().map(|piece| piece.len_bytes()).sum()
}

/// A device of the kernel's device mapper over pieces of another one, removed when this is dropped.
struct Mapped(PathBuf);

impl Mapped {
    fn over(device: &Path, pieces: &[Extent]) -> Result<Self> {
        let name = format!("diskcast-{}", std::process::id());
        let mut at = 0;
        let mut table = String::new();
        for piece in pieces {
            table += &format!("{at} {} linear {} {}\n", piece.count, device.display(), piece.start);
            at += piece.count;
        }
        run("dmsetup", &["create", &name], &[], Some(&table))?;
        Ok(Self(Path::new("/dev/mapper").join(name)))
    }

    /// Writes out what its cache holds, and removes it.
    fn end(self) -> Result<()> {
        let synced = std::fs::File::open(&self.0).and_then(|device| device.sync_all());
        run("dmsetup", &["remove", "--retry"], &[&self.0], None)?;
        synced.map_err(|error| Error::from_io("write out a changed filesystem", error))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.0.exists() {
            let _ = run("dmsetup", &["remove", "--retry"], &[&self.0], None);
        }
    }
}
