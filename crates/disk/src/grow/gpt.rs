//! Turns the MBR of a disk into a GPT, which reaches beyond 2^32 sectors. The partitions keep their numbers and places.
//! Only where nothing starts from the disk by its MBR, as far as the disk tells.

use std::path::Path;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, ExtentSet, Result};

use crate::device::sectors_with_data;
use crate::{DiskMap, Partition, ReadAt as _, TableKind, open_source, sfdisk, table};

/// Types of partitions in an MBR, and the same in a GPT.
const TYPES: [(&str, &str); 6] = [
    ("07", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"),
    ("27", "DE94BBA4-06D1-4D40-A16A-BFD50179D6AC"),
    ("82", "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"),
    ("83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"),
    ("8e", "E6D6D379-F507-44C2-A23C-238F2A3DF928"),
    ("fd", "A19D880F-05FC-4D3B-A006-743F0F84911E"),
];
/// Where the code of loaders ends in the first sector.
const CODE_BYTES: usize = 440;
/// Where the four entries of the table begin in the first sector, and their length.
const ENTRIES: (usize, usize) = (446, 16);
/// The mark of the partition from which a machine starts.
const ACTIVE: u8 = 0x80;
/// What a GPT of the usual size takes of each end of the disk, in bytes, without headers: 128 entries of 128 bytes.
const ENTRIES_BYTES: u64 = 128 * 128;

/// Refuses, with the reason, if the disk at `path`, which `map` describes, can't have a GPT in the place of its MBR.
pub(super) fn check(path: &Path, map: &DiskMap) -> Result<()> {
    let refused = |why: &str| {
        let text = format!("`{}` can't get a GPT: {why}", path.display());
        Err(Error::new(ErrorKind::Refused, text))
    };
    if map.table != TableKind::Mbr {
        return refused("it has no MBR with partitions");
    }
    let disk = open_source(path)?;
    let mut record = [0; 512];
    disk.read_exact_at(&mut record, 0)?;
    let (first, len) = ENTRIES;
    if record[..CODE_BYTES].iter().any(|byte| *byte != 0)
        || (0..4).any(|slot| record[first + len * slot] == ACTIVE)
    {
        return refused("machines may start from it by its MBR, which has boot code or an active partition");
    }
    let unit = u64::from(map.geometry.logical_sector_bytes);
    let sectors = map.geometry.size_bytes / SECTOR_BYTES;
    // The boot record at the front, and a header at each end.
    let (front, back) = (2 * unit + ENTRIES_BYTES, unit + ENTRIES_BYTES);
    let (front, back) = (front / SECTOR_BYTES, back / SECTOR_BYTES);
    let starts = map.partitions.iter().map(|partition| partition.extent.start);
    let ends = map.partitions.iter().map(|partition| partition.extent.end());
    let start = starts.min().unwrap_or(0);
    if start < front || ends.max().is_none_or(|end| end + back > sectors) {
        return refused("its partitions leave no room for one at both ends");
    }
    let mut gap = ExtentSet::of(Extent::between(unit / SECTOR_BYTES, start));
    table::read(&disk)?.own.into_iter().for_each(|own| gap.remove(own));
    if sectors_with_data(&disk, &gap)? > 0 {
        return refused("a loader may lie before its first partition");
    }
    for partition in &map.partitions {
        let kind = partition.filesystem.as_ref().map_or("", |found| found.kind);
        if type_of(partition).is_none() || kind == "vfat" {
            return refused(&format!("a machine may start from partition {}", partition.number));
        }
    }
    Ok(())
}

/// The type of the partition in a GPT; `None` if it is not one of data.
fn type_of(partition: &Partition) -> Option<&'static str> {
    TYPES.iter().find(|(known, _)| *known == partition.type_id).map(|(_, guid)| *guid)
}

/// Writes the GPT to the whole disk at `device`, which `map` describes and [`check`] found able.
pub(super) fn convert(device: &Path, map: &DiskMap) -> Result<()> {
    let ratio = u64::from(map.geometry.logical_sector_bytes) / SECTOR_BYTES;
    let mut script = "label: gpt\n".to_owned();
    let start = map.partitions.iter().map(|partition| partition.extent.start / ratio).min();
    // sfdisk's own first sector is at 1 MiB.
    script.push_str(&start.map_or(String::new(), |start| format!("first-lba: {start}\n")));
    for partition in &map.partitions {
        let kind = type_of(partition).ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("partition {} has no type of data", partition.number))
        })?;
        let (start, size) = (partition.extent.start / ratio, partition.extent.count / ratio);
        script.push_str(&format!("{} : start={start}, size={size}, type={kind}\n", partition.number));
    }
    sfdisk::apply(device, &[], &script)
}
