//! Shrinks a copy of a disk, so that it fits a smaller one: the filesystem of one partition by its own tool (resize2fs,
//! btrfs, ntfsresize), then the partition; those behind it move down. The disk is a raw file that nobody needs: after
//! an error it is neither the old disk nor the new one.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use base::{Error, ErrorKind, Extent, ExtentSet, Result};

use crate::device::sectors_with_data;
use crate::grow::{place, refuse_mounted_twin};
use crate::position::set_hidden_sectors;
use crate::tools::{self, Attached, Mounted, number_after, run, run_with};
use crate::{
    DiskMap, Geometry, Partition, ReadAt as _, SurveyOptions, TableKind, open_source, sfdisk, survey,
};

/// What a filesystem can be shrunk by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Ext,
    Btrfs,
    Ntfs,
}

/// Kinds of filesystems that can shrink, the way, and the tools that it needs.
const WAYS: &[(&str, Way, &[&str])] = &[
    ("ext2", Way::Ext, &["e2fsck", "resize2fs", "dumpe2fs"]),
    ("ext3", Way::Ext, &["e2fsck", "resize2fs", "dumpe2fs"]),
    ("ext4", Way::Ext, &["e2fsck", "resize2fs", "dumpe2fs"]),
    ("btrfs", Way::Btrfs, &["mount", "umount", "btrfs"]),
    ("ntfs", Way::Ntfs, &["ntfsresize", "ntfsfix"]),
];
/// How ntfsresize checks a filesystem and tells how small it can be, also of one that lists bad clusters.
const NTFS_INFO: [&str; 4] = ["--info", "--force", "--bad-sectors", "--no-progress-bar"];
/// Partitions move by multiples of this many sectors, 1 MiB, so that they stay aligned.
const ALIGNED: u64 = 2048;
/// What the boot code of a disk may take of its first sector, with the disk's identifier of an MBR.
const BOOT_BYTES: usize = 446;
/// The type of GRUB's partition on a GPT disk without UEFI.
const BIOS_BOOT: &str = "21686148-6449-6e6f-744e-656564454649";
/// What is copied at once when a partition moves, in bytes.
const COPIED: usize = 1 << 20;

/// How a disk is to shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Size of the disk afterwards, in bytes.
    pub disk_bytes: u64,
    /// The partition that shrinks; 0 if the disk is one filesystem. `None` if what lies at the end is free.
    pub number: Option<u32>,
    /// The name of its filesystem; empty if none shrinks.
    pub kind: &'static str,
    /// Its size in bytes before, and afterwards.
    pub bytes: (u64, u64),
    /// The least that its filesystem needs, in bytes: of ext what is in use, of others what their own tools estimate.
    pub least_bytes: u64,
    /// The numbers of the partitions that move down, by place.
    pub moved: Vec<u32>,
    /// How far they move, in sectors of 512 bytes.
    by: u64,
    way: Option<Way>,
}

fn refused<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Refused, text))
}

/// Plans how the disk in the file at `path` is to fit `disk_bytes`: partition `wanted` shrinks, or else the largest
/// that can. Checks and repairs its filesystem. `Refused`, with the reason, if it can't fit; `Io` if a tool fails, with
/// its words.
pub fn plan(path: &Path, disk_bytes: u64, wanted: Option<u32>) -> Result<Plan> {
    let map = look(path)?;
    refuse_special(path, &map)?;
    let unit = u64::from(map.geometry.logical_sector_bytes);
    let disk_bytes = disk_bytes / unit * unit;
    if disk_bytes >= map.geometry.size_bytes {
        let (has, asked) = (show_bytes(map.geometry.size_bytes), show_bytes(disk_bytes));
        return refused(format!(
            "the disk has {has}, which is not more than {asked}: nothing needs to shrink"
        ));
    }
    let mut plan = choose(&map, disk_bytes, wanted)?;
    refuse_losses(path, &map, &plan)?;
    let Some((way, number)) = plan.way.zip(plan.number) else { return Ok(plan) };
    let known = WAYS.iter().find(|(_, known, _)| *known == way).map_or(&[][..], |(.., tools)| tools);
    tools::check(&format!("to shrink {}", plan.kind), &[&["losetup", "sfdisk"], known].concat())?;
    if way == Way::Btrfs {
        refuse_mounted_twin(&map, number)?;
    }
    let device = Attached::over(path, extent_of(&map, number)?, map.geometry.logical_sector_bytes)?;
    plan.least_bytes = least(way, device.path())?;
    device.end()?;
    if plan.least_bytes > plan.bytes.1 {
        let needs = plan.least_bytes + (map.geometry.size_bytes - plan.bytes.0);
        return refused(format!(
            "the {} in {} needs {}, and would have {}: a disk of {} would do",
            plan.kind,
            place(number),
            show_bytes(plan.least_bytes),
            show_bytes(plan.bytes.1),
            show_bytes(needs)
        ));
    }
    Ok(plan)
}

