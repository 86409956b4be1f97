//! Grows the last partition of a disk to the disk's end, and the filesystem in it, by the tools of partition tables and
//! filesystems: sfdisk, resize2fs, xfs_growfs, btrfs, ntfsresize, mkswap, pvresize. They work on loop devices over the
//! disk, so it may be a file as well, and the kernel need not know its partitions.

use std::path::Path;

use base::{Error, ErrorKind, Extent, Result};

mod before;
mod gpt;
mod volume;
mod way;

use crate::tools::{self, Attached};
use crate::{
    DiskMap, Geometry, Partition, ReadAt, SurveyOptions, TableKind, TargetOptions, backup_gpt, open_source,
    open_target, preflight, sfdisk, survey, table,
};
use before::Before;
pub use volume::{GrownVolume, check_volume};
use way::{WAYS, Way, enlarge, refuse_mounted};

/// Types of partitions that stand last on many disks and that nobody means: Windows' recovery, by GUID and by MBR type.
const RECOVERY: [&str; 2] = ["de94bba4-06d1-4d40-a16a-bfd50179d6ac", "27"];

/// The sectors that an MBR reaches, in logical sectors: it has 32 bits for a start and for a size.
const MBR_SECTORS: u64 = u32::MAX as u64;

/// A partition as the choice needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its number; 0 for a disk that is one filesystem.
    pub number: u32,
    /// Its place on the disk.
    pub extent: Extent,
    /// Its type, as in [`Partition`].
    pub type_id: String,
    /// The name of the filesystem in it, as in [`crate::Filesystem`].
    pub kind: Option<String>,
}

impl Slot {
    fn of(partition: &Partition) -> Self {
        Self {
            number: partition.number,
            extent: partition.extent,
            type_id: partition.type_id.clone(),
            kind: partition.filesystem.as_ref().map(|found| found.kind.to_owned()),
        }
    }
}

/// The partition that is to grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its number.
    pub number: u32,
    /// The name of its filesystem.
    pub kind: &'static str,
    way: Way,
    tools: Vec<&'static str>,
}

/// What was grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grown {
    /// The partition.
    pub number: u32,
    /// Its filesystem.
    pub kind: &'static str,
    /// Its size in bytes before, and now.
    pub bytes: (u64, u64),
    /// The logical volume in it that grew, too.
    pub volume: Option<GrownVolume>,
}

/// What is to grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// The partition; `None` for the last one.
    pub number: Option<u32>,
    /// The logical volume in it; `None` for the only one that can grow.
    pub volume: Option<String>,
    /// Turn an MBR into a GPT first, which reaches beyond 2^32 sectors.
    pub to_gpt: bool,
}

/// Chooses the partition that can grow when the disk becomes larger: number `wanted`, or the last one. `Refused`, with
/// the reason, if another one lies behind it, if its filesystem can't grow, or if nothing tells that the last one is
/// meant.
pub fn choose(slots: &[Slot], wanted: Option<u32>) -> Result<Choice> {
    let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
    let Some(last) = slots.iter().max_by_key(|slot| slot.extent.start) else {
        return refused("the disk has no partition and no filesystem that could grow".to_owned());
    };
    let number = wanted.unwrap_or(last.number);
    let Some(slot) = slots.iter().find(|slot| slot.number == number) else {
        return refused(format!("the disk has no partition {number}"));
    };
    if slot.number != last.number {
        return refused(format!("partition {number} can't grow: partition {} lies behind it", last.number));
    }
    let kind = slot.kind.as_deref().unwrap_or("unknown");
    let Some((kind, way, tools)) = WAYS.iter().find(|(known, ..)| *known == kind) else {
        return refused(format!("{} can't grow: it holds {kind}", place(number)));
    };
    let is_aside = *way == Way::Swap || RECOVERY.contains(&slot.type_id.as_str());
    if wanted.is_none() && is_aside {
        let what = if *way == Way::Swap { "swap space" } else { "a recovery system" };
        return refused(format!(
            "the last partition, {number}, is {what}: nothing grows unless its number is given"
        ));
    }
    let mut tools = [&["losetup"], *tools].concat();
    if number > 0 {
        tools.push("sfdisk");
    }
    Ok(Choice { number, kind, way: *way, tools })
}

/// What a partition is called: the disk itself has number 0.
pub(crate) fn place(number: u32) -> String {
    if number == 0 { "the disk".to_owned() } else { format!("partition {number}") }
}

impl Choice {
    /// Checks that this process may and can do it. `Refused` if it is not root's, or a tool is missing.
    pub fn check(&self) -> Result<()> {
        tools::check(&format!("to grow {}", self.kind), &self.tools)
    }
}

/// The partitions of the disk that `map` describes.
#[must_use]
pub fn slots(map: &DiskMap) -> Vec<Slot> {
    map.partitions.iter().map(Slot::of).collect()
}

