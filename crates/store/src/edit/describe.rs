//! What a manifest says after its image was changed: what is still true stays, what may not be is marked.
//! formats/repository.md, "Changed images".

use std::ops::Range;

use base::RunSet;
use base::limits::SECTOR_BYTES;
use image::Manifest;
use image::manifest::{DiskRecord, Parent};

use super::commit_queue::Tip;
use crate::record::Stamp;

/// The manifest of what is made from `parent` by `stamp`, whatever that is: named, numbered and described as it is.
pub(super) fn child(parent: &Tip, stamp: &Stamp) -> Manifest {
    let from = &parent.manifest;
    let named = Parent { image: from.image.clone(), number: from.number, digest: parent.digest };
    child_of(from, named, stamp)
}

/// The same from the manifest `from`, which `parent` names.
pub(super) fn child_of(from: &Manifest, parent: Parent, stamp: &Stamp) -> Manifest {
    Manifest {
        nonce: String::new(),
        parent: Some(parent),
        copied: None,
        commit: None,
        created: stamp.created.clone(),
        creator: stamp.creator.clone(),
        ..from.clone()
    }
}

/// Marks in `manifest` what `dirty` bytes of the image may have made untrue, and gives it the size of `size_sectors`.
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

/// Whether any of `dirty` lies where no partition is: in the table, or in a boot loader behind it.
fn outside_partitions(disk: &DiskRecord, start: u64, dirty: &RunSet) -> bool {
    let partitions = RunSet::from_iter(
        disk.partitions
            .iter()
            .map(|partition| bytes_in_image(start, partition.start_sector, partition.sectors)),
    );
    dirty.iter().any(|range| !partitions.contains(&range))
}

/// Sectors of the disk as bytes of the image that begins at sector `start` of it.
fn bytes_in_image(start: u64, first: u64, sectors: u64) -> Range<u64> {
    let byte = |sector: u64| sector.saturating_sub(start).saturating_mul(SECTOR_BYTES);
    byte(first)..byte(first.saturating_add(sectors))
}