/// Shrinks the disk in the file at `path` by a plan for it, and checks what came of it. Errors leave a file that is of
/// no use: those of the tools, with their words, and `Corrupt` if they did something else than planned.
pub fn shrink(path: &Path, plan: &Plan) -> Result<()> {
    let before = look(path)?;
    let unit = before.geometry.logical_sector_bytes;
    // What moves may cover the boot records of an extended partition, so the table is read first.
    let table = match before.table {
        TableKind::None => None,
        _ => {
            let whole = Attached::whole(path, before.geometry)?;
            let dump = sfdisk::dump(whole.path())?;
            whole.end()?;
            Some(rewritten(&dump, plan, u64::from(unit) / SECTOR_BYTES)?)
        }
    };
    if let Some((way, number)) = plan.way.zip(plan.number) {
        let extent = extent_of(&before, number)?;
        let device = Attached::over(path, extent, unit)?;
        lessen(way, device.path(), plan.bytes.1)?;
        device.end()?;
        if way == Way::Ntfs {
            // ntfsresize asks Windows for a check, and a volume that is marked so is captured whole. What it made is
            // checked below.
            let sectors = plan.bytes.1 / SECTOR_BYTES;
            let device = Attached::over(path, Extent::new(extent.start, sectors), unit)?;
            run("ntfsfix", &["--clear-dirty"], &[device.path()], None)?;
            device.end()?;
        }
    }
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| Error::from_io(format!("open `{}`", path.display()), error))?;
    let io = |error| Error::from_io(format!("move partitions in `{}`", path.display()), error);
    for number in &plan.moved {
        move_down(&file, extent_of(&before, *number)?, plan.by, unit).map_err(io)?;
    }
    file.set_len(plan.disk_bytes).map_err(io)?;
    if let Some(table) = table {
        // With the boot flag of the first entry, which a new GPT clears.
        let mut boot = [0; BOOT_BYTES + 1];
        file.read_exact_at(&mut boot, 0).map_err(io)?;
        let size_bytes = plan.disk_bytes;
        let whole = Attached::whole(path, Geometry { size_bytes, ..before.geometry })?;
        sfdisk::apply(whole.path(), &[], &table)?;
        whole.end()?;
        // A new table clears the boot code.
        let kept = if before.table == TableKind::Gpt { &boot[..] } else { &boot[..BOOT_BYTES] };
        file.write_all_at(kept, 0).map_err(io)?;
    }
    file.sync_all().map_err(io)?;
    drop(file);
    check(path, &before, plan)
}

fn look(path: &Path) -> Result<DiskMap> {
    survey(&open_source(path)?, &SurveyOptions::default())
}

fn extent_of(map: &DiskMap, number: u32) -> Result<Extent> {
    let found = map.partitions.iter().find(|partition| partition.number == number);
    found.map(|partition| partition.extent).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("{} is gone while the disk shrinks", place(number)))
    })
}

