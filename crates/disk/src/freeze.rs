//! Freezes filesystems while their disk is read (fsfreeze(8)).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::file::{Identity, identify, io_error};
use crate::in_use::folder_of;
use crate::mounts::{Mount, mounts};

/// Devices may lie on files that lie on devices. This is the deepest nesting that is followed.
const DEPTH_MAX: u32 = 8;

/// The frozen filesystems. They thaw when this is dropped, or earlier on request.
#[derive(Debug, Default)]
pub struct Freezer(Mutex<Frozen>);

#[derive(Debug, Default)]
struct Frozen {
    places: Vec<(File, PathBuf)>,
    /// Nothing is frozen any more, so a signal may end this process at any moment.
    is_over: bool,
}

impl Freezer {
    /// Freezes the filesystem mounted at `place`: its dirty pages are written, and processes that change it wait.
    /// `Refused` if one of the paths `needed` lies in it, directly or through a file that holds another filesystem
    /// (this process would wait for itself); if it is the system's root; if it is frozen already; or after
    /// [`Freezer::thaw`]. `Io`; `Unsupported` if the filesystem cannot be frozen.
    pub fn freeze(&self, place: &Path, needed: &[PathBuf]) -> Result<()> {
        check(place, needed)?;
        let file = File::open(place).map_err(|e| io_error("open", place, e))?;
        // A thaw waits for this lock. Otherwise a freeze that is in progress would outlast it.
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

    /// Thaws all filesystems, and refuses to freeze more. One failure does not stop it; the first error is returned.
    /// `Io`.
    pub fn thaw(&self) -> Result<()> {
        let mut frozen = self.0.lock();
        frozen.is_over = true;
        let mut outcome = Ok(());
        for (file, place) in frozen.places.drain(..) {
            match crate::ioctl::thaw(&file) {
                // Another process thawed it first.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(e) => outcome = outcome.and(Err(io_error("thaw the filesystem at", &place, e))),
            }
        }
        outcome
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // A caller that wants the error calls `thaw` itself.
        let _ = self.thaw();
    }
}

fn refused(place: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("the filesystem at `{}` {why}", place.display()))
}

fn check(place: &Path, needed: &[PathBuf]) -> Result<()> {
    let mounts = mounts()?;
    let Some(own) = mount_of(&mounts, place) else { return Err(refused(place, "is not mounted")) };
    if mount_of(&mounts, Path::new("/")).is_some_and(|root| rests_on(&mounts, root, own, 0)) {
        return Err(refused(place, "holds the system's root, without which nothing would go on"));
    }
    for path in needed {
        if mount_of(&mounts, path).is_some_and(|other| rests_on(&mounts, other, own, 0)) {
            let why = format!("holds `{}`, which could not be written while it is frozen", path.display());
            return Err(refused(place, &why));
        }
    }
    Ok(())
}

/// The mount that holds `path`; if the path does not exist yet, the mount of the folder that will hold it.
fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let absolute = std::path::absolute(path).ok()?;
    let known = absolute.ancestors().find_map(|path| fs::canonicalize(path).ok())?;
    // If several mounts cover each other at one place, the last one is visible.
    let inside = mounts.iter().filter(|mount| known.starts_with(&mount.place));
    inside.max_by_key(|mount| mount.place.components().count())
}

/// Whether `mount` blocks when `base` is frozen: it is the same filesystem, or lies in a file of it.
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
            Some((_, Ok(Identity::Device { rdev }))) => devices.push(rdev),
            Some((path, _))
                if mount_of(mounts, path).is_some_and(|m| rests_on(mounts, m, base, depth + 1)) =>
            {
                return true;
            }
            _ => {}
        }
        let below = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        let below: Vec<_> = below.filter_map(|entry| crate::mounts::device_number(&entry.path())).collect();
        if below.iter().any(|device| base.is_of(*device)) {
            return true;
        }
        devices.extend(below);
    }
    false
}
