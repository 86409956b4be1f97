//! Detects whether a source changed while it was read. It compares the size and times of a file, or the size and the
//! counters of written sectors of a block device (Linux Documentation/block/stat.rst,
//! Documentation/ABI/stable/sysfs-block).
//!
//! It cannot detect writes by another machine to a shared disk, nor writes to a device that does not count them.

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Result;
use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use rustix::fs::{Advice, OFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::file::{DIRECT_BYTES, Identity, device_geometry, io_error, read_direct};
use crate::in_use::{folder_of, loops_over};
use crate::mounts::device_number;
use crate::writers::{Writer, is_read, partitions_in, writers};
use crate::{Source, SurveyOptions};

/// Two ticks of the kernel clock that stamps files: one tick takes 10 ms or less.
const TICK_NANOSECONDS: i64 = 20_000_000;
/// Resolution of file times in seconds on FAT, the coarsest of all filesystems.
const COARSEST_SECONDS: i64 = 2;

/// The state of a source before a capture reads it, to compare with its state afterwards.
#[derive(Debug)]
pub struct Watch<'a> {
    source: &'a Source,
    options: &'a SurveyOptions,
    writers: Vec<Writer>,
    before: Look,
}

/// The state of a source at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Look {
    File { bytes: u64, modified: (i64, i64), changed: (i64, i64) },
    Device { bytes: u64, sequence: Option<u64>, written_sectors: Option<u64> },
}

impl<'a> Watch<'a> {
    /// Begins to watch the part of `source` that `options` select. `writers` are the writers that the caller knows and
    /// accepts; [`Watch::changes`] reports only others. This flushes pending writes, and drops the device's clean
    /// pages from the page cache: a mounted filesystem bypasses them when it writes, so they may be stale. `Io`.
    pub fn begin(source: &'a Source, options: &'a SurveyOptions, writers: Vec<Writer>) -> Result<Self> {
        flush(source)?;
        if matches!(source.identity(), Identity::Device { .. }) {
            // Pages that stay in the cache are in use, and therefore current.
            let _ = rustix::fs::fadvise(source.file(), 0, None, Advice::DontNeed);
        } else {
            outlive_last_change(&metadata(source)?);
        }
        let before = look(source, options)?;
        Ok(Self { source, options, writers, before })
    }

    /// Whether this watch can detect writes: always for a file, and for a device only if it counts written sectors.
    #[must_use]
    pub fn sees_writes(&self) -> bool {
        !matches!(self.before, Look::Device { written_sectors: None, .. })
    }

    /// Whether the source looks unchanged so far. This is a quick check: it does not flush, so it misses writes that
    /// have not reached the device yet. An error counts as a change.
    #[must_use]
    pub fn is_still(&self) -> bool {
        look(self.source, self.options).is_ok_and(|now| now == self.before)
    }

    /// Returns what has changed since [`Watch::begin`], as phrases that follow the source's name; empty if nothing has.
    /// Call it after the last read. `Io`.
    pub fn changes(&self) -> Result<Vec<String>> {
        flush(self.source)?;
        let mut changes = self.before.differences(&look(self.source, self.options)?);
        let now = writers(self.source, self.options)?;
        let new = now.into_iter().filter(|writer| !self.writers.contains(writer));
        changes.extend(new.map(|writer| format!("{} by now", writer.how)));
        Ok(changes)
    }
}

impl Look {
    fn differences(&self, now: &Self) -> Vec<String> {
        let mut words = Vec::new();
        let (had, has) = (self.bytes(), now.bytes());
        if had != has {
            let how = if has < had { "was cut" } else { "grew" };
            words.push(format!(
                "{how} from {} to {} ({had} and {has} bytes)",
                show_bytes(had),
                show_bytes(has)
            ));
        }
        // The order of the arms matters: the counters of two different disks cannot be compared.
        match (self, now) {
            (Self::Device { sequence: then, .. }, Self::Device { sequence: now, .. }) if then != now => {
                words.push("is another disk by now".to_owned());
            }
            (
                Self::Device { written_sectors: Some(then), .. },
                Self::Device { written_sectors: Some(now), .. },
            ) if then != now => {
                let bytes = now.saturating_sub(*then) * SECTOR_BYTES;
                words.push(format!("was written meanwhile ({})", show_bytes(bytes)));
            }
            // A changed size is reported above, and explains the changed times.
            (Self::File { .. }, Self::File { .. }) if self != now && had == has => {
                words.push("was written meanwhile".to_owned());
            }
            _ => {}
        }
        words
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::File { bytes, .. } | Self::Device { bytes, .. } => *bytes,
        }
    }
}

fn metadata(source: &Source) -> Result<Metadata> {
    source.file().metadata().map_err(|e| io_error("look at", source.path(), e))
}

fn look(source: &Source, options: &SurveyOptions) -> Result<Look> {
    match source.identity() {
        Identity::File { .. } => {
            let found = metadata(source)?;
            let modified = (found.mtime(), found.mtime_nsec());
            Ok(Look::File { bytes: found.len(), modified, changed: (found.ctime(), found.ctime_nsec()) })
        }
        Identity::Device { rdev } => {
            let bytes = device_geometry(source.file(), source.path())?.size_bytes;
            // `disk_of` needs the real path: the link by device number does not lie in the folder of the disk.
            let folder = fs::canonicalize(folder_of(rdev)).unwrap_or_default();
            let disk = disk_of(&folder);
            let written_sectors = written_sectors(&folder, &disk, options);
            let written_sectors = written_sectors.filter(|_| counts(source.path(), &disk));
            let sequence = fs::read_to_string(disk.join("diskseq")).ok();
            let sequence = sequence.and_then(|text| text.trim().parse().ok());
            Ok(Look::Device { bytes, sequence, written_sectors })
        }
    }
}