/// Chooses what shrinks, and what moves.
fn choose(map: &DiskMap, disk_bytes: u64, wanted: Option<u32>) -> Result<Plan> {
    let Some(end) = map.partitions.iter().map(|partition| partition.extent.end()).max() else {
        return refused("the disk has no partition and no filesystem that could shrink".to_owned());
    };
    let limit = match map.table {
        TableKind::None => disk_bytes / SECTOR_BYTES,
        // A GPT has its backup there.
        TableKind::Gpt => (disk_bytes / SECTOR_BYTES).saturating_sub(ALIGNED) / ALIGNED * ALIGNED,
        TableKind::Mbr => disk_bytes / SECTOR_BYTES / ALIGNED * ALIGNED,
    };
    let nothing = Plan {
        disk_bytes,
        number: None,
        kind: "",
        bytes: (0, 0),
        least_bytes: 0,
        moved: Vec::new(),
        by: 0,
        way: None,
    };
    if end <= limit {
        return Ok(nothing);
    }
    let by = (end - limit).next_multiple_of(if map.table == TableKind::None { 1 } else { ALIGNED });
    let way = |partition: &Partition| {
        let kind = partition.filesystem.as_ref()?.kind;
        WAYS.iter().find(|(known, ..)| *known == kind).map(|(kind, way, _)| (*kind, *way))
    };
    let fits = |partition: &&Partition| way(partition).is_some() && partition.extent.count > by;
    let chosen = match wanted {
        None => map.partitions.iter().filter(fits).max_by_key(|partition| partition.extent.count),
        Some(number) => map.partitions.iter().filter(fits).find(|partition| partition.number == number),
    };
    let Some((chosen, (kind, way))) = chosen.and_then(|chosen| Some((chosen, way(chosen)?))) else {
        let what =
            wanted.map_or_else(|| "no partition".to_owned(), |number| format!("not {}", place(number)));
        let bytes = show_bytes(by * SECTOR_BYTES);
        return refused(format!("{what} can give {bytes}: only ext2, ext3, ext4, btrfs and NTFS can shrink"));
    };
    let mut behind: Vec<_> =
        map.partitions.iter().filter(|other| other.extent.start > chosen.extent.start).collect();
    behind.sort_by_key(|partition| partition.extent.start);
    let before = chosen.extent.len_bytes();
    Ok(Plan {
        number: Some(chosen.number),
        kind,
        bytes: (before, before - by * SECTOR_BYTES),
        moved: behind.iter().map(|partition| partition.number).collect(),
        by,
        way: Some(way),
        ..nothing
    })
}

/// Refuses disks whose table would not come back as it is: a GPT with its entries in another place than usual, or
/// beside an MBR with partitions of its own.
fn refuse_special(path: &Path, map: &DiskMap) -> Result<()> {
    if map.table != TableKind::Gpt {
        return Ok(());
    }
    let disk = open_source(path)?;
    let (mut mbr, mut header) = ([0; 512], [0; 512]);
    disk.read_exact_at(&mut mbr, 0)?;
    disk.read_exact_at(&mut header, u64::from(map.geometry.logical_sector_bytes))?;
    let kinds: Vec<u8> = (0..4).map(|slot| mbr[BOOT_BYTES + 16 * slot + 4]).collect();
    if kinds != [0xEE, 0, 0, 0] {
        return refused("the disk has an MBR with partitions of its own beside its GPT".to_owned());
    }
    // UEFI specification 2.10, table 5.5: PartitionEntryLBA.
    if header[72..80] != 2u64.to_le_bytes() {
        return refused("the entries of the disk's GPT do not follow its header".to_owned());
    }
    Ok(())
}

