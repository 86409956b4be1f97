//! Finds everything that may write to a source while it is read: mounted filesystems, swap space and processes, also
//! those that use it through partitions, loop devices or device mappers.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Result;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::file::Identity;
use crate::in_use::{folder_of, loops_over, node_of};
use crate::mounts::{Mount, device_number, mounts, swaps};
use crate::{Source, SurveyOptions};

/// How often a process that has a file open for writing is looked for before it counts as one that cannot be found.
const SEARCHES_MAX: u32 = 8;
/// How many devices stacked on each other the search follows.
const DEPTH_MAX: u32 = 8;

/// A mount, a swap space, a process or a device that may write to a source while it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// How the source is in use, as a phrase that follows its name: ``is mounted at `/srv` for writing``.
    pub how: String,
    /// The mount point, if the writer is a mounted filesystem; [`crate::Freezer`] can freeze it.
    pub mount: Option<PathBuf>,
    /// Whether the writer is a process that has a file open for writing; it may or may not write.
    pub is_process: bool,
}

/// Returns everything that may write to `source`, or to those of its partitions that `options` select. A filesystem
/// mounted in another mount namespace is reported only as use by the kernel. Only root can tell whether another user's
/// file is open for writing, and whether a device that the source is attached to is in use: what nobody can tell counts
/// as a use. `Io` if the lists of mounts or swap spaces cannot be read.
pub fn writers(source: &Source, options: &SurveyOptions) -> Result<Vec<Writer>> {
    let mut search = Search { mounts: mounts()?, swaps: swaps()?, found: Vec::new() };
    match source.identity() {
        Identity::File { .. } => search.file(source),
        Identity::Device { rdev } => search.disk("", (rdev, source.path()), &folder_of(rdev), options, 0),
    }
    Ok(search.found)
}

/// Who has `file` open for writing; `None` if nobody has. A child of a process that had the file open holds it, too,
/// for an instant between `fork` and `exec`. So somebody counts if the file is still open after the search for them,
/// and somebody who is never found if that is so after several searches.
fn who_writes(file: &File) -> Option<String> {
    let is_open = || crate::ioctl::is_open_for_writing(file) == Some(true);
    if !is_open() {
        return None;
    }
    for _ in 0..SEARCHES_MAX {
        let who = process_that_writes(file);
        if !is_open() {
            return None;
        }
        if who.is_some() {
            return who;
        }
    }
    Some("another process".to_owned())
}

/// The sysfs folders and numbers of the partitions of the disk that sysfs describes in `folder`.
pub(crate) fn partitions_in(folder: &Path) -> Vec<(PathBuf, u32)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let number = |path: &Path| fs::read_to_string(path.join("partition")).ok()?.trim().parse().ok();
    entries.filter_map(|path| number(&path).map(|number| (path, number))).collect()
}

/// Whether partition `number` is read under `options`.
pub(crate) fn is_read(options: &SurveyOptions, number: u32) -> bool {
    options.partition.is_none_or(|only| only == number) && !options.skip.contains(&number)
}

struct Search {
    mounts: Vec<Mount>,
    swaps: Vec<Identity>,
    found: Vec<Writer>,
}

impl Search {
    fn add(&mut self, whose: &str, how: &str, mount: Option<PathBuf>) {
        self.found.push(Writer { how: format!("{whose}{how}"), mount, is_process: false });
    }

    fn file(&mut self, source: &Source) {
        let identity = source.identity();
        if self.swaps.contains(&identity) {
            self.add("", "is used as swap space", None);
        }
        let loops = loops_over(identity);
        for folder in &loops {
            self.holder("", "is attached to", folder, 0);
        }
        // A writable loop device always has its file open for writing, but is no process.
        let by_loop = loops.iter().any(|folder| !is_read_only(folder));
        let who = if by_loop { who_stays(source.file()) } else { who_writes(source.file()) };
        if let Some(who) = who {
            let how = format!("is open for writing by {who}");
            self.found.push(Writer { how, mount: None, is_process: true });
        }
    }

