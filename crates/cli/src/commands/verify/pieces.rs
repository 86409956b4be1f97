//! The parts of an image, partition by partition, and what a disk has in their places.

use base::units::show_bytes;
use base::{Extent, ExtentSet};
use disk::{DiskMap, Partition};
use image::Manifest;
use image::manifest::{FilesystemRecord, PartitionRecord};

/// A part of an image: a partition, or what lies outside of all of them.
pub(super) struct Piece {
    /// Number of the partition, 0 for a disk that is one filesystem; `None` for the rest.
    pub number: Option<u32>,
    /// The filesystem in it.
    pub kind: Option<String>,
    /// Its sectors, from the start of the image.
    pub sectors: ExtentSet,
    /// The partition that the disk has there now, if it begins at the same sector.
    pub there: Option<Partition>,
    /// In which ways the disk's partition is another one.
    pub changes: Vec<String>,
}

impl Piece {
    /// Its name in messages.
    pub(super) fn name(&self) -> String {
        let kind = self.kind.as_ref().map_or_else(String::new, |kind| format!(" ({kind})"));
        match self.number {
            Some(0) => format!("the filesystem{kind}"),
            Some(number) => format!("partition {number}{kind}"),
            None => "outside of partitions".to_owned(),
        }
    }

    /// Those of `sectors` that lie in it.
    pub(super) fn part_of(&self, sectors: &ExtentSet) -> ExtentSet {
        self.sectors.runs().iter().flat_map(|run| sectors.within(*run).collect::<Vec<_>>()).collect()
    }
}

/// The pieces of the image of `version`, the rest last. `map` is what the disk has now, if that is known.
pub(super) fn pieces(version: &Manifest, map: Option<&DiskMap>) -> Vec<Piece> {
    let mut rest = ExtentSet::of(Extent::new(0, version.size_sectors));
    let mut all = Vec::new();
    for record in &version.disk.partitions {
        // Of an image of one partition, only that one lies in it.
        let Some(start) = record.start_sector.checked_sub(version.origin.start_sector) else { continue };
        let extent = Extent::between(start, (start + record.sectors).min(version.size_sectors));
        if extent.is_empty() {
            continue;
        }
        rest.remove(extent);
        let found = map.map(|map| find(map, record, start));
        let changes = found.as_ref().map_or_else(Vec::new, |found| changes(record, start, found.as_ref()));
        all.push(Piece {
            number: Some(record.number),
            kind: record.filesystem.as_ref().map(|found| found.kind.clone()),
            sectors: ExtentSet::of(extent),
            there: found.flatten().filter(|found| found.extent.start == start),
            changes,
        });
    }
    let changes = map.filter(|_| version.origin.start_sector == 0).map(|map| table_changes(version, map));
    all.push(Piece {
        number: None,
        kind: None,
        sectors: rest,
        there: None,
        changes: changes.unwrap_or_default(),
    });
    all
}

/// What the disk has for the partition of `record`, which begins at sector `start` of the image. If the image is of
/// that partition alone, it is the whole disk.
fn find(map: &DiskMap, record: &PartitionRecord, start: u64) -> Option<Partition> {
    let is_whole = start == 0 && record.start_sector > 0;
    map.partitions.iter().find(|found| is_whole || found.number == record.number).cloned()
}

/// How `found` differs from `record`.
fn changes(record: &PartitionRecord, start: u64, found: Option<&Partition>) -> Vec<String> {
    let Some(found) = found else {
        let what = if record.number == 0 { "no known filesystem" } else { "no such partition" };
        return vec![format!("the disk has {what}")];
    };
    let mut changes = Vec::new();
    let (here, there) = (record.sectors * 512, found.extent.len_bytes());
    if found.extent.start != start {
        let (now, before) = (found.extent.offset_bytes(), start * 512);
        changes.push(format!("it begins at byte {now} of the disk, {before} of the image"));
    }
    if found.number > 0 && there != here {
        let word = if there > here { "grown" } else { "made smaller" };
        changes.push(format!(
            "it was {word}: it has {}, in the image {}",
            show_bytes(there),
            show_bytes(here)
        ));
    }
    let mut compare = |what: &str, now: Option<&str>, before: Option<&str>| {
        if now != before {
            let (now, before) = (now.unwrap_or("none"), before.unwrap_or("none"));
            changes.push(format!("its {what} is {now}, in the image {before}"));
        }
    };
    if found.number > 0 {
        compare("PARTUUID", found.uuid.as_deref(), record.uuid.as_deref());
        compare("type", Some(&found.type_id), Some(&record.type_id));
    }
    let (now, before) = (found.filesystem.as_ref(), record.filesystem.as_ref());
    compare("filesystem", now.map(|now| now.kind), before.map(|before| &before.kind[..]));
    let uuid = |record: &FilesystemRecord| record.uuid.clone();
    compare("filesystem's UUID", now.and_then(|now| now.uuid.as_deref()), before.and_then(uuid).as_deref());
    changes
}

/// How the disk's partition table is another one.
fn table_changes(version: &Manifest, map: &DiskMap) -> Vec<String> {
    let mut changes = Vec::new();
    let mut compare = |what: &str, now: &str, before: &str| {
        if now != before {
            changes.push(format!("the {what} is {now}, in the image {before}"));
        }
    };
    compare("partition table", map.table.as_str(), &version.disk.table);
    let none = "none";
    compare(
        "disk's identifier",
        map.disk_id.as_deref().unwrap_or(none),
        version.disk.id.as_deref().unwrap_or(none),
    );
    let is_new = |found: &&Partition| {
        found.number > 0 && !version.disk.partitions.iter().any(|record| record.number == found.number)
    };
    changes.extend(
        map.partitions
            .iter()
            .filter(is_new)
            .map(|found| format!("partition {} is not in the image", found.number)),
    );
    changes
}