/// Refuses if something would be lost or would not start any more: data outside of partitions behind the one that
/// shrinks, partitions that overlap, a filesystem that is not understood, GRUB's own partition.
fn refuse_losses(path: &Path, map: &DiskMap, plan: &Plan) -> Result<()> {
    let mut partitions: Vec<_> = map.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.extent.start);
    if partitions.windows(2).any(|pair| pair[0].extent.end() > pair[1].extent.start) {
        return refused("its partitions overlap".to_owned());
    }
    if let Some(grub) =
        partitions.iter().find(|it| it.type_id == BIOS_BOOT && plan.moved.contains(&it.number))
    {
        let text = format!("partition {} belongs to GRUB, which knows its place: it can't move", grub.number);
        return refused(text);
    }
    let chosen = partitions.iter().find(|partition| Some(partition.number) == plan.number);
    if let Some(chosen) = chosen.filter(|chosen| map.allocated.contains(chosen.extent)) {
        let text = "is captured whole: it is full, was not unmounted, sleeps, or its table is not trusted";
        return refused(format!("{} {text}", place(chosen.number)));
    }
    let from = chosen.or(partitions.last()).map_or(0, |partition| partition.extent.end());
    let unit = u64::from(map.geometry.logical_sector_bytes) / SECTOR_BYTES;
    let backup = if map.table == TableKind::Gpt { (1 + 128 * 128 / 512) * unit } else { 0 };
    let mut gaps = ExtentSet::of(Extent::between(from, map.geometry.size_bytes / SECTOR_BYTES - backup));
    partitions.iter().for_each(|partition| gaps.remove(partition.extent));
    // Each logical partition has a sector of the table before it.
    let tables = partitions.iter().filter(|it| map.table == TableKind::Mbr && it.number >= 5).count() as u64;
    if sectors_with_data(&open_source(path)?, &gaps)? > tables * unit {
        return refused("something that is in no partition lies behind what would shrink".to_owned());
    }
    Ok(())
}

/// The number after `words` in what a tool printed. `Io` if there is none.
fn told_number(printed: &str, words: &str) -> Result<u64> {
    let text = || format!("a tool did not print `{words}` and a number");
    number_after(printed, words).ok_or_else(|| Error::new(ErrorKind::Io, text()))
}

/// The least size of the filesystem on `device`, in bytes.
fn least(way: Way, device: &Path) -> Result<u64> {
    match way {
        Way::Ext => {
            // 1: it corrected something, such as a journal that was not replayed.
            run_with(&[0, 1], "e2fsck", &["-f", "-p"], &[device], None)?;
            // What is in use. resize2fs -P adds to that what extents could need at worst, often as much again.
            let told = run("dumpe2fs", &["-h"], &[device], None)?;
            let count = |words| told_number(&told, words);
            Ok((count("Block count:")?.saturating_sub(count("Free blocks:")?)) * count("Block size:")?)
        }
        Way::Btrfs => {
            let mounted = Mounted::at(device, "btrfs", "nosuid,nodev,noexec")?;
            let printed = run("btrfs", &["inspect-internal", "min-dev-size"], &[mounted.path()], None)?;
            mounted.end()?;
            told_number(&printed, "")
        }
        Way::Ntfs => told_number(&run("ntfsresize", &NTFS_INFO, &[device], None)?, "You might resize at"),
    }
}

/// Makes the filesystem on `device` one of `bytes`.
fn lessen(way: Way, device: &Path, bytes: u64) -> Result<()> {
    match way {
        Way::Ext => {
            let device = device.to_string_lossy();
            // By force: it may go below its own estimate. If that fails, the copy is thrown away. The plan had the
            // filesystem checked.
            let shrunk = run("resize2fs", &["-f", &device, &format!("{}K", bytes / 1024)], &[], None);
            shrunk.map_err(|error| {
                let text =
                    format!("{} are too few for what is in the filesystem: {error}", show_bytes(bytes));
                Error::new(ErrorKind::Refused, text)
            })?;
        }
        Way::Btrfs => {
            let mounted = Mounted::at(device, "btrfs", "nosuid,nodev,noexec")?;
            run("btrfs", &["filesystem", "resize", &bytes.to_string()], &[mounted.path()], None)?;
            mounted.end()?;
        }
        Way::Ntfs => {
            let size = bytes.to_string();
            let arguments = ["--force", "--force", "--bad-sectors", "--no-progress-bar", "--size", &size];
            run("ntfsresize", &arguments, &[device], Some("y\n"))?;
        }
    }
    Ok(())
}

