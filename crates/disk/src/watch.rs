//! Detects whether a source changed while it was read: by the size and times of a file, or by the size and the counters
//! of written sectors of a block device (Linux Documentation/block/stat.rst, Documentation/ABI/stable/sysfs-block).
//!
//! It cannot detect writes of another machine to a shared disk, nor writes that a device makes itself without counting
//! them.

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Result;
use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use rustix::fs::{Advice, OFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::file::{Identity, device_geometry, io_error};
use crate::in_use::folder_of;
use crate::mounts::device_number;
use crate::writers::{Writer, is_read, loops_over, partitions_in, writers};
use crate::{Source, SurveyOptions, Target};

/// The kernel's clock for file times advances every 10 ms, or more often.
const TICK_NANOSECONDS: i64 = 20_000_000;
/// The coarsest file times of any filesystem (FAT), in seconds.
const COARSEST_SECONDS: i64 = 2;

/// The state of a source before it is read, to compare with later.
#[derive(Debug)]
pub struct Watch<'a> {
    source: &'a Source,
    options: &'a SurveyOptions,
    writers: Vec<Writer>,
    before: Look,
}

/// What is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Look {
    File { bytes: u64, modified: (i64, i64), changed: (i64, i64) },
    Device { bytes: u64, sequence: Option<u64>, written_sectors: Option<u64> },
}

impl<'a> Watch<'a> {
    /// Begins to watch the parts of `source` that `options` choose. `writers` are the known and accepted writers. Dirty
    /// pages are written to the disk first, and cached pages of the disk are dropped, since a mounted filesystem does
    /// not write through them. `Io`.
    pub fn begin(source: &'a Source, options: &'a SurveyOptions, writers: Vec<Writer>) -> Result<Self> {
        flush(source)?;
        if matches!(source.identity(), Identity::Device { .. }) {
            // Pages that stay in the cache are in use, and current.
            let _ = rustix::fs::fadvise(source.file(), 0, None, Advice::DontNeed);
        } else {
            outlive_last_change(&metadata(source)?);
        }
        let before = look(source, options)?;
        Ok(Self { source, options, writers, before })
    }

    /// Whether changes can be detected at all; not on a device that does not count writes.
    #[must_use]
    pub fn sees_writes(&self) -> bool {
        !matches!(self.before, Look::Device { written_sectors: None, .. })
    }

    /// Whether the source is unchanged according to a quick look, which does not wait for dirty pages of a device.
    #[must_use]
    pub fn is_still(&self) -> bool {
        look(self.source, self.options).is_ok_and(|now| now == self.before)
    }

    /// Describes how the source has changed, as words that follow its name; empty if it has not. Call it after the last
    /// read. `Io`.
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

/// The folder of the disk that `folder` describes, or describes a partition of.
pub(crate) fn disk_of(folder: &Path) -> PathBuf {
    let is_part = folder.join("partition").exists();
    folder.parent().filter(|_| is_part).unwrap_or(folder).to_owned()
}

/// Sectors written to the parts of `disk` that are read: to the whole disk, minus the partitions that are not read. A
/// disk also counts writes through its partitions. `None` if it has no counters.
fn written_sectors(folder: &Path, disk: &Path, options: &SurveyOptions) -> Option<u64> {
    let all = counter(disk)?;
    let is_read =
        |path: &Path, number| if folder == disk { is_read(options, number) } else { path == folder };
    let others = partitions_in(disk).into_iter().filter(|(path, number)| !is_read(path, *number));
    let others: u64 = others.filter_map(|(path, _)| counter(&path)).sum();
    Some(all.saturating_sub(others))
}

/// Whether `disk`, which contains `path` or is it, counts reads and writes. Even if the kernel was told not to count
/// (`iostats`), a driver may do so: then a read past the page cache is counted.
fn counts(path: &Path, disk: &Path) -> bool {
    if fs::read_to_string(disk.join("queue/iostats")).is_ok_and(|flag| flag.trim() == "0") {
        let reads = || fs::read_to_string(disk.join("stat")).ok()?.split_whitespace().next()?.parse().ok();
        let before: Option<u64> = reads();
        let direct =
            OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path);
        let read = direct.and_then(|file| Target::read_direct(&file, &mut [0; 512], 0));
        return read.is_ok() && reads() != before;
    }
    true
}

/// The sectors that a disk or partition counts as written (field 7) and discarded (14). The number of requests (5) is
/// unsuitable, because it includes flushes.
fn counter(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number - 1).copied();
    Some(field(7)? + field(14).unwrap_or(0))
}

/// Writes dirty pages to where reads find them and counters see them: those of a device and of its partitions, which
/// have separate pages, and of the loop devices over a file. A file's own pages need no flush: reads use them, and a
/// process that maps them for writing has the file open for writing.
fn flush(source: &Source) -> Result<()> {
    let folders = match source.identity() {
        Identity::File { .. } => loops_over(source.identity()),
        Identity::Device { rdev } => {
            match source.file().sync_all() {
                // A disk without a flush command has nothing to flush.
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
        // If this process may not open it, it could not have read it through the other path either.
        if let Some(name) = folder.file_name()
            && device_number(&folder).is_some()
            && let Ok(device) = File::open(Path::new("/dev").join(name))
        {
            let _ = device.sync_all();
        }
    }
    Ok(())
}

/// Waits until a new change would get a later time than the last one: the clock of file times advances in ticks, and
/// some filesystems keep only whole seconds.
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
    // Times far in the future come from another clock; waiting cannot reach them.
    if until.tv_sec - now.tv_sec <= 2 * COARSEST_SECONDS {
        // An interruption only costs the certainty of one tick.
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
        // Counters of the disk include those of its partitions.
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
