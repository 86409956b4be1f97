//! Programs of one machine that bring the same image to hosts at the same time meet, so that their hosts share one
//! transfer. Each has a file under a lock while its host is on the way; of a program that is killed the kernel takes
//! the lock.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Digest;

use crate::clock::{Clock, Stop};

/// How often it is looked whether others are still on the way.
const LOOK: Duration = Duration::from_millis(10);
/// Digits of an image's digest that name it here.
const NAME_DIGITS: usize = 32;

/// Where programs meet that bring one image to hosts.
#[derive(Debug, Clone)]
pub struct Meeting {
    folder: PathBuf,
    image: String,
    window: Duration,
}

/// A host that is on the way. Dropped when it has arrived, or never will.
#[derive(Debug)]
pub(super) struct OnTheWay {
    _lock: File,
    path: PathBuf,
}

impl Meeting {
    /// Where the programs of this user meet that bring the version whose root is `image`: in `folder`, which only this
    /// user can write. Who has arrived waits for the others for `window` at most.
    #[must_use]
    pub fn of(folder: PathBuf, image: Digest, window: Duration) -> Self {
        Self { folder, image: image.to_hex()[..NAME_DIGITS].to_owned(), window }
    }

    /// A host is on the way.
    pub(super) fn set_out(&self) -> io::Result<OnTheWay> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let draft = self.folder.join(format!("draft.{own}"));
        let path = self.folder.join(format!("{}.{own}", self.image));
        let lock = File::create(&draft)?;
        lock.lock()?;
        // Under its name only when it is locked: what is not is removed by others.
        std::fs::rename(&draft, &path)?;
        Ok(OnTheWay { _lock: lock, path })
    }

    /// Waits until nobody is on the way any more, for the window at most, or until `stop` is set.
    pub(super) fn wait(&self, stop: &Stop) {
        let clock = Clock::start();
        while clock.elapsed() < self.window && self.others_come() && stop.pause(LOOK) {}
    }

    fn others_come(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return false };
        let of_image = entries.flatten().filter(|entry| {
            entry.file_name().to_string_lossy().split('.').next().is_some_and(|image| image == self.image)
        });
        of_image.into_iter().any(|entry| is_on_the_way(&entry.path()))
    }
}

/// Whether the program of this file runs. The file of one that does not is removed.
fn is_on_the_way(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => true,
        Ok(()) => {
            let _ = std::fs::remove_file(path);
            false
        }
        Err(TryLockError::Error(_)) => false,
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn who_has_arrived_waits_for_those_on_the_way_and_for_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let meeting = |image: &[u8]| Meeting::of(folder.path().to_owned(), Digest::of(image), LONG);
        let (one, other) = (meeting(b"one"), meeting(b"other"));
        let _elsewhere = other.set_out().unwrap();
        one.wait(&Stop::new());

        let late = one.set_out().unwrap();
        assert!(one.others_come());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| one.wait(&Stop::new()));
            assert!(!waits.is_finished());
            drop(late);
        });
        assert!(!one.others_come());

        // As after SIGKILL: the file is there, and nobody holds its lock.
        let path = folder.path().join(format!("{}.1.1", one.image));
        File::create(&path).unwrap();
        one.wait(&Stop::new());
        assert!(!path.exists());
    }

    #[test]
    fn a_stop_and_the_window_end_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let meeting = Meeting::of(path.clone(), Digest::of(b"image"), LONG);
        let _hangs = meeting.set_out().unwrap();
        let stop = Stop::new();
        stop.stop();
        meeting.wait(&stop);
        Meeting::of(path, Digest::of(b"image"), Duration::ZERO).wait(&Stop::new());
    }
}