/// Grows the partition that `wish` names, or the last one, of the disk at `path` to the end of the disk, and its
/// filesystem with it; of LVM, the logical volume that `wish` names, or the only one that can grow. `None` if there is
/// nothing to gain. Does nothing twice: after a crash it can be called again. `Refused` if the disk is in use or
/// nothing can grow; `Io` if a tool fails, with its words. After an error the disk is as it was, unless the filesystem
/// is larger already.
pub fn grow(path: &Path, wish: &Wish) -> Result<Option<Grown>> {
    let wanted = wish.number;
    let before = look(path)?;
    if wish.to_gpt {
        gpt::check(path, &before)?;
    }
    let geometry = before.geometry;
    preflight(path, geometry, None)?;
    let choice = choose(&slots(&before), wanted)?;
    choice.check()?;
    if choice.way == Way::Lvm {
        let extent = extent_of(&before, choice.number).unwrap_or(Extent::new(0, 0));
        check_volume(&open_source(path)?, extent, wish.volume.as_deref())?;
    } else if wish.volume.is_some() {
        let text = format!("{} holds {}, and no logical volumes", place(choice.number), choice.kind);
        return Err(Error::new(ErrorKind::Refused, text));
    }
    if choice.way == Way::Btrfs {
        refuse_mounted_twin(&before, choice.number)?;
    }
    let Some(old) = extent_of(&before, choice.number) else {
        return Err(Error::new(ErrorKind::Corrupt, format!("{} has no place", place(choice.number))));
    };
    let kept = Before::of(path, old, choice.way == Way::Lvm, wish.volume.as_deref())?;
    let grown = if wish.to_gpt { convert(path, &before) } else { Ok(before) }
        .and_then(|before| change(path, wish, &before, &choice));
    grown.map_err(|error| kept.put_back(path, &place(choice.number), error))
}

/// Turns the MBR of the disk into a GPT, and returns what the disk is then.
fn convert(path: &Path, before: &DiskMap) -> Result<DiskMap> {
    let whole = Attached::whole(path, before.geometry)?;
    gpt::convert(whole.path(), before)?;
    whole.end()?;
    let after = look(path)?;
    let places = |map: &DiskMap| {
        map.partitions.iter().map(|partition| (partition.number, partition.extent)).collect::<Vec<_>>()
    };
    if after.table != TableKind::Gpt || places(before) != places(&after) {
        return Err(Error::new(ErrorKind::Corrupt, "the GPT is another than planned"));
    }
    Ok(after)
}

/// Refuses, with the reason, if the MBR of the disk at `path` can't become a GPT, as [`Wish::to_gpt`] asks: machines
/// may start from it, or there is no room. `Io`.
pub fn check_gpt(path: &Path) -> Result<()> {
    gpt::check(path, &look(path)?)
}