/// The sysfs folder of the whole disk, given the folder of that disk or of one of its partitions.
pub(crate) fn disk_of(folder: &Path) -> PathBuf {
    let is_part = folder.join("partition").exists();
    folder.parent().filter(|_| is_part).unwrap_or(folder).to_owned()
}

/// Sectors written to the parts of `disk` that are read. A disk's counter includes writes through its partitions, so
/// this subtracts the counters of the partitions that are not read. `None` if the disk has no counters.
fn written_sectors(folder: &Path, disk: &Path, options: &SurveyOptions) -> Option<u64> {
    let all = counter(disk)?;
    let is_read =
        |path: &Path, number| if folder == disk { is_read(options, number) } else { path == folder };
    let others = partitions_in(disk).into_iter().filter(|(path, number)| !is_read(path, *number));
    let others: u64 = others.filter_map(|(path, _)| counter(&path)).sum();
    Some(all.saturating_sub(others))
}

/// Whether `disk` counts reads and writes; `path` is the disk or one of its partitions. With `queue/iostats` off the
/// block layer does not count, but some drivers count by themselves. To find out, this reads one sector past the page
/// cache and checks whether the counter of reads has moved.
fn counts(path: &Path, disk: &Path) -> bool {
    if fs::read_to_string(disk.join("queue/iostats")).is_ok_and(|flag| flag.trim() == "0") {
        let reads = || fs::read_to_string(disk.join("stat")).ok()?.split_whitespace().next()?.parse().ok();
        let before: Option<u64> = reads();
        let direct =
            OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path);
        let read = direct.and_then(|file| read_direct(&file, &mut [0; 512], 0, DIRECT_BYTES));
        return read.is_ok() && reads() != before;
    }
    true
}

/// Sectors that a disk or partition counts as written (field 7 of `stat`) and discarded (field 14). Field 5, the count
/// of write requests, cannot be used: it includes requests that only flush.
fn counter(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number - 1).copied();
    // Kernels before 4.18 have no counters of discards.
    Some(field(7)? + field(14).unwrap_or(0))
}

/// Flushes pending writes, so that reads return them and the counters include them. A device and its partitions have
/// separate page caches: this flushes all of them. For a file it flushes the loop devices over it. The file's own pages
/// need no flush, because reads return them; a process that has them mapped for writing also has the file open for
/// writing.
fn flush(source: &Source) -> Result<()> {
    let folders = match source.identity() {
        Identity::File { .. } => loops_over(source.identity()),
        Identity::Device { rdev } => {
            match source.file().sync_all() {
                // A disk that does not support flushing has nothing to flush.
                Err(e)
                    if !matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EROFS | libc::EOPNOTSUPP)) =>
                {
                    return Err(io_error("sync", source.path(), e));
                }
                _ => partitions_in(&folder_of(rdev)).into_iter().map(|(path, _)| path).collect(),
            }
        }
    };
    for folder in folders {
        // Best effort: a process without access to this device cannot flush it.
        if let Some(name) = folder.file_name()
            && device_number(&folder).is_some()
            && let Ok(device) = File::open(Path::new("/dev").join(name))
        {
            let _ = device.sync_all();
        }
    }
    Ok(())
}

/// Waits until any later change gets a later timestamp than the last one. The clock that stamps files advances in
/// ticks, and some filesystems store whole seconds only.
fn outlive_last_change(file: &Metadata) {
    let whole_seconds = file.ctime_nsec() == 0;
    let until = if whole_seconds {
        Timespec { tv_sec: file.ctime() + COARSEST_SECONDS, tv_nsec: 0 }
    } else {
        let nanoseconds = file.ctime_nsec() + TICK_NANOSECONDS;
        let (carry, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
        Timespec { tv_sec: file.ctime() + carry, tv_nsec: rest }
    };
    let now = clock_gettime(ClockId::Realtime);
    // A time further in the future was set by another clock: waiting would not help.
    if until.tv_sec - now.tv_sec <= 2 * COARSEST_SECONDS {
        // If a signal ends the wait early, a change within the same tick may go unnoticed; nothing else breaks.
        let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Realtime, &until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_partitions_that_are_not_read_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path();
        let put = |path: &str, text: &str| {
            let path = disk.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // The disk's counters include those of its partitions.
        put("stat", "9 9 9 9 10 9 1000 9 9 9 9 2 9 64 9 9 9\n");
        for (number, writes) in [(1, 3), (2, 4)] {
            put(&format!("sda{number}/partition"), &number.to_string());
            put(&format!("sda{number}/stat"), &format!("9 9 9 9 {writes} 9 {writes}00 9 9 9 9 0 9 0 9 9 9"));
        }
        let count = |options: &SurveyOptions| written_sectors(disk, disk, options).unwrap();
        let whole = SurveyOptions::default();
        assert_eq!(count(&whole), 1064);
        let second = SurveyOptions { partition: Some(2), ..SurveyOptions::default() };
        assert_eq!(count(&second), 764);
        let skipping = SurveyOptions { skip: vec![2], ..SurveyOptions::default() };
        assert_eq!(count(&skipping), 664);
        let part = disk.join("sda1");
        assert_eq!(disk_of(&part), disk);
        assert_eq!(written_sectors(&part, disk, &whole), Some(664));
        assert_eq!(written_sectors(&disk.join("none"), &disk.join("none"), &whole), None);
    }
}
