//! Freezes mounted filesystems while their disk is captured, and thaws them afterwards (fsfreeze(8)).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::file::{Identity, identify, io_error};
use crate::in_use::folder_of;
use crate::mounts::{Mount, mounts};

/// How many filesystems stored in files of other filesystems the search follows.
const DEPTH_MAX: u32 = 8;

/// A set of frozen filesystems. They stay frozen until [`Freezer::thaw`] is called or the set is dropped.
#[derive(Debug, Default)]
pub struct Freezer(Mutex<Frozen>);

#[derive(Debug, Default)]
struct Frozen {
    places: Vec<(File, PathBuf)>,
    /// Set by the thaw: no further filesystem may be frozen, since a signal may end this process at any moment.
    is_over: bool,
}

impl Freezer {
    /// Freezes the filesystem mounted at `place`: the kernel writes its dirty data to the disk, then blocks changes.
    /// `needed` are paths that must stay writable. `Refused` if one of them, or the system's root, lies in this
    /// filesystem or in another one stored in a file of it, because the freezing process could then wait for itself; if
    /// it is frozen already; or after [`Freezer::thaw`]. `Unsupported` if it cannot be frozen. `Io`.
    pub fn freeze(&self, place: &Path, needed: &[PathBuf]) -> Result<()> {
        check(place, needed)?;
        let file = File::open(place).map_err(|e| io_error("open", place, e))?;
        // Hold the lock during the freeze, so that a thaw waits for it. Otherwise the filesystem could freeze after the
        // thaw, and stay frozen.
        let mut frozen = self.0.lock();
        if frozen.is_over {
            return Err(refused(place, "is not frozen any more"));
        }
        crate::ioctl::freeze(&file).map_err(|e| match e {
            Errno::BUSY => refused(place, "is frozen already"),
            Errno::OPNOTSUPP | Errno::NOTTY => Error::from_source(
                ErrorKind::Unsupported,
                format!("freeze the filesystem at `{}`", place.display()),
                std::io::Error::from(e),
            ),
            _ => io_error("freeze the filesystem at", place, e),
        })?;
        frozen.places.push((file, place.to_owned()));
        Ok(())
    }

    /// Thaws all filesystems; later calls of [`Freezer::freeze`] are refused. Tries each one even if another fails, and
    /// returns the first error. `Io`.
    pub fn thaw(&self) -> Result<()> {
        let mut frozen = self.0.lock();
        frozen.is_over = true;
        let mut outcome = Ok(());
        for (file, place) in frozen.places.drain(..) {
            match crate::ioctl::thaw(&file) {
                // Another process has thawed it already.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(e) => outcome = outcome.and(Err(io_error("thaw the filesystem at", &place, e))),
            }
        }
        outcome
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // A caller that wants the error calls `thaw` first.
        let _ = self.thaw();
    }
}

fn refused(place: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("the filesystem at `{}` {why}", place.display()))
}

/// Refuses a filesystem whose freeze would block this process or the whole system.
fn check(place: &Path, needed: &[PathBuf]) -> Result<()> {
    let mounts = mounts()?;
    let Some(own) = mount_of(&mounts, place) else { return Err(refused(place, "is not mounted")) };
    if mount_of(&mounts, Path::new("/")).is_some_and(|root| rests_on(&mounts, root, own, 0)) {
        return Err(refused(place, "holds the system's root: the whole system would stop"));
    }
    for path in needed {
        if mount_of(&mounts, path).is_some_and(|other| rests_on(&mounts, other, own, 0)) {
            let why = format!("holds `{}`, which could not be written while it is frozen", path.display());
            return Err(refused(place, &why));
        }
    }
    Ok(())
}

/// The mount that holds `path`. If `path` does not exist yet, the mount of its nearest existing ancestor.
fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let absolute = std::path::absolute(path).ok()?;
    let known = absolute.ancestors().find_map(|path| fs::canonicalize(path).ok())?;
    // If several filesystems are mounted at one place, the last one hides the others; `max_by_key` returns the last.
    let inside = mounts.iter().filter(|mount| known.starts_with(&mount.place));
    inside.max_by_key(|mount| mount.place.components().count())
}

/// Whether writes to `mount` block while `base` is frozen: it is the same filesystem, or is stored in a file of it.
fn rests_on(mounts: &[Mount], mount: &Mount, base: &Mount, depth: u32) -> bool {
    if mount.shares(base) {
        return true;
    }
    let mut devices: Vec<u64> = mount.devices().to_vec();
    while let Some(device) = devices.pop().filter(|_| depth < DEPTH_MAX) {
        let folder = folder_of(device);
        let backing = fs::read_to_string(folder.join("loop/backing_file"));
        let backing = backing.ok().map(|path| PathBuf::from(path.trim_end_matches('\n')));
        match backing.as_deref().map(|path| (path, identify(path))) {
            // The loop device is attached to another device, not to a file.
            Some((_, Ok(Identity::Device { rdev }))) => devices.push(rdev),
            Some((path, _))
                if mount_of(mounts, path).is_some_and(|m| rests_on(mounts, m, base, depth + 1)) =>
            {
                return true;
            }
            _ => {}
        }
        // `slaves` are the devices below a device mapper or an array.
        let below = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        let below: Vec<_> = below.filter_map(|entry| crate::mounts::device_number(&entry.path())).collect();
        if below.iter().any(|device| base.is_of(*device)) {
            return true;
        }
        devices.extend(below);
    }
    false
}
