//! Updates the description in a manifest after its image was changed: keeps what is still true, and marks what may be
//! out of date. formats/repository.md, "Changed images".

use std::ops::Range;

use base::RunSet;
use base::limits::SECTOR_BYTES;
use image::manifest::{DiskRecord, Parent};
use image::{Made, Manifest};

use super::commit_queue::Tip;
use crate::record::Stamp;

/// The manifest of a child of `parent`, made by `stamp`, with the same name, number and description.
pub(super) fn child(parent: &Tip, stamp: &Stamp) -> Manifest {
    let from = &parent.manifest;
    let named = Parent { image: from.image.clone(), number: from.number, digest: parent.digest };
    child_of(from, named, stamp)
}

/// [`child`] of the manifest `from`, which `parent` names.
pub(super) fn child_of(from: &Manifest, parent: Parent, stamp: &Stamp) -> Manifest {
    Manifest {
        nonce: String::new(),
        repository: None,
        parent: Some(parent),
        copied: None,
        commit: None,
        made: from.made.as_ref().map(Made::changed),
        members: Vec::new(),
        created: stamp.created.clone(),
        creator: stamp.creator.clone(),
        ..from.clone()
    }
}

/// Marks the parts of the description in `manifest` that changes in `dirty` may have made untrue, and sets the image
/// size.
pub(super) fn mark(manifest: &mut Manifest, dirty: &RunSet, size_sectors: u64) {
    let start = manifest.origin.start_sector;
    let grown = size_sectors != manifest.size_sectors;
    manifest.size_sectors = size_sectors;
    manifest.origin.disk_sectors = manifest.origin.disk_sectors.max(start + size_sectors);
    let described = manifest.disk.table != "none" || !manifest.disk.partitions.is_empty();
    manifest.disk.changed |= described && (grown || outside_partitions(&manifest.disk, start, dirty));
    for partition in &mut manifest.disk.partitions {
        let bytes = bytes_in_image(start, partition.start_sector, partition.sectors);
        if let Some(filesystem) = &mut partition.filesystem {
            filesystem.changed |= dirty.within(bytes.clone()).next().is_some();
        }
    }
}

/// Whether part of `dirty` is outside all partitions: in the partition table, or in a boot loader after it.
fn outside_partitions(disk: &DiskRecord, start: u64, dirty: &RunSet) -> bool {
    let partitions = RunSet::from_iter(
        disk.partitions
            .iter()
            .map(|partition| bytes_in_image(start, partition.start_sector, partition.sectors)),
    );
    dirty.iter().any(|range| !partitions.contains(&range))
}

/// Converts sectors of the disk into bytes of the image, which begins at sector `start` of the disk.
fn bytes_in_image(start: u64, first: u64, sectors: u64) -> Range<u64> {
    let byte = |sector: u64| sector.saturating_sub(start).saturating_mul(SECTOR_BYTES);
    byte(first)..byte(first.saturating_add(sectors))
}