    /// Adds the writers of the disk `rdev` at `node`, which sysfs describes in `folder`, and of those of its partitions
    /// that `options` select. `whose` begins their descriptions.
    fn disk(
        &mut self,
        whose: &str,
        (rdev, node): (u64, &Path),
        folder: &Path,
        options: &SurveyOptions,
        depth: u32,
    ) {
        let mut is_explained = self.device(whose, rdev, folder, depth);
        for (path, number) in partitions_in(folder) {
            let Some(part) = device_number(&path) else { continue };
            let before = self.found.len();
            let name = path.file_name().unwrap_or_default().display().to_string();
            // Partitions that are not read are searched as well: their use explains a claim on the disk.
            is_explained |=
                self.device(&format!("{whose}has partition `{name}`, which "), part, &path, depth);
            if !is_read(options, number) {
                self.found.truncate(before);
            }
        }
        if is_explained {
            return;
        }
        match is_claimed(node) {
            Ok(false) => {}
            Ok(true) => {
                self.add(whose, "is in use by the kernel, though no filesystem of it is mounted here", None);
            }
            Err(error) => {
                let how = format!("may be in use: `{}` can't be opened ({error})", node.display());
                self.add(whose, &how, None);
            }
        }
    }

    /// Adds the writers of the device `rdev`, which sysfs describes in `folder`. `whose` begins their descriptions.
    /// Returns whether it found a use that explains why the kernel has claimed the device.
    fn device(&mut self, whose: &str, rdev: u64, folder: &Path, depth: u32) -> bool {
        let mounted: Vec<_> = self.mounts.iter().filter(|mount| mount.is_of(rdev)).cloned().collect();
        let mut is_explained = !mounted.is_empty();
        let mut writable: Vec<Mount> = Vec::new();
        for mount in mounted.into_iter().filter(|mount| mount.is_writable) {
            // One mount point of a filesystem is enough.
            if !writable.iter().any(|known| known.shares(&mount)) {
                let how = format!("is mounted at `{}` for writing", mount.place.display());
                self.add(whose, &how, Some(mount.place.clone()));
                writable.push(mount);
            }
        }
        if self.swaps.contains(&Identity::Device { rdev }) {
            is_explained = true;
            self.add(whose, "is used as swap space", None);
        }
        if depth == DEPTH_MAX {
            return is_explained;
        }
        for holder in fs::read_dir(folder.join("holders")).into_iter().flatten().flatten() {
            is_explained = true;
            self.holder(whose, "is part of", &holder.path(), depth + 1);
        }
        for attached in loops_over(Identity::Device { rdev }) {
            self.holder(whose, "is attached to", &attached, depth + 1);
        }
        is_explained
    }

    /// Adds the writers that reach the device below through the device that sysfs describes in `folder`.
    fn holder(&mut self, whose: &str, how: &str, folder: &Path, depth: u32) {
        if is_read_only(folder) {
            return;
        }
        let name = folder.file_name().unwrap_or_default().display().to_string();
        let whose = format!("{whose}{how} `{name}`, which ");
        if let Some(rdev) = device_number(folder) {
            self.disk(&whose, (rdev, &node_of(folder)), folder, &SurveyOptions::default(), depth);
        }
    }
}

fn is_read_only(folder: &Path) -> bool {
    fs::read_to_string(folder.join("ro")).is_ok_and(|flag| flag.trim() == "1")
}

/// Whether the kernel or a process has opened the block device at `path` exclusively. It tries twice, because another
/// process may hold the device for a moment with a test like this one.
fn is_claimed(path: &Path) -> std::io::Result<bool> {
    let claim = || OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits().cast_signed()).open(path);
    let busy = |opened: std::io::Result<File>| match opened {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(true),
        // It went away.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    };
    Ok(busy(claim())? && busy(claim())?)
}

/// The process that has `file` open for writing, where a loop device has it open, too. It must be found twice: see
/// [`who_writes`].
fn who_stays(file: &File) -> Option<String> {
    process_that_writes(file).filter(|who| process_that_writes(file).as_ref() == Some(who))
}

/// Name and number of the first process that has `file` open for writing, among those that this process may inspect.
fn process_that_writes(file: &File) -> Option<String> {
    let own = file.metadata().ok()?;
    let is_it =
        |path: &Path| fs::metadata(path).is_ok_and(|at| (at.dev(), at.ino()) == (own.dev(), own.ino()));
    let writes = |process: &Path, number: &str| {
        let text = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
        // The flags of open(2), in octal; the lowest two bits are the access mode, and 0 means read-only.
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 != 0)
    };
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let entries = fs::read_dir("/proc").ok()?.flatten().filter(|entry| is_number(&entry.file_name()));
    for process in entries.map(|entry| entry.path()) {
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            if is_it(&entry.path()) && writes(&process, &entry.file_name().to_string_lossy()) {
                let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
                let number = process.file_name()?.display().to_string();
                return Some(format!("`{}` (process {number})", name.trim_end()));
            }
        }
    }
    None
}