/// Copies a partition `by` sectors down, and corrects the sector number of its start in its boot sectors.
fn move_down(file: &File, extent: Extent, by: u64, unit: u32) -> std::io::Result<()> {
    let (mut new, mut old) = (vec![0; COPIED], vec![0; COPIED]);
    let (mut from, end) = (extent.offset_bytes(), extent.end() * SECTOR_BYTES);
    let to = |offset: u64| offset - by * SECTOR_BYTES;
    while from < end {
        let len = usize::try_from((end - from).min(COPIED as u64)).unwrap_or(COPIED);
        let (new, old) = (&mut new[..len], &mut old[..len]);
        file.read_exact_at(new, from)?;
        file.read_exact_at(old, to(from))?;
        // What is right already stays a hole.
        if new != old {
            file.write_all_at(new, to(from))?;
        }
        from += len as u64;
    }
    let logical = |sectors: u64| u32::try_from(sectors * SECTOR_BYTES / u64::from(unit)).unwrap_or(u32::MAX);
    let (was, is) = (logical(extent.start), logical(extent.start - by));
    let moved = Extent::new(extent.start - by, extent.count);
    set_hidden_sectors(file, moved, unit, Some(was), is).map(drop)
}

/// The table that `sfdisk` printed, as it is to be. `ratio`: sectors of 512 bytes in one of the disk's.
fn rewritten(dump: &str, plan: &Plan, ratio: u64) -> Result<String> {
    let by = plan.by / ratio;
    let field = sfdisk::field;
    let shrunk =
        sfdisk::partitions(dump).find(|line| plan.number.is_some() && sfdisk::number_of(line) == plan.number);
    let start_of_shrunk = shrunk.and_then(|line| field(line, "start=")).unwrap_or(u64::MAX);
    let mut table = String::new();
    for line in dump.lines() {
        if !sfdisk::is_partition(line) {
            // Where a GPT's last usable sector is depends on the size.
            if !line.starts_with("last-lba:") && !line.starts_with("device:") {
                table.push_str(line);
                table.push('\n');
            }
            continue;
        }
        let unreadable = || sfdisk::unreadable(line);
        let (Some(number), Some(start), Some(size)) =
            (sfdisk::number_of(line), field(line, "start="), field(line, "size="))
        else {
            return Err(unreadable());
        };
        let (_, rest) = line.split_once("size=").ok_or_else(unreadable)?;
        let rest = rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
        let is_extended = sfdisk::is_extended(line);
        let contains = is_extended && start <= start_of_shrunk && start_of_shrunk < start + size;
        let (start, size) = match () {
            () if Some(number) == plan.number || contains => (start, size - by),
            () if start > start_of_shrunk => (start - by, size),
            () => (start, size),
        };
        // Free space at the end of an extended partition goes with the disk's.
        let size = if is_extended {
            size.min((plan.disk_bytes / SECTOR_BYTES / ratio).saturating_sub(start))
        } else {
            size
        };
        table.push_str(&format!("{number} : start={start}, size={size}{rest}\n"));
    }
    Ok(table)
}

/// Compares the disk with the plan, and has the filesystem that shrank checked.
fn check(path: &Path, before: &DiskMap, plan: &Plan) -> Result<()> {
    let after = look(path)?;
    let other = |what: String| Err(Error::new(ErrorKind::Corrupt, format!("after it shrank, {what}")));
    if after.partitions.len() != before.partitions.len() || after.table != before.table {
        return other("the disk has other partitions".to_owned());
    }
    for old in &before.partitions {
        let extent = match () {
            () if Some(old.number) == plan.number => {
                Extent::new(old.extent.start, old.extent.count - plan.by)
            }
            () if plan.moved.contains(&old.number) => {
                Extent::new(old.extent.start - plan.by, old.extent.count)
            }
            () => old.extent,
        };
        let is_it = |new: &Partition| {
            (new.extent, &new.type_id, &new.name, &new.uuid) == (extent, &old.type_id, &old.name, &old.uuid)
        };
        if !after.partitions.iter().any(|new| new.number == old.number && is_it(new)) {
            return other(format!("{} is another than planned", place(old.number)));
        }
    }
    let Some((way, number)) = plan.way.zip(plan.number) else { return Ok(()) };
    let device = Attached::over(path, extent_of(&after, number)?, after.geometry.logical_sector_bytes)?;
    match way {
        Way::Ext => run("e2fsck", &["-f", "-n"], &[device.path()], None)?,
        Way::Btrfs => run("btrfs", &["check", "--readonly"], &[device.path()], None)?,
        Way::Ntfs => run("ntfsresize", &NTFS_INFO, &[device.path()], None)?,
    };
    device.end()
}