/// Grows the chosen partition, and what it holds.
fn change(path: &Path, wish: &Wish, before: &DiskMap, choice: &Choice) -> Result<Option<Grown>> {
    let geometry = before.geometry;
    move_backup(path, geometry.logical_sector_bytes)?;
    if choice.number > 0 {
        let whole = Attached::whole(path, geometry)?;
        extend(whole.path(), before, choice.number)?;
        whole.end()?;
    }
    let after = look(path)?;
    let numbers = |map: &DiskMap| map.partitions.iter().map(|partition| partition.number).collect::<Vec<_>>();
    let (Some(old), Some(new)) = (extent_of(before, choice.number), extent_of(&after, choice.number)) else {
        let text = format!("{} is gone after it grew", place(choice.number));
        return Err(Error::new(ErrorKind::Corrupt, text));
    };
    if new.start != old.start || new.count < old.count || numbers(before) != numbers(&after) {
        let text = format!("{} is at another place after it grew", place(choice.number));
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let device = Attached::over(path, new, geometry.logical_sector_bytes)?;
    if choice.way == Way::Lvm {
        device.release();
    }
    let found = after.partitions.iter().find(|partition| partition.number == choice.number);
    let filesystem = found.and_then(|partition| partition.filesystem.as_ref());
    enlarge(choice.way, device.path(), filesystem)?;
    let volume = match choice.way {
        Way::Lvm => volume::grow(&device, wish.volume.as_deref())?,
        _ => None,
    };
    device.end()?;
    let bytes = (old.len_bytes(), new.len_bytes());
    let grew = bytes.1 > bytes.0 || volume.is_some();
    Ok(grew.then_some(Grown { number: choice.number, kind: choice.kind, bytes, volume }))
}

fn look(path: &Path) -> Result<DiskMap> {
    survey(&open_source(path)?, &SurveyOptions::default())
}

/// How many bytes at the end of the disk at `path` no partition can have: an MBR counts sectors with 32 bits. `Io`.
pub fn out_of_reach(path: &Path) -> Result<u64> {
    let disk = open_source(path)?;
    let Geometry { size_bytes, logical_sector_bytes, .. } = disk.geometry();
    let is_mbr = table::read(&disk)?.kind == TableKind::Mbr;
    let reach = u64::from(logical_sector_bytes) * MBR_SECTORS;
    Ok(if is_mbr { size_bytes.saturating_sub(reach) } else { 0 })
}

/// Where partition `number` lies.
fn extent_of(map: &DiskMap, number: u32) -> Option<Extent> {
    map.partitions.iter().find(|partition| partition.number == number).map(|partition| partition.extent)
}

/// Moves the backup of a GPT to the end, if it is elsewhere.
fn move_backup(path: &Path, sector_bytes: u32) -> Result<()> {
    let options = TargetOptions { file_sector_bytes: Some(sector_bytes), ..TargetOptions::default() };
    let target = open_target(path, &options)?;
    match backup_gpt::made_bytes(&target, sector_bytes)? {
        Some(made) if made < target.geometry().size_bytes => {
            backup_gpt::move_to_end(&target, sector_bytes, made).map(drop)
        }
        _ => Ok(()),
    }
}

/// Extends the partition's entry in the table of the whole disk at `device`; for a logical one, the extended partition
/// before. Its end is computed here: sfdisk's own `+` wraps where an MBR's 32 bits end, and makes the partition
/// smaller.
fn extend(device: &Path, map: &DiskMap, number: u32) -> Result<()> {
    let dump = sfdisk::dump(device)?;
    let last = || dump.lines().find_map(|line| line.strip_prefix("last-lba:")?.trim().parse::<u64>().ok());
    let geometry = map.geometry;
    let end = match map.table {
        TableKind::Gpt => last().map_or(0, |last| last + 1),
        _ => (geometry.size_bytes / u64::from(geometry.logical_sector_bytes)).min(MBR_SECTORS),
    };
    let to_end = |line: &str| {
        let (Some(number), Some(start), Some(size)) =
            (sfdisk::number_of(line), sfdisk::field(line, "start="), sfdisk::field(line, "size="))
        else {
            return Err(sfdisk::unreadable(line));
        };
        match end.saturating_sub(start) {
            more if more > size => sfdisk::apply(device, &[&format!("-N{number}")], &format!(", {more}\n")),
            _ => Ok(()),
        }
    };
    let find = |is_it: &dyn Fn(&&str) -> bool, what: &str| {
        let found = sfdisk::partitions(&dump).find(is_it);
        found.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("the disk has no {what}")))
    };
    if map.table == TableKind::Mbr && number >= 5 {
        to_end(find(&|line| sfdisk::is_extended(line), "extended partition")?)?;
    }
    to_end(find(&|line| sfdisk::number_of(line) == Some(number), &place(number))?)
}

/// Refuses if a btrfs with the same UUID is mounted on this machine: the kernel would take both for parts of one.
pub(crate) fn refuse_mounted_twin(map: &DiskMap, number: u32) -> Result<()> {
    let found = map.partitions.iter().find(|partition| partition.number == number);
    refuse_mounted(found.and_then(|partition| partition.filesystem.as_ref()), &place(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u32, start: u64, kind: Option<&str>, type_id: &str) -> Slot {
        let kind = kind.map(str::to_owned);
        Slot { number, extent: Extent::new(start, 100), type_id: type_id.to_owned(), kind }
    }

    #[test]
    fn the_last_partition_grows_and_no_other() {
        let slots = [slot(2, 2048, Some("vfat"), "ef"), slot(1, 4096, Some("ext4"), "83")];
        assert_eq!(choose(&slots, None).unwrap().number, 1);
        assert_eq!(choose(&slots, Some(1)).unwrap().kind, "ext4");
        for (wanted, words) in [(Some(2), "partition 1 lies behind it"), (Some(3), "no partition 3")] {
            let error = choose(&slots, wanted).unwrap_err();
            assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(words), "{error}");
        }
        assert!(choose(&[], None).is_err());
        assert!(choose(&[slot(1, 0, None, "83")], None).unwrap_err().to_string().contains("unknown"));
        assert!(
            choose(&[slot(0, 0, Some("vfat"), "")], None)
                .unwrap_err()
                .to_string()
                .contains("the disk can't grow")
        );
    }

    #[test]
    fn what_nobody_means_grows_only_by_its_number() {
        for (kind, type_id) in [("swap", "82"), ("ntfs", RECOVERY[0]), ("ntfs", "27")] {
            let slots = [slot(1, 0, Some("ext4"), "83"), slot(3, 9, Some(kind), type_id)];
            assert!(choose(&slots, None).is_err());
            assert_eq!(choose(&slots, Some(3)).unwrap().kind, kind);
        }
    }
}
