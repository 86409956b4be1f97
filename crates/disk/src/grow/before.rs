//! What a growth may change beside the filesystem, as it was before: the partition table, and the metadata of LVM. If a
//! later step fails, they are put back.

use std::path::Path;

use base::limits::SECTOR_BYTES;
use base::{Error, Extent, ExtentSet, Result, chain};

use super::volume;
use crate::filesystem::end_bytes;
use crate::volume::Volume;
use crate::{ReadAt as _, TableKind, TargetOptions, WriteAt as _, open_source, open_target, table};

/// More of the table in one place is not kept, in sectors: an extended partition whose chain is damaged is table, too.
const TABLE_SECTORS_MAX: u64 = 4096;
/// What a GPT may take of each end of the disk, in sectors: 1 MiB of entries, and headers.
const GPT_SECTORS_MAX: u64 = 2048 + 16;

/// The disk as it was before it grew.
pub(super) struct Before {
    /// Offsets in bytes, and the bytes there.
    saved: Vec<(u64, Vec<u8>)>,
    /// The filesystem that grows: the first sectors of it, and its size in bytes.
    filesystem: (Extent, u64),
    sector_bytes: u32,
}

impl Before {
    /// Reads what a growth of the partition at `extent` of the disk at `path` may change. `lvm`: it holds a physical
    /// volume, in which the logical volume `wanted` is to grow.
    pub(super) fn of(path: &Path, extent: Extent, lvm: bool, wanted: Option<&str>) -> Result<Self> {
        let disk = open_source(path)?;
        let sectors = disk.geometry().size_bytes / SECTOR_BYTES;
        let table = table::read(&disk)?;
        let mut places: ExtentSet =
            table.own.iter().copied().filter(|own| own.count <= TABLE_SECTORS_MAX).collect();
        if table.kind != TableKind::None {
            // Where a GPT is, moves to, or comes into being.
            places.insert(Extent::new(0, GPT_SECTORS_MAX.min(sectors)));
            places.insert(Extent::between(sectors.saturating_sub(GPT_SECTORS_MAX), sectors));
        }
        // What the filesystems have there is theirs.
        table.entries.iter().for_each(|entry| places.remove(entry.extent));
        let mut filesystem = (extent, extent.len_bytes());
        if lvm && let Some(inside) = volume::inside(&disk, extent, wanted)? {
            places.insert(inside.metadata);
            filesystem = (inside.front, inside.bytes);
        }
        let mut saved = Vec::new();
        for place in places.runs() {
            let mut bytes = vec![0; usize::try_from(place.len_bytes()).expect("a table, or LVM's metadata")];
            disk.read_exact_at(&mut bytes, place.offset_bytes())?;
            saved.push((place.offset_bytes(), bytes));
        }
        Ok(Self { saved, filesystem, sector_bytes: disk.geometry().logical_sector_bytes })
    }

    /// Puts the disk at `path` back after `error`, unless its filesystem is larger than before, and says in the error
    /// what it did. `place` is what was to grow.
    pub(super) fn put_back(&self, path: &Path, place: &str, error: Error) -> Error {
        let what = match self.restore(path) {
            Ok(true) => "it did not grow, and the partition table is as it was".to_owned(),
            Ok(false) => "its filesystem is larger already, and the partition table with it".to_owned(),
            Err(other) => format!("the partition table could not be put back ({})", chain(&other)),
        };
        error.within(format!("grow {place}: {what}"))
    }

    /// Writes back what was saved, if that differs. Returns whether the disk is as it was.
    fn restore(&self, path: &Path) -> Result<bool> {
        let options =
            TargetOptions { file_sector_bytes: Some(self.sector_bytes), ..TargetOptions::default() };
        let disk = open_target(path, &options)?;
        let (front, had) = self.filesystem;
        if end_bytes(&Volume::new(&disk, front))?.is_some_and(|end| end > had) {
            return Ok(false);
        }
        for (offset, bytes) in &self.saved {
            let mut found = vec![0; bytes.len()];
            disk.read_exact_at(&mut found, *offset)?;
            if found != *bytes {
                disk.write_all_at(bytes, *offset)?;
            }
        }
        disk.sync()?;
        Ok(true)
    }
}
