//! What is said of sectors that can't be read: why a capture fails, and what a version lacks.

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use disk::{ReadAt, SurveyOptions};
use image::Manifest;
use image::manifest::PartitionRecord;

use crate::exit::Failure;

/// The failure of a capture of `disk`: if it met a sector that can't be read, with its partition and what helps.
pub(crate) fn explain(error: base::Error, disk: &dyn ReadAt) -> Failure {
    let Some(sector) = disk::unreadable_sector(&error) else { return error.into() };
    let is_in =
        |partition: &disk::Partition| (partition.extent.start..partition.extent.end()).contains(&sector);
    // The table alone: the partitions' filesystems may be what can't be read.
    let options = SurveyOptions { raw: true, ..SurveyOptions::default() };
    let partitions = disk::survey(disk, &options).map_or_else(|_| Vec::new(), |map| map.partitions);
    let mut failure = Failure::from(error);
    if let Some(partition) = partitions.into_iter().find(is_in) {
        failure.message += &format!("; it lies in partition {}", partition.number);
    }
    failure.hint(
        "`diskcast capture --rescue` reads what can be read, takes zeros for the rest, and marks the version",
    )
}

/// Bytes of the version's disk that could not be read.
pub(crate) fn bytes_of(version: &Manifest) -> u64 {
    version.disk.unreadable.iter().map(|range| range.sectors * SECTOR_BYTES).sum()
}

/// What a version lacks because it could not be read, and where; `None` if nothing.
pub(crate) fn summary(version: &Manifest) -> Option<String> {
    let all = bytes_of(version);
    let lost = |partition: &PartitionRecord| -> u64 {
        let extent = base::Extent::new(partition.start_sector, partition.sectors);
        let both = version.disk.unreadable.iter().filter_map(|range| range.extent().intersection(extent));
        both.map(base::Extent::len_bytes).sum()
    };
    let hit = version.disk.partitions.iter().map(|partition| (partition, lost(partition)));
    let hit: Vec<_> = hit.filter(|(_, bytes)| *bytes > 0).collect();
    let inside: u64 = hit.iter().map(|(_, bytes)| bytes).sum();
    let mut places: Vec<_> = hit
        .into_iter()
        .map(|(partition, bytes)| {
            let kind =
                partition.filesystem.as_ref().map_or(String::new(), |found| format!(" ({})", found.kind));
            match partition.number {
                0 => format!("{} in the disk's filesystem{kind}", show_bytes(bytes)),
                number => format!("{} in partition {number}{kind}", show_bytes(bytes)),
            }
        })
        .collect();
    if let Some(outside) = all.checked_sub(inside).filter(|&bytes| bytes > 0) {
        places.push(format!("{} outside of partitions", show_bytes(outside)));
    }
    (all > 0).then(|| {
        format!("{} of its disk could not be read and are zeros: {}", show_bytes(all), places.join(", "))
    })
}
